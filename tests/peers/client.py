"""Drives a server with the Python client `websockets` and prints what it sees, a JSON
object a line. The test that starts it judges the lines (tests/it/peers/clients.rs);
client.mjs says the same in JavaScript.

    python client.py ws://HOST:PORT/ws   with VEHICLE_TOKEN and DISPATCHER_TOKEN set
"""

import asyncio
import json
import os
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed


def say(step, **seen):
    print(json.dumps({"step": step, **seen}), flush=True)


class Peer:
    """A socket whose messages are read in order, with what it saw along the way."""

    def __init__(self, socket):
        self.socket = socket
        self.types = []

    async def until(self, wanted):
        while True:
            data = await self.socket.recv()
            message = json.loads(data)
            message["isBinary"] = isinstance(data, bytes)
            self.types.append(message["type"])
            if wanted(message):
                return message

    async def type(self, kind):
        return await self.until(lambda message: message["type"] == kind)

    async def answer(self, ident):
        return await self.until(lambda message: message.get("id") == ident)

    async def end(self):
        try:
            while True:
                await self.socket.recv()
        except ConnectionClosed:
            return {"code": self.socket.close_code, "reason": self.socket.close_reason}

    def extensions(self):
        return ", ".join(extension.name for extension in self.socket.protocol.extensions)


def request(kind, ident, payload=None):
    return json.dumps({"type": kind, "id": ident, "payload": payload})


def fix(ident, latitude, longitude):
    return request("location_update", ident, {"latitude": latitude, "longitude": longitude})


async def ping(peer, payload):
    """Pings and returns the payload once its own pong has come."""
    await (await peer.socket.ping(payload))
    return payload


async def main(url):
    vehicle_token = os.environ["VEHICLE_TOKEN"]
    dispatcher_token = os.environ["DISPATCHER_TOKEN"]
    # The proxies of the environment are not for loopback.
    settings = {"proxy": None, "compression": "deflate"}

    async with connect(f"{url}?token=not-a-token", **settings) as socket:
        say("refused", **await Peer(socket).end())

    bearer = {"Authorization": f"Bearer {vehicle_token}"}
    async with (
        connect(url, additional_headers=bearer, **settings) as vehicle_socket,
        connect(
            url, subprotocols=["milepost.v1", f"bearer.{dispatcher_token}"], **settings
        ) as dispatcher_socket,
    ):
        vehicle, dispatcher = Peer(vehicle_socket), Peer(dispatcher_socket)
        say("header", welcome=await vehicle.type("welcome"), extensions=vehicle.extensions())
        say(
            "subprotocol",
            welcome=await dispatcher.type("welcome"),
            extensions=dispatcher.extensions(),
            protocol=dispatcher_socket.subprotocol,
        )

        await dispatcher_socket.send(request("join_room", 1, {"roomId": "north"}))
        watches = await dispatcher.answer(1)
        await vehicle_socket.send(request("join_room", "a", {"roomId": "north"}))
        say("joined", dispatcher=watches, vehicle=await vehicle.answer("a"))

        await vehicle_socket.send(fix(2, 60.1, 24.1))
        say(
            "text",
            ack=await vehicle.answer(2),
            event=await dispatcher.type("location_update"),
        )

        await vehicle_socket.send(fix(3, 60.2, 24.2).encode())
        say(
            "binary",
            ack=await vehicle.answer(3),
            event=await dispatcher.type("location_update"),
        )

        text, pongs = fix(4, 60.3, 24.3), []

        async def fragments():
            yield text[:10]
            yield text[10:11]
            pongs.append(await ping(vehicle, "between"))
            yield text[11:]

        await vehicle_socket.send(fragments())
        say(
            "fragmented",
            ack=await vehicle.answer(4),
            event=await dispatcher.type("location_update"),
            pong=pongs[0],
        )

        say("pong", pong=await ping(vehicle, "are you there"))

        # What was sent before this answer would have been seen.
        await vehicle_socket.send(request("ping", 5))
        await vehicle.answer(5)
        say("vehicle saw", types=vehicle.types)
        say("ready")

        for client, peer in (("vehicle", vehicle), ("dispatcher", dispatcher)):
            notice = await peer.type("server_shutting_down")
            say("end", client=client, notice=notice, **await peer.end())


asyncio.run(main(sys.argv[1]))
