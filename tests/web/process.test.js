/** The client in other homes: a worker, a process that has to end by itself, a TypeScript user. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import path from "node:path";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";

import { connect, PATIENCE, position, Proxy, Server, until } from "./harness.js";

const run = promisify(execFile);
const here = path.dirname(fileURLToPath(import.meta.url));

describe("elsewhere", { concurrency: 4 }, async () => {
  const server = await Server.start();

  it("works in a worker, which ends by itself after close", async () => {
    const proxy = await Proxy.start(server.port);
    const bus = connect(server.url, { clientId: "bus" });
    await bus.join("worker");
    const worker = new Worker(path.join(here, "worker.js"), { workerData: { url: proxy.url } });
    const said = [];
    worker.on("message", (message) => said.push(message));
    const ended = new Promise((resolve, reject) => worker.on("exit", resolve).on("error", reject));
    await until(() => said.includes("joined"));
    await bus.publish(position(0));
    proxy.cut();
    await bus.publish(position(1));
    assert.equal(await ended, 0);
    assert.deepEqual(said, ["joined", 0, 1]);
  });

  for (const state of ["open", "waiting", "connecting", "publishing", "uploading"]) {
    it(`leaves nothing that keeps a process alive: closed while ${state}`, async () => {
      const proxy = await Proxy.start(server.port);
      if (state === "waiting") proxy.refuses = true;
      const args = [path.join(here, "leave.js"), proxy.url, state];
      const { stdout } = await run(process.execPath, args, { timeout: PATIENCE });
      assert.equal(stdout, "closed\n");
    });
  }

  it("has types that hold, for itself and for its users", async () => {
    const tsc = path.join(here, "node_modules/typescript/bin/tsc");
    const { stdout } = await run(process.execPath, [tsc, "--project", here]).catch((error) => error);
    assert.equal(stdout, "");
  });
});

describe("the module", { concurrency: 4 }, () => {
  it("is served to every origin, pages or not, and asked for once", async () => {
    const server = await Server.start({ "server.map": false });
    const site = `http://${server.address}/client/v1/`;
    const seen = new Set();
    const load = async (name) => {
      if (seen.has(name)) return;
      seen.add(name);
      const response = await fetch(site + name, { headers: { origin: "https://elsewhere.example" } });
      assert.equal(response.status, 200, name);
      const { headers } = response;
      assert.equal(headers.get("content-type"), "text/javascript; charset=utf-8");
      assert.equal(headers.get("access-control-allow-origin"), "*");
      assert.equal(headers.get("x-content-type-options"), "nosniff");
      assert.equal(headers.get("cache-control"), "no-cache");
      const source = await response.text();
      for (const [, next] of source.matchAll(/^(?:import|export) .* from "\.\/(.*)";$/gm)) await load(next);
      const tag = { "if-none-match": headers.get("etag") };
      const again = await fetch(site + name, { headers: tag });
      assert.equal(again.status, 304);
      assert.equal(await again.text(), "");
      const other = await fetch(site + name, { headers: { "if-none-match": '"another"' } });
      assert.equal(other.status, 200);
      await other.text();
    };
    await load("milepost.js");
    assert.ok(seen.has("core.js") && seen.size > 5, [...seen].join());
    assert.equal((await fetch(`http://${server.address}/`)).status, 404, "there is no page");
  });
});
