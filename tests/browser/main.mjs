// All tests of the map page, one after the other, in one Chromium.

import { after } from "node:test";
import { closeBrowser } from "./chromium.mjs";

after(closeBrowser);

const topics = process.argv.slice(2);
const all = ["page", "moving", "background", "keyboard", "strangers", "accessible", "crowd"];
for (const topic of topics.length > 0 ? topics : all) await import(`./${topic}.mjs`);
