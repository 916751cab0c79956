/**
 * What a call of the client can fail with.
 *
 * `code` is one of the server's error codes (README, "Error codes") or one of the client's own:
 *
 * | code | meaning |
 * |---|---|
 * | `UNKNOWN_OUTCOME` | the connection died before the answer; whether the request ran is unknown |
 * | `SERVER_DRAINING` | the request never started; safe to send again on a new session |
 * | `CLOSED` | the client was closed before the request was sent |
 * | `UNAUTHORIZED` | the server does not accept the token, and there is no other |
 * | `TOKEN` | no usable token could be had; the client goes on trying |
 * | `INVALID` | the call itself is wrong |
 * | `QUEUE_FULL` | too many requests wait for an answer |
 * | `LEFT` | the room was left before its join was answered |
 * | `OUT_OF_ORDER`, `PROTOCOL` | the server broke its own protocol |
 */

/**
 * @typedef {object} ErrorDetails
 * @property {"never"|"later"|"elsewhere"} [retry] whether the same request may succeed again
 * @property {number} [retryAfterMs] how long to wait before that
 * @property {string} [field] the path of the offending field
 * @property {string} [type] the offending message's type
 * @property {string} [roomId] the offending message's room
 * @property {number} [suppressed] how many more errors to notifications were not sent
 */

export class MilepostError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {ErrorDetails} [details]
   */
  constructor(code, message, details = {}) {
    super(message);
    this.name = "MilepostError";
    /** A name to compare with. */
    this.code = code;
    this.retry = details.retry ?? "never";
    this.retryAfterMs = details.retryAfterMs;
    this.field = details.field;
    this.type = details.type;
    this.roomId = details.roomId;
    this.suppressed = details.suppressed ?? 0;
  }
}

/** @param {unknown} value */
const text = (value) => (typeof value === "string" ? value : undefined);
/** @param {unknown} value */
const count = (value) =>
  typeof value === "number" && value >= 0 ? Math.min(value, 2147483647) : undefined;

/**
 * The error of an `error` message. A word that this version does not know is no invitation
 * to send again.
 * @param {Record<string, unknown>} payload
 */
export function fromWire(payload) {
  const code = text(payload.code) ?? "PROTOCOL";
  const retry = payload.retry === "later" || payload.retry === "elsewhere" ? payload.retry : "never";
  return new MilepostError(code, text(payload.message) ?? code, {
    retry,
    retryAfterMs: retry === "later" ? (count(payload.retryAfterMs) ?? 1000) : undefined,
    field: text(payload.field),
    type: text(payload.type),
    roomId: text(payload.roomId),
    suppressed: count(payload.suppressed),
  });
}

/** The request never started. */
export const draining = () =>
  new MilepostError(
    "SERVER_DRAINING",
    "the server is shutting down and did not start the request",
    { retry: "elsewhere" },
  );

/** The request may have run or not. */
export const unknownOutcome = () =>
  new MilepostError(
    "UNKNOWN_OUTCOME",
    "the connection was lost before the answer; whether the request ran is unknown",
  );

/** @param {string} why */
export const invalid = (why) => new MilepostError("INVALID", why);
export const left = () => new MilepostError("LEFT", "the room was left");
export const closed = () => new MilepostError("CLOSED", "the client is closed");

/** @param {number} bytes */
export const tooLarge = (bytes) =>
  new MilepostError("MESSAGE_TOO_LARGE", `longer than the server's frames of ${bytes} bytes`);
