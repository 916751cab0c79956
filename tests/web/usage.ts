/** What a user in TypeScript writes; compiled only. */
import { MilepostClient, MilepostError, type Room } from "../../src/web/client/milepost.js";

export async function use(): Promise<void> {
  const client = new MilepostClient({ endpoints: ["wss://a/ws", "wss://b/ws"], token: async () => "t" });
  const off: () => void = client.on("position", ({ vehicleId, seq, replayed, latitude }) => {
    const line: string = `${vehicleId} ${seq + latitude} ${replayed ? "replayed" : "live"}`;
    console.log(line);
  });
  client.on("moved", ({ missed, gapMs }) => console.log(missed + gapMs));
  // @ts-expect-error there is no such event
  client.on("moved!", () => {});
  // @ts-expect-error nor such a field
  client.on("state", ({ nothing }) => nothing);
  const room: Room = await client.join("north", { mode: "subscribe", since: { epoch: "e", seq: 1 } });
  // @ts-expect-error nor such a mode
  await client.join("north", { mode: "watch" });
  for (const [vehicle, position] of room.positions) console.log(vehicle.length + position.seq);
  try {
    const ack = await client.publish({ latitude: 1, longitude: 2, battery: 80 }, { key: "k" });
    console.log(Object.values(ack.rooms).reduce((sum, seq) => sum + seq, 0), ack.late.length);
    // @ts-expect-error a position has a place
    await client.publish({ latitude: 1 });
    navigator.geolocation.watchPosition((position) => client.notify(position));
    for await (const { timestamp } of client.history({ room: "north", from: new Date() })) {
      console.log(timestamp.length);
    }
    const { rejected } = await client.backfill([{ latitude: 1, longitude: 2 }], { room: "north" });
    console.log(rejected[0]?.reason);
  } catch (error) {
    if (error instanceof MilepostError && error.retry === "later") console.log(error.retryAfterMs);
  }
  off();
  await room.leave();
  await client.close();
}
