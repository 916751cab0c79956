/**
 * When to try again: full jitter over a doubling ceiling, and what each close code asks for
 * (README, "Close codes"). Pure: no timer, no socket.
 */

/** The longest time that a timer of JavaScript holds. */
export const MAX_MS = 2147483647;

/**
 * A time from outside, as one that timers can hold.
 * @param {unknown} value
 * @param {number} fallback
 * @param {number} [least]
 */
export function millis(value, fallback, least = 0) {
  const time = typeof value === "number" && Number.isFinite(value) ? value : fallback;
  return Math.min(Math.max(time, least), MAX_MS);
}

/** @typedef {"after-notice"|"after-a-minute"|"backoff"|"with-new-token"|"at-once"} Advice */

/** The reason that makes 1001 a promise; proxies and browsers send 1001 too. */
const OURS = "server shutting down";

/**
 * Whether this close says that what is unanswered never started.
 * @param {number} code
 * @param {string} reason
 */
export const neverStarted = (code, reason) => code === 1001 && reason === OURS;

/**
 * When to come back after a close. Unknown codes and 1006 (no close frame) mean backoff.
 * @param {number} code
 * @param {string} reason
 * @returns {Advice}
 */
export function comeBack(code, reason) {
  switch (code) {
    case 1001:
      return reason === OURS ? "after-notice" : "backoff";
    case 1002:
    case 1007:
    case 1008:
    case 1009:
    case 4029:
      return "after-a-minute";
    case 4001:
      return "with-new-token";
    case 4008:
      return "at-once";
    default:
      return "backoff";
  }
}

/** One client's waits, so that clients that were lost together do not come back together. */
export class Backoff {
  #failures = 0;

  /**
   * @param {number} firstMs the ceiling of the first wait
   * @param {number} capMs the largest ceiling; also what "a minute" waits at least
   * @param {() => number} random from 0 to 1
   */
  constructor(firstMs, capMs, random) {
    this.firstMs = firstMs;
    this.capMs = capMs;
    this.random = random;
  }

  /** The ceiling of the next wait. */
  get ceiling() {
    return Math.min(this.firstMs * 2 ** Math.min(this.#failures, 40), this.capMs);
  }

  /** The wait before the next attempt, counted as a failure. */
  next() {
    const wait = this.upTo(this.ceiling);
    this.#failures += 1;
    return wait;
  }

  /** No wait for the first attempt, then as `next`. */
  atOnce() {
    if (this.#failures > 0) return this.next();
    this.#failures = 1;
    return 0;
  }

  /** The wait of a refusal that says "a minute", jitter on top. */
  aMinute() {
    this.#failures += 1;
    return this.capMs + this.upTo(this.capMs / 4);
  }

  /**
   * An even draw from nothing to `most`.
   * @param {number} most
   */
  upTo(most) {
    return most * this.random();
  }

  /** A spread of one first wait, for attempts that are nobody's failure. */
  spread() {
    return this.upTo(this.firstMs);
  }

  /**
   * A session has ended: one that outlived the wait it cost clears the count.
   * @param {number} ms
   */
  sessionLasted(ms) {
    if (ms >= this.ceiling) this.#failures = 0;
  }
}
