// @ts-check
/**
 * How vehicles and their labels look. What a vehicle's state is, its shape says as well as
 * its colour: live an arrow (a disc without heading), stale a diamond, lost a ring with a
 * cross.
 * @module
 */

/**
 * @typedef {{live: string, stale: string, lost: string, halo: string, text: string, muted: string,
 *   accent: string, trail: string, history: string, water: string, land: string, coast: string,
 *   border: string, grid: string, degrees: string}} Colours
 */

/** Labels that are kept. */
const LABELS = 4000;
const FONT = "600 12px system-ui, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif";
export const LABEL_HEIGHT = 18;

/**
 * The page's colours, from its style sheet.
 * @returns {Colours}
 */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["live", "stale", "lost", "halo", "text", "muted", "accent", "trail", "history",
    "water", "land", "coast", "border", "grid", "degrees"];
  const read = (/** @type {string} */ name) => style.getPropertyValue(`--map-${name}`).trim();
  return /** @type {Colours} */ (Object.fromEntries(names.map((name) => [name, read(name)])));
}

/**
 * @param {number} width
 * @param {number} height
 * @param {number} ratio
 */
function sheet(width, height, ratio) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(width * ratio);
  canvas.height = Math.ceil(height * ratio);
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.scale(ratio, ratio);
  return { canvas, pen };
}

/** Each shape around (0, 0), and a little larger, to stand out from whatever is below. */
const SHAPES = {
  arrow: { halo: "M0-11.5 8.8 9.6 0 6-8.8 9.6Z", fill: "M0-8.6 6.2 7.2 0 3.9-6.2 7.2Z" },
  disc: { halo: "M7.5 0A7.5 7.5 0 1 1-7.5 0 7.5 7.5 0 1 1 7.5 0Z", fill: "M5.5 0A5.5 5.5 0 1 1-5.5 0 5.5 5.5 0 1 1 5.5 0Z" },
  stale: { halo: "M0-10 10 0 0 10-10 0Z", fill: "M0-7.5 7.5 0 0 7.5-7.5 0Z" },
  lost: {
    halo: "M8.5 0A8.5 8.5 0 1 1-8.5 0 8.5 8.5 0 1 1 8.5 0Z",
    // A ring, and in it a cross.
    fill:
      "M7 0A7 7 0 1 1-7 0 7 7 0 1 1 7 0ZM5.2 0A5.2 5.2 0 1 0-5.2 0 5.2 5.2 0 1 0 5.2 0Z" +
      "M-3.2-2-2-3.2 0-1.2 2-3.2 3.2-2 1.2 0 3.2 2 2 3.2 0 1.2-2 3.2-3.2 2-1.2 0Z",
  },
};

/** Draws vehicles and labels in one theme for one pixel ratio. */
export class Sprites {
  /**
   * @param {Colours} colours
   * @param {number} ratio
   */
  constructor(colours, ratio) {
    this.colours = colours;
    this.ratio = ratio;
    const entries = Object.entries(SHAPES).map(([name, { halo, fill }]) => [name, { halo: new Path2D(halo), fill: new Path2D(fill) }]);
    /** @type {Record<keyof typeof SHAPES, {halo: Path2D, fill: Path2D}>} */
    this.shapes = Object.fromEntries(entries);
    /** @type {Map<string, HTMLCanvasElement>} */
    this.labels = new Map();
    this.measure = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    this.measure.font = FONT;
  }

  /**
   * One vehicle. Filling a path costs a browser far less than copying a picture of it.
   * Leaves the pen's transformation behind.
   * @param {CanvasRenderingContext2D} pen
   * @param {import("./fleet.js").Status} status
   * @param {number} heading  degrees, or NaN
   * @param {number} x
   * @param {number} y
   * @param {number} size  1 is normal
   */
  draw(pen, status, heading, x, y, size) {
    const { ratio, colours } = this;
    const arrow = status === "live" && heading === heading;
    const { halo, fill } = this.shapes[arrow ? "arrow" : status === "live" ? "disc" : status];
    const angle = arrow ? (heading * Math.PI) / 180 : 0;
    const cos = Math.cos(angle) * size * ratio;
    const sin = Math.sin(angle) * size * ratio;
    pen.setTransform(cos, sin, -sin, cos, x * ratio, y * ratio);
    pen.fillStyle = colours.halo;
    pen.fill(halo);
    pen.fillStyle = colours[status];
    pen.fill(fill);
  }

  /**
   * A label's picture; its width in CSS pixels is `width / ratio`.
   * @param {string} text
   * @param {boolean} strong
   */
  label(text, strong) {
    const key = (strong ? "1" : "0") + text;
    let picture = this.labels.get(key);
    if (picture) return picture;
    const width = Math.min(220, Math.ceil(this.measure.measureText(text).width) + 10);
    const { canvas, pen } = sheet(width, LABEL_HEIGHT, this.ratio);
    pen.font = FONT;
    pen.textBaseline = "middle";
    pen.lineJoin = "round";
    pen.lineWidth = 3.5;
    pen.strokeStyle = this.colours.halo;
    pen.fillStyle = strong ? this.colours.text : this.colours.muted;
    pen.strokeText(text, 5, LABEL_HEIGHT / 2 + 0.5, 210);
    pen.fillText(text, 5, LABEL_HEIGHT / 2 + 0.5, 210);
    picture = canvas;
    if (this.labels.size >= LABELS) {
      const oldest = this.labels.keys().next().value;
      if (oldest !== undefined) this.labels.delete(oldest);
    }
    this.labels.set(key, picture);
    return picture;
  }
}
