/** A client in a worker: says what it sees, closes after the second position. */
import { parentPort, workerData } from "node:worker_threads";

import { WebSocket } from "ws";

import { MilepostClient } from "../../src/web/client/milepost.js";

const client = new MilepostClient({
  endpoints: workerData.url,
  clientId: "worker",
  WebSocket,
  backoff: { firstMs: 50, capMs: 500 },
});
client.on("position", ({ n }) => {
  parentPort.postMessage(n);
  if (n === 1) void client.close();
});
await client.join("worker", { mode: "subscribe" });
parentPort.postMessage("joined");
