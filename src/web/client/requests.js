/**
 * The requests of one client that have no result yet: where each one stands, and what the end
 * of a session means for it. Every request is here exactly as long as its caller waits for it.
 * Knows no socket.
 */
import { draining, invalid, MilepostError, unknownOutcome } from "./error.js";
import { MAX_MS } from "./timing.js";

/** @typedef {import("./link.js").Link} Link */

/**
 * Opt-in: requests that a draining server refused are sent again on a new session.
 * @typedef {object} ResendRefused
 * @property {number} maxResends how often one request is sent again; 0 or less: never
 * @property {number} newSessionWaitMs how long each refusal waits for a session that can take it
 */

/**
 * @typedef {object} Asking
 * @property {string} kind the message's type
 * @property {string} payload its payload, JSON; the same bytes at every send
 * @property {string[]} rooms the rooms that must be joined on the session, if wanted at all
 * @property {Record<string, any> | null} [keyed] the position, if it carries a key
 * @property {import("./upload.js").Upload | null} [upload]
 * @property {AbortSignal | undefined} [signal]
 */

/** A message that a caller waits for. */
export class Request {
  /** The link that has it, and its id there. @type {{link: Link, wire: number} | null} */
  sentAs = null;
  /** When it first went out, and until when the server knows its key. @type {number | null} */
  windowEnds = null;
  resends = 0;
  /** Set while it waits for another session. @type {{session: string, until: number} | null} */
  elsewhere = null;
  /** A session died with it: whatever is said later, that try may have run. */
  unknown = false;
  /** Its window has passed: the rooms that it has yet to be uploaded to. @type {Set<string> | null} */
  late = null;

  /**
   * @param {number} key ascends in the order of the calls
   * @param {Asking} asking
   * @param {(answer: Record<string, any>) => void} resolve
   * @param {(error: unknown) => void} reject
   */
  constructor(key, asking, resolve, reject) {
    this.key = key;
    this.kind = asking.kind;
    this.payload = asking.payload;
    this.rooms = asking.rooms;
    this.keyed = asking.keyed ?? null;
    this.upload = asking.upload ?? null;
    this.signal = asking.signal;
    this.resolve = resolve;
    this.reject = reject;
    /** @type {(() => void) | null} */
    this.unlisten = null;
  }

  /** What it ends with when no answer comes any more. */
  unanswered() {
    return this.unknown ? unknownOutcome() : draining();
  }

  /** When waiting ends by itself. */
  get deadline() {
    if (this.elsewhere !== null) return this.elsewhere.until;
    // Sent and lost: unknown for ever once the window has passed.
    return this.unknown ? this.windowEnds : null;
  }
}

export class Requests {
  /** @type {Map<number, Request>} */
  all = new Map();
  /** Those that no session has. @type {Set<Request>} */
  waiting = new Set();
  /** Those of them that do not wait for ever. @type {Set<Request>} */
  #timed = new Set();
  #nextKey = 0;

  /**
   * @param {ResendRefused | undefined} resend
   * @param {boolean} resendKeyed
   * @param {number} most how many may be unanswered
   * @param {(request: Request) => void} outOfWindow takes what only an upload can repeat
   */
  constructor(resend, resendKeyed, most, outOfWindow) {
    const wait = resend?.newSessionWaitMs ?? 0;
    if (!(wait >= 0 && wait <= MAX_MS)) {
      throw invalid(`newSessionWaitMs must be 0 to ${MAX_MS}`);
    }
    this.policy = resend && resend.maxResends > 0 ? { most: resend.maxResends, wait } : null;
    this.resendKeyed = resendKeyed;
    this.most = most;
    this.outOfWindow = outOfWindow;
  }

  /**
   * @param {Asking} asking
   * @param {(request: Request) => void} giveUp
   * @returns {{request: Request | null, answer: Promise<Record<string, any>>}}
   */
  insert(asking, giveUp) {
    const { signal } = asking;
    if (signal?.aborted) return { request: null, answer: Promise.reject(signal.reason) };
    if (this.all.size >= this.most) {
      const full = new MilepostError("QUEUE_FULL", `${this.most} requests wait for an answer`, {
        retry: "later",
        retryAfterMs: 1000,
      });
      return { request: null, answer: Promise.reject(full) };
    }
    /** @type {Request | null} */
    let made = null;
    const answer = /** @type {Promise<Record<string, any>>} */ (
      new Promise((resolve, reject) => {
        made = new Request(this.#nextKey++, asking, resolve, reject);
      })
    );
    const request = /** @type {Request} */ (/** @type {unknown} */ (made));
    if (signal) {
      const listener = () => giveUp(request);
      signal.addEventListener("abort", listener, { once: true });
      request.unlisten = () => signal.removeEventListener("abort", listener);
    }
    this.all.set(request.key, request);
    this.waiting.add(request);
    return { request, answer };
  }

  /** Those that no session has, oldest first. */
  inOrder() {
    return [...this.waiting].sort((one, other) => one.key - other.key);
  }

  /**
   * Whether something waits for another session than this one, which refused it.
   * @param {string} session
   */
  refusedBy(session) {
    for (const request of this.#timed) if (request.elsewhere?.session === session) return true;
    return false;
  }

  nextDeadline() {
    let next = Infinity;
    for (const request of this.#timed) next = Math.min(next, request.deadline ?? Infinity);
    return next;
  }

  /**
   * A session has it now; `true` if this is a repetition.
   * @param {Request} request
   * @param {Link} link
   * @param {number} wire
   * @param {number} now
   */
  sent(request, link, wire, now) {
    const again = request.elsewhere !== null || request.unknown;
    this.#unwait(request);
    request.sentAs = { link, wire };
    if (request.elsewhere !== null) request.resends += 1;
    request.elsewhere = null;
    request.windowEnds ??= now + link.windowMs;
    return again;
  }

  /** @param {Request} request */
  #unwait(request) {
    this.waiting.delete(request);
    this.#timed.delete(request);
  }

  /** @param {Request} request */
  #wait(request) {
    request.sentAs = null;
    this.waiting.add(request);
    if (request.deadline !== null) this.#timed.add(request);
  }

  /**
   * Takes it out without a result.
   * @param {Request} request
   */
  remove(request) {
    this.#unwait(request);
    request.unlisten?.();
    request.unlisten = null;
    request.upload?.end();
    return this.all.delete(request.key);
  }

  /**
   * @param {Request} request
   * @param {Record<string, any>} answer
   */
  succeed(request, answer) {
    if (this.remove(request)) request.resolve(answer);
  }

  /**
   * @param {Request} request
   * @param {unknown} error
   */
  fail(request, error) {
    if (this.remove(request)) request.reject(error);
  }

  /**
   * `session` answered `SERVER_DRAINING`, or closed so as to mean it.
   * @param {Request} request
   * @param {string} session
   * @param {number} now
   */
  refused(request, session, now) {
    if (request.upload !== null) {
      this.fail(request, request.upload.committed > 0 ? unknownOutcome() : draining());
    } else if (request.unknown && request.windowEnds !== null) {
      // An earlier try may have run, so this is no plain refusal: the key makes another one
      // harmless as long as the server knows it.
      request.elsewhere = { session, until: request.windowEnds };
      this.#wait(request);
    } else if (this.policy !== null && request.resends < this.policy.most) {
      request.windowEnds = null;
      request.elsewhere = { session, until: now + this.policy.wait };
      this.#wait(request);
    } else {
      this.fail(request, draining());
    }
  }

  /**
   * The session that had it ended without an answer.
   * @param {Request} request
   * @param {boolean} repeatable whether the message itself cannot be the reason
   */
  lost(request, repeatable) {
    if (this.resendKeyed && repeatable && request.keyed !== null) {
      request.unknown = true;
      this.#wait(request);
    } else {
      this.fail(request, unknownOutcome());
    }
  }

  /**
   * Those whose waiting has come to its end get its result.
   * @param {number} now
   */
  expire(now) {
    for (const request of [...this.#timed]) {
      if ((request.deadline ?? Infinity) > now) continue;
      const { keyed } = request;
      if (request.unknown && keyed !== null && keyed.timestamp != null) {
        // The server may have forgotten the key, but an upload is held against the log itself.
        this.#unwait(request);
        request.late = new Set(request.rooms);
        this.outOfWindow(request);
      } else {
        this.fail(request, request.unanswered());
      }
    }
  }

  /**
   * A join of `room` failed: refusals that waited for it are final.
   * @param {string} room
   */
  joinFailed(room) {
    for (const request of [...this.#timed]) {
      const waits = request.elsewhere !== null && !request.unknown;
      if (waits && request.rooms.includes(room)) this.fail(request, draining());
    }
  }

  /**
   * The client ends: what never went out gets `error`, the rest is unknown.
   * @param {MilepostError} error
   */
  end(error) {
    for (const request of [...this.all.values()]) {
      const timed = this.#timed.has(request);
      const waits = this.waiting.has(request);
      const result = timed ? request.unanswered() : waits ? error : unknownOutcome();
      this.fail(request, result);
    }
  }
}
