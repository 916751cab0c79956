// @ts-check
/**
 * The vehicles on the map: one canvas over it, one loop of animation frames. The loop runs
 * while something moves; it draws when something visible has moved by enough to see.
 * @module
 */
import { nearest } from "./geo.js";
import { Grid } from "./grid.js";
import { LABEL_HEIGHT, Sprites, colours } from "./sprites.js";
import { kmh } from "./text.js";

/** @typedef {import("./fleet.js").Vehicle} Vehicle */

const L = /** @type {typeof import("leaflet")} */ (/** @type {any} */ (globalThis).L);

/** More vehicles in view than this are drawn small; labels and trails end earlier. */
const SMALL_FROM = 1200;
const MAX_LABELS = 250;
const MAX_TRAILS = 300;
/** CSS pixels of movement that are worth a drawing. */
const VISIBLE_MOVE = 0.6;
/** The longest pause between two looks at what moves. */
const MAX_WAIT_MS = 250;
/** How far from a vehicle a pointer still means it. */
const REACH = 16;
const MARGIN = 30;

export class VehicleLayer {
  /**
   * @param {import("leaflet").Map} map
   * @param {import("./fleet.js").Fleet} fleet
   * @param {() => number} serverNow
   */
  constructor(map, fleet, serverNow) {
    this.map = map;
    this.fleet = fleet;
    this.serverNow = serverNow;
    /** @type {string | null} */
    this.selected = null;
    /** @type {string | null} */
    this.hovered = null;
    this.showLabels = true;
    this.showTrails = true;
    /** Beside a track from the past the present is faint. */
    this.faint = false;
    /** Called before a drawing, with the time; the place to follow a vehicle. @type {(now: number) => void} */
    this.beforeDraw = () => {};
    /** Figures for who wants to know. */
    this.stats = { frames: 0, draws: 0, drawMs: 0, inView: 0 };
    this.canvas = L.DomUtil.create("canvas", "vehicles leaflet-zoom-animated", map.getPanes().overlayPane);
    this.canvas.setAttribute("aria-hidden", "true");
    this.pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.sprites = new Sprites(colours(), this.#ratio());
    this.dirty = true;
    this.shifted = false;
    this.zooming = false;
    this.frame = 0;
    this.timer = 0;
    /** Of the fastest vehicle in view; pixels a millisecond. */
    this.speed = 0;
    this.lastDraw = 0;
    /** Milliseconds of the last drawing, the browser's part included. */
    this.lastCost = 0;
    this.drew = false;
    /** Vehicles in view at the last drawing. @type {Vehicle[]} */
    this.inView = [];

    // The canvas moves along with the map; what comes in at the edge can wait a little.
    map.on("move", () => {
      this.shifted = true;
      this.#wake();
    });
    map.on("moveend resize viewreset", () => this.invalidate());
    map.on("zoomstart", () => (this.zooming = true));
    map.on("zoomend", () => {
      this.zooming = false;
      this.invalidate();
    });
    map.on("zoomanim", (event) => this.#animateZoom(event));
    document.addEventListener("visibilitychange", () => this.invalidate());
    this.invalidate();
  }

  #ratio() {
    return Math.min(3, window.devicePixelRatio || 1);
  }

  /** Other colours. */
  restyle() {
    this.sprites = new Sprites(colours(), this.#ratio());
    this.invalidate();
  }

  /** Something other than a movement wants a drawing. */
  invalidate() {
    this.dirty = true;
    this.#wake();
  }

  /** Whether somebody in view has become stale or lost since the last drawing. */
  hasAged() {
    const now = this.serverNow();
    return this.inView.some((vehicle) => vehicle.status(now) !== vehicle.drawnAs);
  }

  /** Something moves. If nothing has moved far enough to be seen yet, that can wait. */
  nudge() {
    if (this.timer === 0) this.#wake();
  }

  #wake() {
    if (this.frame !== 0 || document.hidden) return;
    clearTimeout(this.timer);
    this.timer = 0;
    this.frame = requestAnimationFrame((now) => this.#tick(now));
  }

  #woken() {
    this.timer = 0;
    this.#wake();
  }

  /** @param {number} now */
  #tick(now) {
    this.frame = 0;
    this.stats.frames += 1;
    const moving = now < this.fleet.movingUntil + 50;
    // A frame that comes late after a drawing is late because of it; a few vehicles are
    // not to blame for much.
    const most = 4 + this.inView.length / 50;
    if (this.drew) this.lastCost = Math.min(most, Math.max(this.lastCost, now - this.lastDraw - 1000 / 60));
    this.drew = false;
    // At most a third of the time goes into drawing, however slow the machine.
    const due = this.dirty || now - this.lastDraw >= this.lastCost * 3;
    if (!this.zooming && due) {
      this.beforeDraw(now);
      const worth = this.#place(now) >= VISIBLE_MOVE || this.dirty || this.shifted || !moving;
      if (worth) {
        const began = performance.now();
        this.#draw();
        this.lastCost = performance.now() - began;
        this.stats.draws += 1;
        this.stats.drawMs += (this.lastCost - this.stats.drawMs) * 0.1;
        this.lastDraw = now;
        this.drew = true;
        this.dirty = this.shifted = false;
      }
    }
    if (this.dirty || this.shifted) this.#wake();
    else if (moving) {
      const next = this.lastDraw + Math.max(this.lastCost * 3, VISIBLE_MOVE / this.speed);
      const wait = Math.min(MAX_WAIT_MS, next - now);
      if (wait < 2000 / 60) this.#wake();
      else this.timer = setTimeout(() => this.#woken(), wait);
    }
  }

  /**
   * Computes where everybody is, and returns by how much at most a visible vehicle has
   * moved since it was drawn.
   * @param {number} now
   */
  #place(now) {
    const size = this.map.getSize();
    const scale = 256 * 2 ** this.map.getZoom();
    const bounds = this.map.getPixelBounds();
    const min = /** @type {import("leaflet").Point} */ (bounds.min);
    const centre = (min.x + size.x / 2) / scale;
    const right = size.x + MARGIN;
    const bottom = size.y + MARGIN;
    let most = 0;
    let speed = 0;
    const inView = [];
    for (const vehicle of this.fleet.vehicles.values()) {
      const moves = vehicle.step(now);
      const px = nearest(vehicle.x, centre) * scale - min.x;
      const py = vehicle.y * scale - min.y;
      if (px < -MARGIN || py < -MARGIN || px > right || py > bottom) continue;
      if (!this.fleet.isShown(vehicle)) continue;
      const moved = Math.abs(px - vehicle.px) + Math.abs(py - vehicle.py);
      if (!(moved <= most)) most = Number.isNaN(moved) ? Infinity : moved;
      if (moves) {
        const way = Math.abs(vehicle.toX - vehicle.fromX) + Math.abs(vehicle.toY - vehicle.fromY);
        speed = Math.max(speed, (way * scale) / vehicle.moveMs);
      }
      vehicle.nextX = px;
      vehicle.nextY = py;
      inView.push(vehicle);
    }
    if (inView.length !== this.inView.length) most = Infinity;
    this.speed = speed;
    this.next = { inView, scale, min, centre };
    return most;
  }

  #draw() {
    const { inView, scale, min, centre } = /** @type {NonNullable<VehicleLayer["next"]>} */ (this.next);
    const { map, pen, sprites } = this;
    const size = map.getSize();
    const ratio = this.#ratio();
    if (ratio !== sprites.ratio) this.sprites = new Sprites(colours(), ratio);
    if (this.canvas.width !== Math.round(size.x * ratio) || this.canvas.height !== Math.round(size.y * ratio)) {
      this.canvas.width = Math.round(size.x * ratio);
      this.canvas.height = Math.round(size.y * ratio);
      this.canvas.style.width = `${size.x}px`;
      this.canvas.style.height = `${size.y}px`;
    }
    L.DomUtil.setTransform(this.canvas, map.containerPointToLayerPoint([0, 0]), 1);
    this.drawnAt = { centre: map.getCenter(), zoom: map.getZoom() };
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, size.x, size.y);

    const serverNow = this.serverNow();
    for (const vehicle of inView) {
      vehicle.px = vehicle.nextX;
      vehicle.py = vehicle.nextY;
      vehicle.drawnAs = vehicle.status(serverNow);
    }
    const old = this.inView;
    this.inView = inView;
    this.stats.inView = inView.length;
    const selected = this.selected === null ? undefined : this.fleet.vehicles.get(this.selected);
    const project = (/** @type {number} */ x, /** @type {number} */ y) => ({
      x: nearest(x, centre) * scale - min.x,
      y: y * scale - min.y,
    });

    pen.globalAlpha = this.faint ? 0.35 : 1;
    if (this.showTrails && inView.length <= MAX_TRAILS) {
      for (const vehicle of inView) if (vehicle !== selected) this.#trail(vehicle, project, 2, 0.55);
    }
    if (selected) this.#trail(selected, project, 3, 0.9);
    const scaled = inView.length > SMALL_FROM ? 0.62 : 1;
    for (const vehicle of inView) {
      if (vehicle === selected) continue;
      this.sprites.draw(pen, vehicle.drawnAs, vehicle.heading, vehicle.px, vehicle.py, scaled);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.globalAlpha = 1;
    if (selected && inView.includes(selected)) this.#drawSelected(selected);
    this.#drawLabels(old);
  }

  /**
   * @param {Vehicle} vehicle
   * @param {(x: number, y: number) => {x: number, y: number}} project
   * @param {number} width
   * @param {number} alpha
   */
  #trail(vehicle, project, width, alpha) {
    const { pen } = this;
    const { trail } = vehicle;
    const points = trail.length;
    if (points < 4) return;
    const before = pen.globalAlpha;
    pen.strokeStyle = this.sprites.colours.trail;
    pen.lineWidth = width;
    pen.lineCap = pen.lineJoin = "round";
    // The older the fainter, in three parts; the last point is where it is going, not is.
    const parts = 3;
    for (let part = 0; part < parts; part++) {
      const from = Math.floor(((points / 2 - 1) * part) / parts) * 2;
      const to = Math.floor(((points / 2 - 1) * (part + 1)) / parts) * 2;
      pen.globalAlpha = (before * alpha * (part + 1)) / parts;
      pen.beginPath();
      let broken = true;
      for (let i = from; i <= to && i < points - 2; i += 2) {
        const x = /** @type {number} */ (trail[i]);
        if (Number.isNaN(x)) {
          broken = true;
          continue;
        }
        const at = project(x, /** @type {number} */ (trail[i + 1]));
        if (broken) pen.moveTo(at.x, at.y);
        else pen.lineTo(at.x, at.y);
        broken = false;
      }
      if (part === parts - 1 && !broken) {
        const at = project(vehicle.x, vehicle.y);
        pen.lineTo(at.x, at.y);
      }
      pen.stroke();
    }
    pen.globalAlpha = before;
  }

  /** @param {Vehicle} vehicle */
  #drawSelected(vehicle) {
    const { pen } = this;
    const { accent, halo } = this.sprites.colours;
    pen.beginPath();
    pen.arc(vehicle.px, vehicle.py, 17, 0, 7);
    pen.lineWidth = 5;
    pen.strokeStyle = halo;
    pen.stroke();
    pen.lineWidth = 2.5;
    pen.strokeStyle = accent;
    pen.stroke();
    const { ratio } = this.sprites;
    this.sprites.draw(pen, vehicle.drawnAs, vehicle.heading, vehicle.px, vehicle.py, 1.15);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  /**
   * Labels where there is room: first whom somebody points at, then whoever had one.
   * @param {Vehicle[]} before  in view at the last drawing
   */
  #drawLabels(before) {
    const { inView, pen } = this;
    const special = inView.filter((vehicle) => vehicle.id === this.selected || vehicle.id === this.hovered);
    const had = before.filter((vehicle) => vehicle.labelled);
    for (const vehicle of before) vehicle.labelled = false;
    const wanted = new Set(special);
    if (this.showLabels && !this.faint && inView.length <= MAX_LABELS) {
      const there = new Set(inView);
      for (const vehicle of had) if (there.has(vehicle)) wanted.add(vehicle);
      for (const vehicle of inView) wanted.add(vehicle);
    }
    const grid = new Grid();
    const edge = this.map.getSize().x;
    for (const vehicle of inView) if (wanted.size > special.length) grid.take(vehicle.px - 7, vehicle.py - 7, 14, 14, vehicle);
    for (const vehicle of wanted) {
      const name = this.sprites.label(vehicle.label, true);
      const speed = kmh(vehicle.position.speed);
      const speedPicture = speed && inView.length <= MAX_LABELS / 2 ? this.sprites.label(speed, false) : null;
      const { ratio } = this.sprites;
      const width = name.width / ratio + (speedPicture ? speedPicture.width / ratio - 6 : 0);
      const gap = vehicle.id === this.selected ? 19 : 11;
      // At the right edge it stands to the left.
      const x = vehicle.px + gap + width > edge ? vehicle.px - gap - width : vehicle.px + gap;
      const y = vehicle.py - LABEL_HEIGHT / 2;
      const forced = vehicle.id === this.selected || vehicle.id === this.hovered;
      if (!forced && !grid.free(x, y + 2, width, LABEL_HEIGHT - 4, vehicle)) continue;
      grid.take(x, y + 2, width, LABEL_HEIGHT - 4, vehicle);
      vehicle.labelled = true;
      pen.drawImage(name, x, y, name.width / ratio, LABEL_HEIGHT);
      if (speedPicture) {
        pen.drawImage(speedPicture, x + name.width / ratio - 6, y, speedPicture.width / ratio, LABEL_HEIGHT);
      }
    }
  }

  /** @param {any} event */
  #animateZoom(event) {
    if (!this.drawnAt) return;
    const map = /** @type {any} */ (this.map);
    const scale = map.getZoomScale(event.zoom, this.drawnAt.zoom);
    const origin = map._latLngToNewLayerPoint(map.containerPointToLatLng([0, 0]), event.zoom, event.center);
    L.DomUtil.setTransform(this.canvas, origin, scale);
  }

  /**
   * The vehicle at a place of the map's container.
   * @param {import("leaflet").Point} point
   */
  at(point) {
    let best = null;
    let least = REACH * REACH;
    for (const vehicle of this.inView) {
      const d = (vehicle.px - point.x) ** 2 + (vehicle.py - point.y) ** 2;
      if (d < least) {
        least = d;
        best = vehicle;
      }
    }
    return best;
  }
}
