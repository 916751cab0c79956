// A test that fails takes down what it has started, so that the next one can go on.

import { test as plain } from "node:test";
import { leftBehind } from "./processes.mjs";

/** No test may take longer, in milliseconds; those in full say so. */
const LIMIT = 180_000;

export function test(name, body, timeout = LIMIT) {
  plain(name, { timeout }, async (t) => {
    try {
      await body(t);
    } finally {
      for (const end of leftBehind) {
        leftBehind.delete(end);
        await end();
      }
    }
  });
}
