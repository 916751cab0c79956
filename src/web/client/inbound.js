/**
 * What the server says: answers find their requests, events their rooms.
 */
import { fromWire, left as leftRoom, MilepostError } from "./error.js";
import { keep } from "./room.js";

/** @typedef {import("./core.js").Core} Core */
/** @typedef {import("./core.js").Entry} Entry */
/** @typedef {import("./core.js").Message} Message */
/** @typedef {import("./link.js").Asked} Asked */
/** @typedef {import("./link.js").Link} Link */
/** @typedef {import("./room.js").Room} Room */

/** @param {unknown} list @returns {string[]} */
const texts = (list) => (Array.isArray(list) ? list.filter((one) => typeof one === "string") : []);

export class Inbound {
  /** @param {Core} core */
  constructor(core) {
    this.core = core;
  }

  /**
   * @param {Link} link
   * @param {Asked} asked
   * @param {Message} answer
   * @param {number} now
   */
  answer(link, asked, { type, payload }, now) {
    const error = type === "error" ? fromWire(payload) : null;
    switch (asked.kind) {
      case "request": {
        const { request } = asked;
        if (error === null) this.core.requests.succeed(request, payload);
        else if (error.code === "SERVER_DRAINING") {
          this.core.requests.refused(request, link.session, now);
        } else this.core.requests.fail(request, error);
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
        if (error !== null) this.core.emit("error", { error });
        else link.token = asked.token;
        break;
      case "ping": {
        const roundTrip = now - asked.at;
                this.core.clock(payload.serverTime, asked.wall, roundTrip);
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
    const entry = this.core.rooms.get(name);
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
    if (place.subscribes) this.core.moves.joined(place, now);
    const reset = place.joined(link, { epoch, seq, recovered, more });
    room.mode = joined.mode ?? place.mode;
    room.lagging = false;
    this.core.dirty = true;
    room.epoch = epoch;
    room.seq = place.cursor?.seq ?? seq;
    if (recovered) this.core.counters.resumes += 1;
    else room.positions.clear();
    if (reset) {
      const reason = answer ? "the missed positions are no longer known" : "the log was replaced";
      this.core.counters.resets += 1;
      this.#missed(1);
      this.core.moves.reset();
      this.core.emit("reset", { room, reason });
    }
    if (place.subscribes) {
      room.memberCount = typeof joined.memberCount === "number" ? joined.memberCount : 0;
      entry.members = new Set(texts(joined.members));
    }
    this.core.emit("joined", { room, recovered, first });
    // When a view is recovered the replay leads there, and no vehicle runs backwards.
    entry.shows = place.subscribes && (first || !recovered);
    if (entry.shows) this.#snapshot(entry, joined.positions, true, more);
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
    this.core.emit("snapshot", { room, positions, first, more });
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
    this.core.emit("members", { room, joined, left, joinedCount, leftCount, reason, memberCount });
  }

  /**
   * @param {Link} link
   * @param {string} name
   * @param {MilepostError} error
   * @param {number} now
   */
  #joinRefused(link, name, error, now) {
    const entry = this.core.rooms.get(name);
    if (entry === undefined || entry.place.joining !== link) return;
    const { place } = entry;
    place.joining = null;
    if (error.code === "SERVER_DRAINING") {
      // Joined again on the next session, which this makes necessary.
      link.refuses = true;
      return;
    }
    this.core.requests.joinFailed(name);
    const { established } = place;
    for (const waiter of entry.waiters) waiter.reject(error);
    entry.waiters.clear();
    if (established && error.retry === "later") {
      place.retryAt = now + (error.retryAfterMs ?? 1000) + this.core.sessions.backoff.spread();
      this.core.emit("error", { error });
    } else {
      this.core.rooms.delete(name);
      if (established) {
        this.core.emit("error", { error });
        this.core.emit("roomLeft", { roomId: name, reason: error.code });
      }
    }
  }

  /** @param {number} count */
  #missed(count) {
    if (count <= 0) return;
    this.core.counters.gaps += 1;
    this.core.counters.missed += count;
  }

  /**
   * @param {Link} link
   * @param {Message} message
   * @param {number} now
   */
  event(link, { type, payload }, now) {
    if (type === "location_update") return this.#position(link, payload);
    const name = payload.roomId;
    const entry = typeof name === "string" ? this.core.rooms.get(name) : undefined;
    switch (type) {
      case "room_joined":
        if (typeof name === "string") this.#roomJoined(link, name, payload, false, now);
        return;
      case "server_shutting_down":
        return this.#noticed(link, payload, now);
      case "token_expiring":
        if (link !== this.core.sessions.current) return;
        this.core.emit("tokenExpiring", { expiresAt: payload.expiresAt, inMs: payload.inMs });
        void this.core.sessions.refreshToken();
        return;
      case "backfill_progress":
        link.uploading?.upload?.chunkCommitted();
        return;
      case "notifications_dropped":
        this.core.counters.notificationsDropped += Number(payload.count) || 0;
        return;
      case "error":
        this.core.emit("error", { error: fromWire(payload) });
        return;
      default:
    }
    // Only who speaks for the room is heard about it.
    if (entry === undefined || entry.place.link !== link) return;
    const { room, place } = entry;
    switch (type) {
      case "snapshot": {
        const more = payload.more === true;
        place.snapshot(link, more);
        if (entry.members !== null) {
          for (const member of texts(payload.members)) entry.members.add(member);
        }
        if (entry.shows) this.#snapshot(entry, payload.positions, false, more);
        if (!more) this.#listed(entry, room.members.size === 0);
        break;
      }
      case "room_left":
        this.core.rooms.delete(room.id);
        this.core.dirty = true;
        for (const waiter of entry.waiters) waiter.reject(leftRoom());
        this.core.emit("roomLeft", { roomId: room.id, reason: payload.reason ?? null });
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
        this.core.counters.dropped += dropped;
        this.#missed(dropped);
        if (!room.lagging) {
          if (Number.isSafeInteger(payload.seq)) place.caughtUp(link, payload.epoch, payload.seq);
          room.seq = place.cursor?.seq ?? room.seq;
        }
        this.core.emit(room.lagging ? "lagging" : "caughtUp", { room, dropped });
      }
    }
  }

  /**
   * @param {Link} link
   * @param {Record<string, any>} position
   */
  #position(link, position) {
    const entry = this.core.rooms.get(position.roomId);
    if (entry === undefined || !isPosition(position)) return;
    const verdict = entry.place.event(link, position.seq);
    switch (verdict) {
      case "not-ours":
      case "seen":
        this.core.counters.duplicatesDropped += 1;
        break;
      case "out-of-order": {
        this.#missed(1);
        const text = "a sequence number did not ascend";
        const error = new MilepostError("OUT_OF_ORDER", text, { roomId: entry.room.id });
        this.core.emit("error", { error });
        break;
      }
      default:
        this.core.counters.positions += 1;
        entry.room.seq = position.seq;
        position.replayed = verdict === "replayed";
        if (position.replayed) this.core.moves.replayed();
        keep(entry.room, position);
        this.core.emit("position", position);
    }
    if (this.core.moves.replaying) this.core.dirty = true;
  }

  /**
   * @param {Link} link
   * @param {Record<string, any>} notice
   * @param {number} now
   */
  #noticed(link, notice, now) {
    this.core.sessions.noticed(link, notice, now);
    this.core.dirty = true;
    if (link !== this.core.sessions.current) return;
    this.core.emit("shutdown", {
      reconnectInMs: Math.round((Number(notice.reconnectIn) || 0) * 1000),
      closesInMs: Number(notice.closesInMs) || 0,
      reason: notice.reason ?? null,
      instanceId: link.instance,
      generation: notice.generation ?? null,
      newer: texts(notice.newer),
    });
  }
}

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
