// @ts-check
/**
 * The connection and its rooms: keeps a client of milepost.js going, feeds the fleet, and
 * counts what people ask about. Draws nothing.
 * @module
 */
import { MilepostClient } from "../client/milepost.js";

/**
 * @typedef {{id: string, state: "joining" | "joined" | "refused" | "left", problem: string,
 *   room: import("../client/milepost.js").Room | null, lagging: boolean}} RoomEntry
 * @typedef {"rooms" | "state" | "fleet" | "members"} Topic
 * @typedef {{type: string, [field: string]: any}} Happening
 */

const TOKEN_KEY = "milepost.token";

/** Where the page's own server takes WebSockets, under whatever path it is served. */
export function endpoint() {
  const url = new URL("ws", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.search = url.hash = "";
  return url.href;
}

export class Session {
  /**
   * @param {import("./fleet.js").Fleet} fleet
   * @param {{changed: (topic: Topic) => void, happened: (what: Happening) => void, moved: () => void}} page
   */
  constructor(fleet, page) {
    this.fleet = fleet;
    this.page = page;
    /** @type {Map<string, RoomEntry>} */
    this.rooms = new Map();
    /** @type {MilepostClient | null} */
    this.client = null;
    /** Since the last call of `tick`. */
    this.taken = 0;
    /** @type {number[]} */
    this.lags = [];
    this.figures = { rate: 0, lagMs: NaN };
    this.needsToken = false;
    /** What earlier clients of this page had counted. @type {Record<string, number>} */
    this.before = {};
    this.token = sessionStorage.getItem(TOKEN_KEY);
  }

  /** The server's clock, as far as known. */
  serverNow() {
    return Date.now() + (this.client?.state.serverTimeOffsetMs || 0);
  }

  /** All counters of the client, over the life of the page. @returns {Record<string, number>} */
  counters() {
    /** @type {Record<string, number>} */
    const sum = { ...this.before };
    for (const [name, value] of Object.entries(this.client?.counters ?? {})) sum[name] = (sum[name] ?? 0) + value;
    return sum;
  }

  /** @param {string} token */
  useToken(token) {
    this.token = token;
    sessionStorage.setItem(TOKEN_KEY, token);
    this.connect();
  }

  /** Begins, or begins again. */
  connect() {
    this.before = this.counters();
    const old = this.client;
    this.client = null;
    old?.close();
    this.needsToken = false;
    const client = new MilepostClient({
      endpoints: endpoint(),
      ...(this.token ? { token: () => this.token ?? "" } : {}),
    });
    this.client = client;
    /**
     * Events of a client that has been replaced mean nothing.
     * @param {string} type
     * @param {(event: any) => void} listener
     */
    const on = (type, listener) => {
      client.on(/** @type {any} */ (type), (/** @type {any} */ event) => {
        if (this.client === client) listener(event);
      });
    };
    on("position", (event) => this.#position(event));
    on("snapshot", ({ room, positions, more }) => {
      if (!this.rooms.has(room.id)) return;
      for (const position of positions) this.fleet.restore(room.id, position);
      if (!more) this.fleet.retain(room.id, room.positions);
      this.page.changed("fleet");
      this.page.moved();
    });
    on("joined", ({ room }) => {
      const entry = this.rooms.get(room.id);
      if (entry) Object.assign(entry, { room, state: "joined", problem: "" });
      this.page.changed("rooms");
    });
    on("roomLeft", ({ roomId, reason }) => {
      const entry = this.rooms.get(roomId);
      if (!entry || reason === "left") return;
      Object.assign(entry, { room: null, state: "left", problem: reason ?? "left" });
      this.fleet.drop(roomId);
      this.page.changed("rooms");
      this.page.changed("fleet");
    });
    on("lagging", (event) => this.#lag(event, true));
    on("caughtUp", (event) => this.#lag(event, false));
    on("members", () => this.page.changed("members"));
    on("state", () => this.page.changed("state"));
    on("close", (event) => {
      if (event.code === 4001) {
        this.#refused(client, event.reason);
        return;
      }
      // Whether it goes on by itself is settled when all have heard of the close.
      setTimeout(() => {
        if (this.client === client && !this.needsToken) this.page.happened({ ...event, type: "close", final: client.state.status === "closed" });
      });
      this.page.changed("state");
    });
    on("error", ({ error }) => {
      if (error?.code === "TOKEN") this.#refused(client, error.message);
      else this.page.happened({ error, type: "error" });
    });
    for (const type of ["shutdown", "moved", "stale", "fresh", "reset", "tokenExpiring"]) {
      on(type, (event) => this.page.happened({ ...event, type }));
    }
    for (const entry of this.rooms.values()) this.#join(entry);
    this.page.changed("state");
  }

  /**
   * There is no connection without a token, or another one.
   * @param {MilepostClient} client
   * @param {string} reason
   */
  #refused(client, reason) {
    if (this.needsToken) return;
    this.needsToken = true;
    this.token = null;
    sessionStorage.removeItem(TOKEN_KEY);
    this.page.happened({ type: "close", code: 4001, reason, retryInMs: null });
    this.page.changed("state");
    // Not within its own event.
    setTimeout(() => client.close());
  }

  /** @param {any} event */
  #position(event) {
    if (!this.rooms.has(event.roomId)) return;
    const vehicle = this.fleet.take(event.roomId, event, event.replayed === true);
    this.taken += 1;
    if (!event.replayed && this.lags.length < 2000) this.lags.push(this.serverNow() - vehicle.receivedAt);
    this.page.moved();
  }

  /**
   * @param {any} event
   * @param {boolean} lagging
   */
  #lag({ room, dropped }, lagging) {
    const entry = this.rooms.get(room.id);
    if (!entry) return;
    entry.lagging = lagging;
    this.page.happened({ type: lagging ? "lagging" : "caughtUp", room, dropped });
    this.page.changed("rooms");
  }

  /** @param {string} id */
  add(id) {
    if (this.rooms.has(id)) return;
    /** @type {RoomEntry} */
    const entry = { id, state: "joining", problem: "", room: null, lagging: false };
    this.rooms.set(id, entry);
    if (this.client) this.#join(entry);
    this.page.changed("rooms");
  }

  /** @param {string} id */
  again(id) {
    const entry = this.rooms.get(id);
    if (entry && this.client) this.#join(entry);
    this.page.changed("rooms");
  }

  /** @param {RoomEntry} entry */
  #join(entry) {
    const { client } = this;
    if (!client) return;
    Object.assign(entry, { state: "joining", problem: "" });
    client.join(entry.id, { mode: "subscribe" }).then(
      (room) => {
        if (this.client !== client) return;
        if (this.rooms.get(entry.id) !== entry) room.leave();
        else Object.assign(entry, { room, state: "joined", problem: "" });
        this.page.changed("rooms");
      },
      (error) => {
        if (this.client !== client || this.needsToken) return;
        Object.assign(entry, { room: null, state: "refused", problem: String(error?.code ?? error?.message ?? error) });
        this.page.changed("rooms");
      },
    );
  }

  /** @param {string} id */
  remove(id) {
    const entry = this.rooms.get(id);
    this.rooms.delete(id);
    entry?.room?.leave();
    this.fleet.show(id, true);
    this.fleet.drop(id);
    this.page.changed("rooms");
    this.page.changed("fleet");
  }

  /**
   * Once a second: the figures of the second past.
   * @param {number} seconds  since the last call
   */
  tick(seconds) {
    this.figures.rate = this.taken / seconds;
    this.lags.sort((a, b) => a - b);
    if (this.lags.length > 0) this.figures.lagMs = this.lags[this.lags.length >> 1] ?? NaN;
    this.taken = 0;
    this.lags = [];
  }
}
