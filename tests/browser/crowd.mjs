// Many vehicles, and a page that stays open: what they cost.

import assert from "node:assert/strict";
import { MapPage } from "./chromium.mjs";
import { Server, Simulation, sleep, until } from "./processes.mjs";
import { test } from "./tests.mjs";

/**
 * In full: MILEPOST_BROWSER_VEHICLES=5000 MILEPOST_BROWSER_MINUTES=10. The short form runs
 * always, also on a busy machine, where a frame rate would prove nothing.
 */
const vehicles = Number(process.env.MILEPOST_BROWSER_VEHICLES ?? 400);
const minutes = Number(process.env.MILEPOST_BROWSER_MINUTES ?? 0.25);
/** Bytes that the heap may grow by, between the first third and the last. */
const GROWTH = 4_000_000;

const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];

test(
  `${vehicles} vehicles at 1 Hz for ${Math.round(minutes * 60)} s: nothing is missed unannounced, the memory stays flat`,
  async (t) => {
    const server = await Server.start("room_log.retention_bytes=64MiB", "limits.message_rate=0");
    // One connection for all of them: the page is measured, not the server.
    const fleet = new Simulation(server.base, "--room", "demo", "--vehicles", String(vehicles), "--rate", "1", "--gateway");
    const map = await MapPage.open(server.base);
    await map.vehicles(vehicles);
    const cdp = await map.context.newCDPSession(map.page);
    await cdp.send("Performance.enable");
    const metrics = async () => {
      const { metrics } = await cdp.send("Performance.getMetrics");
      return Object.fromEntries(metrics.map(({ name, value }) => [name, value]));
    };
    const heap = async () => {
      await cdp.send("HeapProfiler.collectGarbage");
      return (await cdp.send("Runtime.getHeapUsage")).usedSize;
    };
    // Trails fill up first: 64 points of each vehicle, or half of the time.
    await sleep(Math.min(90_000, minutes * 30_000));
    const from = { ...(await metrics()), drawing: await map.read("drawing"), counters: await map.read("counters"), at: performance.now() };
    const frames = map.page.evaluate((ms) => new Promise((resolve) => {
      const began = performance.now();
      const gaps = [];
      let before = began;
      const frame = (now) => {
        gaps.push(now - before);
        before = now;
        if (now - began < ms) requestAnimationFrame(frame);
        else resolve(gaps.slice(1).sort((a, b) => a - b));
      };
      requestAnimationFrame(frame);
    }), minutes * 20_000);
    const gaps = await frames;
    const to = { ...(await metrics()), drawing: await map.read("drawing"), counters: await map.read("counters"), at: performance.now() };
    const heaps = [];
    const samples = Math.max(6, Math.round(minutes * 6));
    for (let i = 0; i < samples; i++) {
      heaps.push(await heap());
      await sleep((minutes * 30_000) / samples);
    }
    const counters = await map.read("counters");
    // Where the machine cannot follow, the server may send the newest only, but says so.
    assert.deepEqual({ unannounced: counters.missed - counters.dropped, resets: counters.resets }, { unannounced: 0, resets: 0 }, JSON.stringify(counters));
    const third = Math.floor(heaps.length / 3);
    const growth = median(heaps.slice(-third)) - median(heaps.slice(0, third));
    assert.ok(growth < GROWTH, `the heap grew by ${growth} bytes: ${heaps}`);
    const seconds = (to.at - from.at) / 1000;
    const share = (name) => `${(((to[name] - from[name]) / seconds) * 100).toFixed(1)} %`;
    t.diagnostic(`${((to.counters.positions - from.counters.positions) / seconds).toFixed(0)} positions a second, dropped ${counters.dropped}`);
    t.diagnostic(`frames: ${(gaps.length / (minutes * 20)).toFixed(1)} a second, gap p50 ${median(gaps).toFixed(1)} ms, p99 ${gaps[Math.floor(gaps.length * 0.99)].toFixed(1)} ms, max ${gaps.at(-1).toFixed(1)} ms`);
    t.diagnostic(`main thread: ${share("TaskDuration")} busy, of it scripts ${share("ScriptDuration")}, layout ${share("LayoutDuration")}, style ${share("RecalcStyleDuration")}`);
    t.diagnostic(`drawings: ${((to.drawing.draws - from.drawing.draws) / seconds).toFixed(1)} a second, ${to.drawing.drawMs.toFixed(1)} ms each, ${to.drawing.inView} vehicles in view`);
    t.diagnostic(`heap after collection: ${heaps.map((bytes) => (bytes / 1e6).toFixed(1)).join(", ")} MB`);
    await until("the list is there", async () => (await map.text("#vehicles-count")) === `${vehicles.toLocaleString("en")} vehicles`);
    await map.close();
    await fleet.stop();
    await server.stop();
  },
  180_000 + minutes * 120_000,
);
