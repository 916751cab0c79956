//! What does not fit into one frame comes in pages; no frame is too large.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::position_with;
use crate::harness::{Client, Server};

const MAX_FRAME_OUT: usize = 64 << 10;

/// Reads `room_joined` (or `positions`) and the pages behind it; members and vehicles.
async fn pages(client: &mut Client, kind: &str, limit: usize) -> (Vec<String>, Vec<String>, usize) {
    let (mut members, mut vehicles, mut count) = (Vec::new(), Vec::new(), 0);
    let mut expected = kind.to_owned();
    loop {
        let (message, size) = client.recv_sized().await;
        if message["type"].as_str().unwrap().starts_with("member") {
            continue;
        }
        assert_eq!(message["type"], *expected, "{message}");
        assert!(size <= limit, "{size} bytes");
        count += 1;
        let payload = &message["payload"];
        for (list, into) in [("members", &mut members), ("positions", &mut vehicles)] {
            for item in payload[list].as_array().unwrap_or(&Vec::new()) {
                let name = item["vehicleId"].as_str().or(item.as_str()).unwrap();
                into.push(name.to_owned());
            }
        }
        if payload["more"] == false {
            return (members, vehicles, count);
        }
        assert_eq!(payload["more"], true, "{message}");
        expected = "snapshot".to_owned();
    }
}

#[tokio::test]
async fn many_vehicles_come_in_pages() {
    const VEHICLES: usize = 500;
    let server = Server::builder().set("limits.message_rate", 0).start();
    let mut gateway = Client::connect(&server, "gateway").await;
    gateway.join("r").await;
    let mut expected = BTreeSet::new();
    for n in 0..VEHICLES {
        let vehicle = format!("vehicle-{n}");
        let more = json!({ "vehicleId": vehicle, "note": "x".repeat(350) });
        gateway.ask("location_update", position_with(more)).await;
        expected.insert(vehicle);
    }
    for _ in 0..VEHICLES {
        gateway.recv_type("ack").await;
    }

    let mut watcher = Client::connect(&server, "watcher").await;
    watcher.ask("join_room", json!({ "roomId": "r" })).await;
    let (members, vehicles, count) = pages(&mut watcher, "room_joined", MAX_FRAME_OUT).await;
    assert_eq!(members, ["gateway", "watcher"]);
    assert_eq!(vehicles.len(), VEHICLES, "each once");
    assert_eq!(vehicles.into_iter().collect::<BTreeSet<_>>(), expected);
    assert!(count > 3, "{count} pages");

    // The same through `positions`.
    watcher.ask("positions", json!({ "roomId": "r" })).await;
    let (_, vehicles, count) = pages(&mut watcher, "positions", MAX_FRAME_OUT).await;
    assert_eq!(vehicles.len(), VEHICLES, "each once");
    assert_eq!(vehicles.into_iter().collect::<BTreeSet<_>>(), expected);
    assert!(count > 3, "{count} pages");

    // Live events go on behind it.
    gateway.publish(position_with(json!({ "vehicleId": "one more" }))).await;
    let event = watcher.recv_type("location_update").await;
    assert_eq!(event["payload"]["vehicleId"], "one more");
}

#[tokio::test]
async fn many_members_come_in_pages() {
    const LIMIT: usize = 4 << 10;
    let server = Server::builder().set("limits.max_frame_out", "4KiB").start();
    let mut expected = BTreeSet::new();
    let mut clients = Vec::new();
    for n in 0..80 {
        let name = format!("{n:0>120}");
        let mut client = Client::connect(&server, &name).await;
        client.ask("join_room", json!({ "roomId": "r" })).await;
        expected.insert(name);
        clients.push(client);
    }
    for client in &mut clients {
        client.recv_type("room_joined").await;
    }
    let mut watcher = Client::connect(&server, "watcher").await;
    expected.insert("watcher".to_owned());
    watcher.ask("join_room", json!({ "roomId": "r" })).await;
    let (members, vehicles, count) = pages(&mut watcher, "room_joined", LIMIT).await;
    assert_eq!(members.len(), expected.len(), "each once");
    assert_eq!(members.into_iter().collect::<BTreeSet<_>>(), expected);
    assert_eq!(vehicles, [] as [String; 0]);
    assert!(count > 2, "{count} pages");
    // So do the lists of who came.
    drop(clients);
    let mut left = BTreeSet::new();
    while left.len() < 80 {
        let (message, size) = watcher.recv_sized().await;
        assert!(size <= LIMIT, "{size} bytes");
        if message["type"] == "member_left" {
            let names = message["payload"]["members"].as_array().unwrap().clone();
            left.extend(names.into_iter().map(|name: Value| name.as_str().unwrap().to_owned()));
        }
    }
    expected.remove("watcher");
    assert_eq!(left, expected);
}
