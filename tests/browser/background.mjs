// A tab in the background: a Chromium of its own, spoken to without a library, because the
// library makes every page believe that it is looked at.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { executable, flags } from "./chromium.mjs";
import { Demo, leftBehind, sleep, until } from "./processes.mjs";
import { source } from "./sampler.mjs";
import { test } from "./tests.mjs";

/** Chromium's own protocol over a pipe: messages of JSON, each ended by a zero byte. */
class Chromium {
  static start() {
    const chromium = new Chromium();
    chromium.profile = mkdtempSync(join(tmpdir(), "milepost-chromium-"));
    chromium.child = spawn(
      executable,
      [...flags, "--headless=new", "--remote-debugging-pipe", "--no-first-run", `--user-data-dir=${chromium.profile}`, "about:blank"],
      { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] },
    );
    chromium.ended = new Promise((resolve) => chromium.child.once("exit", resolve));
    chromium.end = () => chromium.child.kill("SIGKILL");
    leftBehind.add(chromium.end);
    let rest = "";
    chromium.child.stdio[4].on("data", (data) => {
      const messages = (rest + data).split("\0");
      rest = messages.pop();
      for (const text of messages) {
        const { id, result, error } = JSON.parse(text);
        if (id === undefined) continue;
        const { resolve, reject } = chromium.waiting.get(id);
        chromium.waiting.delete(id);
        if (error) reject(new Error(error.message));
        else resolve(result);
      }
    });
    return chromium;
  }

  waiting = new Map();
  nextId = 1;

  send(method, params = {}, sessionId = undefined) {
    const id = this.nextId++;
    this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }

  async open(url) {
    const { targetId } = await this.send("Target.createTarget", { url });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    return {
      show: () => this.send("Target.activateTarget", { targetId }),
      evaluate: async (expression) => {
        const options = { expression, returnByValue: true, awaitPromise: true };
        const { result, exceptionDetails } = await this.send("Runtime.evaluate", options, sessionId);
        if (exceptionDetails) throw new Error(JSON.stringify(exceptionDetails));
        return result.value;
      },
    };
  }

  async close() {
    leftBehind.delete(this.end);
    this.child.kill("SIGTERM");
    await this.ended;
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 10 });
  }
}

const seconds = Number(process.env.MILEPOST_BROWSER_BACKGROUND ?? 6);

test(
  "a tab that was in the background during a deploy is up to date when it is looked at",
  async (t) => {
    const demo = await Demo.start();
    const chromium = Chromium.start();
    const tab = await chromium.open(`${demo.base}/`);
    const read = (what) => tab.evaluate(`globalThis.milepost?.${what}`);
    await until("the fleet is there", async () => (await read("vehicles.length")) === 30);
    const other = await chromium.open("about:blank");
    await other.show();
    await until("the tab is hidden", () => tab.evaluate("document.hidden"));
    const drawn = await read("drawing");
    const before = await read("counters");
    await demo.deploy();
    await until("the deploy is done", async () => (await demo.state()).deploys === 1);
    await sleep(seconds * 1000);
    // It has gone on listening, and drawn nothing.
    const counters = await read("counters");
    assert.ok(counters.positions - before.positions > 15 * seconds, JSON.stringify({ before, counters }));
    assert.equal((await read("drawing")).draws, drawn.draws);
    assert.deepEqual({ resumes: counters.resumes, missed: counters.missed, resets: counters.resets }, { resumes: 1, missed: 0, resets: 0 });

    await tab.show();
    await until("it is looked at again", async () => !(await tab.evaluate("document.hidden")));
    await tab.evaluate(source);
    // At once everybody is where their newest fix says, not where they were left.
    const late = await tab.evaluate(`(() => {
      const newest = new Map(milepost.vehicles.map((one) => [one.vehicleId, one]));
      return milepost.drawn.filter(({ vehicleId, latitude, longitude }) => {
        const fix = newest.get(vehicleId);
        const north = (fix.latitude - latitude) * 111320;
        const east = (fix.longitude - longitude) * 111320 * Math.cos(latitude * Math.PI / 180);
        return Math.hypot(north, east) > 60;
      }).length;
    })()`);
    assert.equal(late, 0);
    await until("it draws", async () => (await read("drawing")).draws > drawn.draws + 3);
    const again = await read("counters.positions");
    await until("and moves", async () => (await read("counters.positions")) > again + 60);
    const seen = await tab.evaluate("milepostSample()");
    assert.deepEqual([seen.backwards, seen.olderFix], [[], []], JSON.stringify(seen));
    const after = await read("counters");
    assert.deepEqual({ missed: after.missed, gaps: after.gaps, resets: after.resets }, { missed: 0, gaps: 0, resets: 0 });
    t.diagnostic(`${seconds} s in the background: ${counters.positions - before.positions} positions taken, 0 missed`);
    await chromium.close();
    await demo.stop();
  },
  90_000 + seconds * 1000,
);
