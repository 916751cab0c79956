/**
 * The core of a client: it owns the rooms and the requests, finds answers their callers and
 * events their rooms, and has the one timer. Sessions come from `sessions.js`.
 *
 * Everything that happens goes through `run`: it changes what it has to, then what has become
 * possible is done, then the listeners are told, in order. A listener may call anything.
 */
import { Calls } from "./calls.js";
import { closed } from "./error.js";
import { Inbound } from "./inbound.js";
import { Moves } from "./moves.js";
import { flush, joinRooms, retire } from "./outbound.js";
import { Requests } from "./requests.js";
import { Sessions } from "./sessions.js";

/** @typedef {import("./link.js").Link} Link */
/** @typedef {import("./link.js").Asked} Asked */
/** @typedef {import("./error.js").MilepostError} MilepostError */
/** @typedef {import("./room.js").Place} Place */
/** @typedef {import("./room.js").Room} Room */
/** @typedef {import("./milepost.js").State} State */
/** @typedef {{type: string, id: unknown, payload: Record<string, any>}} Message */
/** @typedef {{resolve: (room: Room) => void, reject: (error: unknown) => void}} Waiter */
/**
 * @typedef {object} Entry
 * @property {Room} room
 * @property {Place} place
 * @property {Set<Waiter>} waiters
 * @property {Set<string> | null} members the list that is being read, page by page
 * @property {boolean} shows whether the pages of the snapshot are the view
 */

/** A timer that fires this late has slept: nothing was read meanwhile. Milliseconds. */
const SLEPT = 2000;

export class Core {
  /** @type {Map<string, Entry>} */
  rooms = new Map();
  /** A room or a session changed: look through what waits. */
  dirty = true;
  /** @type {MilepostError | null} */
  ended = null;
  counters = {
    connects: 0,
    reconnects: 0,
    resumes: 0,
    resets: 0,
    gaps: 0,
    missed: 0,
    duplicatesDropped: 0,
    positions: 0,
    dropped: 0,
    resends: 0,
    notificationsDropped: 0,
  };
  /** @type {State} */
  state = {
    status: "connecting",
    stale: true,
    sessionId: null,
    instanceId: null,
    generation: null,
    endpoint: null,
    clientId: null,
    retryAt: null,
    serverTimeOffsetMs: null,
    roundTripMs: null,
  };
  #clientId = /** @type {string | null} */ (null);
  #offset = /** @type {number | null} */ (null);
  #roundTrip = /** @type {number | null} */ (null);
  #wire = 0;
  #depth = 0;
  /** @type {Map<string, Set<(event: any) => void>>} */
  #listeners = new Map();
  /** @type {{type: string, event: object}[]} */
  #events = [];
  #draining = false;
  #timer = /** @type {unknown} */ (null);
  #timerAt = Infinity;
  /** @type {Set<{at: number, resolve: () => void}>} */
  #sleepers = new Set();
  /** @type {(() => void) | null} */
  #gone = null;
  #unlisten = () => {};

  /** @param {import("./options.js").Settings} settings */
  constructor(settings) {
    this.settings = settings;
    this.now = settings.now;
    this.requests = new Requests(
      settings.resendRefused,
      settings.resendKeyed,
      settings.maxUnanswered,
      (request) => this.calls.repeatLate(request),
    );
    this.moves = new Moves(this);
    this.inbound = new Inbound(this);
    this.calls = new Calls(this);
    this.sessions = new Sessions(this, settings);
  }

  /** Connects, and listens to what the platform knows of sleep and networks. */
  start() {
    const { window, document } = this.settings;
    const wake = () => this.run(() => this.sessions.wake(this.now()));
    const check = () => this.run(() => this.sessions.check(this.now()));
    const visible = () => {
      if (document?.visibilityState !== "hidden") wake();
    };
    /** @type {[EventTarget | null, string, () => void][]} */
    const all = [
      [window, "online", wake],
      [window, "offline", check],
      [window, "pageshow", wake],
      [document, "visibilitychange", visible],
      [document, "resume", wake],
    ];
    for (const [target, type, listener] of all) target?.addEventListener(type, listener);
    this.#unlisten = () => {
      for (const [target, type, listener] of all) target?.removeEventListener(type, listener);
    };
    this.run(() => {});
  }

  // Events.

  /**
   * @param {string} type
   * @param {(event: any) => void} listener
   */
  on(type, listener) {
    let listeners = this.#listeners.get(type);
    if (listeners === undefined) this.#listeners.set(type, (listeners = new Set()));
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }

  /**
   * @param {string} type
   * @param {object} event
   */
  emit(type, event) {
    if (this.#listeners.get(type)?.size) this.#events.push({ type, event });
  }

  /**
   * Does something, then all that follows from it.
   * @template T
   * @param {() => T} what
   * @returns {T}
   */
  run(what) {
    this.#depth += 1;
    try {
      return what();
    } finally {
      this.#depth -= 1;
      if (this.#depth === 0) {
        this.#depth = 1;
        try {
          this.#settle();
        } finally {
          this.#depth = 0;
        }
        this.#tell();
      }
    }
  }

  #tell() {
    // A listener that calls back finds its events behind the ones that are waiting.
    if (this.#draining) return;
    this.#draining = true;
    for (let next = this.#events.shift(); next !== undefined; next = this.#events.shift()) {
      for (const listener of [...(this.#listeners.get(next.type) ?? [])]) {
        try {
          listener(next.event);
        } catch (error) {
          // Its own fault is no reason to leave the others without theirs.
          queueMicrotask(() => {
            throw error;
          });
        }
      }
    }
    this.#draining = false;
  }

  #settle() {
    const now = this.now();
    if (this.ended === null) {
      this.sessions.schedule(now);
      if (this.dirty) {
        this.dirty = false;
        joinRooms(this, now);
        flush(this, now);
        retire(this, now);
        this.moves.look(now);
      }
    } else if (this.sessions.links.length === 0) {
      this.#gone?.();
    }
    this.#publishState(now);
    this.#arm(now);
  }

  // The timer.

  /** @param {number} now */
  #arm(now) {
    let next = this.sessions.nextDeadline();
    for (const sleeper of this.#sleepers) next = Math.min(next, sleeper.at);
    if (this.ended === null) {
      next = Math.min(next, this.requests.nextDeadline(), this.moves.nextDeadline());
      const stale = this.#staleAt();
      if (stale > now) next = Math.min(next, stale);
      if (this.sessions.current?.takesRequests) {
        for (const { place } of this.rooms.values()) next = Math.min(next, place.retryAt ?? Infinity);
      }
    }
    // An earlier one is left alone: when it fires it is set anew.
    if (this.#timer !== null && this.#timerAt <= next && next !== Infinity) return;
    if (this.#timer !== null) this.settings.clearTimeout(this.#timer);
    this.#timer = null;
    this.#timerAt = Infinity;
    if (next === Infinity) return;
    this.#timerAt = next;
    const wait = Math.min(Math.max(Math.ceil(next - now), 0), 2147483647);
    const wall = this.settings.wallNow() + wait;
    this.#timer = this.settings.setTimeout(() => this.#fired(wall), wait);
  }

  /** @param {number} wall when it was to fire, by the clock on the wall */
  #fired(wall) {
    const now = this.now();
    const slept = now - this.#timerAt > SLEPT || this.settings.wallNow() - wall > SLEPT;
    this.#timer = null;
    this.#timerAt = Infinity;
    this.run(() => {
      for (const sleeper of this.#sleepers) {
        if (sleeper.at > now) continue;
        this.#sleepers.delete(sleeper);
        sleeper.resolve();
      }
      if (this.ended !== null) return this.sessions.timers(now);
      // What was not read was not missed: it is looked at first.
      if (slept) this.sessions.excuse(now);
      this.sessions.timers(now);
      this.requests.expire(now);
      for (const { place } of this.rooms.values()) {
        if (place.retryAt !== null && place.retryAt <= now) this.dirty = true;
      }
      this.moves.look(now);
    });
  }

  /** @param {number} ms */
  sleep(ms) {
    /** @type {{at: number, resolve: () => void}} */
    const sleeper = { at: this.now() + ms, resolve: () => {} };
    /** @type {Promise<void>} */
    const done = new Promise((resolve) => {
      sleeper.resolve = resolve;
    });
    this.run(() => this.#sleepers.add(sleeper));
    return { done, cancel: () => this.run(() => this.#sleepers.delete(sleeper)) };
  }

  // State.

  #staleAt() {
    const { current } = this.sessions;
    let at = Infinity;
    let rooms = 0;
    for (const { place } of this.rooms.values()) {
      // A room that was never joined has no view that could be behind.
      if (!place.subscribes || !place.established) continue;
      rooms += 1;
      at = Math.min(at, place.link === null ? 0 : this.sessions.staleAt(place.link));
    }
    if (rooms > 0) return at;
    return current === null ? 0 : this.sessions.staleAt(current);
  }

  /** @param {number} now */
  #publishState(now) {
    const { current, connecting, dueAt } = this.sessions;
    const stale = this.ended !== null || this.#staleAt() <= now;
    const waits = current === null && connecting === null && dueAt !== null && this.ended === null;
    /** @type {State["status"]} */
    const status =
      this.ended !== null
        ? "closed"
        : current !== null
          ? current.takesRequests
            ? "open"
            : "moving"
          : waits
            ? "waiting"
            : "connecting";
    /** @type {State} */
    const state = {
      status,
      stale,
      sessionId: current?.session ?? null,
      instanceId: current?.instance ?? null,
      generation: current?.generation || null,
      endpoint: current?.shown ?? null,
      clientId: this.#clientId,
      retryAt: waits ? Math.round(this.settings.wallNow() + Math.max(0, dueAt - now)) : null,
      serverTimeOffsetMs: this.#offset,
      roundTripMs: this.#roundTrip,
    };
    const old = this.state;
    const keys = /** @type {(keyof State)[]} */ (Object.keys(state));
    // The wall clock wavers by a millisecond: that alone is no change.
    const same = keys.every(
      (key) => state[key] === old[key] || (key === "retryAt" && near(state.retryAt, old.retryAt)),
    );
    if (same) return;
    this.state = state;
    if (stale !== old.stale) this.emit(stale ? "stale" : "fresh", {});
    this.emit("state", { ...state });
  }

  // Sessions.

  /**
   * @param {Link} link
   * @param {string} type
   * @param {string} payload JSON
   * @param {Asked} asked
   */
  ask(link, type, payload, asked) {
    this.#wire += 1;
    link.ask(this.#wire, `{"type":"${type}","id":${this.#wire},"payload":${payload}}`, asked);
    return this.#wire;
  }

  /**
   * @param {Link} link
   * @param {number} now
   */
  ping(link, now) {
    link.pinged = now;
    for (const asked of link.asked.values()) if (asked.kind === "ping") return this.#bare(link);
    this.ask(link, "ping", "{}", { kind: "ping", at: now, wall: this.settings.wallNow() });
  }

  /**
   * One ping at a time is measured.
   * @param {Link} link
   */
  #bare(link) {
    link.send('{"type":"ping"}');
  }

  /**
   * @param {Link} link
   * @param {Record<string, any>} welcome
   */
  sessionBegan(link, welcome) {
    const now = this.now();
    this.counters.connects += 1;
    if (this.counters.connects > 1) this.counters.reconnects += 1;
    if (typeof welcome.clientId === "string") this.#clientId = welcome.clientId;
    this.#roundTrip = null;
    this.clock(welcome.serverTime, this.settings.wallNow(), null);
    this.moves.began(link);
    this.ping(link, now);
    this.dirty = true;
  }

  /**
   * What a link had in hand goes back, or gets its result.
   * @param {Link} link
   * @param {boolean} neverStarted
   * @param {boolean} repeatable
   * @param {number} now
   */
  sessionEnded(link, neverStarted, repeatable, now) {
    for (const { place } of this.rooms.values()) place.linkGone(link, now);
    this.dirty = true;
    const all = [...link.asked.values()];
    link.asked.clear();
    for (const asked of all) {
      if (asked.kind === "abandoned") asked.release();
      if (asked.kind !== "request") continue;
      if (neverStarted) this.requests.refused(asked.request, link.session, now);
      else this.requests.lost(asked.request, repeatable);
    }
  }

  /**
   * @param {unknown} serverTime
   * @param {number} wall the local time that it belongs to
   * @param {number | null} roundTrip how long the question took, if there was one
   */
  clock(serverTime, wall, roundTrip) {
    const there = typeof serverTime === "string" ? Date.parse(serverTime) : NaN;
    if (roundTrip !== null) this.#roundTrip = Math.round(roundTrip);
    if (Number.isNaN(there)) return;
    this.#offset = Math.round(there - (wall + (roundTrip ?? 0) / 2));
  }

  // What the server says.

  /**
   * @param {Link} link
   * @param {Message | null} message
   */
  message(link, message) {
    const now = this.now();
    link.heard = now;
    link.checkBy = null;
    if (message === null || this.ended !== null) return;
    this.#depth += 1;
    try {
      if (typeof message.id === "number") {
        const asked = link.asked.get(message.id);
        if (asked !== undefined) {
          link.asked.delete(message.id);
          this.inbound.answer(link, asked, message, now);
          this.dirty = true;
        }
      } else if (message.id == null) {
        this.inbound.event(link, message, now);
      }
    } finally {
      this.#depth -= 1;
    }
    // Most messages are positions, which change nothing else.
    if (this.dirty || this.state.stale) this.run(() => {});
    else if (this.#depth === 0) this.#tell();
  }

  /**
   * The end: what waits fails with `error`.
   * @param {MilepostError} error
   */
  end(error) {
    if (this.ended !== null) return;
    this.ended = error;
    this.run(() => {
      this.requests.end(error);
      for (const { waiters } of this.rooms.values()) {
        for (const waiter of waiters) waiter.reject(error);
      }
      this.rooms.clear();
      this.calls.end();
      for (const sleeper of this.#sleepers) sleeper.resolve();
      this.#sleepers.clear();
      this.sessions.end(this.now());
      this.#unlisten();
    });
  }

  /** Ends, and waits for the sockets' close handshakes, 3 s at most. */
  async close() {
    this.end(closed());
    if (this.sessions.links.length === 0) return;
    const before = this.#gone;
    await /** @type {Promise<void>} */ (
      new Promise((resolve) => {
        this.#gone = () => {
          before?.();
          resolve();
        };
      })
    );
  }
}

/** @param {number | null} one @param {number | null} other */
const near = (one, other) => one !== null && other !== null && Math.abs(one - other) < 50;
