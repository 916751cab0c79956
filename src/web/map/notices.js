// @ts-check
/**
 * What the page says about the connection: one banner, which a screen reader reads once,
 * and which goes by itself when it has been read.
 * @module
 */
import { bdi, byId, clean, count, delay, make, plural, say } from "./text.js";

/** How long good news stays. */
const LINGER_MS = 12_000;

/**
 * An instance's id, whose end tells it from others; all of it when pointed at.
 * @param {unknown} id
 */
function instance(id) {
  const text = clean(id || "unknown", 80);
  const element = bdi(text.length > 16 ? `…${text.slice(-6)}` : text);
  element.title = text;
  return element;
}

export class Notices {
  constructor() {
    this.banner = byId("banner");
    this.text = byId("banner-text");
    this.countdown = byId("banner-countdown");
    this.live = byId("announcements");
    /** When it goes; Infinity: when something else happens. */
    this.until = 0;
    /** What it counts down to. */
    this.target = 0;
    /** @type {string} */
    this.topic = "";
    byId("banner-close").addEventListener("click", () => this.clear());
    setInterval(() => this.#tick(), 200);
  }

  /**
   * Only for who listens.
   * @param {string} text
   */
  announce(text) {
    // The same words twice are read twice.
    say(this.live, this.live.textContent === text ? `${text}\u00a0` : text);
  }

  /**
   * @param {"info" | "good" | "warn" | "bad"} tone
   * @param {string} topic  what it is about: `clear(topic)` takes it away
   * @param {(Node | string)[]} parts
   * @param {{lingerMs?: number, target?: number}} [options]  target: a time to count down to
   */
  show(tone, topic, parts, { lingerMs = Infinity, target = 0 } = {}) {
    this.topic = topic;
    this.banner.dataset["tone"] = tone;
    const text = make("span", "", ...parts);
    if (this.banner.hidden || this.text.textContent !== text.textContent) this.text.replaceChildren(...text.childNodes);
    this.target = target;
    this.until = Date.now() + lingerMs;
    this.banner.hidden = false;
    this.#tick();
  }

  /** @param {string} [topic]  only if it is about this */
  clear(topic) {
    if (topic !== undefined && topic !== this.topic) return;
    this.banner.hidden = true;
    this.topic = "";
    this.text.replaceChildren();
  }

  #tick() {
    if (this.banner.hidden) return;
    if (Date.now() > this.until) {
      this.clear();
      return;
    }
    const left = this.target - Date.now();
    this.countdown.hidden = this.target === 0;
    if (this.target !== 0) say(this.countdown, left > 0 ? `${(left / 1000).toFixed(1)} s` : "now");
  }

  /**
   * @param {import("./session.js").Happening} what
   */
  happened(what) {
    const leaving = this.topic === "shutdown" || this.topic === "closed";
    switch (what.type) {
      case "shutdown":
        this.show("info", "shutdown", ["Instance ", instance(what["instanceId"]), what["reason"] === "drain" ? " is being drained." : " is shutting down.", " This page moves to another by itself."], { target: Date.now() + what["reconnectInMs"], lingerMs: 60_000 });
        break;
      case "moved": {
        const missed = plural(what["missed"], "position");
        const tone = what["missed"] > 0 || what["reset"] ? "warn" : "good";
        const same = what["fromInstance"] === what["toInstance"];
        const how = same ? ["Reconnected to instance ", instance(what["toInstance"])] : ["Moved from instance ", instance(what["fromInstance"]), " to ", instance(what["toInstance"])];
        const rest = [`: ${missed} missed, ${count(what["replayed"] ?? 0)} replayed, view gap ${delay(what["gapMs"])}.`];
        if (what["reset"]) rest.push(" The view was reset.");
        this.show(tone, "moved", [...how, ...rest], { lingerMs: LINGER_MS });
        break;
      }
      case "reset":
        this.show("warn", "reset", ["The view of room ", bdi(what["room"]?.id, 60), ` was reset (${clean(what["reason"] ?? "unknown", 80)}): what happened in between is not shown.`], { lingerMs: 30_000 });
        break;
      case "stale":
        if (!leaving) this.show("warn", "stale", ["The server has gone quiet. What you see may be out of date."]);
        break;
      case "fresh":
        this.clear("stale");
        break;
      case "lagging":
        this.show("warn", "lagging", ["This connection is slow: only the newest position of each vehicle is sent."], { lingerMs: 30_000 });
        break;
      case "caughtUp":
        this.clear("lagging");
        break;
      case "tokenExpiring":
        this.show("warn", "token", ["The access token is about to expire. The page will ask for a new one."], { lingerMs: 60_000 });
        break;
      case "close":
        if (what["code"] === 4001) {
          this.show("bad", "token", [`Access refused: ${clean(what["reason"] || "authentication", 120)}.`]);
        } else if (what["retryInMs"] !== null && this.topic !== "shutdown") {
          this.show("bad", "closed", [`Connection lost (${what["code"]}${what["reason"] ? `, ${clean(what["reason"], 80)}` : ""}). Next attempt in`], { target: Date.now() + what["retryInMs"] });
        } else if (what["final"]) {
          this.show("bad", "closed", [`Disconnected for good (${what["code"]}${what["reason"] ? `, ${clean(what["reason"], 80)}` : ""}). Reload the page to try again.`]);
        }
        break;
      default:
        if (what["error"]) this.announce(clean(what["error"].message ?? what["error"], 200));
    }
  }
}
