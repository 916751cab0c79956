// @ts-check
/**
 * The list of vehicles: what the map shows, for those who do not look at it. A listbox of
 * which only the visible rows exist.
 * @module
 */
import { ago, bdi, byId, count, kmh, make, plural, say } from "./text.js";

/** @typedef {import("./fleet.js").Vehicle} Vehicle */
/** @typedef {import("./fleet.js").Status} Status */

const ROW = 48;
const SPARE = 4;
const MARK = { live: "▲", stale: "◆", lost: "⊗" };
const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/**
 * @typedef {{element: HTMLElement, mark: HTMLElement, name: HTMLElement, about: HTMLElement,
 *   status: HTMLElement, vehicle: Vehicle | null}} Row
 */

export class VehicleList {
  /**
   * @param {import("./fleet.js").Fleet} fleet
   * @param {() => number} serverNow
   * @param {(vehicle: Vehicle, open: boolean) => void} select
   */
  constructor(fleet, serverNow, select) {
    this.fleet = fleet;
    this.serverNow = serverNow;
    this.select = select;
    this.box = byId("vehicles");
    this.filler = byId("vehicles-filler");
    this.empty = byId("vehicles-empty");
    this.total = byId("vehicles-count");
    this.search = /** @type {HTMLInputElement} */ (byId("search"));
    this.order = /** @type {HTMLSelectElement} */ (byId("order"));
    /** @type {Record<Status, HTMLButtonElement>} */
    this.filters = { live: byId("filter-live"), stale: byId("filter-stale"), lost: byId("filter-lost") };
    /** @type {Set<Status>} what is listed; empty: everything */
    this.only = new Set();
    /** By name. @type {Vehicle[]} */
    this.sorted = [];
    this.version = -1;
    /** What is listed. @type {Vehicle[]} */
    this.listed = [];
    /** @type {string | null} */
    this.selected = null;
    /** Where the keyboard is. */
    this.active = -1;
    /** @type {Row[]} */
    this.rows = [];
    /** Why there is nothing, where it is not the search. */
    this.emptyText = "";

    this.search.addEventListener("input", () => this.update());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") {
        event.preventDefault();
        this.box.focus();
        this.#move(Math.max(0, this.active));
      } else if (event.key === "Escape" && this.search.value) {
        event.stopPropagation();
        this.search.value = "";
        this.update();
      } else if (event.key === "Enter") {
        const first = this.listed[0];
        if (first) this.select(first, true);
      }
    });
    this.order.addEventListener("change", () => this.update());
    for (const status of /** @type {Status[]} */ (Object.keys(this.filters))) {
      this.filters[status].addEventListener("click", () => {
        if (!this.only.delete(status)) this.only.add(status);
        this.update();
      });
    }
    this.box.addEventListener("scroll", () => this.#render(), { passive: true });
    new ResizeObserver(() => this.#render()).observe(this.box);
    this.box.addEventListener("keydown", (event) => this.#key(event));
    this.box.addEventListener("focus", () => {
      if (this.active < 0 && this.listed.length > 0) this.#move(Math.max(0, this.#indexOfSelected()));
    });
    this.box.addEventListener("click", (event) => {
      const element = /** @type {Element} */ (event.target).closest("[role=option]");
      const row = this.rows.find((row) => row.element === element);
      if (!row?.vehicle) return;
      this.active = this.listed.indexOf(row.vehicle);
      this.select(row.vehicle, true);
    });
  }

  #indexOfSelected() {
    return this.listed.findIndex((vehicle) => vehicle.id === this.selected);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 1);
    const last = this.listed.length - 1;
    /** @type {Record<string, number>} */
    const to = {
      ArrowDown: this.active + 1,
      ArrowUp: this.active - 1,
      PageDown: this.active + page,
      PageUp: this.active - page,
      Home: 0,
      End: last,
    };
    const index = to[event.key];
    const vehicle = this.listed[this.active];
    if (index !== undefined && last >= 0) {
      event.preventDefault();
      this.#move(Math.max(0, Math.min(last, index)));
    } else if ((event.key === "Enter" || event.key === " ") && vehicle) {
      event.preventDefault();
      this.select(vehicle, true);
    }
  }

  /** @param {number} index */
  #move(index) {
    this.active = index;
    const top = index * ROW;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW - this.box.clientHeight;
    this.#render();
  }

  /** @param {string | null} id */
  mark(id) {
    this.selected = id;
    const index = this.#indexOfSelected();
    if (index >= 0) this.#move(index);
    else this.#render();
  }

  /** Everything anew: once a second, and when somebody searches. */
  update() {
    const now = this.serverNow();
    if (this.version !== this.fleet.version) {
      this.version = this.fleet.version;
      this.sorted = [...this.fleet.vehicles.values()].sort((a, b) => collator.compare(a.name, b.name));
    }
    const active = this.listed[this.active];
    const query = this.search.value.trim().toLowerCase();
    const numbers = { live: 0, stale: 0, lost: 0 };
    const listed = [];
    let shown = 0;
    for (const vehicle of this.sorted) {
      if (!this.fleet.isShown(vehicle)) continue;
      shown += 1;
      const status = vehicle.status(now);
      numbers[status] += 1;
      if (this.only.size > 0 && !this.only.has(status)) continue;
      if (query && !vehicle.folded.includes(query)) continue;
      listed.push(vehicle);
    }
    if (this.order.value === "seen") listed.sort((a, b) => a.fixAt - b.fixAt);
    if (this.order.value === "speed") listed.sort((a, b) => (b.position.speed ?? -1) - (a.position.speed ?? -1));
    this.listed = listed;
    this.active = active ? listed.indexOf(active) : -1;
    for (const status of /** @type {Status[]} */ (["live", "stale", "lost"])) {
      const button = this.filters[status];
      say(/** @type {Element} */ (button.querySelector(".number")), count(numbers[status]));
      button.setAttribute("aria-pressed", String(this.only.has(status)));
    }
    say(this.total, listed.length === shown ? plural(shown, "vehicle") : `${count(listed.length)} of ${plural(shown, "vehicle")}`);
    this.filler.style.height = `${listed.length * ROW}px`;
    this.empty.hidden = listed.length > 0;
    say(this.empty, shown > 0 ? "No vehicle matches. Change the search or the filters above." : this.emptyText);
    this.#render();
  }

  #render() {
    const now = this.serverNow();
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - SPARE);
    const rows = Math.min(this.listed.length, Math.ceil(this.box.clientHeight / ROW) + 2 * SPARE);
    while (this.rows.length < rows) this.#addRow();
    let activeId = "";
    for (const [i, row] of this.rows.entries()) {
      // A row keeps its element while it is in view: element k shows index ≡ k.
      const length = this.rows.length;
      const index = first + ((((i - first) % length) + length) % length);
      const vehicle = this.listed[index];
      row.vehicle = vehicle ?? null;
      row.element.hidden = !vehicle;
      if (!vehicle) continue;
      const status = vehicle.status(now);
      row.element.style.transform = `translateY(${index * ROW}px)`;
      row.element.setAttribute("aria-posinset", String(index + 1));
      row.element.setAttribute("aria-setsize", String(this.listed.length));
      row.element.setAttribute("aria-selected", String(vehicle.id === this.selected));
      row.element.classList.toggle("active", index === this.active);
      row.element.dataset["status"] = status;
      if (index === this.active) activeId = row.element.id;
      say(row.mark, MARK[status]);
      say(row.name, vehicle.name);
      say(row.about, `${kmh(vehicle.position.speed) || "no speed"} · ${ago(now - vehicle.fixAt)}`);
      say(row.status, status);
    }
    if (activeId) this.box.setAttribute("aria-activedescendant", activeId);
    else this.box.removeAttribute("aria-activedescendant");
  }

  #addRow() {
    const mark = make("span", "mark");
    mark.setAttribute("aria-hidden", "true");
    const name = bdi("");
    name.className = "name";
    name.dir = "auto";
    const about = make("span", "about");
    const status = make("span", "status");
    const element = make("div", "row", mark, name, about, status);
    element.setAttribute("role", "option");
    element.id = `vehicle-row-${this.rows.length}`;
    this.filler.append(element);
    this.rows.push({ element, mark, name, about, status, vehicle: null });
  }

  /** Puts the cursor into the search. */
  find() {
    this.search.focus();
    this.search.select();
  }

}
