//! Several instances on one broker, from outside: the real binary two or three times, a
//! nats-server of the test's own, and what clients of one see of clients of another.

mod handover;
mod outage;
mod rooms;
mod starting;

use serde_json::{Value, json};

use crate::harness::nats::NatsServer;
use crate::harness::server::Builder;
use crate::harness::{Client, Server, admin};

/// Settings of an instance on `nats`.
fn on(nats: &NatsServer) -> Builder {
    Server::builder().set("room_log.engine", "nats").set("nats.url", nats.url())
}

/// `count` ready instances that know of each other.
fn instances(nats: &NatsServer, count: usize) -> Vec<Server> {
    let servers: Vec<Server> = (0..count).map(|_| on(nats).spawn()).collect();
    for server in &servers {
        server.wait_for("server.ready");
    }
    for server in &servers {
        know(server, count - 1);
    }
    servers
}

/// Waits until `server` knows of `others` other instances.
fn know(server: &Server, others: usize) {
    admin::until(
        || admin::status(server)["others"].as_array().map(Vec::len),
        |known| *known == Some(others),
    );
}

/// A position with its number in `n`.
fn numbered(n: u64) -> Value {
    json!({ "latitude": 50.0, "longitude": 8.0 + n as f64 / 1e4, "n": n, "roomId": "r" })
}

/// Reads events until `count` positions have come; their numbers and `seq`s.
async fn positions(client: &mut Client, count: usize) -> Vec<(u64, u64)> {
    let mut got = Vec::new();
    while got.len() < count {
        let event = client.recv_type("location_update").await;
        got.push(numbers(&event));
    }
    got
}

/// The number and the `seq` of an event.
fn numbers(event: &Value) -> (u64, u64) {
    let payload = &event["payload"];
    (payload["n"].as_u64().unwrap(), payload["seq"].as_u64().unwrap())
}
