// @ts-check
/**
 * The base map that needs no other server: land, borders and a graticule, drawn into tiles
 * from one embedded file (its format: src/web/vendor/land.mjs). Tiles of a server that the
 * operator configured lie above it, so a missing one leaves a map all the same.
 * @module
 */
import { worldX, worldY } from "./geo.js";
import { colours } from "./sprites.js";

const L = /** @type {typeof import("leaflet")} */ (/** @type {any} */ (globalThis).L);

/**
 * Points in turns x, y on the square world, and what they lie within.
 * @typedef {{points: Float64Array, minX: number, minY: number, maxX: number, maxY: number}} Line
 * @typedef {{rings: Line[], borders: Line[]}} World
 */

/** @param {ArrayBuffer} buffer */
function read(buffer) {
  const head = new DataView(buffer, 0, 32);
  const [scaleX, scaleY, offsetX, offsetY] = /** @type {[number, number, number, number]} */ (
    [0, 8, 16, 24].map((at) => head.getFloat64(at, true))
  );
  const bytes = new Uint8Array(buffer, 32);
  let at = 0;
  const unsigned = () => {
    let value = 0;
    let factor = 1;
    for (;;) {
      const byte = bytes[at++] ?? 0;
      value += (byte & 127) * factor;
      if (byte < 128) return value;
      factor *= 128;
    }
  };
  const signed = () => {
    const value = unsigned();
    return value % 2 ? -(value + 1) / 2 : value / 2;
  };
  const lines = () =>
    Array.from({ length: unsigned() }, () => {
      const points = new Float64Array(unsigned() * 2);
      let x = 0;
      let y = 0;
      for (let i = 0; i < points.length; i += 2) {
        x += signed();
        y += signed();
        points[i] = worldX(x * scaleX + offsetX);
        points[i + 1] = worldY(y * scaleY + offsetY);
      }
      return bounded(points);
    });
  const rings = lines();
  // Who goes over the date line is there once more at the other side of the map.
  const over = rings.filter(({ minX, maxX }) => minX < 0 || maxX > 1);
  for (const { points, minX } of over) {
    const shift = minX < 0 ? 1 : -1;
    rings.push(bounded(points.map((value, i) => (i % 2 === 0 ? value + shift : value))));
  }
  return { rings, borders: lines() };
}

/**
 * @param {Float64Array} points
 * @returns {Line}
 */
function bounded(points) {
  let [minX, minY, maxX, maxY] = [Infinity, Infinity, -Infinity, -Infinity];
  for (let i = 0; i < points.length; i += 2) {
    const x = /** @type {number} */ (points[i]);
    const y = /** @type {number} */ (points[i + 1]);
    minX = Math.min(minX, x);
    maxX = Math.max(maxX, x);
    minY = Math.min(minY, y);
    maxY = Math.max(maxY, y);
  }
  return { points, minX, minY, maxX, maxY };
}

/**
 * The lines with only the points that are at least `grain` apart.
 * @param {Line[]} lines
 * @param {number} grain
 * @param {number} least  points below which a line is left out
 */
function coarser(lines, grain, least) {
  const kept = [];
  for (const line of lines) {
    if (line.maxX - line.minX < grain && line.maxY - line.minY < grain) continue;
    const { points } = line;
    const out = [];
    let [px, py] = [Infinity, Infinity];
    for (let i = 0; i < points.length; i += 2) {
      const x = /** @type {number} */ (points[i]);
      const y = /** @type {number} */ (points[i + 1]);
      if (Math.abs(x - px) < grain && Math.abs(y - py) < grain && i < points.length - 2) continue;
      out.push(x, y);
      [px, py] = [x, y];
    }
    if (out.length >= least * 2) kept.push(bounded(Float64Array.from(out)));
  }
  return kept;
}

/** Levels of detail: for zooms up to this. */
const LEVELS = [3, 6, Infinity];

/** Degrees between two lines of the graticule at each zoom. */
const GRID = [30, 30, 30, 20, 10, 5, 5, 2, 1, 0.5, 0.2, 0.1, 0.1, 0.05, 0.02, 0.01, 0.01, 0.005, 0.002];

class Land extends L.GridLayer {
  /** @param {World} world */
  constructor(world) {
    super({ className: "land", keepBuffer: 3, updateWhenZooming: false, maxZoom: 19 });
    this.levels = LEVELS.map((zoom) => {
      if (zoom === Infinity) return world;
      const grain = 0.7 / (256 * 2 ** zoom);
      return { rings: coarser(world.rings, grain, 4), borders: coarser(world.borders, grain, 2) };
    });
    this.colours = colours();
  }

  /** @param {import("leaflet").Coords} coords */
  createTile(coords) {
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    const tile = document.createElement("canvas");
    tile.width = tile.height = 256 * ratio;
    const pen = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d", { alpha: false }));
    pen.scale(ratio, ratio);
    this.#paint(pen, coords);
    return tile;
  }

  /**
   * @param {CanvasRenderingContext2D} pen
   * @param {import("leaflet").Coords} coords
   */
  #paint(pen, { x, y, z }) {
    const { water, land, coast, border } = this.colours;
    const level = this.levels[LEVELS.findIndex((zoom) => z <= zoom)];
    pen.fillStyle = water;
    pen.fillRect(0, 0, 256, 256);
    if (!level) return;
    const size = 2 ** z;
    const edge = 4 / (256 * size);
    const within = {
      minX: x / size - edge,
      minY: y / size - edge,
      maxX: (x + 1) / size + edge,
      maxY: (y + 1) / size + edge,
    };
    const hit = (/** @type {Line} */ line) =>
      line.minX <= within.maxX && line.maxX >= within.minX && line.minY <= within.maxY && line.maxY >= within.minY;
    const to = { scale: 256 * size, x: 256 * x, y: 256 * y };
    pen.beginPath();
    for (const ring of level.rings) if (hit(ring)) trace(pen, ring.points, within, to, true);
    pen.fillStyle = land;
    pen.fill("evenodd");
    pen.lineWidth = 1;
    pen.strokeStyle = coast;
    pen.stroke();
    pen.beginPath();
    for (const line of level.borders) if (hit(line)) trace(pen, line.points, within, to, false);
    pen.strokeStyle = border;
    pen.setLineDash([4, 3]);
    pen.stroke();
    pen.setLineDash([]);
    this.#graticule(pen, { x, y, z });
  }

  /**
   * @param {CanvasRenderingContext2D} pen
   * @param {{x: number, y: number, z: number}} tile
   */
  #graticule(pen, { x, y, z }) {
    const step = GRID[Math.min(z, GRID.length - 1)] ?? 30;
    const size = 2 ** z;
    const west = (x / size) * 360 - 180;
    pen.beginPath();
    for (let lon = Math.ceil(west / step) * step; lon < west + 360 / size; lon += step) {
      const at = Math.round((worldX(lon) * size - x) * 256) + 0.5;
      pen.moveTo(at, 0);
      pen.lineTo(at, 256);
    }
    const latitude = (/** @type {number} */ row) => (Math.atan(Math.sinh(Math.PI * (1 - (2 * row) / size))) * 180) / Math.PI;
    const north = latitude(y);
    for (let lat = Math.ceil(latitude(y + 1) / step) * step; lat < north; lat += step) {
      const at = Math.round((worldY(lat) * size - y) * 256) + 0.5;
      pen.moveTo(0, at);
      pen.lineTo(256, at);
    }
    pen.lineWidth = 1;
    pen.strokeStyle = this.colours.grid;
    pen.stroke();
    const digits = Math.max(0, Math.ceil(-Math.log10(step)));
    pen.fillStyle = this.colours.degrees;
    pen.font = "13px system-ui, sans-serif";
    // In every fourth tile there are the degrees.
    if (x % 4 === 0) {
      for (let lat = Math.ceil(latitude(y + 1) / step) * step; lat < north; lat += step) {
        const at = (worldY(lat) * size - y) * 256;
        if (at > 12) pen.fillText(`${Math.abs(lat).toFixed(digits)}°${lat < 0 ? " S" : lat > 0 ? " N" : ""}`, 4, at - 3);
      }
    }
    if (y % 4 === 0) {
      for (let lon = Math.ceil(west / step) * step; lon < west + 360 / size; lon += step) {
        const at = (worldX(lon) * size - x) * 256;
        if (at < 210) pen.fillText(`${Math.abs(lon).toFixed(digits)}°${lon <= -180 || lon === 0 ? "" : lon < 0 ? " W" : " E"}`, at + 3, 12);
      }
    }
  }

  /** Other colours. */
  restyle() {
    this.colours = colours();
    this.redraw();
  }
}

/**
 * Adds a line to the path. Of points that are all on the same outer side only the first
 * and the last are taken: what is inside is the same without the others.
 * @param {CanvasRenderingContext2D} pen
 * @param {Float64Array} points
 * @param {{minX: number, minY: number, maxX: number, maxY: number}} within
 * @param {{scale: number, x: number, y: number}} to
 * @param {boolean} close
 */
function trace(pen, points, within, to, close) {
  let side = 0;
  let skipped = -1;
  for (let i = 0; i < points.length; i += 2) {
    const x = /** @type {number} */ (points[i]);
    const y = /** @type {number} */ (points[i + 1]);
    const now = x < within.minX ? 1 : x > within.maxX ? 2 : y < within.minY ? 4 : y > within.maxY ? 8 : 0;
    if (i > 0 && now !== 0 && now === side) {
      skipped = i;
      continue;
    }
    if (skipped >= 0) {
      pen.lineTo(
        /** @type {number} */ (points[skipped]) * to.scale - to.x,
        /** @type {number} */ (points[skipped + 1]) * to.scale - to.y,
      );
      skipped = -1;
    }
    side = now;
    if (i === 0) pen.moveTo(x * to.scale - to.x, y * to.scale - to.y);
    else pen.lineTo(x * to.scale - to.x, y * to.scale - to.y);
  }
  if (skipped >= 0) {
    pen.lineTo(
      /** @type {number} */ (points[skipped]) * to.scale - to.x,
      /** @type {number} */ (points[skipped + 1]) * to.scale - to.y,
    );
  }
  if (close) pen.closePath();
}

/**
 * Puts the base map on the map.
 * @param {import("leaflet").Map} map
 * @param {{tiles: string | null, attribution: string}} settings
 * @returns {Promise<{restyle: () => void}>}
 */
export async function addBase(map, settings) {
  if (settings.tiles) {
    L.tileLayer(settings.tiles, {
      maxZoom: 19,
      zIndex: 2,
      // Tile servers want to know the page; the rest of the page tells nobody.
      referrerPolicy: "strict-origin-when-cross-origin",
    }).addTo(map);
  }
  const answer = await fetch(new URL("land.bin", import.meta.url));
  if (!answer.ok) throw new Error(`the base map: ${answer.status}`);
  const land = new Land(read(await answer.arrayBuffer()));
  land.addTo(map);
  return { restyle: () => land.restyle() };
}
