// @ts-check
/**
 * Places on the map: Web Mercator on a square of side 1, from (0, 0) in the north-west.
 * @module
 */

/** Mercator ends here. */
const EDGE = 85.0511287798;
/** Metres around the equator. */
const AROUND = 40_075_016.686;

/** @param {number} longitude */
export const worldX = (longitude) => (longitude + 180) / 360;

/** @param {number} latitude */
export function worldY(latitude) {
  const sin = Math.sin((Math.max(-EDGE, Math.min(EDGE, latitude)) * Math.PI) / 180);
  return 0.5 - Math.log((1 + sin) / (1 - sin)) / (4 * Math.PI);
}

/** @param {number} x */
export const longitudeOf = (x) => x * 360 - 180;

/** @param {number} y */
export const latitudeOf = (y) => (Math.atan(Math.sinh(Math.PI * (1 - 2 * y))) * 180) / Math.PI;

/**
 * Metres on the ground of one unit at this height of the map.
 * @param {number} y
 */
export const metresPerUnit = (y) => AROUND / Math.cosh(Math.PI * (1 - 2 * y));

/**
 * `x`, or the same meridian one world further, whichever is nearer to `to`.
 * @param {number} x
 * @param {number} to
 */
export const nearest = (x, to) => x + Math.round(to - x);

/**
 * The heading `part` of the way (0 to 1) from one to another, round the shorter side.
 * @param {number} from
 * @param {number} to
 * @param {number} part
 */
export function turn(from, to, part) {
  const way = ((((to - from + 180) % 360) + 360) % 360) - 180;
  return from + way * part;
}
