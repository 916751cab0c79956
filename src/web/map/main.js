// @ts-check
/**
 * The live map: makes the parts and tells each what the others have done.
 * @module
 */
import { ConnectionPanel } from "./connection.js";
import { Deploy } from "./deploy.js";
import { Detail } from "./detail.js";
import { Fleet } from "./fleet.js";
import { latitudeOf, longitudeOf } from "./geo.js";
import { History } from "./history.js";
import { VehicleLayer } from "./layer.js";
import { VehicleList } from "./list.js";
import { Notices } from "./notices.js";
import { RoomsPanel, roomsOfAddress } from "./rooms.js";
import { Session } from "./session.js";
import { byId, clean } from "./text.js";
import { View, lessMotion } from "./view.js";

const fleet = new Fleet();
const notices = new Notices();

/** What changed since the last frame. @type {Set<string>} */
const changed = new Set();
let framed = 0;

/** @param {string} topic */
function change(topic) {
  changed.add(topic);
  if (framed === 0 && !document.hidden) framed = requestAnimationFrame(refresh);
}

const session = new Session(fleet, {
  changed: change,
  happened: (what) => {
    notices.happened(what);
    if (session.needsToken) askForToken();
    if (what.type === "shutdown") deploy.changing();
  },
  moved: () => {
    layer.nudge();
    if (fleet.version !== list.version) change("fleet");
  },
});
const serverNow = () => session.serverNow();

const view = new View(() => {
  layer.restyle();
  track.restyle();
});
const layer = new VehicleLayer(view.map, fleet, serverNow);
const track = new History(view, session, {
  shown: (on) => {
    if (on) follow(false);
    layer.faint = on;
    document.body.classList.toggle("past", on);
    layer.invalidate();
  },
  announce: (text) => notices.announce(text),
});
const connection = new ConnectionPanel(session);
const rooms = new RoomsPanel(session, {
  changed: () => {
    layer.invalidate();
    list.update();
  },
  announce: (text) => notices.announce(text),
});
const list = new VehicleList(fleet, serverNow, (vehicle) => select(vehicle, true));
const deploy = new Deploy((text) => notices.announce(text));
/** @type {import("./fleet.js").Vehicle | null} */
let selected = null;
let following = false;
const detail = new Detail(serverNow, {
  close: () => {
    select(null, false);
    byId("vehicles").focus();
  },
  follow: (on) => follow(on),
  centre: () => selected && view.centre(selected, Math.max(view.map.getZoom(), 14)),
});

/**
 * @param {import("./fleet.js").Vehicle | null} vehicle
 * @param {boolean} centre
 */
function select(vehicle, centre) {
  if (vehicle !== selected) {
    follow(false);
    track.select(vehicle);
    selected = vehicle;
    layer.selected = vehicle?.id ?? null;
    detail.show(vehicle);
    list.mark(layer.selected);
    document.body.classList.toggle("has-selection", vehicle !== null);
    if (vehicle) notices.announce(`${vehicle.name} selected.`);
  }
  if (vehicle && centre && !view.sees([vehicle.position.latitude, vehicle.position.longitude])) {
    view.centre(vehicle, Math.max(view.map.getZoom(), 13));
  }
  layer.invalidate();
}

/** @param {boolean} on */
function follow(on) {
  if (on && selected) view.centre(selected, Math.max(view.map.getZoom(), 14));
  if (on !== following && selected) notices.announce(on ? `Following ${selected.name}.` : `No longer following ${selected.name}.`);
  following = on && selected !== null;
  detail.following(following);
}

layer.beforeDraw = () => {
  if (following && selected) view.follow(selected);
};
view.map.on("dragstart", () => follow(false));
view.map.on("click", (event) => select(layer.at(event.containerPoint), false));
view.map.on("mousemove", (event) => {
  const over = layer.at(event.containerPoint)?.id ?? null;
  if (over === layer.hovered) return;
  layer.hovered = over;
  view.map.getContainer().classList.toggle("over", over !== null);
  layer.invalidate();
});
byId("fit").addEventListener("click", () => {
  follow(false);
  view.fit(list.listed);
});
for (const name of /** @type {const} */ (["showLabels", "showTrails"])) {
  const button = byId(name === "showLabels" ? "labels" : "trails");
  button.addEventListener("click", () => {
    layer[name] = !layer[name];
    button.setAttribute("aria-pressed", String(layer[name]));
    layer.invalidate();
  });
}

/** What has changed is shown; at most once a frame. */
function refresh() {
  framed = 0;
  if (changed.has("rooms") || changed.has("members")) rooms.update();
  if (changed.has("state") || changed.has("rooms")) connection.update();
  if (session.client?.state.status === "open") notices.clear("closed");
  if (changed.has("fleet") || changed.has("rooms")) {
    list.emptyText = emptyText();
    list.update();
    if (!view.chosen && fleet.vehicles.size > 0) {
      view.chosen = true;
      view.fit(fleet.vehicles.values());
    }
    if (selected && fleet.vehicles.get(selected.id) !== selected) select(null, false);
    layer.invalidate();
  }
  changed.clear();
}

function emptyText() {
  if (session.needsToken) return "An access token is needed.";
  const entries = [...session.rooms.values()];
  if (entries.length === 0) return "Add a room above to see its vehicles.";
  if (entries.some(({ state }) => state === "joining")) return "Waiting for the rooms…";
  if (entries.every(({ state }) => state !== "joined")) return "None of the rooms could be joined.";
  return "No vehicle has reported to these rooms in the last 24 hours. They appear here with their first position.";
}

// One clock for everything that ages. While nobody looks nothing is done.
let ticked = performance.now();
setInterval(() => {
  const now = performance.now();
  session.tick(Math.max(0.5, (now - ticked) / 1000));
  ticked = now;
  if (document.hidden) return;
  list.emptyText = emptyText();
  list.update();
  detail.update();
  connection.update();
  if (layer.hasAged()) layer.invalidate();
  rooms.update();
}, 1000);

/** Smooth movement is for who looks and wants it. */
function stillness() {
  fleet.still = document.hidden || lessMotion.matches;
  if (!document.hidden) {
    fleet.arrive();
    for (const topic of ["rooms", "fleet", "state"]) change(topic);
  }
}
document.addEventListener("visibilitychange", stillness);
lessMotion.addEventListener("change", stillness);
stillness();

const tokenDialog = /** @type {HTMLDialogElement} */ (byId("token-dialog"));
const tokenField = /** @type {HTMLInputElement} */ (byId("token"));
function askForToken() {
  if (!tokenDialog.open) tokenDialog.showModal();
}
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = tokenField.value.trim();
  if (!token) return;
  tokenField.value = "";
  tokenDialog.close();
  notices.clear("token");
  session.useToken(token);
});
byId("token-cancel").addEventListener("click", () => tokenDialog.close());
byId("connection-badge").addEventListener("click", () => {
  if (session.needsToken) {
    askForToken();
    return;
  }
  const panel = /** @type {HTMLDetailsElement} */ (byId("connection"));
  panel.open = !panel.open;
  if (panel.open) panel.querySelector("summary")?.focus();
});

// The sheet of small screens: three heights.
const sheet = byId("sheet-handle");
sheet.addEventListener("click", () => {
  const next = { peek: "half", half: "full", full: "peek" };
  const now = /** @type {keyof typeof next} */ (document.body.dataset["sheet"] ?? "half");
  document.body.dataset["sheet"] = next[now];
});

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target instanceof Element && event.target.matches("input, select, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    if (document.body.dataset["sheet"] === "peek") document.body.dataset["sheet"] = "half";
    list.find();
  } else if (event.key === "Escape" && !tokenDialog.open && selected) {
    select(null, false);
    byId("vehicles").focus();
  }
});

for (const id of roomsOfAddress()) session.add(id);
session.connect();
const settings = await fetch(new URL("map/settings.json", document.baseURI), { cache: "no-store" }).then(
  (answer) => answer.json(),
  () => ({ tiles: null, attribution: "" }),
);
if (settings.demo) void deploy.start();
await view.start(settings).catch((error) => {
  notices.show("warn", "base", ["The base map could not be loaded: ", clean(error?.message ?? error, 120)], { lingerMs: 30_000 });
});

// For the browser's console; the page itself does not use it.
Object.defineProperty(globalThis, "milepost", {
  value: Object.freeze({
    get counters() {
      return session.counters();
    },
    get state() {
      return session.client?.state ?? null;
    },
    get vehicles() {
      return [...fleet.vehicles.values()].map(({ position }) => position);
    },
    /** Where every vehicle belongs at this moment: what a drawing now would show. */
    get drawn() {
      const now = performance.now();
      return [...fleet.vehicles.values()].map((vehicle) => {
        vehicle.step(now);
        const { id, x, y, fixAt, drawnAs } = vehicle;
        return { vehicleId: id, latitude: latitudeOf(y), longitude: longitudeOf(x), fixAt, status: drawnAs };
      });
    },
    get drawing() {
      return { ...layer.stats };
    },
  }),
});
