/** A process that closes its client in a certain state and has to end by itself. */
import { WebSocket } from "ws";

import { MilepostClient } from "../../src/web/client/milepost.js";

const [url, state] = process.argv.slice(2);
const client = new MilepostClient({ endpoints: url, clientId: "leaver", WebSocket });
const ignore = () => {};

if (state === "waiting") await new Promise((resolve) => client.on("close", resolve));
else if (state !== "connecting") await client.join("leave");
if (state === "connecting") client.join("leave").catch(ignore);
if (state === "publishing") {
  for (let n = 0; n < 10; n++) client.publish({ latitude: 1, longitude: 2 }, { key: `k${n}` }).catch(ignore);
}
if (state === "uploading") {
  async function* endless() {
    yield { latitude: 1, longitude: 2, timestamp: 1700000000000 };
    await new Promise(ignore);
  }
  client.backfill(endless(), { room: "leave" }).catch(ignore);
}
await client.close();
console.log("closed");
