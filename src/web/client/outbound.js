/**
 * What goes out: joins, requests that may go, the end of links that nothing needs.
 */
import { tooLarge } from "./error.js";
import { byteLength } from "./upload.js";

/** @typedef {import("./core.js").Core} Core */

/**
 * Joins, on the current link, every room that is not joined there.
 * @param {Core} core
 * @param {number} now
 */
export function joinRooms(core, now) {
  const link = core.sessions.current;
  if (!link?.takesRequests) return;
  for (const [roomId, { place }] of core.rooms) {
    const due = place.retryAt === null || place.retryAt <= now;
    if (place.link === link || place.joining === link || !due) continue;
    const since = place.join(link) ?? undefined;
    const payload = JSON.stringify({ roomId, mode: place.mode, since });
    core.ask(link, "join_room", payload, { kind: "join", roomId });
  }
}

/**
 * Sends the requests that wait, if the current session may have them.
 * @param {Core} core
 * @param {number} now
 */
export function flush(core, now) {
  const link = core.sessions.current;
  if (!link?.takesRequests || core.requests.waiting.size === 0) return;
  for (const request of core.requests.inOrder()) {
    const joined = request.rooms.every((name) => {
      const entry = core.rooms.get(name);
      return entry === undefined || entry.place.link === link;
    });
    if (!joined || request.elsewhere?.session === link.session || request.late !== null) continue;
    const { kind, payload, upload } = request;
    if (payload.length * 3 > link.maxFrame && byteLength(payload) + 64 > link.maxFrame) {
      core.requests.fail(request, tooLarge(link.maxFrame));
      continue;
    }
    const wire = core.ask(link, kind, payload, { kind: "request", request });
    if (core.requests.sent(request, link, wire, now)) core.counters.resends += 1;
    if (upload !== null) {
      link.uploading = request;
      upload.begun(link.maxFrame);
    }
  }
}

/**
 * Lets an older link go once nothing depends on it.
 * @param {Core} core
 * @param {number} now
 */
export function retire(core, now) {
  const { current, links } = core.sessions;
  if (current === null) return;
  for (const link of links) {
    if (link === current || !link.isOpen) continue;
    const speaks = [...core.rooms.values()].some(({ place }) => place.link === link);
    const unanswered = [...link.asked.values()].some((asked) => asked.kind === "request");
    if (!speaks && !unanswered) link.close(now);
  }
}
