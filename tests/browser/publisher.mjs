// A vehicle or a gateway that says what a test wants it to say.

import { once } from "node:events";
import WebSocket from "ws";

export class Publisher {
  static async join(base, room, clientId = "gateway") {
    const publisher = new Publisher();
    const url = `${base.replace("http", "ws")}/ws?clientId=${encodeURIComponent(clientId)}`;
    publisher.socket = new WebSocket(url, { perMessageDeflate: false });
    publisher.socket.on("message", (data) => {
      const message = JSON.parse(data);
      publisher.waiting.get(message.id)?.(message);
      publisher.waiting.delete(message.id);
    });
    await once(publisher.socket, "open");
    await publisher.request("join_room", { roomId: room });
    return publisher;
  }

  waiting = new Map();
  nextId = 1;

  async request(type, payload) {
    const id = this.nextId++;
    const answered = new Promise((resolve) => this.waiting.set(id, resolve));
    this.socket.send(JSON.stringify({ type, id, payload }));
    const answer = await answered;
    if (answer.type === "error") throw new Error(`${type}: ${JSON.stringify(answer.payload)}`);
    return answer.payload;
  }

  /** A position of a vehicle; `age` is how long ago it was measured, in milliseconds. */
  publish(vehicleId, latitude, longitude, { age = 0, ...more } = {}) {
    const timestamp = new Date(Date.now() - age).toISOString();
    return this.request("location_update", { vehicleId, latitude, longitude, timestamp, ...more });
  }

  close() {
    this.socket.close();
  }
}
