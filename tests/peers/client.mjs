// Drives a server with the npm client `ws` and prints what it sees, a JSON object a line.
// The test that starts it judges the lines (tests/it/peers/clients.rs); client.py says the
// same in Python.
//
//   node client.mjs ws://HOST:PORT/ws   with VEHICLE_TOKEN and DISPATCHER_TOKEN set

import WebSocket from 'ws';

const url = process.argv[2];
const say = (step, seen) => process.stdout.write(`${JSON.stringify({ step, ...seen })}\n`);

// A socket whose messages are read in order, with what it saw along the way.
class Peer {
  constructor(address, protocols) {
    this.types = [];
    this.waiting = [];
    this.unread = [];
    this.pinged = false;
    this.socket = new WebSocket(address, protocols, { perMessageDeflate: { threshold: 0 } });
    this.socket.on('message', (data, isBinary) => {
      const message = JSON.parse(data.toString());
      this.types.push(message.type);
      this.give({ ...message, isBinary });
    });
    this.socket.on('ping', () => { this.pinged = true; });
    this.socket.on('error', (error) => this.give({ error: error.message }));
    this.closed = new Promise((resolve) => {
      this.socket.on('close', (code, reason) => resolve({ code, reason: reason.toString() }));
    });
  }

  give(message) {
    const next = this.waiting.shift();
    if (next) next(message); else this.unread.push(message);
  }

  next() {
    if (this.unread.length > 0) return Promise.resolve(this.unread.shift());
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  async until(wanted) {
    for (;;) {
      const message = await this.next();
      if (message.error) throw new Error(message.error);
      if (wanted(message)) return message;
    }
  }

  type(type) {
    return this.until((message) => message.type === type);
  }

  answer(id) {
    return this.until((message) => message.id === id);
  }

  pong(payload) {
    return new Promise((resolve) => {
      this.socket.once('pong', (data) => resolve(data.toString()));
      this.socket.ping(payload);
    });
  }
}

const request = (type, id, payload) => JSON.stringify({ type, id, payload });
const fix = (id, latitude, longitude) => request('location_update', id, { latitude, longitude });

const refused = new Peer(`${url}?token=not-a-token`);
say('refused', await refused.closed);

const vehicle = new Peer(`${url}?token=${encodeURIComponent(process.env.VEHICLE_TOKEN)}`);
say('query', {
  welcome: await vehicle.type('welcome'),
  extensions: vehicle.socket.extensions,
});

const dispatcher = new Peer(url, ['milepost.v1', `bearer.${process.env.DISPATCHER_TOKEN}`]);
say('subprotocol', {
  welcome: await dispatcher.type('welcome'),
  extensions: dispatcher.socket.extensions,
  protocol: dispatcher.socket.protocol,
});

dispatcher.socket.send(request('join_room', 1, { roomId: 'north' }));
const watches = await dispatcher.answer(1);
vehicle.socket.send(request('join_room', 'a', { roomId: 'north' }));
say('joined', { dispatcher: watches, vehicle: await vehicle.answer('a') });

vehicle.socket.send(fix(2, 60.1, 24.1));
say('text', { ack: await vehicle.answer(2), event: await dispatcher.type('location_update') });

vehicle.socket.send(Buffer.from(fix(3, 60.2, 24.2)));
say('binary', { ack: await vehicle.answer(3), event: await dispatcher.type('location_update') });

const text = fix(4, 60.3, 24.3);
vehicle.socket.send(text.slice(0, 10), { fin: false });
vehicle.socket.send(text.slice(10, 11), { fin: false });
const between = await vehicle.pong('between');
vehicle.socket.send(text.slice(11));
say('fragmented', {
  ack: await vehicle.answer(4),
  event: await dispatcher.type('location_update'),
  pong: between,
});

say('pong', { pong: await vehicle.pong('are you there') });

// What was sent before this answer would have been seen.
vehicle.socket.send(request('ping', 5));
await vehicle.answer(5);
say('vehicle saw', { types: vehicle.types });

if (!dispatcher.pinged) {
  await new Promise((resolve) => dispatcher.socket.once('ping', resolve));
}
say('ready', {});

for (const [client, peer] of Object.entries({ vehicle, dispatcher })) {
  const notice = await peer.type('server_shutting_down');
  say('end', { client, notice, ...(await peer.closed) });
}
