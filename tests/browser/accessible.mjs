// axe-core finds nothing serious, in either theme and on a telephone.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { MapPage } from "./chromium.mjs";
import { PHONE } from "./devices.mjs";
import { Demo, Server, until } from "./processes.mjs";
import { Publisher } from "./publisher.mjs";
import { test } from "./tests.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
async function assertClean(map, where) {
  const violations = await map.page.evaluate(async (axe) => {
    // As a debugger does it: the page's policy forbids scripts of others, and rightly so.
    if (!globalThis.axe) new Function(axe)();
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, impact, help, nodes }) => ({ id, impact, help, nodes: nodes.slice(0, 3).map(({ html, failureSummary }) => `${html}\n${failureSummary}`) }));
  }, axe);
  const bad = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  assert.deepEqual(bad, [], `${where}: ${JSON.stringify(bad, null, 1)}`);
  return violations.map(({ id, impact }) => `${id} (${impact})`);
}

test("axe finds nothing serious: light, dark, on a telephone", async (t) => {
  const demo = await Demo.start("--vehicles", "3");
  const publisher = await Publisher.join(demo.base, "demo");
  for (const [name, age] of [["stale", 120_000], ["lost", 1_200_000]]) await publisher.publish(name, 60.17, 24.94, { age });
  const minor = new Set();
  for (const [name, options] of [
    ["light", { colorScheme: "light" }],
    ["dark", { colorScheme: "dark" }],
    ["phone", { colorScheme: "dark", ...PHONE }],
  ]) {
    const map = await MapPage.open(demo.base, { ...options, bypassCSP: true });
    await map.vehicles(5);
    await until("the list is there", async () => (await map.page.locator("#vehicles [role=option]:visible").count()) > 0);
    for (const one of await assertClean(map, `${name}: the fleet`)) minor.add(one);
    // A vehicle's card, its track, and the banner of a move.
    await map.page.locator("#search").fill("0003");
    await map.page.locator("#search").press("Enter");
    await map.page.locator("#detail").waitFor({ state: "visible" });
    await map.page.locator("#history-load").click();
    await map.page.locator("#history-player").waitFor({ state: "visible" });
    await demo.deploy();
    await until("the banner tells of a move", async () => (await map.text("#banner-text")).startsWith("Moved"));
    await map.page.evaluate(() => {
      for (const details of document.querySelectorAll("details")) details.open = true;
    });
    for (const one of await assertClean(map, `${name}: a vehicle, its track, a banner`)) minor.add(one);
    await map.close();
  }
  if (minor.size > 0) t.diagnostic(`less serious: ${[...minor].join(", ")}`);
  publisher.close();
  await demo.stop();
});

test("axe finds nothing serious: the question for a token", async () => {
  const server = await Server.start("auth.mode=jwt", "auth.secret=a secret of the browser's tests, 32 bytes");
  const map = await MapPage.open(server.base, { bypassCSP: true });
  await map.page.locator("#token-dialog").waitFor({ state: "visible" });
  await assertClean(map, "the dialog");
  await map.close();
  await server.stop();
});
