/**
 * One upload of past positions: what its caller and the client tell each other, and its chunks.
 * Knows no socket. An upload belongs to the session that has its first frame, and is never sent
 * again by itself.
 */
import { invalid } from "./error.js";

/** The most positions in one chunk. */
export const MAX_CHUNK = 500;
/** What of a frame is kept for `{"type":…,"id":…,"payload":{"positions":[…]}}`. */
const ENVELOPE = 128;
/** Chunks of an upload that are not in the log yet. */
const UNCOMMITTED = 2;
/** How long positions wait for more of them before they go as a short chunk, milliseconds. */
const LINGER = 1000;

const encoder = new TextEncoder();
/** @param {string} text */
export const byteLength = (text) => encoder.encode(text).length;

/** How far an upload is. */
export class Upload {
  /** The longest frame of the session that has its beginning; 0 before that. */
  maxFrame = 0;
  /** Chunks that are in the log. */
  committed = 0;
  over = false;
  /** The next change. @type {Promise<void>} */
  changed = Promise.resolve();
  #wake = () => {};

  /** @param {() => void} release gives the turn to the next upload */
  constructor(release) {
    this.release = release;
    this.#renew();
  }

  #renew() {
    this.changed = new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  #tell() {
    this.#wake();
    this.#renew();
  }

  /** @param {number} maxFrame */
  begun(maxFrame) {
    this.maxFrame = maxFrame;
    this.#tell();
  }

  chunkCommitted() {
    this.committed += 1;
    this.#tell();
  }

  end() {
    this.over = true;
    this.#tell();
  }
}

/** The positions of the next chunk. */
export class Chunk {
  #text = "";
  #bytes = 0;
  positions = 0;

  /** @param {number} maxFrame bytes */
  constructor(maxFrame) {
    this.max = maxFrame - ENVELOPE;
  }

  /**
   * Takes one more position; `false` if it has to wait for the next chunk.
   * @param {string} position
   */
  push(position) {
    const bytes = byteLength(position) + 1;
    if (this.positions === MAX_CHUNK || this.#bytes + bytes > this.max) return false;
    this.#text += this.positions > 0 ? `,${position}` : position;
    this.#bytes += bytes;
    this.positions += 1;
    return true;
  }

  /** The payload of what is in it; empty afterwards. */
  take() {
    const payload = `{"positions":[${this.#text}]}`;
    this.#text = "";
    this.#bytes = 0;
    this.positions = 0;
    return payload;
  }
}

/**
 * Sends the chunks of an upload, only as fast as the server commits them.
 * @param {Upload} upload
 * @param {Iterable<unknown> | AsyncIterable<unknown>} positions
 * @param {(payload: string) => void} send
 * @param {(ms: number) => {done: Promise<void>, cancel: () => void}} sleep
 */
export async function feed(upload, positions, send, sleep) {
  while (upload.maxFrame === 0 && !upload.over) await upload.changed;
  const chunk = new Chunk(upload.maxFrame);
  let sent = 0;
  let index = 0;
  const flush = async () => {
    while (!upload.over && sent >= upload.committed + UNCOMMITTED) await upload.changed;
    if (upload.over) return;
    sent += 1;
    send(chunk.take());
  };
  const iterator = open(positions);
  let next = iterator.next();
  while (!upload.over) {
    const step = next instanceof Promise ? await arrived(next, upload, chunk, sleep) : next;
    if (step === "over") break;
    if (step === "linger") {
      await flush();
      continue;
    }
    if (step.done) {
      if (chunk.positions > 0) await flush();
      return;
    }
    const text = JSON.stringify(step.value);
    if (typeof text !== "string" || !text.startsWith("{")) {
      throw invalid(`position ${index} is no object`);
    }
    if (!chunk.push(text)) {
      if (chunk.positions > 0) await flush();
      if (!upload.over && !chunk.push(text)) {
        throw invalid(`position ${index} is longer than the server's frames`);
      }
    }
    index += 1;
    next = iterator.next();
  }
  // Nobody waits for what a source does after that.
  Promise.resolve(iterator.return?.()).catch(() => {});
}

/**
 * @param {Iterable<unknown> | AsyncIterable<unknown>} positions
 * @returns {Iterator<unknown> | AsyncIterator<unknown>}
 */
function open(positions) {
  if (Symbol.asyncIterator in positions) return positions[Symbol.asyncIterator]();
  return positions[Symbol.iterator]();
}

/**
 * The source's next step, unless the upload ends or what is in hand has waited long enough.
 * @param {Promise<IteratorResult<unknown>>} next
 * @param {Upload} upload
 * @param {Chunk} chunk
 * @param {(ms: number) => {done: Promise<void>, cancel: () => void}} sleep
 * @returns {Promise<IteratorResult<unknown> | "over" | "linger">}
 */
async function arrived(next, upload, chunk, sleep) {
  const linger = chunk.positions > 0 ? sleep(LINGER) : null;
  try {
    for (;;) {
      const step = await Promise.race([
        next,
        upload.changed.then(() => /** @type {const} */ ("changed")),
        ...(linger ? [linger.done.then(() => /** @type {const} */ ("linger"))] : []),
      ]);
      if (step !== "changed") return step;
      if (upload.over) return "over";
    }
  } finally {
    linger?.cancel();
  }
}
