// The fleet goes on moving before the eyes of whoever looks, whatever happens to the server
// and to the network: nothing jumps, nothing goes back, nothing stands still for longer
// than the page says, and nothing is missed.

import assert from "node:assert/strict";
import { MapPage } from "./chromium.mjs";
import { Demo, Network, sleep, until } from "./processes.mjs";
import { Sampler, reportedGap } from "./sampler.mjs";
import { test } from "./tests.mjs";

/** The fastest that a synthetic vehicle drives, in metres a second. */
const TOP_SPEED = 16;
/**
 * On a busy machine frames and fixes come late: what a freeze may last beyond the gap, and
 * a vehicle's own second between two fixes with it. Milliseconds.
 */
const SLACK = 2500;

/** Somebody looks at the demo while `happens`; then what was seen is judged. */
async function watched(happens, { through = "front", moves = 1, mayReset = false } = {}) {
  const demo = await Demo.start();
  const network = through === "network" ? await Network.to(demo.base) : null;
  const map = await MapPage.open(network?.base ?? demo.base, { offline: true });
  await map.vehicles(30);
  const sampler = await Sampler.start(map);
  await until("vehicles move", async () => (await sampler.read()).fastest > 1);
  const instance = await map.value("instance");
  await happens({ demo, map, network });
  await until("the page has moved", async () => (await map.read("counters")).resumes >= moves);
  const gap = await until("the banner tells the gap", async () => {
    const gap = reportedGap((await sampler.read()).banners);
    return Number.isNaN(gap) ? 0 : gap + Number.EPSILON;
  });
  const positions = (await map.read("counters")).positions;
  await until("positions come again", async () => (await map.read("counters")).positions > positions + 60);
  const seen = await sampler.read();
  const counters = await map.read("counters");
  const report = JSON.stringify({ gap, ...seen, counters });
  assert.deepEqual(seen.backwards, [], report);
  assert.deepEqual(seen.olderFix, [], report);
  // Whoever has to catch up takes a moment for it: fast, but no jump.
  const stood = Math.max(seen.frozenMs, seen.undrawnMs);
  const fastest = (TOP_SPEED * (stood / 1000 + 1)) / 0.35;
  assert.ok(seen.fastest < fastest, `a jump of ${seen.fastestOf}: ${report}`);
  // On a busy machine a frame may take long, and the next fix be late.
  const most = gap + SLACK + seen.longestFrameMs;
  assert.ok(seen.frozenMs < most, `${seen.frozenOf} stood still: ${report}`);
  assert.ok(seen.undrawnMs < most, `nothing was drawn: ${report}`);
  assert.equal(counters.missed, 0, report);
  assert.equal(counters.gaps, 0, report);
  assert.equal(counters.resets, 0, report);
  // What people read says the same.
  await map.page.locator("#connection summary").click();
  await until("the panel says so", async () => (await map.value("resumes")) === String(counters.resumes));
  assert.equal(await map.value("missed"), "0");
  assert.equal(await map.text("#connection-badge"), "Live");
  await map.close();
  network?.close();
  await demo.stop();
  return { instance, seen, gap, counters };
}

test("deploy now: a second instance takes over, and nothing happens", async (t) => {
  const { seen, gap } = await watched(async ({ demo, map }) => {
    await map.page.locator("#deploy-button").click();
    await until("the deploy is done", async () => (await demo.state()).deploys === 1);
    await until("the page knows", async () => (await map.text("#deploy-text")) === "1 deploy so far");
    assert.equal(await map.page.locator("#deploy-button").isEnabled(), true);
  });
  assert.match(seen.banners[0], /^Instance \S+ is shutting down/);
  assert.match(seen.banners.at(-1), /^Moved from instance \S+ to \S+: 0 positions missed/);
  t.diagnostic(`reported gap ${Math.round(gap)} ms, longest freeze ${Math.round(seen.frozenMs)} ms, longest frame ${Math.round(seen.longestFrameMs)} ms`);
});

test("the only instance is restarted with SIGTERM", async (t) => {
  const { seen, gap } = await watched(async ({ demo }) => {
    process.kill(demo.serverPid(), "SIGTERM");
    await until("another process serves", async () => (await demo.state()).restarts === 1);
  });
  assert.match(seen.banners[0], /^Instance \S+ is shutting down/);
  t.diagnostic(`reported gap ${Math.round(gap)} ms, longest freeze ${Math.round(seen.frozenMs)} ms`);
});

test("the only instance is killed with SIGKILL", async (t) => {
  const { seen, gap } = await watched(async ({ demo }) => {
    process.kill(demo.serverPid(), "SIGKILL");
    await until("another process serves", async () => (await demo.state()).restarts === 1);
  });
  assert.ok(!seen.banners.some((text) => text.includes("is shutting down")), "it could not say so");
  t.diagnostic(`reported gap ${Math.round(gap)} ms, longest freeze ${Math.round(seen.frozenMs)} ms`);
});

test("the network is cut", async (t) => {
  const seconds = Number(process.env.MILEPOST_BROWSER_CUT ?? 3);
  const { seen, gap } = await watched(
    async ({ map, network }) => {
      network.cut();
      await until("the page says so", async () => (await map.text("#connection-badge")) !== "Live");
      assert.match(await map.text("#banner-text"), /^Connection lost/);
      await sleep(seconds * 1000);
      network.mend();
    },
    { through: "network" },
  );
  assert.ok(gap >= seconds * 1000, `${gap}`);
  assert.match(seen.banners.at(-1), /^Reconnected to instance \S+: 0 positions missed, \d+ replayed/);
  t.diagnostic(`cut for ${seconds} s, reported gap ${Math.round(gap)} ms, longest freeze ${Math.round(seen.frozenMs)} ms`);
});

test("the network goes dead without telling anybody", async (t) => {
  // Long enough for the page to notice by itself; in full it also gives the socket up.
  const seconds = Number(process.env.MILEPOST_BROWSER_DEAD ?? 4);
  const demo = await Demo.start();
  const network = await Network.to(demo.base);
  const map = await MapPage.open(network.base, { offline: true });
  await map.vehicles(30);
  const sampler = await Sampler.start(map);
  network.hold();
  await sleep(seconds * 1000);
  network.mend();
  await until("it is live again", async () => {
    const [state, counters] = [await map.read("state"), await map.read("counters")];
    return state.status === "open" && !state.stale && counters.positions > 100;
  });
  const seen = await sampler.read();
  assert.deepEqual([seen.backwards, seen.olderFix], [[], []]);
  const { missed, gaps, resets } = await map.read("counters");
  assert.deepEqual({ missed, gaps, resets }, { missed: 0, gaps: 0, resets: 0 });
  t.diagnostic(`dead for ${seconds} s, longest freeze ${Math.round(seen.frozenMs)} ms`);
  await map.close();
  network.close();
  await demo.stop();
});

test("the banner comes and goes", async () => {
  const demo = await Demo.start();
  const map = await MapPage.open(demo.base);
  await map.vehicles(30);
  const banner = map.page.locator("#banner");
  assert.equal(await banner.isVisible(), false);
  await demo.deploy();
  await banner.waitFor({ state: "visible" });
  await until("it tells of the move", async () => (await map.text("#banner-text")).startsWith("Moved"));
  await banner.waitFor({ state: "hidden" });
  // And whoever has read it may send it away.
  await demo.deploy();
  await until("it tells of the move", async () => (await map.text("#banner-text")).startsWith("Moved"));
  await map.page.locator("#banner-close").click();
  assert.equal(await banner.isVisible(), false);
  await map.close();
  await demo.stop();
});
