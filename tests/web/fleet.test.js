// @ts-check
// What the live map shows of what it is told, without a page: src/web/map.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Fleet } from "../../src/web/map/fleet.js";
import { turn, worldX, worldY } from "../../src/web/map/geo.js";
import { clean, span } from "../../src/web/map/text.js";

const T0 = Date.parse("2026-01-01T00:00:00Z");
/**
 * @param {number} second
 * @param {number} longitude
 * @param {object} [more]
 */
const fix = (second, longitude, more = {}) => ({
  vehicleId: "bus-1",
  latitude: 60,
  longitude,
  timestamp: new Date(T0 + second * 1000).toISOString(),
  receivedAt: new Date(T0 + second * 1000).toISOString(),
  ...more,
});

test("a vehicle moves from where it is drawn to its newest fix, and no further", () => {
  const fleet = new Fleet();
  const bus = fleet.take("a", fix(0, 24), false, 0);
  assert.equal(bus.x, worldX(24), "the first fix is where it is at once");
  fleet.take("a", fix(1, 24.001), false, 1000);
  let before = bus.x;
  for (let now = 1000; now < 3000; now += 50) {
    bus.step(now);
    assert.ok(bus.x >= before, "never back");
    assert.ok(bus.x <= worldX(24.001) + 1e-12, "never beyond the fix");
    before = bus.x;
  }
  assert.equal(bus.x, worldX(24.001));
});

test("what is replayed on resume moves it forward only, and an old fix not at all", () => {
  const fleet = new Fleet();
  const bus = fleet.take("a", fix(0, 24), false, 0);
  for (let s = 1; s <= 5; s++) fleet.take("a", fix(s, 24 + s / 10_000), false, s * 1000);
  bus.step(5500);
  let before = bus.x;
  for (let s = 6; s <= 20; s++) {
    fleet.take("a", fix(s, 24 + s / 10_000), true, 5500);
    bus.step(5500);
    assert.ok(bus.x >= before);
    before = bus.x;
  }
  assert.equal(bus.take(fix(3, 23.9), 5600, true, false), false);
  bus.step(60_000);
  assert.equal(bus.x, worldX(24.002));
  assert.equal(bus.position.longitude, 24.002);
});

test("far jumps and long gaps are taken at once, and break the trail", () => {
  for (const next of [fix(1, 24.2), fix(40, 24.0001)]) {
    const fleet = new Fleet();
    const bus = fleet.take("a", fix(0, 24), false, 0);
    fleet.take("a", next, false, 1000);
    assert.equal(bus.x, worldX(next.longitude));
    assert.ok(bus.trail.some(Number.isNaN));
  }
});

test("the date line is crossed the short way", () => {
  const fleet = new Fleet();
  const ship = fleet.take("a", fix(0, 179.999), false, 0);
  fleet.take("a", fix(1, -179.999), false, 1000);
  ship.step(1500);
  assert.ok(ship.x > worldX(179.999) && ship.x < worldX(180.001));
});

test("live, stale and lost count from the fix", () => {
  const bus = new Fleet().take("a", fix(0, 24), false, 0);
  assert.equal(bus.status(T0 + 89_999), "live");
  assert.equal(bus.status(T0 + 90_000), "stale");
  assert.equal(bus.status(T0 + 599_999), "stale");
  assert.equal(bus.status(T0 + 600_000), "lost");
});

test("trails are bounded", () => {
  const fleet = new Fleet();
  const bus = fleet.take("a", fix(0, 24), false, 0);
  for (let s = 1; s < 2000; s++) fleet.take("a", fix(s, 24 + s / 1e5), false, s * 1000);
  assert.ok(bus.trail.length <= 64 * 3);
});

test("a snapshot is the truth of its room: who is not in it goes, who is older goes back", () => {
  const fleet = new Fleet();
  fleet.take("a", fix(100, 24), false, 0);
  fleet.take("a", fix(100, 25, { vehicleId: "tram-2" }), false, 0);
  fleet.take("b", fix(100, 25, { vehicleId: "tram-2" }), false, 0);
  fleet.take("a", fix(100, 26, { vehicleId: "van-3" }), false, 0);
  fleet.restore("a", fix(50, 24.5));
  fleet.retain("a", new Set(["bus-1"]));
  assert.deepEqual([...fleet.vehicles.keys()], ["bus-1", "tram-2"]);
  assert.equal(fleet.vehicles.get("bus-1")?.position.longitude, 24.5);
  assert.deepEqual([...(fleet.vehicles.get("tram-2")?.rooms ?? [])], ["b"]);
});

test("a vehicle of two rooms is shown while one of them is", () => {
  const fleet = new Fleet();
  const bus = fleet.take("a", fix(0, 24), false, 0);
  fleet.take("b", fix(0, 24), false, 0);
  fleet.show("a", false);
  assert.ok(fleet.isShown(bus));
  fleet.show("b", false);
  assert.ok(!fleet.isShown(bus));
  fleet.drop("a");
  fleet.drop("b");
  assert.equal(fleet.vehicles.size, 0);
});

test("strings of strangers are one short line without controls or direction marks", () => {
  assert.equal(clean("\u202egnp.exe\u202c\n\u0000x"), "gnp.exe x");
  assert.equal(clean("x".repeat(10_240), 20), `${"x".repeat(19)}…`);
  assert.equal(clean("\u202e\n"), "(blank)");
  assert.equal([...clean("😀".repeat(100), 10)].length, 10);
  assert.equal(clean({ a: [1] }), '{"a":[1]}');
});

test("places and times are right at their edges", () => {
  assert.equal(worldX(-180), 0);
  assert.ok(Math.abs(worldY(0) - 0.5) < 1e-12);
  assert.ok(worldY(90) >= -1e-9 && worldY(-90) <= 1 + 1e-9);
  assert.equal(turn(350, 10, 0.5), 360);
  assert.equal(turn(10, 350, 0.5), 0);
  assert.equal(span(59_400), "59 s");
  assert.equal(span(61_000), "1 min 1 s");
  assert.equal(span(3 * 86_400_000), "3 days");
});
