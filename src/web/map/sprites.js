// @ts-check
/**
 * Pictures of vehicles and labels, drawn once and copied from then on. What a vehicle's
 * state is, its shape says as well as its colour: live an arrow (a disc without heading),
 * stale a diamond, lost a ring with a cross.
 * @module
 */

/**
 * @typedef {{live: string, stale: string, lost: string, halo: string, text: string, muted: string,
 *   accent: string, trail: string, history: string, water: string, land: string, coast: string,
 *   border: string, grid: string}} Colours
 */

/** Headings that an arrow is drawn for. */
const STEPS = 72;
/** CSS pixels of a cell. */
const CELL = 26;
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
    "water", "land", "coast", "border", "grid"];
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

/**
 * One vehicle around (0, 0).
 * @param {CanvasRenderingContext2D} pen
 * @param {"arrow" | "disc" | "stale" | "lost"} shape
 * @param {Colours} colours
 * @param {number} size  1 is normal
 */
export function drawShape(pen, shape, colours, size) {
  pen.lineJoin = "round";
  pen.lineWidth = 2;
  pen.strokeStyle = colours.halo;
  pen.beginPath();
  if (shape === "arrow") {
    pen.moveTo(0, -9.5 * size);
    pen.lineTo(7 * size, 8 * size);
    pen.lineTo(0, 4.5 * size);
    pen.lineTo(-7 * size, 8 * size);
    pen.closePath();
    pen.fillStyle = colours.live;
  } else if (shape === "disc") {
    pen.arc(0, 0, 6 * size, 0, 7);
    pen.fillStyle = colours.live;
  } else if (shape === "stale") {
    pen.moveTo(0, -8.5 * size);
    pen.lineTo(8.5 * size, 0);
    pen.lineTo(0, 8.5 * size);
    pen.lineTo(-8.5 * size, 0);
    pen.closePath();
    pen.fillStyle = colours.stale;
  } else {
    pen.arc(0, 0, 7.5 * size, 0, 7);
    pen.fillStyle = colours.halo;
  }
  pen.stroke();
  pen.fill();
  if (shape === "lost") {
    const arm = 3.4 * size;
    pen.strokeStyle = colours.lost;
    pen.lineWidth = 2 * size;
    pen.beginPath();
    pen.arc(0, 0, 6.5 * size, 0, 7);
    pen.moveTo(-arm, -arm);
    pen.lineTo(arm, arm);
    pen.moveTo(arm, -arm);
    pen.lineTo(-arm, arm);
    pen.stroke();
  }
}

/** All shapes, in two sizes, for one theme and one pixel ratio. */
export class Sprites {
  /**
   * @param {Colours} colours
   * @param {number} ratio
   */
  constructor(colours, ratio) {
    this.colours = colours;
    this.ratio = ratio;
    const { canvas, pen } = sheet(CELL * (STEPS + 3), CELL * 2, ratio);
    this.canvas = canvas;
    for (const [row, size] of [1, 0.62].entries()) {
      for (let i = 0; i < STEPS + 3; i++) {
        pen.save();
        pen.translate(CELL * (i + 0.5), CELL * (row + 0.5));
        if (i < STEPS) pen.rotate((i / STEPS) * 2 * Math.PI);
        const shape = i < STEPS ? "arrow" : (/** @type {const} */ (["disc", "stale", "lost"]))[i - STEPS];
        drawShape(pen, shape ?? "disc", colours, size);
        pen.restore();
      }
    }
    /** @type {Map<string, HTMLCanvasElement>} */
    this.labels = new Map();
    this.measure = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    this.measure.font = FONT;
  }

  /**
   * @param {CanvasRenderingContext2D} pen
   * @param {import("./fleet.js").Status} status
   * @param {number} heading  degrees, or NaN
   * @param {number} x
   * @param {number} y
   * @param {boolean} small
   */
  draw(pen, status, heading, x, y, small) {
    let column = STEPS;
    if (status === "stale") column = STEPS + 1;
    else if (status === "lost") column = STEPS + 2;
    else if (heading === heading) column = ((Math.round((heading / 360) * STEPS) % STEPS) + STEPS) % STEPS;
    const cell = CELL * this.ratio;
    pen.drawImage(this.canvas, column * cell, small ? cell : 0, cell, cell, x - CELL / 2, y - CELL / 2, CELL, CELL);
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
