//! Requests, answers and the forms of the old gateway.

use serde_json::{Value, json};

use crate::harness::client::position;
use crate::harness::{Client, Server};

#[tokio::test]
async fn an_id_that_is_still_unanswered_is_refused_without_an_id() {
    let server = Server::builder().set("limits.message_rate", 0).start();
    let mut client = Client::connect(&server, "a").await;
    client.join("r").await;

    // An upload is open until its end: nothing else may have its id.
    client.send(json!({ "type": "backfill_begin", "id": "u", "payload": { "roomId": "r" } })).await;
    let mut update = json!({ "type": "location_update", "id": "u", "payload": position(1.0, 1.0) });
    client.send(update.clone()).await;
    let error = client.recv_type("error").await;
    assert_eq!(error["id"], Value::Null, "{error}");
    assert_eq!(error["payload"]["code"], "VALIDATION_ERROR");
    assert_eq!(error["payload"]["field"], "id");
    assert_eq!(error["payload"]["type"], "location_update");
    client.send(json!({ "type": "backfill_end", "id": "u" })).await;
    let result = client.recv_where(|message| message["id"] == "u").await;
    assert_eq!(result["type"], "backfill_result", "the first request is unaffected");
    // Answered, so it is free again.
    client.send(update.clone()).await;
    assert_eq!(client.recv_where(|message| message["id"] == "u").await["type"], "ack");

    // The same with positions that wait for the log: each is answered, one way or the other.
    update["id"] = json!(7);
    for _ in 0..40 {
        client.send(update.clone()).await;
    }
    let (mut acks, mut errors) = (0, 0);
    while acks + errors < 40 {
        let message = client.recv().await;
        if message["type"] == "ack" {
            assert_eq!(message["id"], 7);
            acks += 1;
        } else {
            assert_eq!(message["id"], Value::Null, "{message}");
            assert_eq!(message["payload"]["field"], "id", "{message}");
            errors += 1;
        }
    }
    assert!(acks > 0, "none was accepted");
}

#[tokio::test]
async fn text_and_number_are_different_ids() {
    let server = Server::start();
    let mut client = Client::connect(&server, "a").await;
    client.join("r").await;
    for id in [json!(1), json!("1")] {
        client
            .send(json!({ "type": "location_update", "id": id, "payload": position(1.0, 2.0) }))
            .await;
    }
    let mut ids =
        [client.recv_type("ack").await["id"].clone(), client.recv_type("ack").await["id"].clone()];
    ids.sort_by_key(|id| id.is_string());
    assert_eq!(ids, [json!(1), json!("1")]);
}

#[tokio::test]
async fn a_null_id_is_none() {
    let server = Server::start();
    let mut client = Client::connect(&server, "a").await;
    client.join("r").await;
    client
        .send(json!({ "type": "location_update", "id": null, "payload": position(1.0, 2.0) }))
        .await;
    assert_eq!(client.until_pong().await, [] as [Value; 0], "a notification has no answer");
    client.send(json!({ "type": "leave_room", "id": null, "payload": { "roomId": "r" } })).await;
    let left = client.recv().await;
    assert_eq!(left, json!({ "type": "room_left", "payload": { "roomId": "r" } }));
}

#[tokio::test]
async fn join_and_leave_without_id_are_answered() {
    let server = Server::start();
    let mut client = Client::connect(&server, "a").await;
    client.send(json!({ "type": "join_room", "payload": { "roomId": "r" } })).await;
    let joined = client.recv().await;
    assert_eq!(joined["type"], "room_joined", "{joined}");
    assert_eq!(joined.get("id"), None, "{joined}");
    assert_eq!(joined["payload"]["roomId"], "r");
    client.send(json!({ "type": "leave_room", "payload": { "roomId": "r" } })).await;
    assert_eq!(client.recv_type("room_left").await.get("id"), None);
    client.send(json!({ "type": "leave_room", "payload": { "roomId": "r" } })).await;
    let error = client.recv().await;
    assert_eq!(error["payload"]["code"], "NOT_JOINED", "{error}");
    assert_eq!(error.get("id"), None, "{error}");
}

#[tokio::test]
async fn the_old_gateways_flat_forms_work() {
    let server = Server::start();
    let mut client = Client::connect(&server, "old").await;
    let mut other = Client::connect(&server, "new").await;
    client.send(json!({ "type": "join_room", "roomId": "r" })).await;
    let joined = client.recv().await;
    assert_eq!(joined["type"], "room_joined", "{joined}");
    let mut names: Vec<&String> = joined["payload"].as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(names, ["epoch", "roomId", "seq"], "{joined}");

    // Old firmware gets positions and nothing else: not who came, not who went.
    other.join("r").await;
    other.publish(position(1.0, 2.0)).await;
    other.request("leave_room", json!({ "roomId": "r" })).await;
    other.join("r").await;
    let mut third = Client::connect(&server, "third").await;
    third.join("r").await;
    // It has been told of the third, so whoever is told of it has been.
    other
        .recv_where(|m| {
            m["type"] == "member_joined" && m["payload"]["members"].to_string().contains("third")
        })
        .await;
    let seen = client.until_pong().await;
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0]["type"], "location_update");

    client.send(json!({ "type": "positions", "id": 1, "roomId": "r" })).await;
    let positions = client.recv().await;
    assert_eq!(positions["type"], "positions", "{positions}");
    assert_eq!(positions["payload"]["positions"][0]["latitude"], 1.0);

    client.send(json!({ "type": "reconnect", "roomId": "r", "fromSeq": 3 })).await;
    let gap = client.recv().await;
    assert_eq!(gap["type"], "replay_gap", "{gap}");
    assert_eq!((&gap["roomId"], &gap["fromSeq"]), (&json!("r"), &json!(3)), "flat: {gap}");
    assert!(gap["currentSeq"].is_u64(), "{gap}");
    assert_eq!(gap.get("payload"), None, "{gap}");

    client.send(json!({ "type": "leave_room", "roomId": "r" })).await;
    assert_eq!(client.recv().await["type"], "room_left");
}

#[tokio::test]
async fn the_welcome_says_what_a_client_needs_to_know() {
    let server = Server::builder()
        .set("limits.max_position", "600B")
        .set("server.generation", "7c9f8d6b5")
        .start();
    let client = Client::connect(&server, "a").await;
    let welcome = &client.welcome;
    assert_eq!(welcome["clientId"], "a");
    assert_eq!(welcome["generation"], "7c9f8d6b5");
    assert_eq!(welcome["protocol"], 1);
    for (name, value) in [
        ("heartbeatMs", 20_000),
        ("heartbeatTimeoutMs", 50_000),
        ("maxFrameBytes", 65_536),
        ("maxFrameOutBytes", 65_536),
        ("maxPositionBytes", 600),
        ("dedupWindowMs", 600_000),
    ] {
        assert_eq!(welcome[name], value, "{name}");
    }
    for name in ["sessionId", "instanceId"] {
        assert!(!welcome[name].as_str().unwrap().is_empty(), "{name}");
    }
    let time = welcome["serverTime"].as_str().unwrap();
    assert_eq!(time.len(), "2026-01-01T00:00:00.000Z".len(), "{time}");
    assert!(time.ends_with('Z') && time.parse::<jiff::Timestamp>().is_ok(), "{time}");
    let second = Client::connect(&server, "a").await;
    assert_ne!(second.welcome["sessionId"], welcome["sessionId"]);
    assert_eq!(second.welcome["instanceId"], welcome["instanceId"]);
}
