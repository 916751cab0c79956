/** Against the real server, over real sockets: the main path, and everything that can be lost. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import path from "node:path";
import { describe, it } from "node:test";

import {
  collect, connect, directory, next, position, Proxy, Server, sockets, Spy, until,
} from "./harness.js";

/** Publishes `count` keyed positions, one after the other. */
async function publish(client, room, count, from = 0) {
  for (let n = from; n < from + count; n++) {
    await client.publish(position(n), { rooms: room, key: `k${n}` });
  }
}

/** What the log of a room holds, by the server's own word. */
async function inLog(server, room) {
  const reader = connect(server.url, { clientId: "reader" });
  await reader.join(room, { mode: "subscribe" });
  const all = [];
  for await (const one of reader.history({ room })) all.push(one.n);
  await reader.close();
  return all;
}

const numbers = (count) => Array.from({ length: count }, (_, n) => n);

describe("the main path", { concurrency: 4 }, async () => {
  const server = await Server.start({ "limits.message_rate": 0 });

  it("shows each position once and in order", async () => {
    const [viewer, bus] = ["viewer", "bus"].map((clientId) => connect(server.url, { clientId }));
    const seen = collect(viewer, "position");
    const room = await viewer.join("north", { mode: "subscribe" });
    await bus.join("north", { mode: "publish" });
    const acks = [];
    for (let n = 0; n < 50; n++) acks.push(await bus.publish(position(n), { key: `k${n}` }));
    await until(() => seen.length === 50);
    assert.deepEqual(seen.map(({ n }) => n), numbers(50));
    assert.deepEqual(seen.map(({ seq }) => seq), acks.map(({ rooms }) => rooms.north));
    assert.equal(seen[0].vehicleId, "bus");
    assert.equal(room.positions.get("bus").n, 49);
    assert.equal(room.seq, acks.at(-1).rooms.north);
    const { missed, gaps, positions } = viewer.counters;
    assert.deepEqual({ missed, gaps, positions }, { missed: 0, gaps: 0, positions: 50 });
    assert.ok(viewer.state.roundTripMs >= 0 && Math.abs(viewer.state.serverTimeOffsetMs) < 1000);
    assert.deepEqual(await bus.publish({ ...position(0), n: 0 }, { key: "k0" }).then((ack) => ack.duplicate), true);
  });

  it("knows who is in a room", async () => {
    const [one, other] = ["anna", "ben"].map((clientId) => connect(server.url, { clientId }));
    const room = await one.join("presence");
    const changes = collect(one, "members");
    await other.join("presence");
    await until(() => room.members.has("ben"));
    await other.close();
    await until(() => !room.members.has("ben"));
    assert.deepEqual([...room.members], ["anna"]);
    assert.equal(room.memberCount, 1);
    assert.deepEqual(changes.map(({ joined, left }) => [joined, left]), [[["ben"], []], [[], ["ben"]]]);
    await room.leave();
    await assert.rejects(one.positions("presence"), { code: "NOT_JOINED" });
  });

  it("gives late comers the newest of each vehicle", async () => {
    const bus = connect(server.url, { clientId: "gateway" });
    await bus.join("snapshot", { mode: "publish" });
    const sent = [];
    for (let n = 0; n < 600; n++) {
      const vehicleId = `vehicle-${n % 300}`;
      sent.push(bus.publish({ ...position(n), note: "x".repeat(200) }, { vehicleId }));
    }
    await Promise.all(sent);
    const viewer = connect(server.url, { clientId: "late" });
    const pages = collect(viewer, "snapshot");
    const room = await viewer.join("snapshot", { mode: "subscribe" });
    await until(() => room.positions.size === 300 && !pages.at(-1).more);
    assert.ok(pages.length > 1 && pages[0].first && !pages[1].first, `${pages.length} pages`);
    assert.ok([...room.positions.values()].every(({ n }) => n >= 300));
  });

  it("reads and writes the past", async () => {
    const bus = connect(server.url, { clientId: "tunnel" });
    await bus.join("past");
    const fixes = Array.from({ length: 1201 }, (_, n) => position(n));
    fixes[700] = { ...fixes[700], latitude: 200 };
    async function* source() {
      yield* fixes;
    }
    const result = await bus.backfill(source(), { room: "past" });
    assert.deepEqual([result.accepted, result.duplicates, result.rejectedTotal], [1200, 0, 1]);
    assert.equal(result.rejected[0].index, 700);
    const again = await bus.backfill(fixes, { room: "past" });
    assert.deepEqual([again.accepted, again.duplicates, again.rejectedTotal], [0, 1200, 1]);

    const read = [];
    for await (const { n } of bus.history({ room: "past" })) read.push(n);
    assert.deepEqual(read, numbers(1201).filter((n) => n !== 700));
    const some = [];
    const query = { room: "past", from: new Date(fixes[100].timestamp), to: fixes[199].timestamp };
    for await (const { n } of bus.history({ ...query, limit: 75, pageSize: 20 })) some.push(n);
    assert.deepEqual(some, numbers(175).slice(100));
    for await (const one of bus.history({ room: "past" })) if (one.n === 3) break;
    await assert.rejects(bus.history({ room: "elsewhere" }).next(), { code: "NOT_JOINED" });
  });

  it("ends an upload whose source fails, and takes the next", async () => {
    const bus = connect(server.url, { clientId: "source" });
    await bus.join("source");
    async function* source() {
      yield position(0);
      throw new Error("the recorder broke");
    }
    await assert.rejects(bus.backfill(source(), { room: "source" }), { message: "the recorder broke" });
    const giveUp = new AbortController();
    async function* endless() {
      yield position(1);
      giveUp.abort(new Error("enough"));
      await new Promise(() => {});
    }
    const { signal } = giveUp;
    await assert.rejects(bus.backfill(endless(), { room: "source", signal }), { message: "enough" });
    const result = await bus.backfill([position(2)], { room: "source" });
    assert.equal(result.accepted, 1);
  });

  it("lets uploads take turns, and a caller give its turn up", async () => {
    const bus = connect(server.url, { clientId: "turns" });
    await bus.join("turns");
    let feed = () => {};
    async function* slowly() {
      yield position(0);
      await new Promise((resolve) => {
        feed = resolve;
      });
      yield position(1);
    }
    const first = bus.backfill(slowly(), { room: "turns" });
    const giveUp = new AbortController();
    const second = bus.backfill([position(2)], { room: "turns", signal: giveUp.signal });
    const third = bus.backfill([position(3)], { room: "turns" });
    giveUp.abort(new Error("too long"));
    await assert.rejects(second, { message: "too long" });
    feed();
    assert.deepEqual((await Promise.all([first, third])).map(({ accepted }) => accepted), [2, 1]);
    assert.deepEqual((await inLog(server, "turns")).sort(), [0, 1, 3]);
  });

  it("goes on where an earlier client was", async () => {
    const bus = connect(server.url, { clientId: "bus" });
    await bus.join("since");
    const before = connect(server.url, { clientId: "page" });
    const room = await before.join("since");
    await publish(bus, "since", 3);
    await until(() => room.positions.get("bus")?.n === 2);
    const since = { epoch: room.epoch, seq: room.seq };
    await before.close();
    await publish(bus, "since", 3, 3);
    const after = connect(server.url, { clientId: "page" });
    const [seen, joins] = [collect(after, "position"), collect(after, "joined")];
    const again = await after.join("since", { since });
    assert.equal(await after.join("since"), again, "one room, however often it is joined");
    await until(() => seen.length === 3);
    assert.deepEqual(seen.map(({ n, replayed }) => [n, replayed]), [[3, true], [4, true], [5, true]]);
    assert.deepEqual(joins.map(({ recovered, first }) => ({ recovered, first })), [{ recovered: true, first: true }]);
    assert.equal(again.positions.get("bus").n, 5);
    const resets = collect(after, "reset");
    await after.join("since", { since: { epoch: "another", seq: 7 } });
    assert.equal(resets.length, 1);
  });

  it("passes hostile texts on as data", async () => {
    const hostile = ["<img src=x onerror=alert(1)>", "__proto__", "constructor", "\u202e\u0000\"'", "💥"];
    const [viewer, bus] = ["v", "<script>"].map((clientId) => connect(server.url, { clientId }));
    const seen = collect(viewer, "position");
    const name = "<b>room</b> __proto__";
    const room = await viewer.join(name);
    await bus.join(name);
    for (const [n, text] of hostile.entries()) {
      const ack = await bus.publish({ ...position(n), note: text, ["__proto__x"]: text }, { key: `k${n}` });
      assert.ok(ack.rooms[name] > 0);
    }
    for (const vehicleId of ["__proto__", "constructor", "<i>"]) {
      await bus.publish(position(9), { vehicleId });
    }
    await until(() => seen.length === 8);
    assert.deepEqual(seen.slice(0, 5).map(({ note }) => note), hostile);
    assert.deepEqual([...room.positions.keys()], ["<script>", "__proto__", "constructor", "<i>"]);
    assert.equal({}.note, undefined);
    await until(() => room.members.has("<script>"));
  });

  it("says what was wrong with a request", async () => {
    const bus = connect(server.url, { clientId: "wrong" });
    await bus.join("wrong");
    await assert.rejects(bus.publish({ latitude: 91, longitude: 0 }), {
      name: "MilepostError", code: "VALIDATION_ERROR", field: "latitude", retry: "never",
    });
    await assert.rejects(bus.publish({ latitude: 1, longitude: 1, note: "x".repeat(70000) }), {
      code: "MESSAGE_TOO_LARGE",
    });
    const refused = next(bus, "error");
    bus.notify({ latitude: 91, longitude: 0 });
    assert.equal((await refused).error.field, "latitude");
    await assert.rejects(bus.publish({ latitude: 1, longitude: 1 }, { rooms: [] }), { code: "INVALID" });
    await assert.rejects(bus.join(""), { code: "INVALID" });
    assert.equal(bus.state.status, "open");
  });
});

describe("a lost connection", { concurrency: 4 }, async () => {
  const server = await Server.start();

  it("costs nothing when it is cut", async () => {
    const proxy = await Proxy.start(server.port);
    const viewer = connect(proxy.url, { clientId: "viewer" });
    const bus = connect(server.url, { clientId: "bus" });
    const seen = collect(viewer, "position");
    await viewer.join("cut", { mode: "subscribe" });
    await bus.join("cut", { mode: "publish" });
    for (let round = 0; round < 5; round++) {
      const moved = next(viewer, "moved");
      await publish(bus, "cut", 10, round * 20);
      proxy.cut();
      await publish(bus, "cut", 10, round * 20 + 10);
      const { missed, reset } = await moved;
      assert.deepEqual({ missed, reset }, { missed: 0, reset: false });
    }
    await until(() => seen.length >= 100);
    assert.deepEqual(seen.map(({ n }) => n), numbers(100));
    assert.ok(seen.some(({ replayed }) => replayed));
    const { missed, gaps, reconnects, resumes } = viewer.counters;
    assert.deepEqual({ missed, gaps, reconnects, resumes }, { missed: 0, gaps: 0, reconnects: 5, resumes: 5 });
  });

  it("is noticed when nothing comes any more", async () => {
    const proxy = await Proxy.start(server.port);
    const times = { pingIdleMs: 100, staleAfterMs: 250, deadAfterMs: 600 };
    const viewer = connect(proxy.url, { clientId: "viewer", ...times });
    const bus = connect(server.url, { clientId: "bus" });
    const seen = collect(viewer, "position");
    await viewer.join("frozen", { mode: "subscribe" });
    await bus.join("frozen", { mode: "publish" });
    assert.equal(viewer.state.stale, false);
    const order = [];
    for (const type of ["stale", "close", "fresh", "moved"]) viewer.on(type, () => order.push(type));
    const moved = next(viewer, "moved");
    proxy.freeze();
    await publish(bus, "frozen", 10);
    const { gapMs, missed } = await moved;
    assert.deepEqual(order.slice(0, 2), ["stale", "close"]);
    assert.equal(missed, 0);
    assert.ok(gapMs >= 0);
    await until(() => seen.length === 10);
    assert.equal(viewer.state.stale, false);
    assert.deepEqual(seen.map(({ n }) => n), numbers(10));
  });

  it("repeats a keyed position whose answer was lost, once in the log", async () => {
    const proxy = await Proxy.start(server.port);
    const bus = connect(proxy.url, { clientId: "bus" });
    const viewer = connect(server.url, { clientId: "viewer" });
    const seen = collect(viewer, "position");
    await viewer.join("keyed");
    await bus.join("keyed", { mode: "publish" });
    proxy.deafen();
    const results = [0, 1, 2].map((n) => bus.publish(position(n), { rooms: "keyed", key: `k${n}` }));
    await until(() => seen.length === 3);
    proxy.cut();
    const acks = await Promise.all(results);
    assert.deepEqual(acks.map(({ duplicate }) => duplicate), [true, true, true]);
    assert.deepEqual(await inLog(server, "keyed"), [0, 1, 2]);
    assert.equal(bus.counters.resends, 3);
  });

  it("leaves the outcome of one without a key unknown, and does not repeat it", async () => {
    const proxy = await Proxy.start(server.port);
    const bus = connect(proxy.url, { clientId: "bus", resendRefused: { maxResends: 9, newSessionWaitMs: 9000 } });
    const viewer = connect(server.url, { clientId: "viewer" });
    const seen = collect(viewer, "position");
    await viewer.join("unknown");
    await bus.join("unknown", { mode: "publish" });
    proxy.deafen();
    const result = bus.publish({ latitude: 1, longitude: 2, n: 0 });
    await until(() => seen.length === 1);
    proxy.cut();
    await assert.rejects(result, { code: "UNKNOWN_OUTCOME" });
    await bus.publish({ latitude: 1, longitude: 3, n: 1 }, { rooms: "unknown" });
    assert.deepEqual(await inLog(server, "unknown"), [0, 1]);
  });

  it("backs off while nobody answers", async () => {
    const proxy = await Proxy.start(server.port);
    proxy.refuses = true;
    const viewer = connect(proxy.url, { clientId: "patient" });
    const joining = viewer.join("patient");
    await next(viewer, "close");
    await next(viewer, "close");
    assert.ok(viewer.state.retryAt === null || viewer.state.status === "waiting");
    proxy.refuses = false;
    const room = await joining;
    assert.ok(room.epoch);
  });
});

describe("a server that goes", { concurrency: 4 }, () => {
  /** Publishes for as long as `going` says, every position acknowledged in the end. */
  async function drive(bus, room, going) {
    let n = 0;
    while (going()) {
      await bus.publish(position(n), { rooms: room, key: `k${n}` });
      n += 1;
    }
    return n;
  }

  async function watched(url, resendRefused) {
    const viewers = numbers(3).map((n) => connect(url, { clientId: `viewer-${n}` }));
    const seen = viewers.map((viewer) => collect(viewer, "position"));
    for (const viewer of viewers) await viewer.join("deploy", { mode: "subscribe" });
    const bus = connect(url, { clientId: "bus", resendRefused });
    await bus.join("deploy", { mode: "publish" });
    return { viewers, seen, bus };
  }

  async function judge({ viewers, seen }, count) {
    for (const [n, viewer] of viewers.entries()) {
      await until(() => seen[n].length >= count, `viewer ${n} has ${seen[n].length} of ${count}`);
      assert.deepEqual(seen[n].map((one) => one.n), numbers(count), "0 missed, 0 doubled, in order");
      const { missed, gaps, resets } = viewer.counters;
      assert.deepEqual({ missed, gaps, resets }, { missed: 0, gaps: 0, resets: 0 });
    }
  }

  it("is followed by its successor, which waited for the log: nothing missed or doubled", async () => {
    const sets = { "room_log.path": path.join(directory(), "milepost.db") };
    let running = await Server.start(sets);
    const proxy = await Proxy.start(running.port);
    const all = await watched(proxy.url, { maxResends: 100, newSessionWaitMs: 60000 });
    let going = true;
    const driving = drive(all.bus, "deploy", () => going);
    const moves = all.viewers.map((viewer) => collect(viewer, "moved"));
    const notices = collect(all.viewers[0], "shutdown");
    for (let deploy = 1; deploy <= 2; deploy++) {
      const successor = await Server.start(sets, { ready: false });
      proxy.port = successor.port;
      assert.equal(await running.terminate(), 0);
      running = successor;
      await until(() => moves.every((of) => of.length === deploy), "everybody moved");
    }
    going = false;
    const count = await driving;
    await judge(all, count);
    assert.deepEqual((await inLog(running, "deploy")), numbers(count));
    assert.equal(notices.length, 2);
    assert.ok(notices[0].reconnectInMs >= 1000 && notices[0].reason === "shutdown");
    assert.notEqual(moves[0][0].fromInstance, moves[0][0].toInstance);
  });

  it("is killed and started again: nothing missed or doubled", async () => {
    const sets = { "room_log.path": path.join(directory(), "milepost.db") };
    let running = await Server.start(sets);
    const proxy = await Proxy.start(running.port);
    const all = await watched(proxy.url, undefined);
    let going = true;
    const driving = drive(all.bus, "deploy", () => going);
    const moves = all.viewers.map((viewer) => collect(viewer, "moved"));
    await until(() => all.seen[0].length > 20);
    await running.kill();
    running = await Server.start(sets);
    proxy.port = running.port;
    await until(() => moves.every((of) => of.length === 1), "everybody moved");
    going = false;
    const count = await driving;
    await judge(all, count);
    assert.deepEqual(await inLog(running, "deploy"), numbers(count));
  });

  it("refuses what it did not start: an error, or with resendRefused the successor's answer", async () => {
    const server = await Server.start();
    const proxy = await Proxy.start(server.port);
    const clients = [undefined, { maxResends: 5, newSessionWaitMs: 60000 }].map((resendRefused, n) =>
      connect(proxy.url, { clientId: `bus-${n}`, resendRefused }),
    );
    for (const client of clients) await client.join("refused");
    // A paused server holds requests; when it stops they have not started.
    await server.admin("POST", "/quiesce");
    const outcomes = clients.map((client) => {
      const result = client.publish(position(0), { rooms: "refused", key: "k" });
      return result.then((ack) => ack.rooms.refused, (error) => error.code);
    });
    await until(async () => (await server.admin("GET", "/status")).includes('"requests":2'), "2 held");
    const exited = server.terminate();
    assert.equal(await outcomes[0], "SERVER_DRAINING");
    await exited;
    const successor = await Server.start();
    proxy.port = successor.port;
    assert.ok((await outcomes[1]) > 0);
    assert.equal(clients[1].counters.resends, 1);
    assert.deepEqual(await inLog(successor, "refused"), [0]);
  });
});

describe("tokens", { concurrency: 4 }, () => {
  const secret = "a secret of the browser client's tests";
  const mint = (sub, ttl) => {
    const args = ["token", "--sub", sub, ...(ttl ? ["--ttl", ttl] : [])];
    const env = { PATH: process.env.PATH, MILEPOST_AUTH__SECRET: secret };
    return execFileSync(process.env.MILEPOST_BIN, args, { env, encoding: "utf8" }).trim();
  };
  const start = (more = {}) => Server.start({ "auth.mode": "jwt", "auth.secret": secret, ...more });

  it("come from the provider, a fresh one for every session", async () => {
    const server = await start();
    const proxy = await Proxy.start(server.port);
    let asked = 0;
    const token = async () => mint(`bus-${(asked += 1)}`);
    const bus = connect(proxy.url, { token });
    await bus.join("tokens");
    assert.equal(bus.state.clientId, "bus-1");
    const moved = next(bus, "moved");
    proxy.cut();
    await moved;
    assert.equal(bus.state.clientId, "bus-2");
    assert.equal(asked, 2);
  });

  it("that are no good end the client, unless the provider has others", async () => {
    const server = await start();
    const hopeless = connect(server.url, { token: "no.good.token" });
    await assert.rejects(hopeless.join("x"), { code: "UNAUTHORIZED", message: "Invalid token" });
    assert.equal(hopeless.state.status, "closed");
    const none = connect(server.url);
    await assert.rejects(none.join("x"), { message: "Authentication token is missing" });
    const tokens = ["no.good.token", "no.good.token", mint("bus")];
    const bus = connect(server.url, { token: () => tokens.shift() });
    const errors = collect(bus, "error");
    await bus.join("x");
    assert.deepEqual(errors.map(({ error }) => error.code), ["UNAUTHORIZED", "TOKEN"]);
    assert.ok(sockets.every(({ url }) => !url.includes("token")), "never in an address");
  });

  it("are renewed on the connection before they expire", async () => {
    const server = await start({ "auth.leeway": "0s" });
    let asked = 0;
    const bus = connect(server.url, { token: () => mint("bus", (asked += 1) === 1 ? "2s" : "1h") });
    const closes = collect(bus, "close");
    const expiring = next(bus, "tokenExpiring");
    await bus.join("renewed");
    await expiring;
    await until(() => asked === 2);
    // Past the end of the first token the connection is still the same one.
    await new Promise((resolve) => setTimeout(resolve, 2500));
    await bus.publish(position(0));
    assert.equal(closes.length, 0);
    assert.equal(bus.counters.connects, 1);
  });
});

describe("a reader that is too slow", { concurrency: 4 }, () => {
  const sets = {
    "outgoing.high_water": "16KiB",
    "outgoing.kernel_buffer": "4KiB",
    "limits.message_rate": 0,
    "limits.max_position": "16KiB",
    "heartbeat.interval": "5s",
    "heartbeat.timeout": "60s",
  };

  /** A viewer whose socket is paused while much is published. */
  async function slow(more) {
    const server = await Server.start({ ...sets, ...more });
    const own = [];
    class Own extends Spy {
      constructor(...args) {
        super(...args);
        own.push(this);
      }
    }
    const viewer = connect(server.url, { clientId: "slow", WebSocket: Own });
    const room = await viewer.join("slow", { mode: "subscribe" });
    const [socket] = own;
    const bus = connect(server.url, { clientId: "bus" });
    await bus.join("slow", { mode: "publish" });
    socket.pause();
    let sent = 0;
    const burst = async () => {
      const all = [];
      for (let n = 0; n < 100; n++) {
        const vehicleId = `vehicle-${sent % 5}`;
        all.push(bus.publish({ ...position(sent), note: "x".repeat(12000) }, { vehicleId }));
        sent += 1;
      }
      await Promise.all(all);
    };
    return { server, viewer, room, socket, burst, sent: () => sent };
  }

  it("is told that it lags, gets the newest, and is told that it is over", async () => {
    const { viewer, room, socket, burst, sent } = await slow();
    const seen = collect(viewer, "position");
    const order = [];
    for (const type of ["lagging", "caughtUp"]) viewer.on(type, (event) => order.push({ type, ...event }));
    // More than the kernels' buffers take.
    for (let n = 0; n < 4; n++) await burst();
    socket.resume();
    await until(() => order.some(({ type }) => type === "caughtUp"));
    assert.equal(order[0].type, "lagging");
    await until(() => room.positions.get("vehicle-4")?.n === sent() - 1);
    assert.ok(seen.length < sent());
    assert.equal(seen.length + viewer.counters.dropped, sent());
    assert.equal(room.lagging, false);
    const ascending = seen.every((one, n) => n === 0 || one.seq > seen[n - 1].seq);
    assert.ok(ascending);
    assert.equal(viewer.counters.resets, 0);
  });

  it("comes back at once after 4008, and goes on where it was", async () => {
    const { server, viewer, socket, burst, sent } = await slow({ "outgoing.slow_timeout": "1s" });
    const seen = collect(viewer, "position");
    const closes = collect(viewer, "close");
    for (let n = 0; n < 4; n++) await burst();
    const closed = await until(() => server.lines.find((line) => line.code === 4008));
    assert.equal(closed.event, "connection.closed");
    const moved = next(viewer, "moved");
    socket.resume();
    const { missed, reset } = await moved;
    assert.equal(reset, false);
    const [{ code }] = closes;
    // The kernel may have had no room for the close frame.
    assert.ok(code === 4008 || code === 1006, `${code}`);
    if (code === 4008) assert.equal(closes[0].retryInMs, 0);
    await until(() => seen.at(-1)?.n === sent() - 1);
    assert.equal(seen.length + viewer.counters.dropped, sent());
    assert.equal(missed, viewer.counters.dropped);
  });
});
