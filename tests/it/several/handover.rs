//! One of several instances stops: its clients are served on until they have gone to the
//! others, each in its own time.

use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::{instances, know, numbered, on, positions};
use crate::harness::NatsServer;
use crate::harness::client::Seen;
use crate::harness::{Client, PATIENCE, Server, admin};

const BOUND: Duration = Duration::from_millis(5250);

fn shutting_down() -> Seen {
    Seen::Close(1001, "server shutting down".to_owned())
}

/// Two instances; clients of the first are to come back `after` the notice.
fn two(nats: &NatsServer, after: &str) -> (Server, Server) {
    let first =
        on(nats).set("shutdown.reconnect_min", after).set("shutdown.reconnect_max", after).spawn();
    let second = on(nats).start();
    first.wait_for("server.ready");
    know(&first, 1);
    know(&second, 1);
    (first, second)
}

/// Waits until `count` clients of a server that is being stopped have drained.
fn drained(server: &Server, count: u64) {
    admin::until(
        || admin::status(server)["shutdown"]["drained"].as_u64(),
        |drained| *drained == Some(count),
    );
}

fn report(server: &Server) -> Value {
    server.shutdown_lines().last().unwrap().clone()
}

#[tokio::test]
async fn clients_move_stay_or_leave_and_nothing_is_missed() {
    let nats = NatsServer::start();
    let (mut first, second) = two(&nats, "1500ms");
    let mut publisher = Client::connect(&second, "van").await;
    publisher.join("r").await;
    let mut clients = Vec::new();
    for name in ["moves", "stays", "leaves"] {
        let mut client = Client::connect(&first, name).await;
        client.join("r").await;
        clients.push(client);
    }
    let [mut moves, mut stays, mut leaves] = <[Client; 3]>::try_from(clients).ok().unwrap();
    publisher.publish(numbered(1)).await;
    let mut last = 0;
    for client in [&mut moves, &mut stays, &mut leaves] {
        last = positions(client, 1).await[0].1;
    }

    let signalled = first.terminate();
    for client in [&mut moves, &mut stays, &mut leaves] {
        let notice = client.recv_type("server_shutting_down").await;
        assert_eq!(notice["payload"]["reason"], "shutdown");
        assert!(
            (1.5..2.0).contains(&notice["payload"]["reconnectIn"].as_f64().unwrap()),
            "{notice}"
        );
    }
    leaves.close().await;
    // Drained, and served on: what is published elsewhere is still heard here.
    drained(&first, 2);
    publisher.publish(numbered(2)).await;
    assert_eq!(positions(&mut stays, 1).await[0].0, 2);
    let (_, seen) = positions(&mut moves, 1).await[0];
    // What it asks for it has to ask elsewhere, what it only says is taken.
    let refused = stays.request("positions", json!({ "roomId": "r" })).await;
    assert_eq!(refused["payload"]["code"], "SERVER_DRAINING", "{refused}");
    let mut said = numbered(3);
    said["vehicleId"] = json!("stays");
    stays.send(json!({ "type": "location_update", "payload": said })).await;
    assert_eq!(positions(&mut publisher, 1).await[0].0, 3);

    // Make before break.
    let mut moved = Client::connect(&second, "moves").await;
    let since = json!({ "epoch": second_epoch(&second), "seq": seen });
    let joined = moved.join_with(json!({ "roomId": "r", "since": since })).await;
    assert_eq!(joined["payload"]["recovered"], true, "{joined}");
    assert!(last < seen);
    moves.close().await;
    assert_eq!(positions(&mut moved, 1).await[0].0, 3);

    // The one that ignores the notice is closed at its own time.
    let (_, end) = stays.see_to_end().await;
    assert_eq!(end, shutting_down());
    drop(stays);
    let exit = first.wait();
    let took = exit.at - signalled;
    assert_eq!(exit.code, Some(0), "{:#?}", first.shutdown_lines());
    // 100 ms, the slot, and the hand-over; well before the drain is over.
    assert!(took >= Duration::from_millis(1850) && took <= BOUND, "{took:?}");
    assert_eq!(
        first.shutdown_messages(),
        [
            "shutdown: stopping accept",
            "shutdown: notifying 3 clients",
            "shutdown: draining 2 clients",
            "shutdown: closing 1 clients",
            "shutdown: complete",
        ]
    );
    let report = report(&first);
    for (name, value) in
        [("notified", 3), ("drained", 2), ("left_early", 2), ("acked", 1), ("terminated", 0)]
    {
        assert_eq!(report[name], value, "{name} in {report:#}");
    }
    assert_eq!((&report["broker_flushed"], &report["log_flushed"]), (&json!(true), &json!(true)));
    // The other heard of it in time, and nobody is lost.
    know(&second, 0);
    let lines = second.lines();
    assert!(lines.iter().all(|line| line["event"] != "cluster.instance_lost"), "{lines:#?}");
}

fn second_epoch(server: &Server) -> Value {
    admin::status(server)["log"]["epoch"].clone()
}

#[tokio::test]
async fn the_hand_over_ends_with_the_drain() {
    let nats = NatsServer::start();
    let (mut first, _second) = two(&nats, "60s");
    let mut client = Client::connect(&first, "a").await;
    client.join("r").await;
    let signalled = first.terminate();
    let (_, end) = client.see_to_end().await;
    assert_eq!(end, shutting_down());
    let exit = first.wait();
    let took = exit.at - signalled;
    assert_eq!(exit.code, Some(0), "{:#?}", first.shutdown_lines());
    assert!(took >= Duration::from_millis(4000) && took <= BOUND, "{took:?}");
    let report = report(&first);
    assert_eq!(
        (&report["drained"], &report["terminated"], &report["acked"]),
        (&json!(1), &json!(0), &json!(1))
    );
}

#[tokio::test]
async fn the_last_one_has_nobody_to_hand_over_to() {
    let nats = NatsServer::start();
    let mut server = on(&nats).start();
    let mut client = Client::connect(&server, "a").await;
    client.join("r").await;
    server.terminate();
    let notice = client.recv_type("server_shutting_down").await;
    assert_eq!(notice["payload"]["reconnectIn"], 1, "{notice}");
    let (_, end) = client.see_to_end().await;
    assert_eq!(end, shutting_down());
    assert_eq!(server.wait().code, Some(0));
    let report = report(&server);
    assert_eq!(report["broker_flushed"], true);
    assert!(report["drain_ms"].as_u64().unwrap() < 2500, "closed once drained: {report:#}");
}

#[tokio::test]
async fn with_nobody_there_it_takes_leave_at_once() {
    let nats = NatsServer::start();
    let mut servers = instances(&nats, 2);
    // What it says to the others, heard as they hear it.
    let witness = async_nats::connect(nats.url()).await.unwrap();
    let mut said = witness.subscribe("milepost.instance").await.unwrap();
    witness.flush().await.unwrap();
    let instance = admin::status(&servers[0])["instanceId"].as_str().unwrap().to_owned();
    let signalled = servers[0].terminate();
    let exit = servers[0].wait();
    assert_eq!(exit.code, Some(0), "{:#?}", servers[0].shutdown_lines());
    assert!(exit.at - signalled < Duration::from_millis(2500));
    // Flushed before the end of the process: it is there already, behind what came before.
    let bye = async {
        while let Some(message) = said.next().await {
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            if text.contains("bye") && text.contains(&instance) {
                return true;
            }
        }
        false
    };
    assert!(tokio::time::timeout(PATIENCE, bye).await.unwrap());
    know(&servers[1], 0);
}

#[tokio::test]
async fn an_admin_drain_hands_over_too() {
    let nats = NatsServer::start();
    let (first, second) = two(&nats, "0ms");
    let mut publisher = Client::connect(&second, "van").await;
    publisher.join("r").await;
    let mut client = Client::connect(&first, "a").await;
    client.join("r").await;
    assert_eq!(admin::call(first.admin, "POST", "/drain?rate=10").0, 200);
    let notice = client.recv_type("server_shutting_down").await;
    assert_eq!(
        (&notice["payload"]["reason"], &notice["payload"]["closesInMs"]),
        (&json!("drain"), &json!(3500))
    );
    assert!(notice["payload"]["reconnectIn"].as_f64().unwrap() <= 1.0, "{notice}");
    // Served on for 250 ms at least.
    publisher.publish(numbered(1)).await;
    assert_eq!(positions(&mut client, 1).await[0].0, 1);
    let (_, end) = client.see_to_end().await;
    assert_eq!(end, shutting_down());
    assert_eq!(admin::call(first.admin, "DELETE", "/drain").0, 200);
    // It is there again for the other's clients.
    know(&second, 1);
    let other = admin::until(
        || admin::status(&second)["others"][0].clone(),
        |other| other["draining"] == false,
    );
    assert_eq!(other["draining"], false);
}
