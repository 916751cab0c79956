/** A world for one client: sockets that a test speaks for, and clocks that it winds. */
import { MilepostClient } from "../../src/web/client/milepost.js";

const TYPES = [
  "state", "joined", "position", "snapshot", "reset", "members", "lagging", "caughtUp", "shutdown",
  "moved", "stale", "fresh", "roomLeft", "tokenExpiring", "error", "close",
];

class FakeSocket {
  readyState = 0;
  bufferedAmount = 0;
  onmessage = null;
  onclose = null;
  onerror = null;
  /** Whether the client has begun to close it. */
  closing = false;
  /** Never answers a close. */
  deaf = false;
  sent = [];

  constructor(world, url, protocols) {
    this.world = world;
    this.url = url;
    this.protocols = protocols;
    world.sockets.push(this);
    if (world.refuse) queueMicrotask(() => this.drop(1006, ""));
  }

  open() {
    this.readyState = 1;
  }

  send(text) {
    if (this.readyState !== 1) throw new Error("the socket is not open");
    this.sent.push(JSON.parse(text));
  }

  close() {
    this.closing = true;
    if (this.readyState > 1) return;
    this.readyState = 2;
    if (!this.deaf) queueMicrotask(() => this.drop(1000, ""));
  }

  /** The server, or the network, ends it. */
  drop(code, reason) {
    if (this.readyState === 3) return;
    this.readyState = 3;
    this.onclose?.({ code, reason });
  }

  say(type, payload, id) {
    this.onmessage?.({ data: JSON.stringify({ type, id, payload }) });
  }

  answer(frame, type, payload) {
    this.say(type, payload, frame.id);
  }

  position(roomId, seq, more = {}) {
    this.say("location_update", { roomId, ...this.world.fix(seq, more) });
  }
}

export class World {
  sockets = [];
  events = Object.fromEntries(TYPES.map((type) => [type, []]));
  refuse = false;
  #time = 0;
  #wall = 1_700_000_000_000;
  #timers = new Map();
  #id = 0;

  constructor({ random = () => 0.5, window, document, ...options } = {}) {
    const world = this;
    class WebSocket extends FakeSocket {
      constructor(url, protocols) {
        super(world, url, protocols);
      }
    }
    this.client = new MilepostClient({
      endpoints: "ws://a/ws",
      WebSocket,
      environment: {
        now: () => this.#time,
        wallNow: () => this.#wall,
        random,
        setTimeout: (run, ms) => {
          this.#timers.set(++this.#id, { at: this.#time + ms, run });
          return this.#id;
        },
        clearTimeout: (id) => this.#timers.delete(id),
        window,
        document,
      },
      ...options,
    });
    for (const type of TYPES) this.client.on(type, (event) => this.events[type].push(event));
  }

  get last() {
    return this.sockets.at(-1);
  }

  /** Timers that are set. */
  get timers() {
    return this.#timers.size;
  }

  serverTime() {
    return new Date(this.#wall).toISOString();
  }

  fix(seq, more = {}) {
    const at = this.serverTime();
    return {
      seq, clientId: "c", vehicleId: "bus-1", latitude: 60, longitude: 25, timestamp: at,
      receivedAt: at, ...more,
    };
  }

  /** Time goes by, and what is due happens. */
  async advance(ms) {
    const end = this.#time + ms;
    for (let runs = 0; ; runs++) {
      if (runs > 100_000) throw new Error("a timer is set again and again");
      await new Promise((resolve) => setImmediate(resolve));
      const due = [...this.#timers].sort(([, one], [, other]) => one.at - other.at)[0];
      if (due === undefined || due[1].at > end) break;
      this.#timers.delete(due[0]);
      this.#wall += Math.max(0, due[1].at - this.#time);
      this.#time = Math.max(this.#time, due[1].at);
      due[1].run();
    }
    this.#wall += Math.max(0, end - this.#time);
    this.#time = Math.max(this.#time, end);
  }

  /** Time goes by until a new socket waits for its server. */
  async socket() {
    const before = this.sockets.length;
    for (let n = 0; this.sockets.length === before; n++) {
      if (n > 1000) throw new Error("no attempt was made");
      await this.advance(100);
    }
  }

  /** Time goes by and nothing happens; what was due meanwhile happens late. */
  sleep(ms) {
    this.#time += ms;
    this.#wall += ms;
  }

  /** The newest socket opens and the server greets. */
  async welcome(more = {}) {
    await this.advance(0);
    this.last.open();
    this.last.say("welcome", {
      sessionId: "s1", clientId: "me", instanceId: "i1", protocol: 1, serverTime: this.serverTime(),
      heartbeatMs: 20000, heartbeatTimeoutMs: 50000, maxFrameBytes: 65536, maxFrameOutBytes: 65536,
      maxPositionBytes: 512, dedupWindowMs: 600000, ...more,
    });
  }

  /** Answers every join of the newest socket that is unanswered. */
  answerJoins(more = {}) {
    const socket = this.last;
    for (const frame of socket.sent.filter((one) => one.type === "join_room" && !one.answered)) {
      frame.answered = true;
      socket.answer(frame, "room_joined", {
        roomId: frame.payload.roomId, mode: frame.payload.mode, epoch: "e", seq: 10,
        recovered: false, members: ["me"], memberCount: 1, positions: [], more: false, ...more,
      });
    }
  }
}
