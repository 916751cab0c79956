/**
 * The core of a client: it owns the rooms and the requests, finds answers their callers and
 * events their rooms, and has the one timer. Sessions come from `sessions.js`.
 *
 * Everything that happens goes through `run`: it changes what it has to, then what has become
 * possible is done, then the listeners are told, in order. A listener may call anything.
 */
import { closed, fromWire, MilepostError } from "./error.js";
import { Moves } from "./moves.js";
import { Requests } from "./requests.js";
import { keep, Place, Room } from "./room.js";
import { Sessions } from "./sessions.js";
import { byteLength, feed, Upload } from "./upload.js";

/** @typedef {import("./link.js").Link} Link */
/** @typedef {import("./link.js").Asked} Asked */
/** @typedef {import("./requests.js").Request} Request */
/** @typedef {import("./milepost.js").State} State */
/** @typedef {{type: string, id: unknown, payload: Record<string, any>}} Message */
/** @typedef {{resolve: (room: Room) => void, reject: (error: unknown) => void}} Waiter */
/**
 * @typedef {object} Entry
 * @property {Room} room
 * @property {Place} place
 * @property {Set<Waiter>} waiters
 * @property {Set<string> | null} members the list that is being read, page by page
 */

/** A timer that fires this late has slept: nothing was read meanwhile. Milliseconds. */
const SLEPT = 2000;
/** Positions without an answer are let go above this many bytes in the socket. */
const MAX_BUFFERED = 1 << 20;
/** The most positions that are uploaded at a time on the client's own account. */
const LATE_BATCH = 1000;

/** @param {unknown} list @returns {string[]} */
const texts = (list) => (Array.isArray(list) ? list.filter((one) => typeof one === "string") : []);

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
  /** The last upload; the next one waits for its end. @type {Promise<void>} */
  #turn = Promise.resolve();
  /** Requests that only an upload can repeat. @type {Set<Request>} */
  #late = new Set();
  #uploadingLate = false;
  /** @type {(() => void) | null} */
  #gone = null;
  #unlisten = () => {};

  /** @param {import("./milepost.js").Settings} settings */
  constructor(settings) {
    this.settings = settings;
    this.now = settings.now;
    this.requests = new Requests(
      settings.resendRefused,
      settings.resendKeyed,
      settings.maxUnanswered,
      (request) => this.#repeatLate(request),
    );
    this.moves = new Moves(this);
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
        this.#settle();
        this.#depth = 0;
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
        this.#joinRooms(now);
        this.#flush(now);
        this.#retire(now);
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
      if (!place.subscribes) continue;
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
    this.#clock(welcome.serverTime, this.settings.wallNow(), 0);
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
   * @param {number} roundTrip
   */
  #clock(serverTime, wall, roundTrip) {
    const there = typeof serverTime === "string" ? Date.parse(serverTime) : NaN;
    if (Number.isNaN(there)) return;
    this.#offset = Math.round(there - (wall + roundTrip / 2));
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
    if (message === null) return;
    this.#depth += 1;
    try {
      if (typeof message.id === "number") {
        const asked = link.asked.get(message.id);
        if (asked !== undefined) {
          link.asked.delete(message.id);
          this.#answer(link, asked, message, now);
          this.dirty = true;
        }
      } else if (message.id == null) {
        this.#event(link, message, now);
      }
    } finally {
      this.#depth -= 1;
    }
    // Most messages are positions, which change nothing else.
    if (this.dirty || this.state.stale) this.run(() => {});
    else if (this.#depth === 0) this.#tell();
  }

  /**
   * @param {Link} link
   * @param {Asked} asked
   * @param {Message} answer
   * @param {number} now
   */
  #answer(link, asked, { type, payload }, now) {
    const error = type === "error" ? fromWire(payload) : null;
    switch (asked.kind) {
      case "request": {
        const { request } = asked;
        if (error === null) this.requests.succeed(request, payload);
        else if (error.code === "SERVER_DRAINING") {
          this.requests.refused(request, link.session, now);
        } else this.requests.fail(request, error);
        break;
      }
      case "abandoned":
        asked.release();
        break;
      case "join":
        if (error !== null) this.#joinRefused(link, asked.roomId, error, now);
        else if (type === "room_joined") this.#roomJoined(link, asked.roomId, payload, true, now);
        break;
      case "refresh":
        if (error !== null) this.emit("error", { error });
        else link.token = asked.token;
        break;
      case "ping": {
        const roundTrip = now - asked.at;
        this.#roundTrip = Math.round(roundTrip);
        this.#clock(payload.serverTime, asked.wall, roundTrip);
      }
    }
  }

  /**
   * @param {Link} link
   * @param {string} name
   * @param {Record<string, any>} joined
   * @param {boolean} answer
   * @param {number} now
   */
  #roomJoined(link, name, joined, answer, now) {
    const entry = this.rooms.get(name);
    if (entry === undefined) {
      // Its caller gave up while the join was on its way.
      if (answer && link.takesRequests) {
        link.send(`{"type":"leave_room","payload":${JSON.stringify({ roomId: name })}}`);
      }
      return;
    }
    const { place, room } = entry;
    if (place.link !== link && !(answer && place.joining === link)) return;
    const { epoch, seq } = joined;
    if (typeof epoch !== "string" || !Number.isSafeInteger(seq)) return;
    const first = !place.established;
    const recovered = joined.recovered === true;
    const more = joined.more === true;
    if (place.subscribes) this.moves.joined(place, now);
    const reset = place.joined(link, { epoch, seq, recovered, more });
    room.mode = joined.mode ?? place.mode;
    room.lagging = false;
    this.dirty = true;
    if (recovered) this.counters.resumes += 1;
    else {
      room.epoch = epoch;
      room.seq = seq;
      room.positions.clear();
    }
    if (reset) {
      const reason = answer ? "the missed positions are no longer known" : "the log was replaced";
      this.counters.resets += 1;
      this.#missed(1);
      this.moves.reset();
      this.emit("reset", { room, reason });
    }
    if (place.subscribes) {
      room.memberCount = typeof joined.memberCount === "number" ? joined.memberCount : 0;
      entry.members = new Set(texts(joined.members));
    }
    this.emit("joined", { room, recovered, first });
    // When it is recovered the replay leads there, and no vehicle runs backwards.
    if (!recovered && place.subscribes) this.#snapshot(entry, joined.positions, true, more);
    if (!more) this.#listed(entry, first);
    for (const waiter of entry.waiters) waiter.resolve(room);
    entry.waiters.clear();
  }

  /**
   * @param {Entry} entry
   * @param {unknown} list
   * @param {boolean} first
   * @param {boolean} more
   */
  #snapshot({ room }, list, first, more) {
    /** @type {import("./room.js").Position[]} */
    const positions = Array.isArray(list) ? list.filter(isPosition) : [];
    for (const position of positions) keep(room, position);
    this.emit("snapshot", { room, positions, first, more });
  }

  /**
   * The list of members is complete.
   * @param {Entry} entry
   * @param {boolean} first
   */
  #listed(entry, first) {
    const { room, members } = entry;
    entry.members = null;
    if (members === null) return;
    const left = [...room.members].filter((member) => !members.has(member));
    const joined = [...members].filter((member) => !room.members.has(member));
    room.members.clear();
    for (const member of members) room.members.add(member);
    if (!first && joined.length + left.length > 0) {
      this.#membersEvent(room, joined, left, joined.length, left.length, "resumed");
    }
  }

  /**
   * @param {Room} room
   * @param {string[]} joined
   * @param {string[]} left
   * @param {number} joinedCount
   * @param {number} leftCount
   * @param {string | null} reason
   */
  #membersEvent(room, joined, left, joinedCount, leftCount, reason) {
    const { memberCount } = room;
    this.emit("members", { room, joined, left, joinedCount, leftCount, reason, memberCount });
  }

  /**
   * @param {Link} link
   * @param {string} name
   * @param {MilepostError} error
   * @param {number} now
   */
  #joinRefused(link, name, error, now) {
    const entry = this.rooms.get(name);
    if (entry === undefined || entry.place.joining !== link) return;
    const { place } = entry;
    place.joining = null;
    if (error.code === "SERVER_DRAINING") {
      // Joined again on the next session, which this makes necessary.
      link.refuses = true;
      return;
    }
    this.requests.joinFailed(name);
    const { established } = place;
    for (const waiter of entry.waiters) waiter.reject(error);
    entry.waiters.clear();
    if (established && error.retry === "later") {
      place.retryAt = now + (error.retryAfterMs ?? 1000) + this.sessions.backoff.spread();
      this.emit("error", { error });
    } else {
      this.rooms.delete(name);
      if (established) {
        this.emit("error", { error });
        this.emit("roomLeft", { roomId: name, reason: error.code });
      }
    }
  }

  /** @param {number} count */
  #missed(count) {
    if (count <= 0) return;
    this.counters.gaps += 1;
    this.counters.missed += count;
  }

  /**
   * @param {Link} link
   * @param {Message} message
   * @param {number} now
   */
  #event(link, { type, payload }, now) {
    if (type === "location_update") return this.#position(link, payload);
    const name = payload.roomId;
    const entry = typeof name === "string" ? this.rooms.get(name) : undefined;
    switch (type) {
      case "room_joined":
        if (typeof name === "string") this.#roomJoined(link, name, payload, false, now);
        return;
      case "server_shutting_down":
        return this.#noticed(link, payload, now);
      case "token_expiring":
        if (link !== this.sessions.current) return;
        this.emit("tokenExpiring", { expiresAt: payload.expiresAt, inMs: payload.inMs });
        void this.sessions.refreshToken();
        return;
      case "backfill_progress":
        link.uploading?.upload?.chunkCommitted();
        return;
      case "notifications_dropped":
        this.counters.notificationsDropped += Number(payload.count) || 0;
        return;
      case "error":
        this.emit("error", { error: fromWire(payload) });
        return;
      default:
    }
    // Only who speaks for the room is heard about it.
    if (entry === undefined || entry.place.link !== link) return;
    const { room, place } = entry;
    switch (type) {
      case "snapshot": {
        const more = payload.more === true;
        const recovering = place.cursor !== null;
        place.snapshot(link, more);
        if (entry.members !== null) {
          for (const member of texts(payload.members)) entry.members.add(member);
        }
        if (!recovering) this.#snapshot(entry, payload.positions, false, more);
        if (!more) this.#listed(entry, room.members.size === 0);
        break;
      }
      case "room_left":
        this.rooms.delete(room.id);
        this.dirty = true;
        for (const waiter of entry.waiters) waiter.reject(closed());
        this.emit("roomLeft", { roomId: room.id, reason: payload.reason ?? null });
        break;
      case "member_joined": {
        const joined = texts(payload.members).filter((member) => !room.members.has(member));
        for (const member of joined) room.members.add(member);
        room.memberCount += joined.length;
        this.#membersEvent(room, joined, [], joined.length, 0, null);
        break;
      }
      case "member_left": {
        const left = texts(payload.members);
        for (const member of left) room.members.delete(member);
        room.memberCount = Math.max(0, room.memberCount - left.length);
        this.#membersEvent(room, [], left, 0, left.length, payload.reason ?? null);
        break;
      }
      case "members_changed":
        room.memberCount = Number(payload.memberCount) || 0;
        this.#membersEvent(room, [], [], payload.joined, payload.left, null);
        break;
      case "lagging":
      case "caught_up": {
        const dropped = Number(payload.dropped) || 0;
        room.lagging = type === "lagging";
        this.counters.dropped += dropped;
        this.#missed(dropped);
        if (!room.lagging) {
          if (Number.isSafeInteger(payload.seq)) place.caughtUp(link, payload.epoch, payload.seq);
          room.seq = place.cursor?.seq ?? room.seq;
        }
        this.emit(room.lagging ? "lagging" : "caughtUp", { room, dropped });
      }
    }
  }

  /**
   * @param {Link} link
   * @param {Record<string, any>} position
   */
  #position(link, position) {
    const entry = this.rooms.get(position.roomId);
    if (entry === undefined || !isPosition(position)) return;
    const verdict = entry.place.event(link, position.seq);
    switch (verdict) {
      case "not-ours":
      case "seen":
        this.counters.duplicatesDropped += 1;
        break;
      case "out-of-order": {
        this.#missed(1);
        const text = "a sequence number did not ascend";
        const error = new MilepostError("OUT_OF_ORDER", text, { roomId: entry.room.id });
        this.emit("error", { error });
        break;
      }
      default:
        this.counters.positions += 1;
        entry.room.seq = position.seq;
        position.replayed = verdict === "replayed";
        if (position.replayed) this.moves.replayed();
        keep(entry.room, position);
        this.emit("position", position);
    }
    if (this.moves.replaying) this.dirty = true;
  }

  /**
   * @param {Link} link
   * @param {Record<string, any>} notice
   * @param {number} now
   */
  #noticed(link, notice, now) {
    this.sessions.noticed(link, notice, now);
    this.dirty = true;
    if (link !== this.sessions.current) return;
    this.emit("shutdown", {
      reconnectInMs: Math.round((Number(notice.reconnectIn) || 0) * 1000),
      closesInMs: Number(notice.closesInMs) || 0,
      reason: notice.reason ?? null,
      instanceId: link.instance,
      generation: notice.generation ?? null,
      newer: texts(notice.newer),
    });
  }

  // What goes out.

  /**
   * Joins, on the current link, every room that is not joined there.
   * @param {number} now
   */
  #joinRooms(now) {
    const link = this.sessions.current;
    if (!link?.takesRequests) return;
    for (const [roomId, { place }] of this.rooms) {
      const due = place.retryAt === null || place.retryAt <= now;
      if (place.link === link || place.joining === link || !due) continue;
      const since = place.join(link) ?? undefined;
      const payload = JSON.stringify({ roomId, mode: place.mode, since });
      this.ask(link, "join_room", payload, { kind: "join", roomId });
    }
  }

  /** @param {number} now */
  #flush(now) {
    const link = this.sessions.current;
    if (!link?.takesRequests || this.requests.waiting.size === 0) return;
    for (const request of this.requests.inOrder()) {
      const joined = request.rooms.every((name) => {
        const entry = this.rooms.get(name);
        return entry === undefined || entry.place.link === link;
      });
      if (!joined || request.elsewhere?.session === link.session || request.late !== null) continue;
      const { kind, payload, upload } = request;
      if (payload.length * 3 > link.maxFrame && byteLength(payload) + 64 > link.maxFrame) {
        const text = `longer than the server's frames of ${link.maxFrame} bytes`;
        this.requests.fail(request, new MilepostError("MESSAGE_TOO_LARGE", text));
        continue;
      }
      const wire = this.ask(link, kind, payload, { kind: "request", request });
      if (this.requests.sent(request, link, wire, now)) this.counters.resends += 1;
      if (upload !== null) {
        link.uploading = request;
        upload.begun(link.maxFrame);
      }
    }
  }

  /**
   * Lets an older link go once nothing depends on it.
   * @param {number} now
   */
  #retire(now) {
    const { current, links } = this.sessions;
    if (current === null) return;
    for (const link of links) {
      if (link === current || !link.isOpen) continue;
      const speaks = [...this.rooms.values()].some(({ place }) => place.link === link);
      const unanswered = [...link.asked.values()].some((asked) => asked.kind === "request");
      if (!speaks && !unanswered) link.close(now);
    }
  }

  // What callers ask for.

  /**
   * @param {string} roomId
   * @param {import("./room.js").Mode} mode
   * @param {import("./room.js").Since | null} since
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<Room>}
   */
  async join(roomId, mode, since, signal) {
    if (this.ended !== null) throw this.ended;
    signal?.throwIfAborted();
    /** @type {Waiter} */
    const waiter = { resolve: () => {}, reject: () => {} };
    /** @type {Promise<Room>} */
    const answer = new Promise((resolve, reject) => {
      waiter.resolve = resolve;
      waiter.reject = reject;
    });
    this.run(() => {
      let entry = this.rooms.get(roomId);
      if (entry === undefined) {
        /** @type {Room} */
        const room = new Room(roomId, mode, () => this.leave(roomId, room));
        const place = new Place(mode, null);
        entry = { room, place, waiters: new Set(), members: null };
        this.rooms.set(roomId, entry);
      }
      const { place } = entry;
      if (since !== null) place.cursor = { ...since };
      place.mode = mode;
      place.link = null;
      place.joining = null;
      place.retryAt = null;
      entry.waiters.add(waiter);
      this.dirty = true;
    });
    const giveUp = () =>
      this.run(() => {
        waiter.reject(signal?.reason);
        const entry = this.rooms.get(roomId);
        entry?.waiters.delete(waiter);
        // If the join is on its way its answer finds nobody, and is undone.
        if (entry?.waiters.size === 0 && !entry.place.established) this.rooms.delete(roomId);
        this.dirty = true;
      });
    signal?.addEventListener("abort", giveUp, { once: true });
    try {
      return await answer;
    } finally {
      signal?.removeEventListener("abort", giveUp);
    }
  }

  /**
   * Leaves a room for good, whatever the server says.
   * @param {string} roomId
   * @param {Room} room
   */
  async leave(roomId, room) {
    const entry = this.rooms.get(roomId);
    if (entry === undefined || entry.room !== room) return;
    const { link, joining } = entry.place;
    const asked = this.run(() => {
      this.rooms.delete(roomId);
      for (const waiter of entry.waiters) waiter.reject(closed());
      this.dirty = true;
      const current = this.sessions.current;
      if (current === null || link !== current || joining !== null || !current.takesRequests) {
        return null;
      }
      return this.request({ kind: "leave_room", payload: JSON.stringify({ roomId }), rooms: [] });
    });
    // Where it fails the session is gone, and the next one never was in the room.
    await asked?.catch(() => {});
  }

  /**
   * @param {import("./requests.js").Asking} asking
   * @returns {Promise<Record<string, any>>}
   */
  request(asking) {
    if (this.ended !== null) return Promise.reject(this.ended);
    return this.run(() => {
      this.dirty = true;
      return this.requests.insert(asking, (request) => this.#giveUp(request)).answer;
    });
  }

  /**
   * The caller gave up: nothing is sent later.
   * @param {Request} request
   * @param {unknown} [reason]
   */
  #giveUp(request, reason = request.signal?.reason) {
    this.run(() => {
      if (!this.requests.remove(request)) return;
      this.#late.delete(request);
      this.dirty = true;
      if (request.sentAs !== null) {
        const { link, wire } = request.sentAs;
        link.asked.delete(wire);
        if (request.upload !== null && link.isOpen) {
          // What is committed stays; the server need not wait for more.
          link.send(`{"type":"backfill_end","id":${wire},"payload":{}}`);
          link.asked.set(wire, { kind: "abandoned", release: request.upload.release });
          request.upload.release = () => {};
        }
      }
      request.reject(reason);
    });
  }

  /**
   * Sends a position without an answer; `false` if it was let go.
   * @param {string[]} rooms
   * @param {string} payload
   */
  notify(rooms, payload) {
    const entry = this.rooms.get(rooms[0] ?? "");
    const link = entry?.place.link ?? this.sessions.current;
    const joined = rooms.every((name) => this.rooms.get(name)?.place.link === link);
    if (!link?.isOpen || !joined || link.socket.bufferedAmount > MAX_BUFFERED) {
      this.counters.notificationsDropped += 1;
      return false;
    }
    link.send(`{"type":"location_update","payload":${payload}}`);
    return true;
  }

  /**
   * @param {Iterable<unknown> | AsyncIterable<unknown>} positions
   * @param {string} roomId
   * @param {string | undefined} vehicleId
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<Record<string, any>>}
   */
  async backfill(positions, roomId, vehicleId, signal) {
    const before = this.#turn;
    let release = () => {};
    this.#turn = new Promise((resolve) => {
      release = () => resolve();
    });
    const upload = new Upload(release);
    try {
      await before;
      if (this.ended !== null) throw this.ended;
      const inserted = this.run(() => {
        this.dirty = true;
        const asking = {
          kind: "backfill_begin",
          payload: JSON.stringify({ roomId, vehicleId }),
          rooms: [roomId],
          upload,
          signal,
        };
        return this.requests.insert(asking, (request) => this.#giveUp(request));
      });
      const { request, answer } = inserted;
      if (request !== null) {
        /** @param {string} type @param {string} payload */
        const send = (type, payload) => {
          const { sentAs } = request;
          if (upload.over || !sentAs?.link.isOpen) return;
          sentAs.link.send(`{"type":"${type}","id":${sentAs.wire},"payload":${payload}}`);
        };
        feed(
          upload,
          positions,
          (payload) => send("backfill_chunk", payload),
          (ms) => this.sleep(ms),
        ).then(
          () => send("backfill_end", "{}"),
          (error) => this.#giveUp(request, error),
        );
      }
      return await answer;
    } finally {
      upload.release();
    }
  }

  /**
   * Takes a keyed position whose window has passed without an answer: an upload finds out
   * whether the log has it.
   * @param {Request} request
   */
  #repeatLate(request) {
    this.#late.add(request);
    if (!this.#uploadingLate) void this.#uploadLate();
  }

  async #uploadLate() {
    this.#uploadingLate = true;
    // Those that are lost together come here together.
    await Promise.resolve();
    while (this.#late.size > 0 && this.ended === null) {
      const [first] = this.#late;
      const [room] = first?.late ?? [];
      if (room === undefined) break;
      const batch = [...this.#late].filter((one) => one.late?.has(room)).slice(0, LATE_BATCH);
      const positions = batch.map((one) => one.keyed);
      this.counters.resends += batch.length;
      try {
        const result = await this.backfill(positions, room, undefined, undefined);
        this.run(() => this.#uploadedLate(batch, room, result));
      } catch (error) {
        const code = error instanceof MilepostError ? error.code : "";
        const again = code === "UNKNOWN_OUTCOME" || code === "SERVER_DRAINING";
        if (error instanceof MilepostError && error.retry === "later") {
          await this.sleep(error.retryAfterMs ?? 1000).done;
        } else if (!again) {
          this.run(() => {
            for (const request of batch) {
              this.#late.delete(request);
              this.requests.fail(request, error);
            }
          });
        }
      }
    }
    this.#uploadingLate = false;
  }

  /**
   * @param {Request[]} batch
   * @param {string} room
   * @param {Record<string, any>} result
   */
  #uploadedLate(batch, room, result) {
    const refused = new Map();
    for (const { index, reason } of result.rejected) refused.set(index, reason);
    batch.forEach((request, index) => {
      request.late?.delete(room);
      if (refused.has(index)) {
        this.#late.delete(request);
        this.requests.fail(request, new MilepostError("VALIDATION_ERROR", String(refused.get(index))));
      } else if (request.late?.size === 0) {
        this.#late.delete(request);
        const duplicate = result.duplicates === batch.length;
        this.requests.succeed(request, { rooms: {}, duplicate, late: [], backfilled: true });
      }
    });
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
      this.#late.clear();
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

/**
 * @param {any} value
 * @returns {value is import("./room.js").Position}
 */
function isPosition(value) {
  return (
    typeof value === "object" &&
    value !== null &&
    typeof value.vehicleId === "string" &&
    Number.isSafeInteger(value.seq) &&
    typeof value.latitude === "number" &&
    typeof value.longitude === "number"
  );
}
