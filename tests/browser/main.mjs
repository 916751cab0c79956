// All tests of the map page, one after the other, in one Chromium.

import { after } from "node:test";
import { closeBrowser } from "./chromium.mjs";

after(closeBrowser);

for (const topic of ["page", "moving", "keyboard", "strangers", "accessible"]) await import(`./${topic}.mjs`);
