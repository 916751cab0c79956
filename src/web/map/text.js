// @ts-check
/**
 * What people read: numbers, times, and the strings of strangers. Vehicle ids, room names
 * and attributes come from devices, so they are only ever text: cleaned, cut, isolated.
 * @module
 */

/** Controls, line breaks, and marks that change the direction of what follows. */
const UNSAFE = /[\p{Cc}\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]+/gu;

/**
 * A stranger's string on one line, without controls, at most `max` characters long.
 * @param {unknown} value
 * @param {number} [max]
 */
export function clean(value, max = 80) {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  // Cut before the expensive part; a character is at most two units.
  const some = text.slice(0, max * 4).replace(UNSAFE, " ");
  const characters = Array.from(some);
  const cut = characters.length > max || text.length > max * 4;
  return (cut ? `${characters.slice(0, max - 1).join("")}…` : some).trim() || "(blank)";
}

/**
 * The same, isolated from the direction of the text around it.
 * @param {unknown} value
 * @param {number} [max]
 */
export function bdi(value, max) {
  const element = document.createElement("bdi");
  element.textContent = clean(value, max);
  return element;
}

/**
 * Sets an element's text if it is another than it has.
 * @param {Element} element
 * @param {string} text
 */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {string} [className]
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/**
 * The element with this id, which the page has.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 * @returns {T}
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return /** @type {T} */ (element);
}

const whole = new Intl.NumberFormat("en");

/** @param {number} value */
export const count = (value) => whole.format(value);

/**
 * "1 vehicle", "2 vehicles".
 * @param {number} value
 * @param {string} one
 * @param {string} [many]
 */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/**
 * A span of time in one or two units.
 * @param {number} ms
 */
export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return s < 600 && s % 60 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 60)} min`;
  const h = Math.floor(s / 3600);
  if (h < 48) return `${h} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(h / 24)} days`;
}

/**
 * @param {number} ms
 */
export const ago = (ms) => (ms < 1500 ? "now" : `${span(ms)} ago`);

/**
 * Milliseconds where they matter, seconds where not.
 * @param {number | null | undefined} ms
 */
export function delay(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  const abs = Math.abs(ms);
  if (abs < 1000) return `${Math.round(ms)} ms`;
  return abs < 60_000 ? `${(ms / 1000).toFixed(1)} s` : span(ms);
}

/**
 * Metres a second as kilometres an hour.
 * @param {unknown} speed
 */
export function kmh(speed) {
  return typeof speed === "number" && Number.isFinite(speed) ? `${Math.round(speed * 3.6)} km/h` : "";
}

const WINDS = ["N", "NE", "E", "SE", "S", "SW", "W", "NW"];

/** @param {number} degrees */
export const bearing = (degrees) =>
  `${Math.round(degrees)}° ${WINDS[Math.round((((degrees % 360) + 360) % 360) / 45) % 8]}`;

const clockFormat = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const dateFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/**
 * A time on the wall clock here, with the date if it is not today.
 * @param {number} ms
 */
export function clock(ms) {
  if (!Number.isFinite(ms)) return "–";
  const today = new Date().toDateString() === new Date(ms).toDateString();
  return (today ? clockFormat : dateFormat).format(ms);
}

/**
 * @param {number} latitude
 * @param {number} longitude
 */
export const place = (latitude, longitude) =>
  `${Math.abs(latitude).toFixed(5)}° ${latitude < 0 ? "S" : "N"}, ` +
  `${Math.abs(longitude).toFixed(5)}° ${longitude < 0 ? "W" : "E"}`;
