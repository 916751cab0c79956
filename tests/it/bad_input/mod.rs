//! Malformed, hostile and odd input against the real binary, row by row. After each row the
//! server is up, another connection has noticed nothing, and the log holds no failure.
//!
//! What a row expects is the contract's exact answer, not just "no crash".

mod abuse;
mod close_frames;
mod envelope;
mod frames;
mod handshake;
mod payloads;
mod peer;
mod texts;

use serde_json::json;

use crate::harness::{Server, server::Builder};
use peer::{Got, Peer};

/// A server and a pair of connections that must not notice what the rows do to it.
struct Bench {
    server: Server,
    vehicle: Peer,
    watcher: Peer,
    rows: usize,
}

impl Bench {
    fn start() -> Self {
        Self::start_with(|builder| builder)
    }

    fn start_with(change: impl FnOnce(Builder) -> Builder) -> Self {
        // Rows come faster than an ordinary client sends.
        let builder = Server::builder().set("limits.message_rate", 0);
        let server = change(builder).start();
        let mut vehicle = Peer::connect(server.public, "witness-vehicle");
        let mut watcher = Peer::connect(server.public, "witness");
        for peer in [&mut watcher, &mut vehicle] {
            peer.send(&json!({ "type": "join_room", "id": "join", "payload": { "roomId": "w" } }));
            peer.recv_where(|message| message["id"] == "join");
        }
        Self { server, vehicle, watcher, rows: 0 }
    }

    fn peer(&self) -> Peer {
        Peer::connect(self.server.public, "odd")
    }

    /// Checks that nobody but the row's own connection was affected.
    fn check(&mut self, row: &str) {
        self.rows += 1;
        let number = self.rows;
        let latitude = 1.0 + number as f64 / 1024.0;
        self.vehicle.send(&json!({
            "type": "location_update", "id": number,
            "payload": { "latitude": latitude, "longitude": 2 },
        }));
        let ack = self.vehicle.recv_where(|message| message["id"] == number);
        assert_eq!(ack["type"], "ack", "after {row}: {ack}");
        let seen = self.watcher.recv_where(|message| message["type"] == "location_update");
        assert_eq!(seen["payload"]["latitude"], latitude, "after {row}: {seen}");
        self.watcher.send(&json!({ "type": "ping", "id": number }));
        let pong = self.watcher.recv_where(|message| message["id"] == number);
        assert_eq!(pong["type"], "pong", "after {row}");
        let payload = number.to_be_bytes();
        self.vehicle.send_bytes(&crate::harness::raw::frame(9, true, &payload));
        // Who came and went may stand before it.
        let pong = loop {
            match self.vehicle.recv_raw() {
                Got::Message(message) if message["type"] == "member_joined" => {}
                other => break other,
            }
        };
        assert_eq!(pong, Got::Pong(payload.to_vec()), "after {row}");
    }

    /// Stops the server: it ends cleanly and its log tells of no failure.
    fn finish(mut self) {
        assert!(self.rows > 0);
        drop((self.vehicle, self.watcher));
        self.server.terminate();
        assert_eq!(self.server.wait().code, Some(0));
        for line in self.server.all_lines() {
            assert_ne!(line["level"], "ERROR", "{line}");
            // A task that panicked closes with 1011.
            assert!(line["code"] != 1011 || line["initiator"] == "peer", "{line}");
            assert!(!line.to_string().contains("panicked"), "{line}");
        }
    }
}
