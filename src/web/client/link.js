/**
 * One session's socket: what was asked on it and is unanswered, when it was last heard.
 * Knows the WebSocket API, not the rooms; owns no timer.
 */
import { millis } from "./timing.js";

/**
 * What the client needs of a WebSocket: the browser's own, or the npm package `ws`.
 * @typedef {object} SocketLike
 * @property {number} readyState
 * @property {number} bufferedAmount
 * @property {((event: any) => void) | null} onmessage
 * @property {((event: any) => void) | null} onclose
 * @property {((event: any) => void) | null} onerror
 * @property {(text: string) => void} send
 * @property {(code?: number, reason?: string) => void} close
 * @property {() => void} [terminate]
 */

/** @typedef {new (url: string, protocols?: string[]) => SocketLike} SocketClass */

/**
 * What a wire id on a link stands for.
 * @typedef {{kind: "request", request: import("./requests.js").Request}
 *   | {kind: "abandoned", release: () => void}
 *   | {kind: "join", roomId: string}
 *   | {kind: "refresh", token: string}
 *   | {kind: "ping", at: number, wall: number}} Asked
 */

/** How long a close may take before the socket is dropped, milliseconds. */
export const CLOSE_MS = 3000;

const OPEN = 1;

export class Link {
  /** @type {"connecting"|"open"|"closing"|"gone"} */
  stage = "connecting";
  session = "";
  instance = "";
  generation = "";
  heartbeatMs = 20000;
  heartbeatTimeoutMs = 50000;
  maxFrame = 65536;
  windowMs = 600000;
  /** When `welcome` came. */
  born = 0;
  /** The last message. */
  heard = 0;
  pinged = 0;
  /** When the answer to a check must have come. @type {number | null} */
  checkBy = null;
  /** The server announced its end. */
  noticed = false;
  /** Answered `SERVER_DRAINING`: new requests would be refused too. */
  refuses = false;
  /** @type {Map<number, Asked>} */
  asked = new Map();
  /** The upload that began last here. @type {import("./requests.js").Request | null} */
  uploading = null;
  /** When a close in progress is given up. @type {number | null} */
  closeBy = null;

  /**
   * @param {SocketLike} socket
   * @param {number} endpoint its index
   * @param {string} shown its URL without secrets
   * @param {string | null} token
   */
  constructor(socket, endpoint, shown, token) {
    this.socket = socket;
    this.endpoint = endpoint;
    this.shown = shown;
    this.token = token;
  }

  /**
   * The server said `welcome`.
   * @param {Record<string, unknown>} payload
   * @param {number} now
   */
  welcomed(payload, now) {
    this.stage = "open";
    this.session = String(payload.sessionId);
    this.instance = typeof payload.instanceId === "string" ? payload.instanceId : "";
    this.generation = typeof payload.generation === "string" ? payload.generation : "";
    // Never so short that it keeps us busy.
    this.heartbeatMs = millis(payload.heartbeatMs, 20000, 1000);
    this.heartbeatTimeoutMs = millis(payload.heartbeatTimeoutMs, 50000, 2000);
    this.maxFrame = millis(payload.maxFrameBytes, 65536);
    this.windowMs = millis(payload.dedupWindowMs, 600000);
    this.born = this.heard = this.pinged = now;
  }

  /** Whether messages can still be sent. */
  get isOpen() {
    return this.stage === "open" && this.socket.readyState === OPEN;
  }

  /** Whether new requests make sense here. */
  get takesRequests() {
    return this.isOpen && !this.noticed && !this.refuses;
  }

  /** @param {string} text */
  send(text) {
    this.socket.send(text);
  }

  /**
   * Sends a message whose answer carries `wire`.
   * @param {number} wire
   * @param {string} text
   * @param {Asked} asked
   */
  ask(wire, text, asked) {
    this.asked.set(wire, asked);
    this.send(text);
  }

  /**
   * Begins the close from this side.
   * @param {number} now
   */
  close(now) {
    if (this.stage === "gone" || this.stage === "closing") return;
    this.stage = "closing";
    this.closeBy = now + CLOSE_MS;
    this.socket.close(1000);
  }

  /** Gives the socket up: nothing of it is heard any more. */
  abandon() {
    this.stage = "gone";
    this.socket.onmessage = null;
    this.socket.onclose = null;
    // `ws` throws where nobody listens for errors.
    this.socket.onerror = () => {};
    if (this.socket.terminate) this.socket.terminate();
    else this.socket.close();
  }
}
