// All tests of the map page, one after the other, in one Chromium.

import { after } from "node:test";
import { closeBrowser } from "./chromium.mjs";

after(closeBrowser);

await import("./moving.mjs");
