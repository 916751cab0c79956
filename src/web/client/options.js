/**
 * What a client is told at its beginning, checked, and with the platform's parts filled in.
 */
import { invalid } from "./error.js";
import { MAX_MS } from "./timing.js";

/**
 * @typedef {object} Options
 * @property {string | string[]} [endpoints] the servers; "/ws" of the page's own by default
 * @property {string | (() => string | Promise<string>)} [token] the token, or where to get one:
 *   asked for every session, and when the server says that the token is about to expire
 * @property {string} [clientId] the identity on a server without tokens
 * @property {import("./link.js").SocketClass} [WebSocket] the platform's own by default
 * @property {import("./requests.js").ResendRefused} [resendRefused] off by default
 * @property {boolean} [resendKeyed] whether keyed positions whose connection died before the
 *   answer are sent again; true by default
 * @property {number} [pingIdleMs] after how much silence the server is asked whether it is
 *   there; half of its heartbeat by default
 * @property {number} [staleAfterMs] after how much silence the view is called stale; one
 *   heartbeat by default
 * @property {number} [deadAfterMs] after how much silence a socket is given up; the server's
 *   heartbeat timeout by default
 * @property {number} [wakeTimeoutMs] how long the answer may take after the page was in the
 *   background, the machine asleep or the network gone; 5 s
 * @property {number} [connectTimeoutMs] how long an attempt may take up to `welcome`; 10 s
 * @property {{firstMs?: number, capMs?: number}} [backoff] the ceilings of the first and of the
 *   longest wait between attempts; 1 s and 60 s
 * @property {number} [maxUnanswered] how many requests may be without an answer; 10,000
 * @property {Partial<Environment>} [environment] clocks and chance, for tests
 */

/**
 * @typedef {object} Environment
 * @property {() => number} now a clock that never jumps, milliseconds
 * @property {() => number} wallNow milliseconds since 1970
 * @property {() => number} random from 0 to 1
 * @property {(run: () => void, ms: number) => unknown} setTimeout
 * @property {(timer: any) => void} clearTimeout
 * @property {EventTarget | null} window who tells of `online`, `offline` and `pageshow`
 * @property {(EventTarget & {visibilityState?: string}) | null} document who tells of
 *   `visibilitychange` and `resume`
 */

/**
 * What the options come to.
 * @typedef {Environment & {
 *   endpoints: {url: string, shown: string}[],
 *   token: Options["token"],
 *   WebSocket: import("./link.js").SocketClass,
 *   resendRefused: Options["resendRefused"],
 *   resendKeyed: boolean,
 *   pingIdleMs: number | undefined,
 *   staleAfterMs: number | undefined,
 *   deadAfterMs: number | undefined,
 *   wakeTimeoutMs: number,
 *   connectTimeoutMs: number,
 *   firstMs: number,
 *   capMs: number,
 *   maxUnanswered: number,
 * }} Settings
 */

/**
 * The URL to connect to, and the one to show: without user, password and query, which may be
 * secrets.
 * @param {string} text
 * @param {string | undefined} clientId
 */
export function parseEndpoint(text, clientId) {
  let url;
  try {
    url = new URL(text, globalThis.location?.href);
  } catch {
    throw invalid("an endpoint is no URL");
  }
  if (url.protocol === "http:") url.protocol = "ws:";
  if (url.protocol === "https:") url.protocol = "wss:";
  if (url.protocol !== "ws:" && url.protocol !== "wss:") {
    throw invalid("an endpoint must begin with ws:// or wss://");
  }
  url.hash = "";
  if (clientId !== undefined) url.searchParams.set("clientId", clientId);
  return { url: url.href, shown: `${url.protocol}//${url.host}${url.pathname}` };
}

/**
 * @param {Options} options
 * @returns {Settings}
 */
export function settingsOf(options) {
  const scope = /** @type {any} */ (globalThis);
  const WebSocket = options.WebSocket ?? scope.WebSocket;
  if (typeof WebSocket !== "function") throw invalid("there is no WebSocket here: pass one");
  if (options.endpoints === undefined && scope.location === undefined) {
    throw invalid("a client needs an endpoint");
  }
  const endpoints = [options.endpoints ?? "/ws"].flat();
  if (endpoints.length === 0) throw invalid("a client needs an endpoint");
  /** @param {number | undefined} value @param {string} name */
  const ms = (value, name) => {
    if (value !== undefined && !(value >= 0 && value <= MAX_MS)) {
      throw invalid(`${name} must be 0 to ${MAX_MS}`);
    }
    return value;
  };
  const { environment = {} } = options;
  const listens = typeof scope.addEventListener === "function";
  return {
    endpoints: endpoints.map((endpoint) => parseEndpoint(endpoint, options.clientId)),
    token: options.token,
    WebSocket,
    resendRefused: options.resendRefused,
    resendKeyed: options.resendKeyed ?? true,
    pingIdleMs: ms(options.pingIdleMs, "pingIdleMs"),
    staleAfterMs: ms(options.staleAfterMs, "staleAfterMs"),
    deadAfterMs: ms(options.deadAfterMs, "deadAfterMs"),
    wakeTimeoutMs: ms(options.wakeTimeoutMs, "wakeTimeoutMs") ?? 5000,
    connectTimeoutMs: ms(options.connectTimeoutMs, "connectTimeoutMs") ?? 10000,
    firstMs: ms(options.backoff?.firstMs, "backoff.firstMs") ?? 1000,
    capMs: ms(options.backoff?.capMs, "backoff.capMs") ?? 60000,
    maxUnanswered: options.maxUnanswered ?? 10000,
    now: environment.now ?? (() => performance.now()),
    wallNow: environment.wallNow ?? (() => Date.now()),
    random: environment.random ?? Math.random,
    setTimeout: environment.setTimeout ?? ((done, wait) => setTimeout(done, wait)),
    clearTimeout: environment.clearTimeout ?? ((timer) => clearTimeout(timer)),
    window: environment.window ?? (listens ? scope : null),
    document: environment.document ?? scope.document ?? null,
  };
}
