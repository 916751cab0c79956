//! Heartbeats, and subscribers that do not read.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::position_with;
use crate::harness::{Client, Server, raw};

#[tokio::test]
async fn a_quiet_connection_is_pinged() {
    let server =
        Server::builder().set("heartbeat.interval", "100ms").set("heartbeat.timeout", "6s").start();
    let mut stream = raw::connect(server.public);
    raw::upgrade(&mut stream, "/ws?clientId=quiet");
    let (opcode, welcome) = raw::read_frame(&mut stream).unwrap();
    assert_eq!(opcode, 1);
    let welcome: Value = serde_json::from_slice(&welcome).unwrap();
    assert_eq!(welcome["payload"]["heartbeatMs"], 100);
    assert_eq!(welcome["payload"]["heartbeatTimeoutMs"], 6000);
    for _ in 0..3 {
        let (opcode, payload) = raw::read_frame(&mut stream).unwrap();
        assert_eq!(opcode, 9, "a ping");
        std::io::Write::write_all(&mut stream, &raw::frame(10, true, &payload)).unwrap();
    }
}

/// A subscriber of room `r` on a socket with a small window, which has read its
/// `room_joined` and reads no more.
fn deaf(server: &Server, client_id: &str) -> TcpStream {
    let mut stream = raw::connect_with_window(server.public, 4096);
    raw::upgrade(&mut stream, &format!("/ws?clientId={client_id}"));
    let join = json!({ "type": "join_room", "id": 1, "payload": { "roomId": "r" } });
    std::io::Write::write_all(&mut stream, &raw::text_frame(&join.to_string())).unwrap();
    loop {
        let (_, payload) = raw::read_frame(&mut stream).unwrap();
        if payload.starts_with(br#"{"type":"room_joined""#) {
            return stream;
        }
    }
}

async fn metric(server: &Server, series: &str) -> f64 {
    let address = server.admin;
    let text = tokio::task::spawn_blocking(move || {
        let mut stream = raw::connect(address);
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    })
    .await
    .unwrap();
    let line = text.lines().find(|line| line.split(' ').next() == Some(series));
    line.unwrap_or_else(|| panic!("no {series} in {text}"))
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Publishes until `done` says so; the vehicle's own connection is never held up.
async fn publish_until(server: &Server, vehicle: &mut Client, series: &str, at_least: f64) {
    let deadline = tokio::time::Instant::now() + crate::harness::PATIENCE;
    let mut n = 0;
    while metric(server, series).await < at_least {
        assert!(tokio::time::Instant::now() < deadline, "{series} stays below {at_least}");
        for _ in 0..50 {
            n += 1;
            let more = json!({ "vehicleId": format!("v{}", n % 200), "note": "x".repeat(300) });
            vehicle.publish(position_with(more)).await;
        }
    }
}

fn small_queues() -> crate::harness::server::Builder {
    Server::builder()
        .set("limits.message_rate", 0)
        .set("outgoing.kernel_buffer", "4KiB")
        .set("outgoing.high_water", "8KiB")
        .set("outgoing.max_bytes", "32KiB")
}

const WAITING: &str = "milepost_outgoing_bytes_max";
const CLOSED: &str = r#"milepost_ladder_steps_total{step="closed"}"#;

#[tokio::test]
async fn who_reads_nothing_for_too_long_is_closed_with_4008() {
    let server = small_queues().set("outgoing.slow_timeout", "1s").start();
    let mut witness = Client::connect(&server, "witness").await;
    witness.join("r").await;
    let witness = tokio::spawn(async move {
        witness.recv_where(|m| m["payload"]["vehicleId"] == "last").await;
    });
    let stream = deaf(&server, "slow");
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    publish_until(&server, &mut vehicle, CLOSED, 1.0).await;
    // It reads again: what was on its way, and the close frame.
    let end = tokio::task::spawn_blocking(move || to_close(stream)).await.unwrap();
    assert_eq!(end, Some((4008, "slow consumer".to_owned())));
    let line =
        server.wait_for_line(|l| l["event"] == "connection.closed" && l["client_id"] == "slow");
    assert_eq!((&line["code"], &line["initiator"]), (&json!(4008), &json!("server")), "{line}");
    // Nobody else has noticed: the witness has them all.
    vehicle.publish(position_with(json!({ "vehicleId": "last" }))).await;
    witness.await.unwrap();
}

/// Reads to the close frame.
fn to_close(mut stream: TcpStream) -> Option<(u16, String)> {
    while let Some((opcode, payload)) = raw::read_frame(&mut stream) {
        if opcode == 8 {
            let code = u16::from_be_bytes([payload[0], payload[1]]);
            return Some((code, String::from_utf8_lossy(&payload[2..]).into_owned()));
        }
    }
    None
}

/// The messages that are to be read until one of this type.
fn read_to(stream: &mut TcpStream, kind: &str) -> Vec<Value> {
    let mut messages = Vec::new();
    loop {
        let (opcode, payload) = raw::read_frame(stream).expect("the stream ended");
        if opcode == 1 {
            let message: Value = serde_json::from_slice(&payload).unwrap();
            let last = message["type"] == kind;
            messages.push(message);
            if last {
                return messages;
            }
        }
    }
}

#[tokio::test]
async fn who_falls_behind_gets_the_newest_and_is_told() {
    let server = small_queues().set("outgoing.slow_timeout", "120s").start();
    let mut stream = deaf(&server, "slow");
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    publish_until(&server, &mut vehicle, WAITING, 100_000.0).await;
    let last = vehicle.publish(position_with(json!({ "vehicleId": "v0", "mark": "last" }))).await;
    let messages =
        tokio::task::spawn_blocking(move || read_to(&mut stream, "caught_up")).await.unwrap();
    let lagging = messages.iter().position(|m| m["type"] == "lagging").unwrap();
    let from = messages[lagging]["payload"]["fromSeq"].as_u64().unwrap();
    let seqs: Vec<u64> = messages
        .iter()
        .filter(|m| m["type"] == "location_update")
        .map(|m| m["payload"]["seq"].as_u64().unwrap())
        .collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "every seq is a point to resume at: {seqs:?}");
    assert!(
        messages[..lagging]
            .iter()
            .filter_map(|m| m["payload"]["seq"].as_u64())
            .all(|seq| seq <= from)
    );
    let caught_up = &messages.last().unwrap()["payload"];
    assert_eq!(caught_up["roomId"], "r");
    assert_eq!(caught_up["seq"], last["rooms"]["r"], "{caught_up}");
    assert_eq!(seqs.last(), caught_up["seq"].as_u64().as_ref());
    // What was left out is what is not there: this room is the only one in the log.
    let dropped = caught_up["dropped"].as_u64().unwrap();
    assert!(dropped > 0, "{caught_up}");
    assert_eq!(seqs.len() as u64 + dropped, caught_up["seq"].as_u64().unwrap() - seqs[0] + 1);
    // One position a vehicle since it began to lag.
    let mut vehicles: Vec<&Value> = messages[lagging..]
        .iter()
        .filter(|m| m["type"] == "location_update")
        .map(|m| &m["payload"]["vehicleId"])
        .collect();
    let all = vehicles.len();
    vehicles.sort_by_key(|v| v.to_string());
    vehicles.dedup();
    assert_eq!(vehicles.len(), all, "each vehicle's newest only");
}

/// Positions can be thinned out for a slow subscriber; other events cannot, so they count.
#[tokio::test]
async fn too_many_events_that_cannot_be_left_out_close_with_4008() {
    let server = small_queues().set("outgoing.slow_timeout", "120s").start();
    let stream = deaf(&server, "slow");
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    // Fill what the kernel holds, and more: but positions alone are never too many.
    publish_until(&server, &mut vehicle, WAITING, 100_000.0).await;
    for _ in 0..5 {
        let mut crowd = Vec::new();
        for n in 0..100 {
            crowd.push(Client::connect(&server, &format!("{n:0>120}")).await);
        }
        for client in &mut crowd {
            client.join_with(json!({ "roomId": "r", "mode": "publish" })).await;
        }
        if metric(&server, CLOSED).await >= 1.0 {
            break;
        }
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while metric(&server, CLOSED).await < 1.0 {
        assert!(tokio::time::Instant::now() < deadline, "never closed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let end = tokio::task::spawn_blocking(move || to_close(stream)).await.unwrap();
    assert_eq!(end, Some((4008, "slow consumer".to_owned())));
}

/// A peer whose kernel still takes pings but that never answers them hangs.
#[tokio::test]
async fn a_hung_peer_is_given_up_although_its_kernel_takes_pings() {
    let server =
        Server::builder().set("heartbeat.interval", "500ms").set("heartbeat.timeout", "6s").start();
    let _hung = deaf(&server, "hung");
    let line = server.wait_for("connection.closed");
    assert_eq!(line["client_id"], "hung", "{line}");
    assert_eq!(line["reason"], "heartbeat timeout", "{line}");
}

/// A subscriber of a busy room is never pinged, because something is always written to it,
/// and so has nothing to answer: that it takes what is sent shows that it lives.
#[tokio::test]
async fn a_subscriber_that_only_reads_is_kept() {
    let server =
        Server::builder().set("heartbeat.interval", "500ms").set("heartbeat.timeout", "6s").start();
    let mut stream = deaf(&server, "reader");
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    let reader = tokio::task::spawn_blocking(move || {
        let (mut pinged, mut events) = (0, 0);
        while let Some((opcode, payload)) = raw::read_frame(&mut stream) {
            pinged += u32::from(opcode == 9);
            events += u32::from(payload.starts_with(br#"{"type":"location_update""#));
        }
        (pinged, events)
    });
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let end = tokio::time::Instant::now() + Duration::from_secs(9);
    let mut published = 0;
    while tokio::time::Instant::now() < end {
        ticks.tick().await;
        vehicle.publish(json!({ "latitude": 1, "longitude": 2, "n": published })).await;
        published += 1;
    }
    let closed = |line: &Value| line["event"] == "connection.closed";
    assert!(!server.lines().iter().any(closed), "{:#?}", server.lines());
    server.terminate();
    let (pinged, events) = reader.await.unwrap();
    assert_eq!((pinged, events), (0, published));
}

/// A peer that is gone without a word: nothing is received from it, and nothing that is
/// sent to it is taken.
#[tokio::test]
async fn a_dead_peer_is_given_up_and_its_room_told_why() {
    let server = Server::builder()
        .set("limits.message_rate", 0)
        .set("outgoing.kernel_buffer", "4KiB")
        .set("outgoing.slow_timeout", "120s")
        .set("heartbeat.interval", "500ms")
        .set("heartbeat.timeout", "6s")
        .start();
    let _stream = deaf(&server, "dead");
    let mut witness = Client::connect(&server, "witness").await;
    witness.join("r").await;
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    publish_until(&server, &mut vehicle, WAITING, 100_000.0).await;
    vehicle.close().await;
    let left = witness.recv_where(|message| message["payload"]["reason"] == "timeout").await;
    assert_eq!(left["payload"]["members"], json!(["dead"]), "{left}");
    let line = server
        .wait_for_line(|line| line["event"] == "connection.closed" && line["client_id"] == "dead");
    assert_eq!((&line["code"], &line["initiator"]), (&json!(1006), &json!("server")), "{line}");
    assert!(line["duration_ms"].as_u64().unwrap() >= 6000, "{line}");
}
