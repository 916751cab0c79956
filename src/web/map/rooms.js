// @ts-check
/**
 * The rooms of the page: named in its address, shown as layers, with who is in them.
 * @module
 */
import { bdi, byId, clean, count, make, plural, say } from "./text.js";

const MAX_ROOM = 128;
const MAX_MEMBERS = 200;
const DEFAULT_ROOM = "demo";
/** @type {Record<string, string>} */
const PROBLEMS = {
  FORBIDDEN: "the token does not allow this room",
  forbidden: "the token does not allow this room any more",
  ROOM_FULL: "the room is full",
  ROOM_LIMIT_EXCEEDED: "this connection has too many rooms",
  VALIDATION_ERROR: "no valid room name",
};

/** The rooms that the address names. */
export function roomsOfAddress() {
  const named = new URLSearchParams(location.search).getAll("room").filter((id) => isRoom(id));
  return new Set(named.length > 0 ? named : [DEFAULT_ROOM]);
}

/** @param {string} id */
const isRoom = (id) => id.length > 0 && [...id].length <= MAX_ROOM && !/\p{Cc}/u.test(id);

export class RoomsPanel {
  /**
   * @param {import("./session.js").Session} session
   * @param {{changed: () => void, announce: (text: string) => void}} page
   */
  constructor(session, page) {
    this.session = session;
    this.page = page;
    this.list = byId("rooms");
    this.field = /** @type {HTMLInputElement} */ (byId("room-name"));
    this.problem = byId("room-problem");
    this.members = byId("members");
    this.membersTotal = byId("members-count");
    /** @type {Map<string, {item: HTMLElement, box: HTMLInputElement, about: HTMLElement, again: HTMLElement}>} */
    this.items = new Map();
    /** @type {HTMLDetailsElement} */ (byId("presence")).addEventListener("toggle", () => this.updateMembers());
    /** @type {HTMLFormElement} */ (byId("room-form")).addEventListener("submit", (event) => {
      event.preventDefault();
      this.#add(this.field.value.trim());
    });
  }

  /** @param {string} id */
  #add(id) {
    const known = this.session.rooms.has(id);
    const problem = !isRoom(id) ? "A room's name has 1 to 128 characters." : known ? "This room is shown already." : "";
    say(this.problem, problem);
    this.field.setAttribute("aria-invalid", String(problem !== ""));
    if (problem) return;
    this.field.value = "";
    this.session.add(id);
    this.#remember();
    this.page.announce(`Room ${clean(id)} added.`);
  }

  #remember() {
    const url = new URL(location.href);
    url.searchParams.delete("room");
    for (const id of this.session.rooms.keys()) url.searchParams.append("room", id);
    history.replaceState(null, "", url);
  }

  /** The rooms anew. */
  update() {
    for (const [id, { item }] of this.items) {
      if (this.session.rooms.has(id)) continue;
      item.remove();
      this.items.delete(id);
    }
    for (const entry of this.session.rooms.values()) {
      const { item, about, again } = this.items.get(entry.id) ?? this.#make(entry.id);
      item.dataset["state"] = entry.state;
      again.hidden = entry.state !== "refused" && entry.state !== "left";
      say(about, this.#about(entry));
    }
    byId("rooms-empty").hidden = this.session.rooms.size > 0;
    this.updateMembers();
  }

  /** @param {import("./session.js").RoomEntry} entry */
  #about({ state, problem, room, lagging }) {
    if (state === "refused" || state === "left") return `Not joined: ${PROBLEMS[problem] ?? clean(problem, 120)}`;
    if (!room) return "Joining…";
    const slow = lagging ? " · slow connection: newest positions only" : "";
    return `${plural(room.memberCount, "member")} · seq ${count(room.seq)}${slow}`;
  }

  /** @param {string} id */
  #make(id) {
    const box = make("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => {
      this.session.fleet.show(id, box.checked);
      this.page.changed();
    });
    const name = bdi(id, MAX_ROOM);
    name.className = "name";
    name.title = clean(id, MAX_ROOM);
    const about = make("span", "about");
    const again = make("button", "quiet", "Try again");
    again.type = "button";
    again.addEventListener("click", () => this.session.again(id));
    const remove = make("button", "icon", "✕");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove room ${clean(id)}`);
    remove.addEventListener("click", () => {
      this.session.remove(id);
      this.#remember();
      this.page.announce(`Room ${clean(id)} removed.`);
      this.field.focus();
    });
    const item = make("li", "", make("label", "", box, make("span", "texts", name, about)), again, remove);
    this.list.append(item);
    const parts = { item, box, about, again };
    this.items.set(id, parts);
    return parts;
  }

  /** Who is there, of all rooms. */
  updateMembers() {
    let total = 0;
    /** @type {Map<string, string[]>} */
    const named = new Map();
    for (const { id, room } of this.session.rooms.values()) {
      if (!room) continue;
      total += room.memberCount;
      for (const member of room.members) {
        if (named.size >= MAX_MEMBERS && !named.has(member)) continue;
        const rooms = named.get(member);
        if (rooms) rooms.push(id);
        else named.set(member, [id]);
      }
    }
    say(this.membersTotal, count(total));
    if (!(/** @type {HTMLDetailsElement} */ (byId("presence")).open)) return;
    const several = this.session.rooms.size > 1;
    const items = [...named].sort(([a], [b]) => (a < b ? -1 : 1)).map(([member, rooms]) => {
      const item = make("li", "", bdi(member, 64));
      if (several) item.append(make("span", "about", ` ${rooms.map((room) => clean(room, 24)).join(", ")}`));
      return item;
    });
    if (total > named.size && named.size >= MAX_MEMBERS) {
      items.push(make("li", "about", `The first ${count(named.size)} are listed.`));
    }
    if (items.length === 0) items.push(make("li", "about", "Nobody has announced themselves."));
    this.members.replaceChildren(...items);
  }
}
