// Everything that a mouse can do with the fleet, without one.

import assert from "node:assert/strict";
import { MapPage } from "./chromium.mjs";
import { Demo, until } from "./processes.mjs";
import { test } from "./tests.mjs";

/** Presses Tab until the element has the focus; a person sees where that is. */
async function tabTo(map, selector) {
  for (let presses = 0; presses < 60; presses++) {
    if (await map.page.evaluate((selector) => document.activeElement?.matches(selector), selector)) return;
    await map.page.keyboard.press("Tab");
  }
  throw new Error(`Tab does not lead to ${selector}`);
}

test("search, follow, history and deploy by keyboard alone", async () => {
  const demo = await Demo.start();
  const map = await MapPage.open(demo.base);
  const { keyboard } = map.page;
  await map.vehicles(30);
  // The way for those who do not want to pass the map.
  await keyboard.press("Tab");
  assert.equal(await map.page.evaluate(() => document.activeElement.textContent), "Skip to the vehicle list");
  await keyboard.press("/");
  assert.equal(await map.page.evaluate(() => document.activeElement.id), "search");
  await keyboard.type("0017");
  await until("one is left", async () => (await map.text("#vehicles-count")) === "1 of 30 vehicles");
  // Down into the list, and the one that is named there.
  await keyboard.press("ArrowDown");
  const active = await map.page.locator("#vehicles").getAttribute("aria-activedescendant");
  assert.match(await map.text(`#${active}`), /sim-0017/);
  await keyboard.press("Enter");
  await map.page.locator("#detail").waitFor({ state: "visible" });
  assert.equal(await map.text("#detail-name"), "sim-0017");

  await tabTo(map, "#follow");
  await keyboard.press("Space");
  assert.equal(await map.page.locator("#follow").getAttribute("aria-pressed"), "true");
  // The followed one stays in view however it drives.
  await until("the map is near it", async () => (await map.page.evaluate(() => location.hash)).startsWith("#14"));
  const { latitude, longitude } = (await map.read("drawn")).find(({ vehicleId }) => vehicleId === "sim-0017");
  const [, lat, lon] = (await map.page.evaluate(() => location.hash.slice(1))).split("/").map(Number);
  assert.ok(Math.abs(lat - latitude) < 0.02 && Math.abs(lon - longitude) < 0.04, `${lat} ${lon}`);

  await tabTo(map, "#history-load");
  await keyboard.press("Enter");
  await map.page.locator("#history-player").waitFor({ state: "visible" });
  const fixes = Number(/^([\d,]+) fix/.exec(await map.text("#history-summary"))[1].replaceAll(",", ""));
  assert.ok(fixes > 0);
  assert.equal(await map.page.evaluate(() => document.activeElement.id), "history-slider");
  const newest = await map.text("#history-readout");
  await keyboard.press("Home");
  await until("the slider tells of the oldest fix", async () => fixes === 1 || (await map.text("#history-readout")) !== newest);
  assert.equal(await map.page.locator("#history-slider").getAttribute("aria-valuetext"), await map.text("#history-readout"));
  await tabTo(map, "#history-back");
  await keyboard.press("Enter");
  await map.page.locator("#history-player").waitFor({ state: "hidden" });

  await keyboard.press("Escape");
  await map.page.locator("#detail").waitFor({ state: "hidden" });

  await tabTo(map, "#deploy-button");
  await keyboard.press("Enter");
  await until("it is done", async () => (await demo.state()).deploys === 1);
  await until("the banner says so", async () => (await map.text("#banner-text")).startsWith("Moved"));
  assert.equal(await map.page.locator("#banner").getAttribute("role"), "status");
  await map.close();
  await demo.stop();
});
