//! Positions: what is taken, what is refused, what is late, and where they go.

use std::time::Duration;

use serde_json::{Value, json};

use super::{from_now, position_with};
use crate::harness::client::position;
use crate::harness::{Client, Server};

async fn pair(server: &Server) -> (Client, Client) {
    let mut watcher = Client::connect(server, "watcher").await;
    watcher.join("r").await;
    let mut vehicle = Client::connect(server, "bus").await;
    vehicle.join("r").await;
    watcher.recv_type("member_joined").await;
    (vehicle, watcher)
}

fn seq(ack: &Value) -> u64 {
    ack["rooms"]["r"].as_u64().unwrap()
}

#[tokio::test]
async fn an_event_has_the_servers_names_and_the_senders_fields() {
    let server = Server::start();
    let (mut vehicle, mut watcher) = pair(&server).await;
    let time = from_now(-5);
    let sent = position_with(json!({
        "altitude": 12.5, "accuracy": 3, "altitudeAccuracy": 4, "speed": null, "heading": 359.9,
        "timestamp": time, "battery": 0.7, "cargo": { "doors": [true, null], "note": "ä🚌" },
        // Names that are the server's.
        "type": "evil", "id": 99, "clientId": "evil", "seq": 1, "epoch": "evil",
        "receivedAt": "evil", "late": true, "key": "k1",
    }));
    let ack = vehicle.publish(sent).await;
    assert_eq!(ack, json!({ "rooms": { "r": seq(&ack) }, "duplicate": false, "late": [] }));
    let event = watcher.recv_type("location_update").await;
    assert_eq!(event.get("id"), None);
    let payload = &event["payload"];
    let received = payload["receivedAt"].as_str().unwrap();
    assert!(received.ends_with('Z') && received.len() == 24, "{received}");
    let stamp: jiff::Timestamp = payload["timestamp"].as_str().unwrap().parse().unwrap();
    assert_eq!(stamp.as_millisecond(), time);
    let expected = json!({
        "roomId": "r", "seq": seq(&ack), "clientId": "bus", "vehicleId": "bus",
        "latitude": 60.0, "longitude": 24.0, "altitude": 12.5, "accuracy": 3,
        "altitudeAccuracy": 4, "speed": null, "heading": 359.9, "battery": 0.7,
        "cargo": { "doors": [true, null], "note": "ä🚌" },
        "timestamp": payload["timestamp"], "receivedAt": received,
    });
    assert_eq!(*payload, expected);

    // Without a time of its own it has the server's; with an offset it is written as UTC.
    vehicle.publish(position(1.0, 2.0)).await;
    let event = watcher.recv_type("location_update").await;
    assert_eq!(event["payload"]["timestamp"], event["payload"]["receivedAt"]);
    let zoned = jiff::Timestamp::now().to_string().replace('Z', "+00:00");
    vehicle.publish(position_with(json!({ "timestamp": zoned }))).await;
    let event = watcher.recv_type("location_update").await;
    assert!(event["payload"]["timestamp"].as_str().unwrap().ends_with('Z'), "{event}");
}

#[tokio::test]
async fn extra_fields_can_be_dropped() {
    let server = Server::builder().set("limits.extra_fields", "drop").start();
    let (mut vehicle, mut watcher) = pair(&server).await;
    vehicle.publish(position_with(json!({ "speed": 3, "driver": "Jane" }))).await;
    let event = watcher.recv_type("location_update").await;
    assert_eq!(event["payload"]["speed"], 3);
    assert_eq!(event["payload"].get("driver"), None);
}

#[tokio::test]
async fn late_positions_are_stored_and_never_sent() {
    let server = Server::start();
    let (mut vehicle, mut watcher) = pair(&server).await;
    let epoch = watcher.join("r").await["epoch"].clone();
    let at = |seconds: i64| position_with(json!({ "timestamp": from_now(seconds) }));
    let first = vehicle.publish(at(-10)).await;
    let late = vehicle.publish(at(-60)).await;
    assert_eq!(late["late"], json!(["r"]), "{late}");
    assert_eq!(late["duplicate"], false);
    assert!(seq(&late) > seq(&first), "{late}");
    let newer = vehicle.publish(at(-5)).await;
    assert_eq!(newer["late"], json!([]));
    for expected in [&first, &newer] {
        let event = watcher.recv_type("location_update").await;
        assert_eq!(event["payload"]["seq"], seq(expected), "{event}");
    }
    // Nor on resume, nor in the snapshot.
    let since = json!({ "epoch": epoch, "seq": seq(&first) });
    let joined = watcher.join_with(json!({ "roomId": "r", "since": since })).await;
    assert_eq!(joined["payload"]["recovered"], true);
    assert_eq!(joined["payload"]["positions"][0]["seq"], seq(&newer));
    let event = watcher.recv_type("location_update").await;
    assert_eq!(event["payload"]["seq"], seq(&newer));
    let rest = watcher.until_pong().await;
    assert!(rest.iter().all(|message| message["type"] != "location_update"), "{rest:?}");
    // But `history` finds it.
    let history = watcher.request("history", json!({ "roomId": "r" })).await;
    let seqs: Vec<&Value> =
        history["payload"]["positions"].as_array().unwrap().iter().map(|p| &p["seq"]).collect();
    assert_eq!(seqs, [&json!(seq(&late)), &json!(seq(&first)), &json!(seq(&newer))]);
    // Another vehicle's times are its own.
    let other = position_with(json!({ "timestamp": from_now(-3600), "vehicleId": "tram" }));
    assert_eq!(vehicle.publish(other).await["late"], json!([]));
}

#[tokio::test]
async fn a_key_is_taken_once_also_after_a_reconnect() {
    let server = Server::start();
    let (mut vehicle, mut watcher) = pair(&server).await;
    let keyed = |latitude: f64| json!({ "latitude": latitude, "longitude": 1, "key": "k" });
    let first = vehicle.publish(keyed(1.0)).await;
    let second = vehicle.publish(keyed(2.0)).await;
    assert_eq!(second, json!({ "rooms": { "r": seq(&first) }, "duplicate": true, "late": [] }));
    drop(vehicle);
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    let third = vehicle.publish(keyed(1.0)).await;
    assert_eq!((seq(&third), &third["duplicate"]), (seq(&first), &json!(true)));
    // The rooms that did not have it are completed.
    vehicle.join("second").await;
    let more = vehicle.publish(keyed(1.0)).await;
    assert_eq!(more["duplicate"], false, "true only if every room had it: {more}");
    assert_eq!(seq(&more), seq(&first));
    assert!(more["rooms"]["second"].is_u64());
    // Keys are the vehicle's own.
    let mut other = keyed(1.0);
    other["vehicleId"] = json!("tram");
    assert_eq!(vehicle.publish(other).await["duplicate"], false);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.push(watcher.recv_type("location_update").await["payload"]["vehicleId"].clone());
    }
    assert_eq!(seen, ["bus", "tram"], "duplicates are not sent again");
}

#[tokio::test]
async fn time_and_place_make_a_duplicate_without_a_key() {
    let server = Server::start();
    let (mut vehicle, _watcher) = pair(&server).await;
    let at = |latitude: f64, time: i64| json!({ "latitude": latitude, "longitude": 1, "timestamp": time });
    let (old, new) = (from_now(-20), from_now(-10));
    let first = vehicle.publish(at(1.0, old)).await;
    let newest = vehicle.publish(at(2.0, new)).await;
    for (again, of) in [(at(2.0, new), &newest), (at(1.0, old), &first)] {
        let ack = vehicle.publish(again).await;
        assert_eq!((seq(&ack), &ack["duplicate"]), (seq(of), &json!(true)), "{ack}");
    }
    let moved = vehicle.publish(at(2.5, new)).await;
    assert_eq!(moved["duplicate"], false, "the same time elsewhere: {moved}");
    // Without a time two are two.
    let one = vehicle.publish(position(5.0, 5.0)).await;
    let two = vehicle.publish(position(5.0, 5.0)).await;
    assert_eq!((&one["duplicate"], &two["duplicate"]), (&json!(false), &json!(false)));
    assert!(seq(&two) > seq(&one));
}

#[tokio::test]
async fn future_fixes_and_null_island_are_refused_unless_allowed() {
    let server = Server::builder().set("limits.max_future_skew", "10s").start();
    let (mut vehicle, _watcher) = pair(&server).await;
    vehicle.publish(position_with(json!({ "timestamp": from_now(5) }))).await;
    let ahead = position_with(json!({ "timestamp": from_now(60) }));
    let error = vehicle.refused("location_update", ahead, "VALIDATION_ERROR").await;
    assert_eq!(error["field"], "timestamp");
    let error = vehicle.refused("location_update", position(0.0, 0.0), "VALIDATION_ERROR").await;
    assert_eq!(error["field"], "latitude");
    drop(vehicle);

    let server = Server::builder().set("limits.accept_null_island", true).start();
    let (mut vehicle, _watcher) = pair(&server).await;
    vehicle.publish(position(0.0, 0.0)).await;
}

#[tokio::test]
async fn several_rooms_get_one_position_each() {
    let server = Server::start();
    let mut vehicle = Client::connect(&server, "bus").await;
    let mut watchers = Vec::new();
    for room in ["a", "b", "c"] {
        let mut watcher = Client::connect(&server, &format!("watches-{room}")).await;
        watcher.join(room).await;
        watchers.push(watcher);
        vehicle.join(room).await;
    }
    // All rooms joined for publishing are the default.
    let ack = vehicle.publish(position(1.0, 2.0)).await;
    assert_eq!(ack["rooms"].as_object().unwrap().len(), 3, "{ack}");
    for (watcher, room) in watchers.iter_mut().zip(["a", "b", "c"]) {
        let event = watcher.recv_type("location_update").await;
        assert_eq!(event["payload"]["roomId"], room);
        assert_eq!(event["payload"]["seq"], ack["rooms"][room]);
    }
    let ack = vehicle.publish(position_with(json!({ "roomId": ["a", "c", "a"] }))).await;
    let mut named: Vec<&String> = ack["rooms"].as_object().unwrap().keys().collect();
    named.sort();
    assert_eq!(named, ["a", "c"]);
    // In all or in none.
    let named = json!({ "roomId": ["a", "elsewhere"] });
    let error = vehicle.refused("location_update", position_with(named), "NOT_JOINED").await;
    assert_eq!(error["roomId"], "elsewhere");
    let ack = vehicle.publish(position_with(json!({ "roomId": "b" }))).await;
    assert_eq!(ack["rooms"].as_object().unwrap().len(), 1);
    let count = |messages: Vec<Value>| {
        messages.iter().filter(|message| message["type"] == "location_update").count()
    };
    let mut counts = Vec::new();
    for watcher in &mut watchers {
        counts.push(count(watcher.until_pong().await));
    }
    assert_eq!(counts, [1, 1, 1]);
}

#[tokio::test]
async fn above_the_rate_a_request_is_told_when_to_come_back() {
    let server =
        Server::builder().set("limits.message_rate", 10).set("limits.message_burst", 5).start();
    let mut client = Client::connect(&server, "a").await;
    let mut other = Client::connect(&server, "b").await;
    let mut limited = None;
    for id in 0..20 {
        client.send(json!({ "type": "leave_room", "id": id, "payload": { "roomId": "r" } })).await;
    }
    for _ in 0..20 {
        let answer = client.recv().await;
        if answer["payload"]["code"] == "RATE_LIMITED" {
            assert_eq!(answer["payload"]["number"], -32014, "{answer}");
            assert_eq!(answer["payload"]["retry"], "later", "{answer}");
            assert_eq!(answer["payload"]["type"], "leave_room", "{answer}");
            limited = answer["payload"]["retryAfterMs"].as_u64();
            assert!(limited.is_some_and(|ms| (1..=100).contains(&ms)), "{answer}");
        } else {
            assert_eq!(answer["payload"]["code"], "NOT_JOINED", "{answer}");
        }
    }
    let wait = limited.expect("20 at once are over a burst of 5");
    // The application's ping is never limited, and the limit is the connection's own.
    assert_eq!(client.until_pong().await, [] as [Value; 0]);
    other.refused("leave_room", json!({ "roomId": "r" }), "NOT_JOINED").await;
    // That long, and the next one passes.
    tokio::time::sleep(Duration::from_millis(wait)).await;
    client.refused("leave_room", json!({ "roomId": "r" }), "NOT_JOINED").await;
}

#[tokio::test]
async fn errors_to_notifications_are_told_fifty_times_a_second() {
    let server = Server::builder().set("limits.message_rate", 0).start();
    let mut client = Client::connect(&server, "a").await;
    let bad = json!({ "type": "location_update", "payload": position(1.0, 2.0) });
    // Until one says how many were not told; that takes the second to pass.
    let (mut sent, mut told, mut suppressed) = (0_u64, 0_u64, None);
    while suppressed.is_none() {
        assert!(sent < 100_000, "{told} of {sent} were told and no word of the rest");
        for _ in 0..100 {
            client.send(bad.clone()).await;
        }
        sent += 100;
        for error in client.until_pong().await {
            assert_eq!(error["payload"]["code"], "NOT_JOINED", "{error}");
            assert_eq!(error.get("id"), None);
            suppressed = suppressed.or(error["payload"]["suppressed"].as_u64());
            told += 1;
            if suppressed.is_none() {
                assert!(told <= 50, "{told} in the first second");
            }
        }
    }
    assert!(suppressed > Some(0));
    // Requests are answered all the same.
    for _ in 0..60 {
        client.refused("leave_room", json!({ "roomId": "r" }), "NOT_JOINED").await;
    }
}
