// Looks at where every vehicle is drawn, frame by frame, as somebody at the screen would.

/**
 * Runs in the page. For every frame: how far each vehicle went since the frame before, and
 * for how long one that drives has stood still.
 */
function sample() {
  const metres = (a, b) => {
    const north = (b.latitude - a.latitude) * 111_320;
    const east = (b.longitude - a.longitude) * 111_320 * Math.cos((a.latitude * Math.PI) / 180);
    return { north, east, length: Math.hypot(north, east) };
  };
  const seen = new Map();
  const found = { frames: 0, longestFrameMs: 0, undrawnMs: 0, fastest: 0, fastestOf: "", frozenMs: 0, frozenOf: "", backwards: [], olderFix: [], banners: [], until: 0 };
  const banner = document.getElementById("banner-text");
  new MutationObserver(() => {
    const text = banner.textContent;
    if (text && found.banners.at(-1) !== text) found.banners.push(text);
  }).observe(banner, { childList: true, subtree: true, characterData: true });
  let before = performance.now();
  let drawings = 0;
  let drawnAt = before;
  const frame = () => {
    const now = performance.now();
    const ms = now - before;
    before = now;
    found.frames += 1;
    found.longestFrameMs = Math.max(found.longestFrameMs, ms);
    // What moves must also be drawn.
    if (globalThis.milepost.drawing.draws !== drawings) drawnAt = now;
    drawings = globalThis.milepost.drawing.draws;
    found.undrawnMs = Math.max(found.undrawnMs, now - drawnAt);
    const speeds = new Map(globalThis.milepost.vehicles.map(({ vehicleId, speed }) => [vehicleId, speed]));
    for (const vehicle of globalThis.milepost.drawn) {
      const last = seen.get(vehicle.vehicleId);
      if (!last) {
        seen.set(vehicle.vehicleId, { at: vehicle, anchor: vehicle, way: null, movedAt: now });
        continue;
      }
      const went = metres(last.at, vehicle);
      // A display shows sixty frames a second.
      const speed = went.length / (Math.max(ms, 16) / 1000);
      if (speed > found.fastest) Object.assign(found, { fastest: speed, fastestOf: vehicle.vehicleId });
      // Which way, over half a metre: less is no direction.
      const way = metres(last.anchor, vehicle);
      if (way.length > 0.5) {
        if (last.way && way.north * last.way.north + way.east * last.way.east < 0) {
          found.backwards.push(`${vehicle.vehicleId}: ${way.length.toFixed(1)} m`);
        }
        last.way = way;
        last.anchor = vehicle;
      }
      if (vehicle.fixAt < last.at.fixAt) found.olderFix.push(vehicle.vehicleId);
      last.at = vehicle;
      // One that stands has nothing to show.
      if (went.length > 0.001 || !(speeds.get(vehicle.vehicleId) > 3)) last.movedAt = now;
      const frozen = now - last.movedAt;
      if (frozen > found.frozenMs) Object.assign(found, { frozenMs: frozen, frozenOf: vehicle.vehicleId });
    }
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  globalThis.milepostSample = () => ({ ...found, banners: [...found.banners] });
}

/** The source, for a page that is driven without a library. */
export const source = `(${sample})()`;

export class Sampler {
  static async start(map) {
    await map.page.evaluate(sample);
    const sampler = new Sampler();
    sampler.map = map;
    return sampler;
  }

  read() {
    return this.map.page.evaluate(() => globalThis.milepostSample());
  }
}

/** The gap that the page has reported, in milliseconds, of the last move it tells of. */
export function reportedGap(banners) {
  const text = banners.findLast((text) => text.includes("view gap")) ?? "";
  const match = /view gap ([\d.]+) (ms|s)/.exec(text);
  return match ? Number(match[1]) * (match[2] === "s" ? 1000 : 1) : NaN;
}
