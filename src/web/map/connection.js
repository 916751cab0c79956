// @ts-check
/**
 * The panel that says how the connection is, and the badge for it at the top.
 * @module
 */
import { byId, clean, count, delay, make, say } from "./text.js";

/** @type {Record<string, string>} */
const WORDS = {
  connecting: "Connecting",
  open: "Live",
  moving: "Moving",
  waiting: "Waiting",
  closed: "Offline",
};

export class ConnectionPanel {
  /** @param {import("./session.js").Session} session */
  constructor(session) {
    this.session = session;
    this.badge = byId("connection-badge");
    this.table = byId("connection-values");
    /** @type {Map<string, HTMLElement>} */
    this.values = new Map();
  }

  /** The values anew. */
  update() {
    const { client, figures } = this.session;
    const state = client?.state;
    const status = state?.status ?? "closed";
    const quiet = status === "open" && state?.stale;
    this.badge.dataset["state"] = quiet ? "stale" : status;
    const retry = status === "waiting" && state?.retryAt ? ` ${delay(Math.max(0, Number(state.retryAt) - Date.now()))}` : "";
    say(this.badge, (quiet ? "Quiet" : (WORDS[status] ?? status)) + retry);
    const counters = this.session.counters();
    const number = (/** @type {string} */ name) => count(counters[name] ?? 0);
    const rooms = [...this.session.rooms.values()].filter((entry) => entry.room);
    this.#set("Status", quiet ? "open, but nothing comes" : status);
    this.#set("Instance", clean(state?.instanceId ?? "–", 64));
    this.#set("Session", clean(state?.sessionId ?? "–", 64));
    this.#set("Sequence", rooms.map(({ room }) => count(room?.seq ?? 0)).join(", ") || "–");
    this.#set("Positions", `${number("positions")} (${count(Math.round(figures.rate))} a second)`);
    this.#set("Lag", delay(Math.max(0, figures.lagMs)));
    this.#set("Round trip", delay(state?.roundTripMs));
    this.#set("Missed", number("missed"));
    this.#set("Gaps", number("gaps"));
    this.#set("Resumes", number("resumes"));
    this.#set("Resets", number("resets"));
    this.#set("Reconnects", number("reconnects"));
    this.#set("Repeats dropped", number("duplicatesDropped"));
    this.#set("Skipped while slow", number("dropped"));
  }

  /**
   * @param {string} term
   * @param {string} text
   */
  #set(term, text) {
    let value = this.values.get(term);
    if (!value) {
      value = make("dd");
      value.dir = "auto";
      value.id = `connection-${term.toLowerCase().replaceAll(" ", "-")}`;
      this.values.set(term, value);
      this.table.append(make("dt", "", term), value);
    }
    say(value, text);
  }
}
