// @ts-check
/**
 * Where a vehicle has been: loads its track from the room log, draws it, and lets people
 * move along it with a slider while the present goes on, faintly, behind it.
 * @module
 */
import { bearing, byId, clean, clock, count, kmh, plural, say, span } from "./text.js";

const L = /** @type {typeof import("leaflet")} */ (/** @type {any} */ (globalThis).L);

/** @typedef {import("./fleet.js").Vehicle} Vehicle */
/** @typedef {import("./fleet.js").Position} Position */
/** @typedef {{at: number, position: Position, longitude: number}} Fix  the longitude goes on over the date line */

/** The most fixes of one track. */
const MAX_FIXES = 50_000;
/** Between two fixes further apart than this nothing is known: dashed. Milliseconds. */
const UNKNOWN_MS = 120_000;

export class History {
  /**
   * @param {import("./view.js").View} view
   * @param {import("./session.js").Session} session
   * @param {{shown: (on: boolean) => void, announce: (text: string) => void}} page
   */
  constructor(view, session, page) {
    this.view = view;
    this.map = view.map;
    this.session = session;
    this.page = page;
    this.form = /** @type {HTMLFormElement} */ (byId("history-form"));
    this.range = /** @type {HTMLSelectElement} */ (byId("history-range"));
    this.custom = byId("history-custom");
    this.from = /** @type {HTMLInputElement} */ (byId("history-from"));
    this.to = /** @type {HTMLInputElement} */ (byId("history-to"));
    this.load = /** @type {HTMLButtonElement} */ (byId("history-load"));
    this.progress = byId("history-progress");
    this.player = byId("history-player");
    this.slider = /** @type {HTMLInputElement} */ (byId("history-slider"));
    this.readout = byId("history-readout");
    this.summary = byId("history-summary");
    this.renderer = L.canvas({ padding: 0.2 });
    /** @type {Vehicle | null} */
    this.vehicle = null;
    /** @type {Fix[]} */
    this.track = [];
    /** @type {import("leaflet").LayerGroup | null} */
    this.drawn = null;
    /** @type {import("leaflet").CircleMarker | null} */
    this.marker = null;
    /** Ends what is being loaded. @type {AbortController | null} */
    this.loading = null;

    this.range.addEventListener("change", () => this.#rangeChanged());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.loading) this.#cancel("Stopped.");
      else void this.#load();
    });
    this.slider.addEventListener("input", () => this.#scrub(Number(this.slider.value)));
    byId("history-back").addEventListener("click", () => this.close());
  }

  /** @param {Vehicle | null} vehicle */
  select(vehicle) {
    this.close();
    this.vehicle = vehicle;
  }

  /** Back to the present. */
  close() {
    this.#cancel("");
    this.#clear();
  }

  #clear() {
    this.drawn?.remove();
    this.drawn = this.marker = null;
    this.track = [];
    this.player.hidden = true;
    this.page.shown(false);
  }

  /** @param {string} text */
  #cancel(text) {
    this.loading?.abort();
    this.loading = null;
    say(this.load, "Load track");
    say(this.progress, text);
  }

  #rangeChanged() {
    const custom = this.range.value === "custom";
    this.custom.hidden = !custom;
    if (!custom || this.from.value) return;
    const local = (/** @type {number} */ at) => new Date(at - new Date(at).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
    const now = this.session.serverNow();
    this.from.value = local(now - 3_600_000);
    this.to.value = local(now);
  }

  /** The times asked for, or why there are none. */
  #times() {
    const now = this.session.serverNow();
    if (this.range.value !== "custom") return { from: now - Number(this.range.value) * 60_000, to: now, problem: "" };
    const from = Date.parse(this.from.value);
    const to = Date.parse(this.to.value);
    let problem = "";
    if (Number.isNaN(from) || Number.isNaN(to)) problem = "Give both times.";
    else if (from >= to) problem = "The first time must be before the second.";
    return { from, to, problem };
  }

  async #load() {
    const { vehicle } = this;
    const { client } = this.session;
    const { from, to, problem } = this.#times();
    const room = [...(vehicle?.rooms ?? [])].find((id) => this.session.rooms.get(id)?.state === "joined");
    if (problem || !vehicle || !client || !room) {
      say(this.progress, problem || "The vehicle's room is not connected.");
      return;
    }
    this.#clear();
    const mine = new AbortController();
    this.loading = mine;
    say(this.load, "Stop");
    say(this.progress, "Loading…");
    /** @type {Fix[]} */
    const track = [];
    let cut = false;
    try {
      const pages = client.history({
        room,
        vehicleId: vehicle.id,
        from,
        to,
        pageSize: 1000,
        signal: mine.signal,
      });
      let told = performance.now();
      for await (const position of pages) {
        if (this.loading !== mine) return;
        const before = track[track.length - 1];
        const longitude = position.longitude + (before ? Math.round((before.longitude - position.longitude) / 360) * 360 : 0);
        track.push({ at: Date.parse(position.timestamp ?? position.receivedAt), position, longitude });
        if (performance.now() - told > 100) {
          told = performance.now();
          const last = track[track.length - 1];
          const part = last ? Math.round(((last.at - from) / (to - from)) * 100) : 0;
          say(this.progress, `Loading… ${count(track.length)} fixes, ${Math.min(99, Math.max(0, part))} %`);
        }
        if (track.length >= MAX_FIXES) {
          cut = true;
          break;
        }
      }
    } catch (error) {
      if (this.loading !== mine) return;
      const { code, message } = /** @type {{code?: string, message?: string}} */ (error);
      const why = code === "FORBIDDEN" ? "the token does not allow the history of this room" : clean(message ?? code ?? error, 200);
      this.#cancel(`Not loaded: ${why}.`);
      return;
    }
    if (this.loading !== mine) return;
    this.#cancel("");
    if (track.length === 0) {
      say(this.progress, "No fixes in this time.");
      return;
    }
    this.track = track;
    this.#draw();
    const first = /** @type {Fix} */ (track[0]);
    const last = /** @type {Fix} */ (track[track.length - 1]);
    const more = cut ? " The rest is left out: choose a shorter time." : "";
    say(this.summary, `${plural(track.length, "fix", "fixes")} over ${span(last.at - first.at)}.${more}`);
    this.page.announce(`Track loaded: ${plural(track.length, "fix", "fixes")}.${more}`);
    this.slider.focus();
  }

  #draw() {
    const style = getComputedStyle(document.documentElement);
    const colour = style.getPropertyValue("--map-history").trim();
    const group = L.layerGroup();
    /** @type {[number, number][]} */
    let known = [];
    const finish = () => {
      if (known.length > 0) L.polyline(known, { renderer: this.renderer, color: colour, weight: 4, opacity: 0.9, interactive: false }).addTo(group);
    };
    let before = /** @type {Fix | null} */ (null);
    const all = L.latLngBounds([]);
    for (const fix of this.track) {
      /** @type {[number, number]} */
      const at = [fix.position.latitude, fix.longitude];
      all.extend(at);
      if (before && fix.at - before.at > UNKNOWN_MS) {
        const end = known[known.length - 1];
        finish();
        if (end) L.polyline([end, at], { renderer: this.renderer, color: colour, weight: 2, opacity: 0.7, dashArray: "3 7", interactive: false }).addTo(group);
        known = [];
      }
      known.push(at);
      before = fix;
    }
    finish();
    this.marker = L.circleMarker([0, 0], { renderer: this.renderer, radius: 8, color: style.getPropertyValue("--map-halo").trim(), weight: 3, fillColor: colour, fillOpacity: 1, interactive: false });
    this.marker.addTo(group);
    this.drawn = group.addTo(this.map);
    this.slider.max = String(this.track.length - 1);
    this.slider.value = this.slider.max;
    this.player.hidden = false;
    this.page.shown(true);
    this.#scrub(this.track.length - 1);
    this.view.fitBounds(all);
  }

  /** @param {number} index */
  #scrub(index) {
    const fix = this.track[index];
    if (!fix || !this.marker) return;
    const { latitude, speed, heading } = fix.position;
    this.marker.setLatLng([latitude, fix.longitude]);
    const parts = [clock(fix.at), kmh(speed) || "no speed"];
    if (typeof heading === "number") parts.push(bearing(heading));
    const text = parts.join(" · ");
    say(this.readout, text);
    this.slider.setAttribute("aria-valuetext", text);
    if (!this.view.sees(this.marker.getLatLng())) this.view.centreOn(this.marker.getLatLng());
  }

  /** Other colours. */
  restyle() {
    if (!this.drawn) return;
    const index = Number(this.slider.value);
    this.drawn.remove();
    const view = { centre: this.map.getCenter(), zoom: this.map.getZoom() };
    this.#draw();
    this.map.setView(view.centre, view.zoom, { animate: false });
    this.slider.value = String(index);
    this.#scrub(index);
  }
}
