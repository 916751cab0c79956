/**
 * What the tests share: the real binary as a child process, a TCP proxy that cuts and freezes,
 * and clients with short waits.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import readline from "node:readline";
import { text } from "node:stream/consumers";
import { after } from "node:test";

import { WebSocket } from "ws";

import { MilepostClient } from "../../src/web/client/milepost.js";

/** How long anything may take that is expected to happen at once, milliseconds. */
export const PATIENCE = 20000;

const binary = process.env.MILEPOST_BIN;
if (!binary) throw new Error("MILEPOST_BIN must name the server's binary");

/** @type {(() => unknown)[]} */
const cleanups = [];
/** Runs when the tests of this file are over, last come first. */
export const cleanup = (what) => cleanups.push(what);
after(async () => {
  for (const what of cleanups.reverse()) await what();
});

/** Waits until `check` gives something true, and returns that. */
export async function until(check, what = String(check)) {
  const deadline = Date.now() + PATIENCE;
  for (;;) {
    const got = await check();
    if (got) return got;
    if (Date.now() > deadline) throw new Error(`did not happen: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** The next event of a type that satisfies `wanted`. */
export function next(client, type, wanted = () => true) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      off();
      reject(new Error(`no ${type} came`));
    }, PATIENCE);
    const off = client.on(type, (event) => {
      if (!wanted(event)) return;
      off();
      clearTimeout(timer);
      resolve(event);
    });
  });
}

/** Collects all events of a type. */
export function collect(client, type) {
  const events = [];
  client.on(type, (event) => events.push(event));
  return events;
}

/** A directory that is gone after the tests. */
export function directory() {
  const dir = mkdtempSync(path.join(tmpdir(), "milepost-web-"));
  cleanup(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** A server process. */
export class Server {
  /** Starts one and waits until its port is open and, unless it has to wait, until it is ready. */
  static async start(sets = {}, { cwd = directory(), ready = true } = {}) {
    const server = new Server(sets, cwd);
    await server.line("server.listening");
    if (ready) await server.line("server.ready");
    return server;
  }

  constructor(sets, cwd) {
    this.cwd = cwd;
    this.lines = [];
    const all = {
      "server.listen": "127.0.0.1:0",
      "admin.listen": "127.0.0.1:0",
      "auth.mode": "none",
      ...sets,
    };
    const args = Object.entries(all).flatMap(([key, value]) => ["--set", `${key}=${value}`]);
    const env = Object.entries(process.env).filter(([key]) => !key.startsWith("MILEPOST_"));
    this.child = spawn(binary, ["serve", ...args], {
      cwd,
      env: Object.fromEntries(env),
      stdio: ["ignore", "pipe", "inherit"],
    });
    this.exited = once(this.child, "exit").then(([code]) => code);
    const lines = readline.createInterface({ input: this.child.stdout });
    lines.on("line", (line) => this.lines.push(JSON.parse(line)));
    cleanup(() => this.kill());
  }

  line(event) {
    return until(() => this.lines.find((line) => line.event === event), `log line ${event}`);
  }

  get address() {
    return this.lines.find((line) => line.event === "server.listening").public;
  }

  get port() {
    return Number(this.address.split(":").at(-1));
  }

  get url() {
    return `ws://${this.address}/ws`;
  }

  /** Asks the admin port; the answer's text. */
  async admin(method, path) {
    const { admin } = this.lines.find((line) => line.event === "server.listening");
    const request = http.request(`http://${admin}${path}`, { method });
    const [response] = await once(request.end(), "response");
    return text(response);
  }

  terminate() {
    this.child.kill("SIGTERM");
    return this.exited;
  }

  kill() {
    this.child.kill("SIGKILL");
    return this.exited;
  }
}

/** Forwards TCP connections, until told otherwise. */
export class Proxy {
  static async start(port) {
    const proxy = new Proxy();
    proxy.port = port;
    proxy.pairs = new Set();
    proxy.refuses = false;
    proxy.server = net.createServer((near) => proxy.#accept(near));
    proxy.server.listen(0, "127.0.0.1");
    await once(proxy.server, "listening");
    proxy.url = `ws://127.0.0.1:${proxy.server.address().port}/ws`;
    cleanup(() => {
      proxy.cut();
      proxy.server.close();
    });
    return proxy;
  }

  #accept(near) {
    if (this.refuses) return near.destroy();
    const far = net.connect(this.port, "127.0.0.1");
    const pair = { near, far };
    this.pairs.add(pair);
    for (const [one, other] of [
      [near, far],
      [far, near],
    ]) {
      one.on("data", (data) => {
        if (!pair.frozen && !(pair.deaf && one === far)) other.write(data);
      });
      one.on("error", () => {});
      one.on("close", () => {
        if (!pair.frozen) other.destroy();
        this.pairs.delete(pair);
      });
    }
  }

  /** Present connections break. */
  cut() {
    for (const { near, far } of this.pairs) {
      near.destroy();
      far.destroy();
    }
    this.pairs.clear();
  }

  /** Of present connections nothing goes through, in neither direction, and none is closed. */
  freeze() {
    for (const pair of this.pairs) pair.frozen = true;
  }

  /** Of present connections nothing that the server says goes through. */
  deafen() {
    for (const pair of this.pairs) pair.deaf = true;
  }
}

/** The sockets that clients have opened, newest last. */
export const sockets = [];

export class Spy extends WebSocket {
  constructor(...args) {
    super(...args);
    sockets.push(this);
  }
}

/** A client with short waits. */
export function connect(endpoints, options = {}) {
  const client = new MilepostClient({
    endpoints,
    WebSocket: Spy,
    backoff: { firstMs: 50, capMs: 500 },
    ...options,
  });
  cleanup(() => client.close());
  return client;
}

let clock = Date.now() - 3600_000;
/** A position with a time of its own, each newer than the one before. */
export const position = (n) => ({ latitude: 60, longitude: 24 + n / 1e4, timestamp: ++clock, n });
