//! Joining and leaving rooms: modes, joining again, who hears whom.

use serde_json::{Value, json};

use crate::harness::client::position;
use crate::harness::{Client, Server};

#[tokio::test]
async fn each_mode_gets_what_it_asked_for() {
    let server = Server::start();
    let mut before = Client::connect(&server, "before").await;
    before.join("r").await;
    before.publish(position(1.0, 2.0)).await;

    let mut both = Client::connect(&server, "both").await;
    let joined = both.join_with(json!({ "roomId": "r" })).await["payload"].clone();
    assert_eq!(joined["mode"], "both");
    assert_eq!(joined["members"], json!(["before", "both"]));
    assert_eq!(joined["memberCount"], 2);
    assert_eq!(joined["positions"][0]["vehicleId"], "before");
    assert_eq!(joined["more"], false);
    assert_eq!(joined["recovered"], false);

    let mut subscriber = Client::connect(&server, "subscriber").await;
    let joined = subscriber.join_with(json!({ "roomId": "r", "mode": "subscribe" })).await;
    assert_eq!(joined["payload"]["mode"], "subscribe");
    // It is in the room, but not for publishing.
    subscriber.refused("location_update", position(1.0, 2.0), "NOT_JOINED").await;

    let mut publisher = Client::connect(&server, "publisher").await;
    let joined = publisher.join_with(json!({ "roomId": "r", "mode": "publish" })).await;
    assert_eq!(joined["payload"]["mode"], "publish");
    for nothing in ["members", "positions"] {
        let list = &joined["payload"][nothing];
        assert!(list.as_array().is_none_or(Vec::is_empty), "{joined}");
    }
    publisher.publish(position(3.0, 4.0)).await;
    for client in [&mut both, &mut subscriber] {
        let event = client.recv_type("location_update").await;
        assert_eq!(event["payload"]["vehicleId"], "publisher");
    }
    both.publish(position(5.0, 6.0)).await;
    subscriber.recv_type("location_update").await;
    assert_eq!(publisher.until_pong().await, [] as [Value; 0], "no events in this mode");
}

#[tokio::test]
async fn the_sender_is_the_connection_not_the_identity() {
    let server = Server::start();
    let mut first = Client::connect(&server, "bus").await;
    let mut second = Client::connect(&server, "bus").await;
    first.join("r").await;
    second.join("r").await;
    first.publish(position(1.0, 2.0)).await;
    assert_eq!(second.recv_type("location_update").await["payload"]["clientId"], "bus");
    let own = first.until_pong().await;
    assert!(own.iter().all(|message| message["type"] != "location_update"), "{own:?}");
}

#[tokio::test]
async fn joining_again_replaces_the_first_join() {
    let server = Server::start();
    let mut client = Client::connect(&server, "a").await;
    let mut witness = Client::connect(&server, "w").await;
    witness.join("r").await;
    client.join_with(json!({ "roomId": "r", "mode": "publish" })).await;
    witness.recv_type("member_joined").await;
    let joined = client.join_with(json!({ "roomId": "r", "mode": "subscribe" })).await;
    assert_eq!(joined["payload"]["mode"], "subscribe");
    assert_eq!(joined["payload"]["memberCount"], 2, "{joined}");
    witness.publish(position(1.0, 2.0)).await;
    client.recv_type("location_update").await;
    let joined = client.join_with(json!({ "roomId": "r" })).await;
    assert_eq!(joined["payload"]["memberCount"], 2, "{joined}");
    assert_eq!(joined["payload"]["positions"].as_array().unwrap().len(), 1);
    witness.publish(position(3.0, 4.0)).await;
    client.recv_type("location_update").await;
    assert_eq!(client.until_pong().await, [] as [Value; 0], "each event once");
    // Presence has noticed none of it: the next change is the leave.
    client.request("leave_room", json!({ "roomId": "r" })).await;
    let mut changes = Vec::new();
    while changes.last() != Some(&json!("member_left")) {
        let message = witness.recv().await;
        if message["type"] != "ack" {
            changes.push(message["type"].clone());
        }
    }
    assert_eq!(changes, ["member_left"]);
}

#[tokio::test]
async fn after_leaving_nothing_comes_and_nothing_goes() {
    let server = Server::start();
    let mut client = Client::connect(&server, "a").await;
    let mut other = Client::connect(&server, "b").await;
    client.join("r").await;
    other.join("r").await;
    let left = client.request("leave_room", json!({ "roomId": "r" })).await;
    assert_eq!(left["payload"], json!({ "roomId": "r" }));
    other.publish(position(1.0, 2.0)).await;
    let rest = client.until_pong().await;
    assert!(rest.iter().all(|message| message["type"] != "location_update"), "{rest:?}");
    let mut update = position(1.0, 2.0);
    client.refused("location_update", update.clone(), "NOT_JOINED").await;
    update["roomId"] = json!("r");
    let error = client.refused("location_update", update, "NOT_JOINED").await;
    assert_eq!(error["roomId"], "r");
    let error = client.refused("positions", json!({ "roomId": "r" }), "NOT_JOINED").await;
    assert_eq!(error["roomId"], "r");
}

#[tokio::test]
async fn an_empty_room_keeps_its_positions() {
    let server = Server::start();
    let mut client = Client::connect(&server, "a").await;
    client.join("r").await;
    let ack = client.publish(position(1.0, 2.0)).await;
    client.close().await;
    server.wait_for("connection.closed");
    let mut late = Client::connect(&server, "late").await;
    let joined = late.join("r").await;
    assert_eq!(joined["members"], json!(["late"]));
    assert_eq!(joined["positions"][0]["seq"], ack["rooms"]["r"], "{joined}");
    assert_eq!(joined["positions"][0]["vehicleId"], "a");
}
