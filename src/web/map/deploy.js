// @ts-check
/**
 * "Deploy now": in `milepost demo` the page can have the server replaced under its eyes.
 * Elsewhere there is nothing at demo/state, nobody asks for it, and there is no button.
 * @module
 */
import { byId, clean, plural, say } from "./text.js";

/** @typedef {{phase: string, instance?: string, deploys?: number}} DemoState */

const state = () => new URL("demo/state", document.baseURI);

/** @returns {Promise<DemoState | null>} */
async function ask() {
  try {
    const answer = await fetch(state(), { cache: "no-store" });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

/** @param {number} ms */
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Deploy {
  /** @param {(text: string) => void} announce */
  constructor(announce) {
    this.announce = announce;
    this.box = byId("deploy");
    this.button = /** @type {HTMLButtonElement} */ (byId("deploy-button"));
    this.text = byId("deploy-text");
    this.watching = false;
    this.button.addEventListener("click", () => void this.#begin());
  }

  /** Shows the button if this is the demo. */
  async start() {
    const now = await ask();
    if (!now) return;
    this.box.hidden = false;
    this.#show(now);
    if (now.phase !== "idle") void this.#watch();
  }

  /** The server is being replaced, whoever asked for it. */
  changing() {
    if (!this.box.hidden) void this.#watch();
  }

  /** @param {DemoState} now */
  #show({ phase, deploys }) {
    const busy = phase !== "idle";
    this.button.disabled = busy;
    const done = deploys ? `${plural(deploys, "deploy")} so far` : "";
    say(this.text, busy ? `${clean(phase, 40)}…` : done);
    this.box.classList.toggle("busy", busy);
  }

  async #begin() {
    this.button.disabled = true;
    say(this.text, "starting…");
    this.announce("Deploy started.");
    try {
      const answer = await fetch(new URL("demo/deploy", document.baseURI), { method: "POST" });
      if (!answer.ok && answer.status !== 409) throw new Error(`the server answered ${answer.status}`);
    } catch (error) {
      this.button.disabled = false;
      say(this.text, `Not started: ${clean(/** @type {Error} */ (error).message, 80)}`);
      return;
    }
    await this.#watch();
  }

  async #watch() {
    if (this.watching) return;
    this.watching = true;
    // While the servers change, an answer may be missing.
    for (let failures = 0; failures < 60; ) {
      await pause(300);
      const now = await ask();
      if (!now) {
        failures += 1;
        continue;
      }
      failures = 0;
      this.#show(now);
      if (now.phase === "idle") break;
    }
    this.watching = false;
    this.button.disabled = false;
  }
}
