/** The rules without a server: waits, advice, places, and a client on fake sockets and clocks. */
import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { MilepostClient, MilepostError } from "../../src/web/client/milepost.js";
import { Place } from "../../src/web/client/room.js";
import { parseEndpoint } from "../../src/web/client/options.js";
import { Backoff, comeBack, neverStarted } from "../../src/web/client/timing.js";
import { byteLength, Chunk } from "../../src/web/client/upload.js";
import { World } from "./world.js";

describe("waits", () => {
  it("fill a doubling range up to the cap", () => {
    const longest = Array(9).fill(0);
    const shortest = Array(9).fill(Infinity);
    for (let run = 0; run < 400; run++) {
      const backoff = new Backoff(1000, 60000, Math.random);
      for (let step = 0; step < 9; step++) {
        const wait = backoff.next();
        longest[step] = Math.max(longest[step], wait);
        shortest[step] = Math.min(shortest[step], wait);
      }
    }
    for (let step = 0; step < 9; step++) {
      const ceiling = Math.min(1000 * 2 ** step, 60000);
      assert.ok(longest[step] <= ceiling && longest[step] > ceiling * 0.9, `${step}`);
      assert.ok(shortest[step] < ceiling * 0.1, `no jitter at ${step}: ${shortest[step]}`);
    }
  });

  it("are none once, where a close says so", () => {
    const backoff = new Backoff(1000, 60000, () => 0.5);
    assert.equal(backoff.atOnce(), 0);
    assert.equal(backoff.atOnce(), 1000);
  });

  it("start anew only after a session that outlived its wait", () => {
    const backoff = new Backoff(1000, 60000, () => 1);
    for (let n = 0; n < 3; n++) backoff.next();
    backoff.sessionLasted(7000);
    assert.equal(backoff.ceiling, 8000);
    backoff.sessionLasted(8000);
    assert.equal(backoff.ceiling, 1000);
  });
});

describe("close codes", () => {
  it("have their advice", () => {
    const table = [
      [1001, "server shutting down", "after-notice"],
      [1001, "Going Away", "backoff"],
      [1002, "protocol error", "after-a-minute"],
      [1007, "invalid text", "after-a-minute"],
      [1008, "protocol abuse", "after-a-minute"],
      [1009, "frame too large", "after-a-minute"],
      [1006, "", "backoff"],
      [1011, "internal", "backoff"],
      [1013, "overloaded", "backoff"],
      [4001, "Token has expired", "with-new-token"],
      [4008, "slow consumer", "at-once"],
      [4029, "Too many connections from this IP", "after-a-minute"],
      [4999, "from the future", "backoff"],
    ];
    for (const [code, reason, advice] of table) assert.equal(comeBack(code, reason), advice, `${code}`);
  });

  it("promise that nothing started in one case only", () => {
    assert.ok(neverStarted(1001, "server shutting down"));
    for (const [code, reason] of [[1001, "Going Away"], [1006, "server shutting down"], [1001, ""]]) {
      assert.ok(!neverStarted(code, reason), `${code} ${reason}`);
    }
  });
});

describe("a place in the log", () => {
  const [one, other] = [{}, {}];
  const joined = (epoch, seq, recovered = false, more = false) => ({ epoch, seq, recovered, more });

  it("is kept across links, and each event comes once", () => {
    const place = new Place("both", null);
    assert.equal(place.join(one), null);
    assert.equal(place.joined(one, joined("e", 10)), false);
    assert.equal(place.event(one, 12), "live");
    assert.equal(place.event(other, 13), "not-ours");
    assert.deepEqual(place.join(other), { epoch: "e", seq: 12 });
    assert.equal(place.event(one, 14), "live", "the old link speaks until the new one does");
    assert.equal(place.joined(other, joined("e", 20, true)), false);
    assert.equal(place.event(one, 15), "not-ours");
    assert.equal(place.event(other, 13), "seen" && place.event(other, 14) && "seen");
    assert.equal(place.event(other, 20), "replayed");
    assert.equal(place.event(other, 21), "live");
    assert.equal(place.event(other, 21), "out-of-order");
    assert.deepEqual(place.cursor, { epoch: "e", seq: 21 });
  });

  it("is no place in the middle of a snapshot", () => {
    const place = new Place("subscribe", null);
    place.join(one);
    place.joined(one, joined("e", 10, false, true));
    assert.equal(place.cursor, null);
    place.snapshot(other, false);
    assert.equal(place.cursor, null);
    place.snapshot(one, false);
    assert.deepEqual(place.cursor, { epoch: "e", seq: 10 });
  });

  it("is reset with the log, also under a live subscription", () => {
    const place = new Place("both", { epoch: "e", seq: 9 });
    place.join(one);
    assert.equal(place.joined(one, joined("f", 3)), true);
    assert.equal(place.joined(one, joined("g", 1)), true);
    assert.deepEqual(place.cursor, { epoch: "g", seq: 1 });
  });
});

describe("an upload's chunks", () => {
  it("hold 500 positions and fit their frame, counted in bytes", () => {
    const chunk = new Chunk(65536);
    let taken = 0;
    while (chunk.push("{}")) taken += 1;
    assert.equal(taken, 500);
    assert.equal(JSON.parse(chunk.take()).positions.length, 500);
    const wide = JSON.stringify({ note: "ö".repeat(250) });
    while (chunk.push(wide));
    const bytes = byteLength(chunk.take());
    assert.ok(bytes < 65536 && bytes > 64000, `${bytes}`);
  });
});

describe("an endpoint", () => {
  it("is shown without what may be secret", () => {
    const { url, shown } = parseEndpoint("wss://user:pw@fleet.example:81/ws?x=secret", "bus 7/ö&");
    assert.equal(shown, "wss://fleet.example:81/ws");
    assert.match(url, /clientId=bus\+7%2F%C3%B6%26$/);
    for (const bad of ["ftp://fleet.example/", "/ws", ""]) {
      assert.throws(() => parseEndpoint(bad, undefined), { code: "INVALID" }, bad);
    }
  });
});

describe("options", () => {
  it("that cannot work are refused", () => {
    const WebSocket = class {};
    for (const options of [
      {},
      { endpoints: [] },
      { endpoints: "ws://h/", pingIdleMs: -1 },
      { endpoints: "ws://h/", resendRefused: { maxResends: 1, newSessionWaitMs: 2147483648 } },
      { endpoints: "ws://h/", resendRefused: { maxResends: -1, newSessionWaitMs: -1 } },
    ]) {
      assert.throws(() => new MilepostClient({ WebSocket, ...options }), MilepostError);
    }
  });
});

describe("a client on fake sockets", () => {
  /** A world with one client in it that has a session and the room "r". */
  async function settled(options = {}, welcome = {}) {
    const world = new World(options);
    await world.welcome(welcome);
    const joining = world.client.join("r");
    world.answerJoins();
    const room = await joining;
    return { world, room, client: world.client };
  }

  it("waits as each close code asks for, never less", async () => {
    const minute = [60000, 75000];
    for (const [code, reason, [least, most]] of [
      [1006, "", [0, 1000]],
      [1011, "internal", [0, 1000]],
      [1001, "Going Away", [0, 1000]],
      [4008, "slow consumer", [0, 0]],
      [4029, "Connection rate limit exceeded", minute],
      [1009, "frame too large", minute],
    ]) {
      for (const random of [0, 0.5, 0.999]) {
        const { world, client } = await settled({ random: () => random });
        world.last.drop(code, reason);
        const due = least + (most - least) * random;
        await world.advance(Math.max(0, due - 2));
        if (due > 2) assert.equal(world.sockets.length, 1, `${code}: too early`);
        await world.advance(4);
        assert.equal(world.sockets.length, 2, `${code}: not at ${due}`);
        await client.close();
      }
    }
  });

  it("backs off further each time, with jitter", async () => {
    const { world, client } = await settled({ random: () => 0.5 });
    const waits = [];
    for (let n = 0; n < 8; n++) {
      world.last.drop(1006, "");
      const { retryInMs } = world.events.close.at(-1);
      waits.push(retryInMs);
      await world.advance(retryInMs + 2);
    }
    assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
    await client.close();
  });

  it("turns to the next endpoint when one is lost", async () => {
    const { world, client } = await settled({ endpoints: ["ws://a/ws", "ws://b/ws"] });
    world.last.drop(1006, "");
    await world.advance(1001);
    assert.match(world.last.url, /^ws:\/\/b\//);
    await client.close();
  });

  it("comes back after the time of the notice, and lets the old socket go last", async () => {
    const { world, client } = await settled();
    const old = world.last;
    old.say("server_shutting_down", { reconnectIn: 2.5, closesInMs: 4000, reason: "shutdown" });
    assert.equal(client.state.status, "moving");
    await world.advance(2400);
    assert.equal(world.sockets.length, 1);
    await world.advance(200);
    assert.equal(world.sockets.length, 2);
    await world.welcome({ sessionId: "s2", instanceId: "i2" });
    old.position("r", 11);
    assert.equal(old.closing, false, "the rooms are not joined elsewhere yet");
    world.answerJoins({ recovered: true, seq: 11 });
    assert.equal(old.closing, true);
    world.last.position("r", 12);
    assert.deepEqual(world.events.position.map(({ seq }) => seq), [11, 12]);
    assert.equal(client.counters.missed, 0);
    assert.equal(world.events.moved[0].gapMs, 0);
    assert.equal(world.events.stale.length, 0);
    await client.close();
  });

  it("waits out the notice even if the page wakes up", async () => {
    const window = new EventTarget();
    const { world, client } = await settled({ window });
    world.last.say("server_shutting_down", { reconnectIn: 3, closesInMs: 4000, reason: "drain" });
    world.last.drop(1001, "server shutting down");
    window.dispatchEvent(new Event("online"));
    await world.advance(2900);
    assert.equal(world.sockets.length, 1);
    await world.advance(200);
    assert.equal(world.sockets.length, 2);
    await client.close();
  });

  it("looks for a newer generation three times, on a view that stays live", async () => {
    const { world, client } = await settled({}, { generation: "old" });
    const old = world.last;
    const notice = { reconnectIn: 0, closesInMs: 4000, reason: "shutdown" };
    old.say("server_shutting_down", { ...notice, generation: "old", newer: ["new"] });
    await world.advance(1);
    await world.welcome({ sessionId: "s2", generation: "old" });
    world.answerJoins({ recovered: true });
    const stays = world.last;
    for (const sessionId of ["s3", "s4"]) {
      await world.advance(1001);
      await world.welcome({ sessionId, generation: "old" });
      assert.equal(world.last.closing, true, "no better than the one in use");
    }
    await world.advance(10000);
    assert.equal(world.sockets.length, 4);
    assert.equal(stays.closing, false);
    assert.equal(client.state.sessionId, "s2");
    await client.close();
  });

  it("moves once more if that finds a newer generation", async () => {
    const { world, client } = await settled({}, { generation: "old" });
    const notice = { reconnectIn: 0, closesInMs: 4000, reason: "shutdown", newer: ["new"] };
    world.last.say("server_shutting_down", notice);
    await world.advance(1);
    await world.welcome({ sessionId: "s2", generation: "old" });
    world.answerJoins({ recovered: true });
    await world.advance(1001);
    await world.welcome({ sessionId: "s3", generation: "new" });
    world.answerJoins({ recovered: true });
    assert.deepEqual([client.state.sessionId, client.state.generation], ["s3", "new"]);
    assert.equal(world.sockets[1].closing, true);
    await world.advance(10000);
    assert.equal(world.sockets.length, 3);
    await client.close();
  });

  it("asks a silent server, calls the view stale, then gives the socket up", async () => {
    const { world, client } = await settled();
    const socket = world.last;
    const pings = () => socket.sent.filter(({ type }) => type === "ping").length;
    const before = pings();
    await world.advance(10001);
    assert.equal(pings(), before + 1);
    assert.equal(client.state.stale, false);
    await world.advance(10000);
    assert.equal(client.state.stale, true);
    assert.equal(world.events.stale.length, 1);
    await world.advance(29000);
    assert.equal(world.events.close.length, 0);
    await world.advance(1000);
    assert.equal(world.events.close.length, 1);
    assert.equal(socket.onmessage, null, "it is heard no more");
    await world.advance(1000);
    assert.equal(world.sockets.length, 2);
    await client.close();
  });

  it("calls the view fresh again when something comes", async () => {
    const { world, client } = await settled();
    await world.advance(25000);
    assert.equal(client.state.stale, true);
    world.last.say("pong", { serverTime: world.serverTime() });
    assert.equal(client.state.stale, false);
    assert.equal(world.events.fresh.length, 2, "the first one was the session");
    await client.close();
  });

  it("checks at once after a background, a sleep or a change of network", async () => {
    for (const [target, type] of [
      ["document", "visibilitychange"],
      ["document", "resume"],
      ["window", "pageshow"],
      ["window", "online"],
      ["window", "offline"],
    ]) {
      const targets = { document: new EventTarget(), window: new EventTarget() };
      const { world, client } = await settled(targets);
      await world.advance(100);
      targets[target].dispatchEvent(new Event(type));
      assert.equal(world.last.sent.at(-1).type, "ping", type);
      await world.advance(4900);
      assert.equal(world.events.close.length, 0);
      await world.advance(200);
      assert.equal(world.events.close.length, 1, type);
      await client.close();
    }
  });

  it("keeps the socket if the answer to that comes", async () => {
    const document = new EventTarget();
    const { world, client } = await settled({ document });
    document.dispatchEvent(new Event("visibilitychange"));
    world.last.say("pong", { serverTime: world.serverTime() });
    await world.advance(6000);
    assert.equal(world.events.close.length, 0);
    await client.close();
  });

  it("does not take its own sleep for the server's silence", async () => {
    const { world, client } = await settled();
    world.sleep(3600_000);
    await world.advance(0);
    assert.equal(world.events.close.length, 0, "what came meanwhile has yet to be read");
    assert.equal(world.last.sent.at(-1).type, "ping");
    await world.advance(5001);
    assert.equal(world.events.close.length, 1);
    await client.close();
  });

  it("shortens a backoff when the network is back, but no minute's pause", async () => {
    for (const [code, soon] of [[1006, true], [4029, false]]) {
      const window = new EventTarget();
      const { world, client } = await settled({ window, random: () => 0.5 });
      for (let n = 0; n < 5; n++) {
        world.last.drop(1006, "");
        await world.advance(world.events.close.at(-1).retryInMs + 2);
      }
      world.last.drop(code, "");
      const sockets = world.sockets.length;
      window.dispatchEvent(new Event("online"));
      await world.advance(501);
      assert.equal(world.sockets.length, sockets + (soon ? 1 : 0), `${code}`);
      await client.close();
    }
  });

  it("asks for a fresh token for every session, and never tries a refused one again", async () => {
    const tokens = ["one", "one", "two"];
    const world = new World({ token: () => tokens.shift() });
    await world.advance(0);
    assert.deepEqual(world.last.protocols, ["milepost.v1", "bearer.one"]);
    world.last.open();
    world.last.drop(4001, "Invalid token");
    await world.advance(0);
    assert.equal(world.sockets.length, 1, "the provider gave the same one");
    await world.socket();
    assert.deepEqual(world.last.protocols, ["milepost.v1", "bearer.two"]);
    assert.deepEqual(world.events.error.map(({ error }) => error.code), ["UNAUTHORIZED", "TOKEN"]);
    await world.client.close();
  });

  it("ends when its only token is refused", async () => {
    const world = new World({ token: "one" });
    const joining = world.client.join("r");
    await world.advance(0);
    world.last.open();
    world.last.drop(4001, "Invalid token");
    await assert.rejects(joining, { code: "UNAUTHORIZED", message: "Invalid token" });
    assert.equal(world.client.state.status, "closed");
    await world.advance(600000);
    assert.equal(world.sockets.length, 1);
    assert.equal(world.timers, 0);
  });

  it("never shows a token that no subprotocol may hold", async () => {
    const world = new World({ token: "a secret, with commas" });
    await world.advance(0);
    assert.equal(world.sockets.length, 0);
    assert.doesNotMatch(JSON.stringify(world.events), /secret/);
    assert.equal(world.events.error[0].error.code, "TOKEN");
    await world.client.close();
  });

  it("leaves no timer and no listener behind, from any state", async () => {
    class Counting extends EventTarget {
      count = 0;
      addEventListener(...args) {
        this.count += 1;
        super.addEventListener(...args);
      }
      removeEventListener(...args) {
        this.count -= 1;
        super.removeEventListener(...args);
      }
    }
    for (const state of ["connecting", "open", "moving", "waiting", "deaf"]) {
      const targets = { document: new Counting(), window: new Counting() };
      const world = new World(targets);
      await world.advance(0);
      assert.equal(targets.document.count + targets.window.count, 5);
      if (state !== "connecting") {
        await world.welcome();
        world.client.join("r").catch(() => {});
        world.client.publish({ latitude: 1, longitude: 2 }, { rooms: "r", key: "k" }).catch(() => {});
        world.client.backfill([], { room: "r" }).catch(() => {});
      }
      if (state === "moving") {
        world.last.say("server_shutting_down", { reconnectIn: 5, closesInMs: 4000, reason: "drain" });
      }
      if (state === "waiting") world.last.drop(1006, "");
      if (state === "deaf") world.last.deaf = true;
      const closing = world.client.close();
      await world.advance(3000);
      await closing;
      assert.equal(world.timers, 0, state);
      assert.equal(targets.document.count + targets.window.count, 0, state);
      await assert.rejects(world.client.join("x"), { code: "CLOSED" });
    }
  });

  it("tells of a reset, from a page of the snapshot to the next", async () => {
    const { world, room, client } = await settled();
    world.last.position("r", 11, { vehicleId: "gone" });
    world.last.say("room_joined", {
      roomId: "r", mode: "both", epoch: "f", seq: 3, recovered: false, more: true,
      members: ["a"], memberCount: 2, positions: [world.fix(2, { vehicleId: "bus-1" })],
    });
    assert.equal(world.events.reset.length, 1);
    assert.deepEqual([...room.positions.keys()], ["bus-1"]);
    world.last.say("snapshot", {
      roomId: "r", members: ["b"], positions: [world.fix(3, { vehicleId: "bus-2" })], more: false,
    });
    assert.deepEqual([...room.positions.keys()], ["bus-1", "bus-2"]);
    assert.deepEqual([...room.members], ["a", "b"]);
    assert.equal(room.memberCount, 2);
    assert.equal(room.epoch, "f");
    world.last.position("r", 4);
    assert.equal(world.events.position.at(-1).seq, 4);
    assert.equal(client.counters.resets, 1);
    assert.equal(client.counters.missed, 1);
    await client.close();
  });

  it("joins anew if a connection dies in the middle of a snapshot", async () => {
    const { world, client } = await settled();
    world.last.say("room_joined", {
      roomId: "r", mode: "both", epoch: "f", seq: 3, recovered: false, more: true,
      members: [], memberCount: 0, positions: [],
    });
    world.last.drop(1006, "");
    await world.advance(1001);
    await world.welcome({ sessionId: "s2" });
    const join = world.last.sent.find(({ type }) => type === "join_room");
    assert.equal(join.payload.since, undefined);
    await client.close();
  });

  it("leaves a room that the server takes away, and joins it no more", async () => {
    const { world, client } = await settled();
    world.last.say("room_left", { roomId: "r", reason: "forbidden" });
    assert.deepEqual(world.events.roomLeft, [{ roomId: "r", reason: "forbidden" }]);
    world.last.drop(1006, "");
    await world.advance(1001);
    await world.welcome({ sessionId: "s2" });
    assert.ok(!world.last.sent.some(({ type }) => type === "join_room"));
    await client.close();
  });

  it("tells of a sequence number that does not ascend, and does not show it", async () => {
    const { world, client } = await settled();
    world.last.position("r", 11);
    world.last.position("r", 11);
    assert.equal(world.events.position.length, 1);
    assert.equal(world.events.error[0].error.code, "OUT_OF_ORDER");
    assert.equal(client.counters.gaps, 1);
    await client.close();
  });

  it("keeps count of what a lag has cost", async () => {
    const { world, room, client } = await settled();
    const about = { roomId: "r", epoch: "e" };
    world.last.say("lagging", { ...about, fromSeq: 11, dropped: 0, mode: "newest" });
    assert.equal(room.lagging, true);
    world.last.position("r", 20);
    world.last.say("caught_up", { ...about, seq: 25, dropped: 9 });
    assert.equal(room.lagging, false);
    const { dropped, missed } = client.counters;
    assert.deepEqual({ dropped, missed }, { dropped: 9, missed: 9 });
    world.last.drop(1006, "");
    await world.advance(1001);
    await world.welcome({ sessionId: "s2" });
    const join = world.last.sent.find(({ type }) => type === "join_room");
    assert.deepEqual(join.payload.since, { epoch: "e", seq: 25 });
    await client.close();
  });

  describe("what is unanswered", () => {
    const fix = { latitude: 1, longitude: 2, timestamp: 1 };
    const frames = (socket) => socket.sent.filter(({ type }) => type === "location_update");

    /** Publishes, ends the session so, and answers on the next one. */
    async function through(code, reason, { key, options = {} } = {}) {
      const { world, client } = await settled(options);
      const result = client.publish(fix, { rooms: "r", key }).then(
        (ack) => ack,
        (error) => error.code,
      );
      assert.equal(frames(world.last).length, 1);
      world.last.drop(code, reason);
      await world.advance(1001);
      if (world.sockets.length > 1) {
        await world.welcome({ sessionId: "s2" });
        assert.equal(frames(world.last).length, 0, "not before its room is joined");
        world.answerJoins({ recovered: true });
      }
      const again = frames(world.last).slice(-1)[0];
      if (world.sockets.length > 1 && again) {
        world.last.answer(again, "ack", { rooms: { r: 9 }, duplicate: true, late: [] });
      }
      const got = await result;
      await client.close();
      return got;
    }

    it("never started after 1001 with our reason: sent again only if asked for", async () => {
      assert.equal(await through(1001, "server shutting down"), "SERVER_DRAINING");
      const resendRefused = { maxResends: 2, newSessionWaitMs: 10000 };
      const got = await through(1001, "server shutting down", { options: { resendRefused } });
      assert.deepEqual(got.rooms, { r: 9 });
    });

    it("is unknown after anything else: sent again only with its key", async () => {
      for (const [code, reason] of [[1006, ""], [1001, "Going Away"], [4008, "slow consumer"]]) {
        const resendRefused = { maxResends: 2, newSessionWaitMs: 10000 };
        assert.equal(await through(code, reason), "UNKNOWN_OUTCOME");
        assert.equal(await through(code, reason, { options: { resendRefused } }), "UNKNOWN_OUTCOME");
        const got = await through(code, reason, { key: "k" });
        assert.deepEqual(got, { rooms: { r: 9 }, duplicate: true, late: [] });
        assert.equal(await through(code, reason, { key: "k", options: { resendKeyed: false } }), "UNKNOWN_OUTCOME");
      }
    });

    it("is not sent again if it may be what the server objected to", async () => {
      assert.equal(await through(1009, "frame too large", { key: "k" }), "UNKNOWN_OUTCOME");
    });

    it("goes through an upload once the server may have forgotten its key", async () => {
      const { world, client } = await settled();
      const result = client.publish(fix, { rooms: "r", key: "k" });
      world.last.drop(1006, "");
      world.refuse = true;
      await world.advance(601000);
      world.refuse = false;
      await world.socket();
      await world.welcome({ sessionId: "s2" });
      world.answerJoins({ recovered: true });
      await world.advance(0);
      const sent = world.last.sent.filter(({ type }) => type.startsWith("backfill"));
      assert.deepEqual(sent.map(({ type }) => type), ["backfill_begin", "backfill_chunk", "backfill_end"]);
      assert.deepEqual(sent[1].payload.positions, [fix]);
      assert.equal(frames(world.last).length, 0);
      const done = { accepted: 1, duplicates: 0, rejected: [], rejectedTotal: 0 };
      world.last.answer(sent[0], "backfill_result", done);
      assert.deepEqual(await result, { rooms: {}, duplicate: false, late: [], backfilled: true });
      await client.close();
    });

    it("is resent n times and no more, and never to the session that refused", async () => {
      const resendRefused = { maxResends: 2, newSessionWaitMs: 10000 };
      const { world, client } = await settled({ resendRefused });
      const result = client.publish(fix, { rooms: "r" });
      const draining = { code: "SERVER_DRAINING", number: -32001, message: "…", retry: "elsewhere" };
      const refused = assert.rejects(result, { code: "SERVER_DRAINING", retry: "elsewhere" });
      const payloads = [];
      for (let n = 0; n < 3; n++) {
        const [frame] = frames(world.last);
        payloads.push(JSON.stringify(frame.payload));
        const { last } = world;
        last.answer(frame, "error", draining);
        if (n < 2) {
          await world.socket();
          assert.equal(frames(last).length, 1, "the same session gets it once");
          await world.welcome({ sessionId: `s${n + 2}` });
          world.answerJoins({ recovered: true });
        }
      }
      await refused;
      assert.equal(new Set(payloads).size, 1, "the same bytes each time");
      assert.equal(client.counters.resends, 2);
      await client.close();
    });

    it("gets the refusal if no session comes in time, and nothing is sent later", async () => {
      const resendRefused = { maxResends: 1, newSessionWaitMs: 5000 };
      const { world, client } = await settled({ resendRefused });
      const result = client.publish(fix, { rooms: "r" });
      const draining = { code: "SERVER_DRAINING", number: -32001, message: "…", retry: "elsewhere" };
      world.last.answer(frames(world.last)[0], "error", draining);
      const refused = assert.rejects(result, { code: "SERVER_DRAINING" });
      await world.advance(5001);
      await refused;
      world.last.drop(1006, "");
      await world.socket();
      await world.welcome({ sessionId: "s2" });
      world.answerJoins({ recovered: true });
      assert.equal(frames(world.last).length, 0);
      await client.close();
    });

    it("is taken back by its caller", async () => {
      const { world, client } = await settled();
      world.last.drop(1006, "");
      const giveUp = new AbortController();
      const result = client.publish(fix, { rooms: "r", key: "k", signal: giveUp.signal });
      giveUp.abort(new Error("never mind"));
      await assert.rejects(result, { message: "never mind" });
      await world.advance(1001);
      await world.welcome({ sessionId: "s2" });
      world.answerJoins({ recovered: true });
      assert.equal(frames(world.last).length, 0);
      await client.close();
    });

    it("is bounded", async () => {
      const { world, client } = await settled({ maxUnanswered: 2 });
      const results = [1, 2].map((n) => client.publish(fix, { rooms: "r", key: `${n}` }));
      await assert.rejects(client.publish(fix, { rooms: "r" }), { code: "QUEUE_FULL", retry: "later" });
      const [frame] = frames(world.last);
      world.last.answer(frame, "ack", { rooms: { r: 1 }, duplicate: false, late: [] });
      await results[0];
      results.push(client.publish(fix, { rooms: "r" }));
      assert.equal(frames(world.last).length, 3);
      for (const result of results.slice(1)) result.catch(() => {});
      await client.close();
    });
  });

  it("lets a notification go where nothing can take it", async () => {
    const { world, client } = await settled();
    assert.equal(client.notify({ latitude: 1, longitude: 2 }), true);
    assert.equal(world.last.sent.at(-1).id, undefined);
    world.last.bufferedAmount = 2 << 20;
    assert.equal(client.notify({ latitude: 1, longitude: 2 }), false);
    world.last.drop(1006, "");
    assert.equal(client.notify({ latitude: 1, longitude: 2 }), false);
    assert.equal(client.counters.notificationsDropped, 2);
    await client.close();
  });

  it("takes what the Geolocation API gives", async () => {
    const { world, client } = await settled();
    const coords = Object.create({
      latitude: 60.1, longitude: 24.9, altitude: null, accuracy: 5, heading: NaN, speed: 0,
    });
    client.notify(Object.create({ coords, timestamp: 1700000000000 }));
    assert.deepEqual(world.last.sent.at(-1).payload, {
      timestamp: 1700000000000, latitude: 60.1, longitude: 24.9, accuracy: 5, speed: 0, roomId: "r",
    });
    await client.close();
  });

  it("is not led astray by a listener that calls back or fails", async () => {
    const { world, room, client } = await settled();
    const seen = [];
    client.on("position", ({ seq }) => {
      seen.push(seq);
      if (seq === 11) {
        world.last.position("r", 12);
        seen.push("after");
      }
      if (seq === 12) void room.leave();
    });
    world.last.position("r", 11);
    assert.deepEqual(seen, [11, "after", 12]);
    assert.equal(client.rooms.size, 0);
    const off = client.on("position", () => assert.fail("was unsubscribed"));
    off();
    await client.close();
  });

  it("lets no vehicle run backwards when it goes on for an earlier client", async () => {
    const world = new World();
    await world.welcome();
    const joining = world.client.join("r", { since: { epoch: "e", seq: 10 } });
    const positions = [world.fix(20, { vehicleId: "bus-1" })];
    world.answerJoins({ recovered: true, seq: 20, positions });
    const room = await joining;
    assert.equal(room.positions.get("bus-1").seq, 20);
    world.last.position("r", 15);
    assert.deepEqual(world.events.position.map(({ seq, replayed }) => [seq, replayed]), [[15, true]]);
    assert.equal(room.positions.get("bus-1").seq, 20);
    world.last.position("r", 21);
    assert.equal(room.positions.get("bus-1").seq, 21);
    await world.client.close();
  });

  it("uploads no faster than the server commits, and keeps nothing back for long", async () => {
    const { world, client } = await settled();
    const chunks = () => world.last.sent.filter(({ type }) => type === "backfill_chunk");
    const progress = () => world.last.say("backfill_progress", { accepted: 0, duplicates: 0, rejected: 0 });
    let taken = 0;
    async function* source() {
      for (; taken < 1501; taken++) yield { latitude: 1, longitude: 2 };
      await new Promise(() => {});
    }
    client.backfill(source(), { room: "r" }).catch(() => {});
    await world.advance(10);
    assert.equal(chunks().length, 2);
    assert.ok(taken <= 1500, `took ${taken}`);
    progress();
    await world.advance(10);
    assert.equal(chunks().length, 3);
    progress();
    await world.advance(900);
    assert.equal(chunks().length, 3);
    await world.advance(200);
    assert.equal(chunks().at(-1).payload.positions.length, 1, "what waits goes as a short chunk");
    await client.close();
  });

  it("leaves no listener at its callers' signals", async () => {
    const { world, client } = await settled();
    let listeners = 0;
    const { signal } = new AbortController();
    for (const [name, step] of [["addEventListener", 1], ["removeEventListener", -1]]) {
      const original = signal[name].bind(signal);
      signal[name] = (...args) => {
        listeners += step;
        original(...args);
      };
    }
    const result = client.publish({ latitude: 1, longitude: 2 }, { rooms: "r", signal });
    assert.equal(listeners, 1);
    world.last.answer(world.last.sent.at(-1), "ack", { rooms: { r: 1 }, duplicate: false, late: [] });
    await result;
    const joining = client.join("s", { signal });
    world.answerJoins();
    await joining;
    const upload = client.backfill([], { room: "r", signal });
    await world.advance(0);
    const begin = world.last.sent.find(({ type }) => type === "backfill_begin");
    world.last.answer(begin, "backfill_result", { accepted: 0, duplicates: 0, rejected: [], rejectedTotal: 0 });
    await upload;
    assert.equal(listeners, 0);
    await client.close();
  });

  it("tells of nothing more once it is closed", async () => {
    const { world, client } = await settled();
    const socket = world.last;
    socket.deaf = true;
    const closing = client.close();
    socket.position("r", 11);
    assert.equal(world.events.position.length, 0);
    await world.advance(3000);
    await closing;
  });

  it("survives whatever a server may say", async () => {
    const { world, client } = await settled();
    for (const text of ["", "null", "[]", "{", '{"type":1}', '{"type":"location_update"}',
      '{"type":"room_joined","payload":{"roomId":"r","epoch":1}}',
      '{"type":"caught_up","payload":{"roomId":"r","epoch":"e"}}',
      '{"type":"member_joined","payload":{"roomId":"r","members":{"a":1}}}',
      '{"type":"snapshot","payload":{"roomId":"r","positions":[null,1,{}]}}',
      '{"type":"server_shutting_down","payload":{"reconnectIn":"x","newer":7}}',
      '{"type":"error","payload":{}}', '{"type":"unheard_of","id":99,"payload":[]}',
    ]) {
      world.last.onmessage({ data: text });
    }
    world.last.onmessage({ data: new ArrayBuffer(8) });
    world.last.position("r", 20);
    assert.equal(world.events.position.length, 1);
    await client.close();
  });
});
