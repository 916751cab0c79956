// Pictures of the map page for people to look at: `.ci/screenshots [FOLDER]`. They are of
// the real page on the real demo, nothing is staged but the vehicles that are late.

import { mkdirSync, statSync } from "node:fs";
import { join, resolve } from "node:path";
import { MapPage, closeBrowser } from "./chromium.mjs";
import { PHONE } from "./devices.mjs";
import { Demo, sleep, until } from "./processes.mjs";
import { Publisher } from "./publisher.mjs";

const folder = resolve(process.argv[2] ?? "target/screenshots");
mkdirSync(folder, { recursive: true });
const DESKTOP = { viewport: { width: 1280, height: 800 } };

async function shoot(map, name, options = {}) {
  const path = join(folder, name);
  await map.page.screenshot({ path, ...options });
  process.stdout.write(`${path} ${Math.round(statSync(path).size / 1000)} kB\n`);
}

/** A page with a fleet that has left trails. */
async function open(base, options) {
  const map = await MapPage.open(base, { ...DESKTOP, ...options });
  await until("the fleet is there", async () => (await map.read("vehicles")).length >= 30);
  await sleep(8000);
  return map;
}

async function select(map, name) {
  await map.page.locator("#search").fill(name);
  await map.page.locator("#search").press("Enter");
  await map.page.locator("#detail").waitFor({ state: "visible" });
  await map.page.locator("#search").fill("");
  // As it is when somebody has clicked.
  await map.page.evaluate(() => {
    document.activeElement.blur();
    document.getElementById("panel").scrollTop = 0;
  });
}

const demo = await Demo.start();
// Time for a track.
const started = Date.now();

const light = await open(demo.base, { colorScheme: "light" });
await shoot(light, "fleet.png");
await demo.deploy();
await until("the banner tells of it", async () => /shutting down/.test(await light.text("#banner-text")));
await shoot(light, "deploy.png");
await until("the banner tells of the move", async () => /^Moved/.test(await light.text("#banner-text")));
await shoot(light, "moved.png");
await select(light, "sim-0012");
await sleep(500);
await shoot(light, "vehicle.png");
await light.close();

const rooms = await open(demo.base, { colorScheme: "light", rooms: ["kingston"] });
await shoot(rooms, "kingston.png");
await rooms.close();

const dark = await open(demo.base, { colorScheme: "dark" });
await shoot(dark, "dark.png");
await dark.close();

await sleep(Math.max(0, 60_000 - (Date.now() - started)));
const past = await open(demo.base, { colorScheme: "light" });
await select(past, "sim-0012");
await past.page.locator("#history-load").click();
await past.page.locator("#history-player").waitFor({ state: "visible" });
await past.page.locator("#history-slider").focus();
for (let i = 0; i < 3; i++) await past.page.keyboard.press("PageDown");
await sleep(500);
await shoot(past, "history.png");
await past.close();

for (const [name, options] of [["phone.png", {}], ["phone-vehicle.png", { vehicle: true }], ["phone-dark.png", { colorScheme: "dark" }]]) {
  const { vehicle, ...context } = options;
  const phone = await open(demo.base, { ...PHONE, colorScheme: "light", ...context });
  if (vehicle) await select(phone, "sim-0012");
  await sleep(500);
  await shoot(phone, name);
  await phone.close();
}

const publisher = await Publisher.join(demo.base, "demo");
for (let i = 0; i < 4; i++) {
  const [latitude, longitude] = [60.175 + i * 0.008, 24.9 + i * 0.02];
  await publisher.publish(`van-${i + 1}`, latitude, longitude, { age: i < 2 ? 150_000 : 1_500_000, speed: 0, heading: 45 });
}
const late = await open(demo.base, { colorScheme: "light" });
await late.page.locator("#order").selectOption("seen");
await select(late, "van-3");
await sleep(500);
await shoot(late, "late.png");
publisher.close();
await late.close();

await closeBrowser();
await demo.stop();
