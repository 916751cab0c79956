/**
 * The rooms that a client wants to be in: what it knows of each (`Room`), and where it stands
 * in the log of each (`Place`). One link at a time speaks for a room; what another one says
 * about it is old. Knows no socket.
 */

/** @typedef {import("./link.js").Link} Link */
/** @typedef {"both"|"subscribe"|"publish"} Mode */
/** @typedef {{epoch: string, seq: number}} Since */

/**
 * A position as the server sends it: the fields of the W3C Geolocation API, times as RFC 3339
 * texts, and whatever else the device sent. Read it, do not change it. Texts in it come from
 * other clients: show them as text, never as markup.
 * @typedef {{seq: number, vehicleId: string, clientId: string, latitude: number,
 *   longitude: number, timestamp: string, receivedAt: string} & Record<string, any>} Position
 */

/** How many positions and members of one room are kept at most; the oldest go first. */
const MOST = 100000;

/** A room, as its user sees it. */
export class Room {
  /** The epoch of the room's log. */
  epoch = "";
  /** The last sequence number seen. */
  seq = 0;
  /** The mode that the server granted. @type {Mode} */
  mode;
  /** The identities in the room; in rooms of more than 1,000 the first of them. */
  members = /** @type {Set<string>} */ (new Set());
  memberCount = 0;
  /** The newest position per vehicle. */
  positions = /** @type {Map<string, Position>} */ (new Map());
  /** Only the newest position per vehicle comes: this client reads too slowly. */
  lagging = false;
  #leave;

  /**
   * @param {string} id
   * @param {Mode} mode
   * @param {() => Promise<void>} leave
   */
  constructor(id, mode, leave) {
    this.id = id;
    this.mode = mode;
    this.#leave = leave;
  }

  /** Leaves the room for good. */
  leave() {
    return this.#leave();
  }
}

/**
 * Takes a position into the view of its room, unless a newer one is there.
 * @param {Room} room
 * @param {Position} position
 */
export function keep(room, position) {
  const known = room.positions.get(position.vehicleId);
  if (known !== undefined) {
    if (known.seq >= position.seq) return;
  } else if (room.positions.size >= MOST) {
    for (const oldest of room.positions.keys()) {
      room.positions.delete(oldest);
      break;
    }
  }
  room.positions.set(position.vehicleId, position);
}

/** Where a client stands in the log of one room. */
export class Place {
  /** Where to go on. @type {Since | null} */
  cursor;
  /** Where to go on once the snapshot that is being read is complete. @type {Since | null} */
  #snapshot = null;
  /** The link that speaks for the room. @type {Link | null} */
  link = null;
  /** The link that was asked to join. @type {Link | null} */
  joining = null;
  #askedSince = false;
  /** Not before this time, after a refusal. @type {number | null} */
  retryAt = null;
  /** The last sequence number that the link delivered. */
  #lastOnLink = 0;
  /** It was joined once: it stays wanted when a later join fails for now. */
  established = false;
  /** Since when nobody speaks for it. @type {number | null} */
  silentSince = null;
  /** Up to where events are repetitions of what was missed. @type {number | null} */
  replayUntil = null;

  /**
   * @param {Mode} mode
   * @param {Since | null} cursor
   */
  constructor(mode, cursor) {
    this.mode = mode;
    this.cursor = cursor;
  }

  get subscribes() {
    return this.mode !== "publish";
  }

  /**
   * A join goes out on `link`; the answer is where it resumes from.
   * @param {Link} link
   */
  join(link) {
    this.joining = link;
    this.retryAt = null;
    const since = this.subscribes ? this.cursor : null;
    this.#askedSince = since !== null;
    return since;
  }

  /**
   * `link` has joined; `true` if the view was reset, that is, events are missing.
   * @param {Link} link
   * @param {{epoch: string, seq: number, recovered: boolean, more: boolean}} joined
   */
  joined(link, joined) {
    const answers = this.joining === link;
    // Without an id it is a change of the epoch under the subscription.
    const known = answers ? this.#askedSince : this.cursor !== null;
    if (answers) this.joining = null;
    this.link = link;
    this.#lastOnLink = 0;
    this.established = true;
    this.silentSince = null;
    this.replayUntil = null;
    if (!this.subscribes) return false;
    if (joined.recovered) {
      if (this.cursor !== null && this.cursor.seq < joined.seq) this.replayUntil = joined.seq;
      return false;
    }
    const head = { epoch: joined.epoch, seq: joined.seq };
    // A connection that dies in the middle of a snapshot must get all of it again.
    this.cursor = joined.more ? null : head;
    this.#snapshot = joined.more ? head : null;
    return known;
  }

  /**
   * A page of the snapshot came; `false` if it is not this link's to say.
   * @param {Link} link
   * @param {boolean} more
   */
  snapshot(link, more) {
    if (this.link !== link) return false;
    if (!more && this.#snapshot !== null) {
      this.cursor = this.#snapshot;
      this.#snapshot = null;
    }
    return true;
  }

  /**
   * An event with a sequence number came.
   * @param {Link} link
   * @param {number} seq
   * @returns {"live"|"replayed"|"seen"|"not-ours"|"out-of-order"}
   */
  event(link, seq) {
    if (this.link !== link) return "not-ours";
    if (seq <= this.#lastOnLink) return "out-of-order";
    this.#lastOnLink = seq;
    const replayed = this.replayUntil !== null && seq <= this.replayUntil;
    if (this.replayUntil !== null && seq >= this.replayUntil) this.replayUntil = null;
    if (this.cursor !== null) {
      if (seq <= this.cursor.seq) return "seen";
      this.cursor.seq = seq;
    }
    return replayed ? "replayed" : "live";
  }

  /**
   * The lag is over: everything up to `seq` was sent or superseded.
   * @param {Link} link
   * @param {string} epoch
   * @param {number} seq
   */
  caughtUp(link, epoch, seq) {
    if (this.link !== link) return false;
    if (this.cursor !== null && this.cursor.epoch === epoch) {
      this.cursor.seq = Math.max(this.cursor.seq, seq);
    }
    if (this.replayUntil !== null && seq >= this.replayUntil) this.replayUntil = null;
    return true;
  }

  /**
   * `link` is gone.
   * @param {Link} link
   * @param {number} now
   */
  linkGone(link, now) {
    if (this.link === link) {
      this.link = null;
      this.silentSince = now;
    }
    if (this.joining === link) this.joining = null;
  }
}
