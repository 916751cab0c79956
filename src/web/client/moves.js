/**
 * From one session to the next: tells when all rooms are joined again, and what the change has
 * cost the view.
 */

/** @typedef {import("./core.js").Core} Core */
/** @typedef {import("./link.js").Link} Link */
/** @typedef {import("./room.js").Place} Place */

/**
 * How long the end of a replay is waited for, milliseconds: its last event may be one that is
 * never sent, such as a late fix.
 */
const REPLAY_MS = 2000;

export class Moves {
  /**
   * @type {{from: string, to: string, missed: number, replayed: number, gapMs: number,
   *   reset: boolean, by: number | null} | null}
   */
  #move = null;
  #instance = /** @type {string | null} */ (null);

  /** @param {Core} core */
  constructor(core) {
    this.core = core;
  }

  /** Whether a replay is being counted. */
  get replaying() {
    return this.#move !== null;
  }

  nextDeadline() {
    return this.#move?.by ?? Infinity;
  }

  /**
   * A session began.
   * @param {Link} link
   */
  began(link) {
    const from = this.#instance;
    this.#instance = link.instance;
    if (from === null) return;
    const { missed } = this.core.counters;
    this.#move ??= { from, to: "", missed, replayed: 0, gapMs: 0, reset: false, by: null };
    this.#move.to = link.instance;
  }

  /**
   * A room is joined, and was in nobody's hand since `place.silentSince`.
   * @param {Place} place
   * @param {number} now
   */
  joined(place, now) {
    if (this.#move === null || place.silentSince === null) return;
    this.#move.gapMs = Math.max(this.#move.gapMs, Math.round(now - place.silentSince));
  }

  replayed() {
    if (this.#move !== null) this.#move.replayed += 1;
  }

  reset() {
    if (this.#move !== null) this.#move.reset = true;
  }

  /**
   * Tells of the move if it is complete.
   * @param {number} now
   */
  look(now) {
    const move = this.#move;
    const { current } = this.core.sessions;
    if (move === null || current === null) return;
    const places = [...this.core.rooms.values()].map(({ place }) => place);
    const joined = places.every(
      (place) => place.link === current || place.retryAt !== null || !place.established,
    );
    if (!joined) {
      move.by = null;
      return;
    }
    move.by ??= now + REPLAY_MS;
    if (move.by > now && places.some((place) => place.replayUntil !== null)) return;
    this.#move = null;
    this.core.emit("moved", {
      fromInstance: move.from,
      toInstance: move.to,
      missed: this.core.counters.missed - move.missed,
      replayed: move.replayed,
      gapMs: move.gapMs,
      reset: move.reset,
    });
  }
}
