//! `since`: what was missed comes once and in order, or the view is reset.

use serde_json::{Value, json};

use super::position_with;
use crate::harness::client::position;
use crate::harness::{Client, Server};

fn seq(message: &Value) -> u64 {
    message["payload"]["seq"].as_u64().unwrap()
}

#[tokio::test]
async fn what_was_missed_comes_in_order_and_once() {
    let server = Server::start();
    let mut vehicle = Client::connect(&server, "bus").await;
    let mut watcher = Client::connect(&server, "watcher").await;
    vehicle.join("r").await;
    watcher.join("r").await;
    vehicle.publish(position(1.0, 1.0)).await;
    let event = watcher.recv_type("location_update").await;
    let epoch = watcher.join("r").await["epoch"].clone();
    watcher.close().await;

    let mut missed = Vec::new();
    for n in 2..12 {
        let ack = vehicle.publish(position(f64::from(n), 1.0)).await;
        missed.push(ack["rooms"]["r"].as_u64().unwrap());
    }
    let mut again = Client::connect(&server, "watcher").await;
    let since = json!({ "epoch": epoch, "seq": seq(&event) });
    let joined = again.join_with(json!({ "roomId": "r", "since": since })).await;
    assert_eq!(joined["payload"]["recovered"], true, "{joined}");
    assert_eq!(joined["payload"]["seq"], missed[9], "the head: {joined}");
    assert_eq!(joined["payload"]["positions"][0]["latitude"], 11.0, "the newest: {joined}");
    missed.push(vehicle.publish(position(12.0, 1.0)).await["rooms"]["r"].as_u64().unwrap());
    for expected in missed {
        assert_eq!(seq(&again.recv_type("location_update").await), expected);
    }
    let rest = again.until_pong().await;
    assert!(rest.iter().all(|message| message["type"] != "location_update"), "{rest:?}");
}

#[tokio::test]
async fn at_the_head_there_is_nothing_to_replay() {
    let server = Server::start();
    let mut client = Client::connect(&server, "a").await;
    let joined = client.join("r").await;
    let since = json!({ "epoch": joined["epoch"], "seq": joined["seq"] });
    let mut other = Client::connect(&server, "b").await;
    let again = other.join_with(json!({ "roomId": "r", "since": since })).await;
    assert_eq!(again["payload"]["recovered"], true, "{again}");
    assert_eq!(again["payload"]["positions"], json!([]));
}

#[tokio::test]
async fn a_view_that_cannot_be_continued_is_reset() {
    let server = Server::start();
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    for n in 1..4 {
        vehicle.publish(position(f64::from(n), 1.0)).await;
    }
    let mut client = Client::connect(&server, "a").await;
    let joined = client.join("r").await;
    let (epoch, head) = (joined["epoch"].clone(), joined["seq"].as_u64().unwrap());
    for since in [
        json!({ "epoch": "another", "seq": 1 }),
        json!({ "epoch": "", "seq": 0 }),
        json!({ "epoch": epoch, "seq": head + 1 }),
        json!({ "epoch": epoch, "seq": 9_007_199_254_740_991_u64 }),
    ] {
        let joined = client.join_with(json!({ "roomId": "r", "since": since })).await;
        assert_eq!(joined["payload"]["recovered"], false, "{since}: {joined}");
        assert_eq!(joined["payload"]["positions"][0]["latitude"], 3.0, "{joined}");
        assert_eq!(joined["payload"]["seq"], head);
        let rest = client.until_pong().await;
        assert!(rest.iter().all(|message| message["type"] != "location_update"), "{rest:?}");
    }
}

/// A watcher whose connection breaks again and again sees every event once, in order,
/// while positions keep coming.
#[tokio::test]
async fn nothing_is_lost_or_doubled_while_the_room_moves() {
    const COUNT: u32 = 1500;
    let server = Server::builder().set("limits.message_rate", 0).start();
    let mut watcher = Client::connect(&server, "watcher").await;
    let joined = watcher.join("r").await;
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    let publisher = tokio::spawn(async move {
        let mut acked = Vec::new();
        for n in 0..COUNT {
            let ack = vehicle.publish(position_with(json!({ "n": n }))).await;
            acked.push(ack["rooms"]["r"].as_u64().unwrap());
        }
        acked
    });

    let (epoch, mut last) = (joined["epoch"].clone(), joined["seq"].as_u64().unwrap());
    let mut seen = Vec::new();
    let mut reconnects = 0;
    while seen.len() < COUNT as usize {
        let message = watcher.recv().await;
        if message["type"] != "location_update" {
            continue;
        }
        last = seq(&message);
        assert_eq!(message["payload"]["n"], seen.len(), "{message}");
        seen.push(last);
        if seen.len() % 60 == 0 {
            // Gone without a word, in the middle of what is under way.
            drop(watcher);
            reconnects += 1;
            watcher = Client::connect(&server, "watcher").await;
            let since = json!({ "epoch": epoch, "seq": last });
            let joined = watcher.join_with(json!({ "roomId": "r", "since": since })).await;
            assert_eq!(joined["payload"]["recovered"], true, "{joined}");
        }
    }
    assert_eq!(seen, publisher.await.unwrap());
    assert!(reconnects > 10);
    assert!(last > 0);
    let rest = watcher.until_pong().await;
    assert!(rest.iter().all(|message| message["type"] != "location_update"), "{rest:?}");
}
