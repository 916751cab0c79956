/**
 * One attempt to get a session: a token, a socket. Nothing here decides when to try again.
 */
import { Link } from "./link.js";

/** @typedef {import("./options.js").Settings} Settings */

/**
 * One attempt to get a session.
 * @typedef {{endpoint: number, by: number, link: Link | null, over: boolean}} Attempt
 */

/**
 * Why an attempt gave no session.
 * @typedef {{code: number, reason: string, token: string | null} | {token: string}
 *   | {why: string}} Failure
 */

/** What a subprotocol may consist of (RFC 9110, 5.6.2). */
const TOKEN_CHARACTERS = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;

/**
 * A token for the next use, `null` if the client has no identity of its own.
 * @param {Settings} settings
 * @returns {Promise<string | null>}
 */
export async function getToken({ token }) {
  if (token === undefined) return null;
  const got = typeof token === "string" ? token : await token();
  if (typeof got !== "string" || got === "") throw new Error("it gave no token");
  return got;
}

/**
 * Opens the socket, unless the attempt is over when the token comes.
 * @param {Settings} settings
 * @param {Attempt} attempt
 * @param {string | null} refused a token that is not tried again
 * @param {(link: Link) => void} listen gets the link before its socket can say anything
 * @returns {Promise<Failure | null>}
 */
export async function open(settings, attempt, refused, listen) {
  let token;
  try {
    token = await getToken(settings);
  } catch (error) {
    return { token: `the token provider failed: ${error}` };
  }
  if (attempt.over) return null;
  if (token !== null && !TOKEN_CHARACTERS.test(token)) {
    return { token: "the token holds characters that no subprotocol may" };
  }
  if (token !== null && token === refused) {
    return { token: "the provider gave the token that was refused" };
  }
  const { url, shown } = /** @type {{url: string, shown: string}} */ (
    settings.endpoints[attempt.endpoint]
  );
  const protocols = token === null ? ["milepost.v1"] : ["milepost.v1", `bearer.${token}`];
  let socket;
  try {
    socket = new settings.WebSocket(url, protocols);
  } catch {
    // Its text may hold the token.
    return { why: "the socket was not opened" };
  }
  listen(new Link(socket, attempt.endpoint, shown, token));
  return null;
}

/**
 * A message of the server; what cannot be read is a newer server's business.
 * @param {string} text
 * @returns {{type: string, id: unknown, payload: Record<string, any>} | null}
 */
export function read(text) {
  try {
    const { type, id, payload } = JSON.parse(text);
    if (typeof type !== "string") return null;
    return { type, id, payload: payload !== null && typeof payload === "object" ? payload : {} };
  } catch {
    return null;
  }
}
