/**
 * The browser client of milepost: a session that survives deploys, lost networks and slow
 * readers. It keeps its rooms joined and its place in each room's log; when the server
 * announces its end it connects elsewhere first and lets the old socket go after; the positions
 * of a room arrive once and in order through all of it, or a `reset` says that they did not.
 *
 * ```js
 * import { MilepostClient } from "https://fleet.example/client/v1/milepost.js";
 *
 * const client = new MilepostClient({
 *   endpoints: "wss://fleet.example/ws",
 *   token: async () => (await fetch("/my/token")).text(),
 * });
 * client.on("position", (position) => move(position.vehicleId, position));
 * const room = await client.join("north", { mode: "subscribe" });
 * ```
 *
 * Works in a window, in a worker, and in Node (`WebSocket: ws`). Texts that come from the server
 * (vehicles, members, reasons) come from other clients in the end: show them as text.
 */
import { Core } from "./core.js";
import { invalid, MilepostError } from "./error.js";
import { settingsOf } from "./options.js";
import { Room } from "./room.js";
import { byteLength } from "./upload.js";

export { MilepostError, Room };

/** @typedef {import("./options.js").Options} Options */
/** @typedef {import("./room.js").Mode} Mode */
/** @typedef {import("./room.js").Position} Position */
/** @typedef {import("./room.js").Since} Since */

/**
 * How the connection stands.
 * @typedef {object} State
 * @property {"connecting"|"open"|"moving"|"waiting"|"closed"} status
 * @property {boolean} stale whether the view may be behind
 * @property {string | null} sessionId
 * @property {string | null} instanceId
 * @property {string | null} generation
 * @property {string | null} endpoint without user, password and query
 * @property {string | null} clientId who the server says that this is
 * @property {number | null} retryAt when it is tried again, milliseconds since 1970
 * @property {number | null} serverTimeOffsetMs the server's clock less this one's
 * @property {number | null} roundTripMs
 */

/**
 * What is published: W3C Geolocation's names and units, and anything else to carry along.
 * @typedef {{latitude: number, longitude: number, altitude?: number | null,
 *   accuracy?: number | null, altitudeAccuracy?: number | null, speed?: number | null,
 *   heading?: number | null, timestamp?: number | string | Date, vehicleId?: string}
 *   & Record<string, any>} Fix
 */

/**
 * @typedef {object} PublishOptions
 * @property {string | string[]} [rooms] 1 to 16; those joined for publishing by default
 * @property {string} [vehicleId] whose position it is; this client's by default
 * @property {string} [key] an idempotency key of 1 to 64 bytes
 * @property {AbortSignal} [signal] gives up: nothing is sent later
 */

/**
 * Where a position stands in the log of each room, whether every room had it already, and the
 * rooms where a newer fix of the vehicle was there before. `backfilled`: its key's time had
 * passed and it was uploaded instead, which gives no sequence numbers.
 * @typedef {{rooms: Record<string, number>, duplicate: boolean, late: string[],
 *   backfilled?: boolean}} Ack
 */

/**
 * @typedef {object} HistoryQuery
 * @property {string} room which must be joined
 * @property {string} [vehicleId] only this vehicle's
 * @property {Date | number | string} [from] fixes from this time on
 * @property {Date | number | string} [to] fixes up to this time
 * @property {number} [limit] how many at most; all of them by default
 * @property {number} [pageSize] how many to ask for at a time, 1 to 10,000; 500 by default
 * @property {AbortSignal} [signal]
 */

/**
 * @typedef {{accepted: number, duplicates: number, rejected: {index: number, reason: string}[],
 *   rejectedTotal: number, reason?: string}} BackfillResult
 */

/**
 * The events, each a plain object.
 * @typedef {object} Events
 * @property {State} state
 * @property {{room: Room, recovered: boolean, first: boolean}} joined
 * @property {Position & {roomId: string, replayed: boolean}} position
 * @property {{room: Room, positions: Position[], first: boolean, more: boolean}} snapshot
 * @property {{room: Room, reason: string}} reset
 * @property {{room: Room, joined: string[], left: string[], joinedCount: number,
 *   leftCount: number, reason: string | null, memberCount: number}} members
 * @property {{room: Room, dropped: number}} lagging
 * @property {{room: Room, dropped: number}} caughtUp
 * @property {{reconnectInMs: number, closesInMs: number, reason: string | null,
 *   instanceId: string, generation: string | null, newer: string[]}} shutdown
 * @property {{fromInstance: string, toInstance: string, missed: number, replayed: number,
 *   gapMs: number, reset: boolean}} moved
 * @property {{}} stale
 * @property {{}} fresh
 * @property {{roomId: string, reason: string | null}} roomLeft
 * @property {{expiresAt: string, inMs: number}} tokenExpiring
 * @property {{error: MilepostError}} error
 * @property {{code: number, reason: string, retryInMs: number | null, opened: boolean}} close
 */

/** @type {(keyof Events)[]} */
const EVENTS = [
  "state",
  "joined",
  "position",
  "snapshot",
  "reset",
  "members",
  "lagging",
  "caughtUp",
  "shutdown",
  "moved",
  "stale",
  "fresh",
  "roomLeft",
  "tokenExpiring",
  "error",
  "close",
];

const MODES = ["both", "subscribe", "publish"];

export class MilepostClient {
  #core;

  /**
   * Connects in the background, for as long as it takes, until `close`.
   * @param {Options} [options]
   */
  constructor(options = {}) {
    this.#core = new Core(settingsOf(options));
    this.#core.start();
  }

  /** How the connection stands. @returns {State} */
  get state() {
    return { ...this.#core.state };
  }

  /**
   * What has happened so far. `missed` counts positions that can be shown to be lost to this
   * view (1 for each reset, whose number nobody knows); 0 in all good cases.
   */
  get counters() {
    return { ...this.#core.counters };
  }

  /** The rooms that are joined or being joined, by name. @returns {Map<string, Room>} */
  get rooms() {
    return new Map([...this.#core.rooms].map(([id, { room }]) => [id, room]));
  }

  /**
   * Calls `listener` with each event of a type; the answer unsubscribes it.
   * @template {keyof Events} T
   * @param {T} type
   * @param {(event: Events[T]) => void} listener
   */
  on(type, listener) {
    if (!EVENTS.includes(type)) throw invalid(`there is no event "${type}"`);
    return this.#core.on(type, listener);
  }

  /**
   * Joins a room and stays in it across reconnects until it is left. Resolves with the first
   * answer, waits for a session if there is none.
   * @param {string} roomId
   * @param {{mode?: Mode, since?: Since, signal?: AbortSignal}} [options] `since`: a place that
   *   an earlier client reached, `{epoch: room.epoch, seq: room.seq}`
   * @returns {Promise<Room>}
   */
  async join(roomId, { mode = "both", since, signal } = {}) {
    if (!MODES.includes(mode)) throw invalid("the mode is both, subscribe or publish");
    return this.#core.calls.join(roomName(roomId), mode, since ?? null, signal);
  }

  /**
   * Publishes a position and waits until the log of every room holds it. With a `key` it is sent
   * again if the connection dies before the answer, and stored once; what the Geolocation API
   * gives may be passed as it is.
   * @param {Fix | GeolocationPosition | GeolocationCoordinates} position
   * @param {PublishOptions} [options]
   * @returns {Promise<Ack>}
   */
  async publish(position, options = {}) {
    const { rooms, payload, fix } = this.#location(position, options);
    const { key, signal } = options;
    const keyed = key === undefined ? null : fix;
    const asking = { kind: "location_update", payload, rooms, keyed, signal };
    return /** @type {Promise<Ack>} */ (this.#core.calls.request(asking));
  }

  /**
   * Publishes a position without an answer. `false`: it was let go, for want of a session, a
   * joined room or room in the socket. A refusal comes as an `error` event.
   * @param {Fix | GeolocationPosition | GeolocationCoordinates} position
   * @param {{rooms?: string | string[], vehicleId?: string}} [options]
   */
  notify(position, options = {}) {
    const { rooms, payload } = this.#location(position, options);
    return this.#core.calls.notify(rooms, payload);
  }

  /**
   * A room's past, by time of the fix, oldest first; each page is asked for when it is wanted.
   * @param {HistoryQuery} query
   * @returns {AsyncGenerator<Position, void, void>}
   */
  async *history({ room, vehicleId, from, to, limit = Infinity, pageSize = 500, signal }) {
    const rooms = [roomName(room)];
    let left = limit;
    let cursor;
    do {
      const payload = JSON.stringify({
        roomId: room,
        vehicleId,
        from: time(from),
        to: time(to),
        limit: Math.min(pageSize, left),
        cursor,
      });
      if (left <= 0) return;
      const page = await this.#core.calls.request({ kind: "history", payload, rooms, signal });
      for (const position of Array.isArray(page.positions) ? page.positions : []) {
        yield position;
        if (--left <= 0) return;
      }
      cursor = page.cursor;
    } while (cursor != null);
  }

  /**
   * The newest position per vehicle of a joined room, as the server has them now.
   * @param {string} room
   * @param {{signal?: AbortSignal}} [options]
   * @returns {Promise<{roomId: string, epoch: string, seq: number, positions: Position[],
   *   more: boolean}>}
   */
  async positions(room, { signal } = {}) {
    const roomId = roomName(room);
    const payload = JSON.stringify({ roomId });
    const answer = this.#core.calls.request({ kind: "positions", payload, rooms: [roomId], signal });
    return /** @type {Promise<any>} */ (answer);
  }

  /**
   * Uploads past positions to a room that is joined for publishing, and waits until the log
   * holds them. What was uploaded before is counted as a duplicate, so after `UNKNOWN_OUTCOME`
   * all of it may be repeated; for that every position needs its `timestamp`.
   * @param {Iterable<Fix> | AsyncIterable<Fix>} positions
   * @param {{room: string, vehicleId?: string, signal?: AbortSignal}} options `vehicleId`: whose
   *   they are where they do not say it themselves
   * @returns {Promise<BackfillResult>}
   */
  async backfill(positions, { room, vehicleId, signal }) {
    const result = await this.#core.calls.backfill(positions, roomName(room), vehicleId, signal);
    return /** @type {BackfillResult} */ (result);
  }

  /**
   * Ends the session. What is unanswered fails. No timer, listener or socket is left when the
   * answer comes, after 3 s at most.
   */
  close() {
    return this.#core.close();
  }

  /**
   * @param {Fix | GeolocationPosition | GeolocationCoordinates} position
   * @param {PublishOptions} options
   */
  #location(position, { rooms, vehicleId, key }) {
    if (position === null || typeof position !== "object" || Array.isArray(position)) {
      throw invalid("a position must be an object");
    }
    const names = rooms === undefined ? this.#published() : [rooms].flat().map(roomName);
    if (names.length < 1 || names.length > 16) throw invalid("a position goes to 1 to 16 rooms");
    if (key !== undefined && !(typeof key === "string" && key !== "" && byteLength(key) <= 64)) {
      throw invalid("a key must have 1 to 64 bytes");
    }
    const fix = plain(position);
    if (vehicleId !== undefined) fix.vehicleId = vehicleId;
    if (fix.timestamp instanceof Date) fix.timestamp = fix.timestamp.getTime();
    const roomId = names.length === 1 ? names[0] : names;
    return { rooms: names, fix, payload: JSON.stringify({ ...fix, roomId, key }) };
  }

  /** A position always names its rooms. */
  #published() {
    const rooms = [...this.#core.rooms.values()].filter(({ place }) => place.mode !== "subscribe");
    return rooms.map(({ room }) => room.id);
  }
}

/**
 * @param {unknown} room
 * @returns {string}
 */
function roomName(room) {
  if (typeof room !== "string" || room === "") throw invalid("a room is a text of 1 to 128 characters");
  return room;
}

/** The members of `GeolocationCoordinates`, which has no properties of its own. */
const COORDINATES = [
  "latitude",
  "longitude",
  "altitude",
  "accuracy",
  "altitudeAccuracy",
  "speed",
  "heading",
];

/**
 * A copy to send; of what the Geolocation API gives, the part that is known.
 * @param {Fix | GeolocationPosition | GeolocationCoordinates} position
 * @returns {Fix}
 */
function plain(position) {
  const { coords = position, timestamp } = /** @type {any} */ (position);
  if (coords === position && Object.hasOwn(position, "latitude")) return { .../** @type {Fix} */ (position) };
  /** @type {any} */
  const fix = timestamp === undefined ? {} : { timestamp };
  for (const name of COORDINATES) {
    const value = coords[name];
    if (typeof value === "number" && !Number.isNaN(value)) fix[name] = value;
  }
  return fix;
}

/** @param {Date | number | string | undefined} at */
const time = (at) => (at instanceof Date ? at.getTime() : at);
