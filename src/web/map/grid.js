// @ts-check
/**
 * Which places of the view are taken by a vehicle or a label.
 * @module
 */

/** @typedef {import("./fleet.js").Vehicle} Vehicle */

/** Boxes in CSS pixels, found by cells of 64 by 32. */
export class Grid {
  constructor() {
    /** @type {Map<number, {x: number, y: number, w: number, h: number, owner: Vehicle}[]>} */
    this.cells = new Map();
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} w
   * @param {number} h
   * @param {(cell: number) => boolean} visit  true: enough
   */
  #visit(x, y, w, h, visit) {
    for (let cx = Math.floor(x / 64); cx <= Math.floor((x + w) / 64); cx++) {
      for (let cy = Math.floor(y / 32); cy <= Math.floor((y + h) / 32); cy++) {
        if (visit(cx * 4096 + cy)) return true;
      }
    }
    return false;
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} w
   * @param {number} h
   * @param {Vehicle} owner
   */
  take(x, y, w, h, owner) {
    this.#visit(x, y, w, h, (cell) => {
      const taken = this.cells.get(cell);
      if (taken) taken.push({ x, y, w, h, owner });
      else this.cells.set(cell, [{ x, y, w, h, owner }]);
      return false;
    });
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} w
   * @param {number} h
   * @param {Vehicle} owner
   */
  free(x, y, w, h, owner) {
    return !this.#visit(x, y, w, h, (cell) =>
      (this.cells.get(cell) ?? []).some(
        (o) => o.owner !== owner && x < o.x + o.w && o.x < x + w && y < o.y + o.h && o.y < y + h,
      ),
    );
  }
}
