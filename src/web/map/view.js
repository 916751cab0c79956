// @ts-check
/**
 * The map itself: made, themed, and remembered in the address; follows a vehicle.
 * @module
 */
import { addBase } from "./base.js";
import { latitudeOf, longitudeOf } from "./geo.js";
import { byId, place, say } from "./text.js";

const L = /** @type {typeof import("leaflet")} */ (/** @type {any} */ (globalThis).L);

/** Of the view, from its middle: who leaves this part is followed. */
const INNER = 0.3;
const THEME_KEY = "milepost.theme";
const THEMES = ["auto", "light", "dark"];

/** Whether movements are not wanted. */
export const lessMotion = matchMedia("(prefers-reduced-motion: reduce)");

export class View {
  /** @param {() => void} restyled  other colours from now on */
  constructor(restyled) {
    this.restyled = restyled;
    const animated = !lessMotion.matches;
    this.map = L.map("map", {
      zoomControl: false,
      attributionControl: false,
      zoomAnimation: animated,
      fadeAnimation: animated,
      inertia: animated,
      minZoom: 2,
      maxZoom: 19,
      zoomSnap: 0.5,
      wheelPxPerZoomLevel: 90,
      preferCanvas: true,
    });
    L.control.zoom({ position: "topright", zoomInTitle: "Zoom in", zoomOutTitle: "Zoom out" }).addTo(this.map);
    L.control.scale({ position: "bottomright", maxWidth: 140 }).addTo(this.map);
    /** Whether somebody has chosen the view, so that it is left alone. */
    this.chosen = this.#fromAddress();
    if (!this.chosen) this.map.setView([30, 10], 2.5);
    /** When a vehicle that is followed last moved the map. */
    this.followedAt = -Infinity;
    this.map.on("moveend", () => this.#remember());
    this.map.on("dragstart", () => (this.chosen = true));
    /** @type {{restyle: () => void} | null} */
    this.base = null;
    this.#theme();
  }

  /** @param {{tiles: string | null, attribution: string}} settings */
  async start(settings) {
    byId("attribution-tiles").textContent = settings.tiles && settings.attribution ? `${settings.attribution} · ` : "";
    this.base = await addBase(this.map, settings);
  }

  #fromAddress() {
    const [zoom, latitude, longitude] = location.hash.slice(1).split("/").map(Number);
    if (!(zoom !== undefined && zoom > 0 && Math.abs(latitude ?? NaN) <= 90 && Math.abs(longitude ?? NaN) <= 540)) return false;
    this.map.setView([latitude ?? 0, longitude ?? 0], Math.min(19, Math.max(2, zoom)));
    return true;
  }

  #remember() {
    const centre = this.map.getCenter();
    say(byId("centre-readout"), place(centre.lat, centre.wrap().lng));
    if (!this.chosen) return;
    const hash = `#${this.map.getZoom()}/${centre.lat.toFixed(5)}/${centre.wrap().lng.toFixed(5)}`;
    if (hash !== location.hash) history.replaceState(null, "", hash);
  }

  /**
   * Everybody in view.
   * @param {Iterable<import("./fleet.js").Vehicle>} vehicles
   */
  fit(vehicles) {
    const bounds = L.latLngBounds([]);
    for (const { position } of vehicles) bounds.extend([position.latitude, position.longitude]);
    if (bounds.isValid()) this.fitBounds(bounds);
  }

  /** @param {import("leaflet").LatLngBounds} bounds */
  fitBounds(bounds) {
    const { left, bottom, right } = this.#covered();
    this.map.fitBounds(bounds, {
      paddingTopLeft: [left + 30, 60],
      paddingBottomRight: [right + 50, bottom + 50],
      maxZoom: 16,
      animate: false,
    });
  }

  /**
   * Whether a place can be seen, beside the panels.
   * @param {import("leaflet").LatLngExpression} place
   */
  sees(place) {
    const { left, bottom, right } = this.#covered();
    const size = this.map.getSize();
    const at = this.map.latLngToContainerPoint(place);
    return at.x > left + 20 && at.x < size.x - right - 20 && at.y > 50 && at.y < size.y - bottom - 20;
  }

  /** What the panels cover of the map. CSS pixels. */
  #covered() {
    const map = this.map.getContainer().getBoundingClientRect();
    const panel = byId("panel").getBoundingClientRect();
    const card = byId("detail").getBoundingClientRect();
    if (panel.width > map.width * 0.9) return { left: 0, bottom: Math.max(0, map.bottom - panel.top), right: 0 };
    const beside = card.width > 0 && card.left > panel.right;
    return { left: Math.max(0, panel.right - map.left), bottom: 0, right: beside ? map.right - card.left : 0 };
  }

  /**
   * A vehicle, where it is drawn, into the middle of what can be seen.
   * @param {import("./fleet.js").Vehicle} vehicle
   * @param {number} [zoom]
   */
  centre(vehicle, zoom) {
    this.chosen = true;
    this.centreOn([latitudeOf(vehicle.y), longitudeOf(vehicle.x)], zoom);
  }

  /**
   * @param {import("leaflet").LatLngExpression} place
   * @param {number} [zoom]
   */
  centreOn(place, zoom = this.map.getZoom()) {
    const { left, bottom, right } = this.#covered();
    const at = this.map.project(place, zoom).subtract([(left - right) / 2, -bottom / 2]);
    this.map.setView(this.map.unproject(at, zoom), zoom, { animate: !lessMotion.matches });
  }

  /**
   * Moves the map if the vehicle is about to leave the middle of what can be seen.
   * @param {import("./fleet.js").Vehicle} vehicle
   */
  follow(vehicle) {
    const size = this.map.getSize();
    const { left, bottom, right } = this.#covered();
    const at = this.map.latLngToContainerPoint([latitudeOf(vehicle.y), longitudeOf(vehicle.x)]);
    const width = size.x - left - right;
    const height = size.y - bottom;
    const off = Math.abs(at.x - left - width / 2) > width * INNER || Math.abs(at.y - height / 2) > height * INNER;
    const now = performance.now();
    if (!off || now < this.followedAt + 500) return;
    this.followedAt = now;
    this.centre(vehicle);
  }

  #theme() {
    const root = document.documentElement;
    const button = byId("theme");
    const dark = matchMedia("(prefers-color-scheme: dark)");
    let theme = localStorage.getItem(THEME_KEY) ?? "auto";
    const apply = () => {
      root.dataset["theme"] = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
      const names = { auto: "as the system", light: "light", dark: "dark" };
      const name = names[/** @type {"auto" | "light" | "dark"} */ (theme)] ?? theme;
      button.setAttribute("aria-label", `Theme: ${name}`);
      button.title = `Theme: ${name}`;
      button.dataset["theme"] = theme;
    };
    const change = () => {
      apply();
      this.base?.restyle();
      this.restyled();
    };
    button.addEventListener("click", () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "auto";
      localStorage.setItem(THEME_KEY, theme);
      change();
    });
    dark.addEventListener("change", change);
    apply();
  }
}
