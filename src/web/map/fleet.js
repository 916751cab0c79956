// @ts-check
/**
 * The vehicles of all rooms shown: the newest fix of each, where it is drawn right now,
 * and where it came from. Knows nothing of the connection nor of the page.
 *
 * A vehicle is its id: one that publishes to two rooms is one vehicle. It only ever moves
 * towards its newest fix, from where it is drawn, over about the time between two fixes.
 * @module
 */
import { metresPerUnit, nearest, turn, worldX, worldY } from "./geo.js";
import { clean } from "./text.js";

/**
 * @typedef {{vehicleId: string, latitude: number, longitude: number, heading?: number | null,
 *   speed?: number | null, timestamp?: string, receivedAt?: string, [field: string]: unknown}} Position
 * @typedef {"live" | "stale" | "lost"} Status
 */

/** Without a fix for this long a vehicle is stale, then lost. Milliseconds. */
export const STALE_AFTER = 90_000;
export const LOST_AFTER = 600_000;

/** Fixes further apart than this, in time or place, are jumped, not driven. */
const MAX_GAP_MS = 30_000;
const MAX_JUMP_M = 3_000;
/** The longest a movement between two fixes may take, and the shortest. */
const MAX_MOVE_MS = 10_000;
const MIN_MOVE_MS = 120;
/** Points of a trail. */
const TRAIL = 64;

/**
 * The time of a fix, epoch milliseconds.
 * @param {Position} position
 */
const fixOf = ({ timestamp, receivedAt }) => Date.parse(timestamp ?? receivedAt ?? "");

export class Vehicle {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    this.name = clean(id, 64);
    /** On the map. */
    this.label = clean(id, 24);
    /** For the search. */
    this.folded = id.slice(0, 256).toLowerCase();
    /** @type {Set<string>} */
    this.rooms = new Set();
    /** @type {Position} */
    this.position = { vehicleId: id, latitude: 0, longitude: 0 };
    /** The time of the newest fix, and when the server had it. Epoch milliseconds. */
    this.fixAt = -Infinity;
    this.receivedAt = -Infinity;
    /** Where it is drawn, where it is going, where that began. */
    this.x = this.toX = this.fromX = 0.5;
    this.y = this.toY = this.fromY = 0.5;
    this.heading = this.toHeading = this.fromHeading = NaN;
    this.movedAt = 0;
    this.moveMs = 0;
    /** When the last fix came, on the page's own clock, and the usual time between two. */
    this.cameAt = -Infinity;
    this.interval = 1000;
    /** x and y in turns, oldest first; a NaN is a break. @type {number[]} */
    this.trail = [];
    /** Pixels at the last drawing; the layer's. */
    this.px = this.py = NaN;
    this.nextX = this.nextY = 0;
    this.labelled = false;
    /** @type {Status} */
    this.drawnAs = "live";
  }

  /**
   * @param {number} serverNow
   * @returns {Status}
   */
  status(serverNow) {
    const age = serverNow - this.fixAt;
    return age < STALE_AFTER ? "live" : age < LOST_AFTER ? "stale" : "lost";
  }

  /**
   * Sets x, y and heading for this moment; false once it has arrived.
   * @param {number} now
   */
  step(now) {
    if (this.moveMs === 0) return false;
    const part = Math.min(1, Math.max(0, (now - this.movedAt) / this.moveMs));
    this.x = this.fromX + (this.toX - this.fromX) * part;
    this.y = this.fromY + (this.toY - this.fromY) * part;
    this.heading = turn(this.fromHeading, this.toHeading, part);
    if (part === 1) this.moveMs = 0;
    return part < 1;
  }

  /**
   * @param {Position} position
   * @param {number} now
   * @param {boolean} replayed
   * @param {boolean} still  at once, without a movement
   */
  take(position, now, replayed, still) {
    const first = this.fixAt === -Infinity;
    const receivedAt = Date.parse(position.receivedAt ?? "");
    const fixAt = fixOf(position);
    if (fixAt < this.fixAt) return false;
    const gap = fixAt - this.fixAt;
    if (!replayed) {
      const since = now - this.cameAt;
      if (since > 50 && since < MAX_GAP_MS) this.interval += (since - this.interval) * 0.3;
      this.cameAt = now;
    }
    this.position = position;
    this.fixAt = fixAt;
    this.receivedAt = Number.isNaN(receivedAt) ? fixAt : receivedAt;
    this.step(now);

    const x = nearest(worldX(position.longitude), this.x);
    const y = worldY(position.latitude);
    const far = Math.hypot(x - this.x, y - this.y) * metresPerUnit(y) > MAX_JUMP_M;
    const jump = first || far || gap > MAX_GAP_MS;
    const heading = typeof position.heading === "number" ? position.heading : NaN;
    const turning = !jump && !Number.isNaN(heading) && !Number.isNaN(this.heading);
    this.fromHeading = turning ? this.heading : heading;
    this.toHeading = heading;
    this.toX = x;
    this.toY = y;
    if (jump || still) {
      this.x = this.fromX = x;
      this.y = this.fromY = y;
      this.heading = heading;
      this.moveMs = 0;
    } else {
      this.fromX = this.x;
      this.fromY = this.y;
      this.movedAt = now;
      // A little longer than to the next fix, so that it does not stop in between.
      this.moveMs = Math.min(MAX_MOVE_MS, Math.max(MIN_MOVE_MS, this.interval * 1.1));
    }
    if (jump && !first) this.trail.push(NaN, NaN);
    this.trail.push(x, y);
    if (this.trail.length > TRAIL * 3) this.trail.splice(0, this.trail.length - TRAIL * 2);
    return true;
  }
}

export class Fleet {
  constructor() {
    /** @type {Map<string, Vehicle>} */
    this.vehicles = new Map();
    /** @type {Set<string>} rooms that are not drawn nor listed */
    this.hidden = new Set();
    /** Changes whenever a vehicle comes, goes, or changes its rooms. */
    this.version = 0;
    /** The latest end of a movement. */
    this.movingUntil = 0;
    /** Nothing moves smoothly while nobody looks, or if they do not want it. */
    this.still = false;
  }

  /**
   * @param {string} roomId
   * @param {Position} position
   * @param {boolean} replayed
   * @param {number} [now]
   * @returns {Vehicle}
   */
  take(roomId, position, replayed, now = performance.now()) {
    const id = String(position.vehicleId);
    let vehicle = this.vehicles.get(id);
    if (!vehicle) {
      vehicle = new Vehicle(id);
      this.vehicles.set(id, vehicle);
      this.version += 1;
    }
    if (!vehicle.rooms.has(roomId)) {
      vehicle.rooms.add(roomId);
      this.version += 1;
    }
    if (vehicle.take(position, now, replayed, this.still)) {
      this.movingUntil = Math.max(this.movingUntil, now + vehicle.moveMs);
    }
    return vehicle;
  }

  /**
   * A position of a room's snapshot, which is the truth: also if it is older than what was
   * seen here, as after the room log was replaced.
   * @param {string} roomId
   * @param {Position} position
   */
  restore(roomId, position) {
    const known = this.vehicles.get(String(position.vehicleId));
    if (known && known.rooms.has(roomId) && known.rooms.size === 1) known.fixAt = Math.min(known.fixAt, fixOf(position));
    this.take(roomId, position, true);
  }

  /**
   * Whoever is not among these is not in the room any more.
   * @param {string} roomId
   * @param {{has: (id: string) => boolean}} there
   */
  retain(roomId, there) {
    for (const vehicle of this.vehicles.values()) {
      if (vehicle.rooms.has(roomId) && !there.has(vehicle.id)) this.#leave(vehicle, roomId);
    }
  }

  /** @param {string} roomId */
  drop(roomId) {
    for (const vehicle of this.vehicles.values()) this.#leave(vehicle, roomId);
  }

  /**
   * @param {Vehicle} vehicle
   * @param {string} roomId
   */
  #leave(vehicle, roomId) {
    if (!vehicle.rooms.delete(roomId)) return;
    if (vehicle.rooms.size === 0) this.vehicles.delete(vehicle.id);
    this.version += 1;
  }

  /**
   * @param {string} roomId
   * @param {boolean} shown
   */
  show(roomId, shown) {
    if (shown) this.hidden.delete(roomId);
    else this.hidden.add(roomId);
    this.version += 1;
  }

  /** Every movement ends where it was going. */
  arrive() {
    for (const vehicle of this.vehicles.values()) vehicle.step(Infinity);
  }

  /** @param {Vehicle} vehicle */
  isShown(vehicle) {
    if (this.hidden.size === 0) return true;
    for (const room of vehicle.rooms) if (!this.hidden.has(room)) return true;
    return false;
  }
}
