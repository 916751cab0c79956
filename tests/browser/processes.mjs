// The real binary: a demo, a server, and a network between them and the browser that can
// be cut.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/** How long anything may take before it is a failure. */
export const PATIENCE = 30_000;

export const binary =
  process.env.MILEPOST_BINARY ?? fileURLToPath(new URL("../../target/debug/milepost", import.meta.url));

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Looks until something true is seen. */
export async function until(what, look, patience = PATIENCE) {
  const deadline = Date.now() + patience;
  for (;;) {
    const seen = await look();
    if (seen) return seen;
    if (Date.now() > deadline) throw new Error(`not within ${patience} ms: ${what}`);
    await sleep(25);
  }
}

/** What a test that fails leaves behind: each knows how to end it. @type {Set<() => unknown>} */
export const leftBehind = new Set();
process.on("exit", () => {
  for (const end of leftBehind) end();
});

/** A process of the binary, with its own directory. */
class Process {
  constructor(args) {
    this.folder = mkdtempSync(join(tmpdir(), "milepost-browser-"));
    const env = { ...environment(), TMPDIR: this.folder };
    this.child = spawn(binary, args, { cwd: this.folder, env, stdio: ["ignore", "pipe", "pipe"] });
    this.exited = once(this.child, "exit");
    const kill = () => this.child.kill("SIGKILL");
    leftBehind.add(kill);
    this.exited.then(() => leftBehind.delete(kill));
    this.output = "";
    for (const stream of [this.child.stdout, this.child.stderr]) stream.on("data", (data) => (this.output += data));
  }

  async said(pattern) {
    const match = await until(`${pattern} in the output`, () => {
      if (this.child.exitCode !== null) throw new Error(`it ended: ${this.output}`);
      return pattern.exec(this.output);
    });
    return match[1] ?? match[0];
  }

  /** Stops it with SIGTERM; its exit code has to be 0. */
  async stop() {
    this.child.kill("SIGTERM");
    const [code] = await this.exited;
    rmSync(this.folder, { recursive: true, force: true });
    if (code !== 0) throw new Error(`exit code ${code}: ${this.output.slice(-4000)}`);
  }
}

/** Without the settings of the tests themselves, or of whoever runs them. */
const environment = () => Object.fromEntries(Object.entries(process.env).filter(([key]) => !key.startsWith("MILEPOST_")));

const settings = (sets) =>
  ["server.listen=127.0.0.1:0", "admin.listen=127.0.0.1:0", ...sets].flatMap((set) => ["--set", set]);

/** `milepost demo`. */
export class Demo extends Process {
  static async start(...args) {
    const demo = new Demo(["demo", ...settings([]), ...args]);
    demo.base = await demo.said(/open (http:\S+)\//);
    return demo;
  }

  async state() {
    return (await fetch(`${this.base}/demo/state`)).json();
  }

  async deploy() {
    const answer = await fetch(`${this.base}/demo/deploy`, { method: "POST" });
    if (answer.status !== 202) throw new Error(`deploy: ${answer.status}`);
  }

  /** The process that serves. */
  serverPid() {
    const { pid } = this.child;
    const children = readdirSync(`/proc/${pid}/task`).flatMap((task) =>
      readFileSync(`/proc/${pid}/task/${task}/children`, "utf8").split(" ").filter(Boolean),
    );
    if (children.length !== 1) throw new Error(`servers: ${children}`);
    return Number(children[0]);
  }
}

/** `milepost serve`. */
export class Server extends Process {
  static async start(...sets) {
    const all = ["log.format=json", ...sets];
    if (!sets.some((set) => set.startsWith("auth."))) all.push("auth.mode=none");
    const server = new Server(["serve", ...settings(all)]);
    server.base = `http://${await server.said(/"public":"([^"]+)"/)}`;
    await server.said(/"event":"server.ready"/);
    return server;
  }
}

/** Runs a command of the binary to its end and returns what it printed. */
export async function command(...args) {
  const child = spawn(binary, args, { env: environment(), stdio: ["ignore", "pipe", "inherit"] });
  let output = "";
  child.stdout.on("data", (data) => (output += data));
  const [code] = await once(child, "exit");
  if (code !== 0) throw new Error(`${args}: exit code ${code}`);
  return output.trim();
}

/** `milepost simulate` until it is stopped; positions lost or doubled are a failure. */
export class Simulation extends Process {
  constructor(base, ...args) {
    super(["simulate", "--url", `${base.replace("http", "ws")}/ws`, ...args]);
  }
}

/** A network to a server: bytes pass, or not. */
export class Network {
  static async to(base) {
    const network = new Network();
    const target = new URL(base);
    network.server = net.createServer((browser) => {
      if (network.mode === "refuse") {
        browser.destroy();
        return;
      }
      const server = net.connect(Number(target.port), target.hostname);
      const pair = { browser, server };
      network.pairs.add(pair);
      for (const [from, to] of [[browser, server], [server, browser]]) {
        from.setNoDelay(true);
        from.pipe(to);
        from.on("error", () => to.destroy());
        from.on("close", () => {
          to.destroy();
          network.pairs.delete(pair);
        });
      }
      if (network.mode === "hold") network.#hold(pair);
    });
    network.end = () => network.close();
    leftBehind.add(network.end);
    network.server.listen(0, "127.0.0.1");
    await once(network.server, "listening");
    network.base = `http://127.0.0.1:${network.server.address().port}`;
    return network;
  }

  pairs = new Set();
  mode = "pass";

  #hold({ browser, server }) {
    browser.unpipe(server);
    server.unpipe(browser);
    browser.pause();
    server.pause();
  }

  /** Nothing passes, and nobody is told: a dead spot. */
  hold() {
    this.mode = "hold";
    for (const pair of this.pairs) this.#hold(pair);
  }

  /** Everything is cut off and refused: a network that is down. */
  cut() {
    this.mode = "refuse";
    for (const { browser, server } of this.pairs) {
      browser.destroy();
      server.destroy();
    }
  }

  /** Bytes pass again. */
  mend() {
    this.mode = "pass";
    for (const { browser, server } of this.pairs) {
      browser.pipe(server);
      server.pipe(browser);
    }
  }

  close() {
    leftBehind.delete(this.end);
    this.cut();
    this.server.close();
  }
}
