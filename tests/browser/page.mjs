// The page comes from the binary alone and shows the fleet.

import assert from "node:assert/strict";
import { MapPage } from "./chromium.mjs";
import { Demo, Server, command, until } from "./processes.mjs";
import { Publisher } from "./publisher.mjs";
import { test } from "./tests.mjs";

test("the page loads from the binary alone and shows a fleet that moves", async () => {
  const demo = await Demo.start();
  const map = await MapPage.open(demo.base);
  const policy = map.response.headers()["content-security-policy"];
  assert.match(policy, /default-src 'none'; script-src 'self'; style-src 'self'/);
  assert.doesNotMatch(policy, /unsafe|\*|https?:/);
  assert.equal(map.response.headers()["x-content-type-options"], "nosniff");
  await map.vehicles(30);
  assert.equal(await map.page.title(), "milepost – live map");
  assert.equal(await map.text("#connection-badge"), "Live");
  await until("the list is there", async () => (await map.text("#vehicles-count")) === "30 vehicles");
  const before = await map.read("drawn");
  await until("they move", async () => {
    const now = new Map((await map.read("drawn")).map((one) => [one.vehicleId, one]));
    return before.filter((one) => now.get(one.vehicleId).latitude !== one.latitude || now.get(one.vehicleId).longitude !== one.longitude).length > 15;
  });
  // All in view, and beside the panel.
  assert.equal((await map.read("drawing")).inView, 30);
  const paths = map.requests.map((url) => new URL(url).pathname);
  for (const path of ["/", "/ws"]) assert.ok(paths.includes(path), path);
  assert.ok(paths.some((path) => path.endsWith("/client/milepost.js")), `${paths}`);
  // Nothing of what was loaded was missing or refused; `close` looks at whom it came from.
  await map.close();
  await demo.stop();
});

test("the rooms of the demo's recordings are shown by their names in the address", async () => {
  const demo = await Demo.start("--vehicles", "2");
  const { rooms } = await demo.state();
  const map = await MapPage.open(demo.base, { rooms });
  await until("vehicles of all rooms", async () => {
    const kinds = new Set((await map.read("vehicles")).map(({ vehicleId }) => vehicleId.slice(0, 3)));
    return ["sim", "hel", "kgn", "msd"].every((kind) => kinds.has(kind));
  });
  assert.equal(await map.page.locator("#rooms li").count(), rooms.length);
  await map.close();
  await demo.stop();
});

test("a server with tokens asks for one, and says when it is wrong", async () => {
  const secret = "a secret of the browser's tests, 32 bytes and more";
  const server = await Server.start("auth.mode=jwt", `auth.secret=${secret}`);
  const token = await command("token", "--sub", "dispatcher", "--subscribe", "demo", "--set", `auth.secret=${secret}`);
  const map = await MapPage.open(server.base);
  const dialog = map.page.locator("#token-dialog");
  await dialog.waitFor({ state: "visible" });
  await map.page.keyboard.type("not a token");
  await map.page.keyboard.press("Enter");
  await until("it is refused", async () => (await map.text("#banner-text")).startsWith("Access refused"));
  await dialog.waitFor({ state: "visible" });
  await map.page.locator("#token").fill(token);
  await map.page.keyboard.press("Enter");
  await until("it is let in", async () => (await map.text("#connection-badge")) === "Live");
  assert.equal(await dialog.isVisible(), false);
  // Not in the address, not in what is kept for other tabs.
  assert.ok(!map.page.url().includes(token));
  assert.ok(!map.requests.some((url) => url.includes(token)));
  assert.equal(await map.page.evaluate((token) => JSON.stringify({ ...localStorage }).includes(token), token), false);
  await map.close();
  await server.stop();
});

test("stale and lost vehicles are told apart from live ones", async () => {
  const server = await Server.start();
  const publisher = await Publisher.join(server.base, "demo");
  await publisher.publish("fresh", 60.17, 24.94, { speed: 5, heading: 90 });
  await publisher.publish("stale", 60.18, 24.94, { age: 120_000, speed: 5, heading: 90 });
  await publisher.publish("lost", 60.19, 24.94, { age: 1_200_000, speed: 5, heading: 90 });
  const map = await MapPage.open(server.base);
  await map.vehicles(3);
  await until("all are listed", async () => (await map.page.locator("#vehicles [role=option]:visible").count()) === 3);
  const row = (name) => map.page.locator("#vehicles [role=option]", { hasText: name });
  for (const [name, status] of [["fresh", "live"], ["stale", "stale"], ["lost", "lost"]]) {
    assert.equal(await map.text(`#filter-${status} .number`), "1");
    assert.equal(await row(name).getAttribute("data-status"), status);
    // Not by colour alone: by a mark and a word too.
    assert.equal(await row(name).locator(".status").textContent(), status);
  }
  const marks = await map.page.locator("#vehicles [role=option]:visible .mark").allTextContents();
  assert.equal(new Set(marks).size, 3);
  assert.deepEqual((await map.read("drawn")).map(({ status }) => status).sort(), ["live", "lost", "stale"]);
  await row("lost").click();
  assert.match(await map.text("#detail-status"), /^Lost: no fix for 10 minutes/);
  assert.match(await map.text("#detail-values"), /20 min ago/);
  // Whoever reports again is live again.
  await publisher.publish("lost", 60.19, 24.95, { speed: 5, heading: 90 });
  await until("it is live", async () => (await row("lost").getAttribute("data-status")) === "live");
  assert.equal(await map.text("#filter-lost .number"), "0");
  publisher.close();
  await map.close();
  await server.stop();
});
