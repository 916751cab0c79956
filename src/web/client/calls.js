/**
 * What callers ask for: joins, requests, uploads, and taking them back.
 */
import { left, MilepostError } from "./error.js";
import { Place, Room } from "./room.js";
import { feed, Upload } from "./upload.js";

/** @typedef {import("./core.js").Core} Core */
/** @typedef {import("./requests.js").Request} Request */
/** @typedef {import("./core.js").Waiter} Waiter */

/** Positions without an answer are let go above this many bytes in the socket. */
const MAX_BUFFERED = 1 << 20;
/** The most positions that are uploaded at a time on the client's own account. */
const LATE_BATCH = 1000;

/**
 * @param {Promise<void>} done
 * @param {AbortSignal | undefined} signal
 */
async function unlessAborted(done, signal) {
  if (signal === undefined) return done;
  signal.throwIfAborted();
  let listener = () => {};
  const aborted = new Promise((_, reject) => {
    listener = () => reject(signal.reason);
    signal.addEventListener("abort", listener, { once: true });
  });
  try {
    await Promise.race([done, aborted]);
  } finally {
    signal.removeEventListener("abort", listener);
  }
}

export class Calls {
  /** The last upload; the next one waits for its end. @type {Promise<void>} */
  #turn = Promise.resolve();
  /** Requests that only an upload can repeat. @type {Set<Request>} */
  #late = new Set();
  #uploadingLate = false;

  /** @param {Core} core */
  constructor(core) {
    this.core = core;
  }

  /**
   * @param {string} roomId
   * @param {import("./room.js").Mode} mode
   * @param {import("./room.js").Since | null} since
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<Room>}
   */
  async join(roomId, mode, since, signal) {
    if (this.core.ended !== null) throw this.core.ended;
    signal?.throwIfAborted();
    /** @type {Waiter} */
    const waiter = { resolve: () => {}, reject: () => {} };
    /** @type {Promise<Room>} */
    const answer = new Promise((resolve, reject) => {
      waiter.resolve = resolve;
      waiter.reject = reject;
    });
    this.core.run(() => {
      let entry = this.core.rooms.get(roomId);
      if (entry === undefined) {
        /** @type {Room} */
        const room = new Room(roomId, mode, () => this.leave(roomId, room));
        const place = new Place(mode, null);
        entry = { room, place, waiters: new Set(), members: null, shows: false };
        this.core.rooms.set(roomId, entry);
      }
      const { place } = entry;
      if (place.link !== null && place.mode === mode && since === null) {
        return waiter.resolve(entry.room);
      }
      if (since !== null) place.cursor = { ...since };
      place.mode = mode;
      place.link = null;
      place.joining = null;
      place.retryAt = null;
      entry.waiters.add(waiter);
      this.core.dirty = true;
    });
    const giveUp = () =>
      this.core.run(() => {
        waiter.reject(signal?.reason);
        const entry = this.core.rooms.get(roomId);
        entry?.waiters.delete(waiter);
        // If the join is on its way its answer finds nobody, and is undone.
        if (entry?.waiters.size === 0 && !entry.place.established) this.core.rooms.delete(roomId);
        this.core.dirty = true;
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
    const entry = this.core.rooms.get(roomId);
    if (entry === undefined || entry.room !== room) return;
    const { link, joining } = entry.place;
    const asked = this.core.run(() => {
      this.core.rooms.delete(roomId);
      for (const waiter of entry.waiters) waiter.reject(left());
      this.core.dirty = true;
      const current = this.core.sessions.current;
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
    if (this.core.ended !== null) return Promise.reject(this.core.ended);
    return this.core.run(() => {
      this.core.dirty = true;
      return this.core.requests.insert(asking, (request) => this.#giveUp(request)).answer;
    });
  }

  /**
   * The caller gave up: nothing is sent later.
   * @param {Request} request
   * @param {unknown} [reason]
   */
  #giveUp(request, reason = request.signal?.reason) {
    this.core.run(() => {
      if (!this.core.requests.remove(request)) return;
      this.#late.delete(request);
      this.core.dirty = true;
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
    const entry = this.core.rooms.get(rooms[0] ?? "");
    const link = entry?.place.link ?? this.core.sessions.current;
    const joined = rooms.every((name) => this.core.rooms.get(name)?.place.link === link);
    if (!link?.isOpen || !joined || link.socket.bufferedAmount > MAX_BUFFERED) {
      this.core.counters.notificationsDropped += 1;
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
    /** @type {Promise<void>} */
    const mine = new Promise((resolve) => {
      release = resolve;
    });
    this.#turn = before.then(() => mine);
    const upload = new Upload(release);
    try {
      await unlessAborted(before, signal);
      if (this.core.ended !== null) throw this.core.ended;
      const inserted = this.core.run(() => {
        this.core.dirty = true;
        const asking = {
          kind: "backfill_begin",
          payload: JSON.stringify({ roomId, vehicleId }),
          rooms: [roomId],
          upload,
          signal,
        };
        return this.core.requests.insert(asking, (request) => this.#giveUp(request));
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
          (ms) => this.core.sleep(ms),
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
  repeatLate(request) {
    this.#late.add(request);
    if (!this.#uploadingLate) void this.#uploadLate();
  }

  async #uploadLate() {
    this.#uploadingLate = true;
    // Those that are lost together come here together.
    await Promise.resolve();
    while (this.#late.size > 0 && this.core.ended === null) {
      const [first] = this.#late;
      const [room] = first?.late ?? [];
      if (room === undefined) break;
      const batch = [...this.#late].filter((one) => one.late?.has(room)).slice(0, LATE_BATCH);
      const positions = batch.map((one) => one.keyed);
      this.core.counters.resends += batch.length;
      try {
        const result = await this.backfill(positions, room, undefined, undefined);
        this.core.run(() => this.#uploadedLate(batch, room, result));
      } catch (error) {
        const code = error instanceof MilepostError ? error.code : "";
        const again = code === "UNKNOWN_OUTCOME" || code === "SERVER_DRAINING";
        if (error instanceof MilepostError && error.retry === "later") {
          await this.core.sleep(error.retryAfterMs ?? 1000).done;
        } else if (!again) {
          this.core.run(() => {
            for (const request of batch) {
              this.#late.delete(request);
              this.core.requests.fail(request, error);
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
        this.core.requests.fail(request, new MilepostError("VALIDATION_ERROR", String(refused.get(index))));
      } else if (request.late?.size === 0) {
        this.#late.delete(request);
        const duplicate = result.duplicates === batch.length;
        this.core.requests.succeed(request, { rooms: {}, duplicate, late: [], backfilled: true });
      }
    });
  }

  end() {
    this.#late.clear();
  }
}
