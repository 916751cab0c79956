// Names and attributes come from devices, which may be anybody's: they are text, whatever
// they look like.

import assert from "node:assert/strict";
import { MapPage } from "./chromium.mjs";
import { Server, until } from "./processes.mjs";
import { Publisher } from "./publisher.mjs";
import { test } from "./tests.mjs";

const HOSTILE = [
  "<script>alert('script')</script>",
  "<img src=x onerror=alert('img')>",
  "\"><svg onload=alert('svg')>",
  "javascript:alert('url')",
  "{{constructor.constructor('alert(1)')()}}",
  "</title></style></textarea><iframe srcdoc='<script>parent.alert(1)</script>'>",
  "\u202eGNP.elcihev\u202c",
  "\u2066\u2066\u2066isolated",
  "a\u0300".repeat(20),
  "__proto__",
  "constructor",
];

test("hostile names and attributes are shown as text and break nothing", async () => {
  const server = await Server.start("limits.max_position=16KiB");
  const room = "<b>room</b><script>alert('room')</script>";
  const publisher = await Publisher.join(server.base, room, "<i>gateway</i>");
  for (const [index, vehicleId] of HOSTILE.entries()) {
    const attributes = { [`<u>key ${index}</u>`]: `<img src=x onerror=alert('${index}')>`, nested: { deep: [{ "<s>": 1 }] } };
    await publisher.publish(vehicleId, 60.1 + index / 100, 24.9, { speed: 3, heading: 10, attributes, "<extra>": "<b>" });
  }
  // Ten thousand characters, and what looks like a whole page.
  const long = `${"<p onclick=alert(1)>".repeat(500)}end`;
  await publisher.publish("long", 60.0, 24.9, { note: long });
  const map = await MapPage.open(server.base, { rooms: [room, "<img src=x onerror=alert('address')>"] });
  await map.vehicles(HOSTILE.length + 1);
  await map.page.evaluate(() => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
  const elements = async () => map.page.evaluate(() => document.querySelectorAll("script, img, iframe, svg, b, i, u, s, p[onclick], [onerror], [onload]").length);
  const before = await elements();
  const rows = map.page.locator("#vehicles [role=option]:visible");
  await until("all are listed", async () => (await map.text("#vehicles-count")) === `${HOSTILE.length + 1} vehicles`);
  for (const name of [...HOSTILE, "long"]) {
    await map.page.locator("#search").fill(name.slice(0, 30));
    await until(`${name} is found`, async () => (await map.text("#vehicles-count")).includes(" of "));
    // Marks that turn the direction of what follows are not passed on.
    const plain = name.replaceAll(/[\u202a-\u202e\u2066-\u2069]+/g, " ").trim();
    // A row shows what fits, the card all of it.
    const begin = new RegExp(`^${plain.slice(0, 50).replaceAll(/[\\^$.*+?()[\]{}|]/g, "\\$&")}`);
    await rows.filter({ has: map.page.locator(".name", { hasText: begin }) }).click();
    await map.page.locator("#detail").waitFor({ state: "visible" });
    const shown = await map.text("#detail-name");
    assert.equal(shown, plain);
  }
  assert.match(await map.text("#detail-values"), /<p onclick=alert\(1\)>.*\(10,003 characters\)/);
  // The value is cut: the card stays one that can be used.
  assert.ok((await map.text("#detail-values")).length < 2000);
  assert.match(await map.text("#rooms"), /<b>room<\/b><script>alert\('room'\)<\/script>/);
  assert.match(await map.text("#members"), /<i>gateway<\/i>/);
  // Somebody types one, too.
  await map.page.locator("#room-name").fill("<img src=x onerror=alert('typed')>");
  await map.page.keyboard.press("Enter");
  await until("it is a room", async () => (await map.page.locator("#rooms li").count()) === 3);
  assert.equal(await elements(), before);
  // The page does not scroll sideways for it.
  assert.ok(await map.page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
  assert.equal(await map.text("#connection-badge"), "Live");
  publisher.close();
  await map.close();
  await server.stop();
});
