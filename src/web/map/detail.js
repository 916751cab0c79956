// @ts-check
/**
 * The card of the selected vehicle: its state, all its attributes, what can be done.
 * @module
 */
import { ago, bdi, bearing, byId, clean, clock, count, delay, kmh, make, place, say } from "./text.js";

/** @typedef {import("./fleet.js").Vehicle} Vehicle */

const MAX_FIELDS = 60;
/** Characters of a value that are shown. */
const MAX_VALUE = 300;
const KNOWN = new Set(["vehicleId", "clientId", "latitude", "longitude", "altitude", "accuracy",
  "altitudeAccuracy", "speed", "heading", "timestamp", "receivedAt", "seq", "roomId", "replayed"]);
const STATUS = {
  live: "Live",
  stale: "Stale: no fix for 90 seconds or more",
  lost: "Lost: no fix for 10 minutes or more",
};

/** @param {unknown} value  @param {string} unit */
const metres = (value, unit = "m") => (typeof value === "number" ? `${Math.round(value * 10) / 10} ${unit}` : "");

export class Detail {
  /**
   * @param {() => number} serverNow
   * @param {{close: () => void, follow: (on: boolean) => void, centre: () => void}} actions
   */
  constructor(serverNow, actions) {
    this.serverNow = serverNow;
    this.card = byId("detail");
    this.name = byId("detail-name");
    this.status = byId("detail-status");
    this.values = byId("detail-values");
    this.followButton = byId("follow");
    /** @type {Vehicle | null} */
    this.vehicle = null;
    /** @type {Map<string, {term: HTMLElement, value: HTMLElement}>} */
    this.fields = new Map();
    byId("detail-close").addEventListener("click", actions.close);
    byId("centre").addEventListener("click", actions.centre);
    this.followButton.addEventListener("click", () =>
      actions.follow(this.followButton.getAttribute("aria-pressed") !== "true"),
    );
  }

  /** @param {boolean} on */
  following(on) {
    this.followButton.setAttribute("aria-pressed", String(on));
    say(this.followButton, on ? "Following" : "Follow");
  }

  /** @param {Vehicle | null} vehicle */
  show(vehicle) {
    this.vehicle = vehicle;
    this.card.hidden = !vehicle;
    this.values.replaceChildren();
    this.fields.clear();
    if (!vehicle) return;
    this.name.replaceChildren(bdi(vehicle.id, 120));
    this.update();
  }

  /** The values anew. */
  update() {
    const { vehicle } = this;
    if (!vehicle) return;
    const now = this.serverNow();
    const { position } = vehicle;
    const status = vehicle.status(now);
    this.status.dataset["status"] = status;
    say(this.status, STATUS[status]);
    const heading = position.heading;
    this.#set("Speed", kmh(position.speed) || "not given");
    this.#set("Heading", typeof heading === "number" ? bearing(heading) : "not given");
    this.#set("Last fix", `${ago(now - vehicle.fixAt)} (${clock(vehicle.fixAt)})`);
    const late = vehicle.receivedAt - vehicle.fixAt;
    this.#set("Received", Math.abs(late) < 1000 ? "at once" : late > 0 ? `${delay(late)} after the fix` : `${delay(-late)} before the fix: check its clock`);
    this.#set("Position", place(position.latitude, position.longitude));
    this.#set("Accuracy", metres(position["accuracy"]));
    this.#set("Altitude", metres(position["altitude"]));
    this.#set("Altitude accuracy", metres(position["altitudeAccuracy"]));
    this.#set("Rooms", [...vehicle.rooms].map((room) => clean(room, 40)).join(", "), true);
    const sender = position["clientId"];
    this.#set("Sent by", sender === undefined || sender === vehicle.id ? "" : clean(sender, 120), true);
    this.#set("Sequence", typeof position["seq"] === "number" ? count(position["seq"]) : "");
    let others = 0;
    const others_ = [];
    for (const key of Object.keys(position)) {
      if (KNOWN.has(key)) continue;
      others += 1;
      if (others <= MAX_FIELDS) others_.push(key);
    }
    for (const key of others_) this.#set(`+${key}`, this.#text(position[key]), true);
    this.#set("More", others > MAX_FIELDS ? `${count(others - MAX_FIELDS)} further attributes` : "");
    const there = new Set(others_.map((key) => `+${key}`));
    for (const [key, field] of this.fields) {
      if (!key.startsWith("+") || there.has(key)) continue;
      field.term.remove();
      field.value.remove();
      this.fields.delete(key);
    }
  }

  /** @param {unknown} value */
  #text(value) {
    const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
    const shown = clean(text, MAX_VALUE);
    return text.length > MAX_VALUE ? `${shown} (${count(text.length)} characters)` : shown;
  }

  /**
   * @param {string} key  a `+` before a device's own
   * @param {string} text  nothing: no such field
   * @param {boolean} [foreign]
   */
  #set(key, text, foreign = false) {
    let field = this.fields.get(key);
    if (!text) {
      field?.term.remove();
      field?.value.remove();
      this.fields.delete(key);
      return;
    }
    if (!field) {
      const term = make("dt", "", key.startsWith("+") ? bdi(key.slice(1), 60) : key);
      const value = make("dd", "", foreign ? bdi("") : make("span"));
      field = { term, value };
      this.fields.set(key, field);
      this.values.append(term, value);
    }
    say(/** @type {Element} */ (field.value.firstElementChild), text);
  }
}
