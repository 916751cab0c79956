//! One room on several instances: every position once and in order, resume anywhere,
//! members together.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{instances, numbered, numbers, on, positions};
use crate::harness::nats::NatsServer;
use crate::harness::{Client, Server};

/// A position on its way between instances, and what is between them.
const AT_MOST_LOST_AFTER: Duration = Duration::from_secs(3);
/// For changes that are collected, and for a busy machine.
const SLACK: Duration = Duration::from_millis(1500);

#[tokio::test]
async fn what_one_takes_the_others_tell_once_and_in_order() {
    let nats = NatsServer::start();
    let servers = instances(&nats, 3);
    let mut publisher = Client::connect(&servers[0], "van").await;
    publisher.join("r").await;
    let mut watchers = Vec::new();
    for server in &servers {
        let mut watcher = Client::connect(server, "desk").await;
        watcher.join("r").await;
        watchers.push(watcher);
    }
    let mut acknowledged = Vec::new();
    for n in 1..=60 {
        let ack = publisher.publish(numbered(n)).await;
        acknowledged.push((n, ack["rooms"]["r"].as_u64().unwrap()));
    }
    for watcher in &mut watchers {
        assert_eq!(positions(watcher, 60).await, acknowledged);
        let rest = watcher.until_pong().await;
        assert!(rest.iter().all(|message| message["type"] != "location_update"), "{rest:?}");
    }
    // The publisher hears nothing of its own.
    let own = publisher.until_pong().await;
    assert!(own.iter().all(|message| message["type"] != "location_update"), "{own:?}");
}

#[tokio::test]
async fn publishers_of_several_instances_share_one_order() {
    let nats = NatsServer::start();
    let servers = instances(&nats, 2);
    let mut watchers = Vec::new();
    for server in &servers {
        let mut watcher = Client::connect(server, "desk").await;
        watcher.join("r").await;
        watchers.push(watcher);
    }
    let mut publishers = Vec::new();
    for (n, server) in servers.iter().enumerate() {
        let mut publisher = Client::connect(server, &format!("van-{n}")).await;
        publisher.join("r").await;
        publishers.push(publisher);
    }
    // A pipelined burst from both at once.
    for n in 1..=40 {
        for publisher in &mut publishers {
            publisher.ask("location_update", numbered(n)).await;
        }
    }
    let first = positions(&mut watchers[0], 80).await;
    assert!(first.is_sorted_by_key(|(_, seq)| *seq), "{first:?}");
    assert_eq!(positions(&mut watchers[1], 80).await, first, "the same order everywhere");
}

#[tokio::test]
async fn a_resume_holds_on_another_instance() {
    let nats = NatsServer::start();
    let servers = instances(&nats, 2);
    let mut publisher = Client::connect(&servers[0], "van").await;
    publisher.join("r").await;
    let mut watcher = Client::connect(&servers[0], "desk").await;
    let joined = watcher.join("r").await;
    for n in 1..=5 {
        publisher.publish(numbered(n)).await;
    }
    let (_, seen) = *positions(&mut watcher, 5).await.last().unwrap();
    watcher.close().await;
    for n in 6..=12 {
        publisher.publish(numbered(n)).await;
    }
    let mut watcher = Client::connect(&servers[1], "desk").await;
    let since = json!({ "epoch": joined["epoch"], "seq": seen });
    let answer = watcher.join_with(json!({ "roomId": "r", "since": since })).await;
    assert_eq!(answer["payload"]["recovered"], true, "{answer}");
    assert_eq!(answer["payload"]["epoch"], joined["epoch"]);
    publisher.publish(numbered(13)).await;
    let missed: Vec<u64> = positions(&mut watcher, 8).await.iter().map(|(n, _)| *n).collect();
    assert_eq!(missed, (6..=13).collect::<Vec<_>>());

    // The past is the same, too.
    let history = watcher.request("history", json!({ "roomId": "r" })).await;
    assert_eq!(history["type"], "history", "{history}");
    let past: Vec<u64> = history["payload"]["positions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|position| position["n"].as_u64().unwrap())
        .collect();
    assert_eq!(past, (1..=13).collect::<Vec<_>>());
    // And so is what was seen already.
    let mut publisher = Client::connect(&servers[1], "van").await;
    publisher.join("r").await;
    let mut keyed = numbered(14);
    keyed["key"] = json!("k");
    let first = publisher.publish(keyed.clone()).await;
    let mut again = Client::connect(&servers[0], "van").await;
    again.join("r").await;
    let second = again.publish(keyed).await;
    assert_eq!((&second["duplicate"], &second["rooms"]), (&json!(true), &first["rooms"]));
}

/// The next change of presence in the room.
async fn change(client: &mut Client) -> Value {
    client.recv_where(|message| message["type"].as_str().unwrap().starts_with("member")).await
}

/// Reads changes until one names `member`.
async fn change_of(client: &mut Client, member: &str) -> Value {
    loop {
        let change = change(client).await;
        if change["payload"]["members"].as_array().unwrap().contains(&json!(member)) {
            return change;
        }
    }
}

#[tokio::test]
async fn members_are_those_of_all_instances() {
    let nats = NatsServer::start();
    let servers = instances(&nats, 2);
    let mut here = Client::connect(&servers[0], "here").await;
    here.join("r").await;
    let mut there = Client::connect(&servers[1], "there").await;
    there.join("r").await;
    assert_eq!(change_of(&mut here, "there").await["type"], "member_joined");

    let mut third = Client::connect(&servers[0], "third").await;
    let joined = third.join("r").await;
    assert_eq!(joined["members"], json!(["here", "there", "third"]), "{joined}");
    assert_eq!(change_of(&mut there, "third").await["type"], "member_joined");
    third.request("leave_room", json!({ "roomId": "r" })).await;
    let left = change_of(&mut there, "third").await;
    assert_eq!(
        (&left["type"], &left["payload"]["reason"]),
        (&json!("member_left"), &json!("left"))
    );
}

#[tokio::test]
async fn the_members_of_a_killed_instance_leave_once() {
    let nats = NatsServer::start();
    let mut servers = instances(&nats, 2);
    let mut here = Client::connect(&servers[0], "here").await;
    here.join("r").await;
    let mut lost = Vec::new();
    for name in ["a", "b"] {
        let mut client = Client::connect(&servers[1], name).await;
        client.join("r").await;
        change_of(&mut here, name).await;
        lost.push(client);
    }
    let killed = Instant::now();
    servers[1].signal(Signal::KILL);
    servers[1].wait();
    let left = change(&mut here).await;
    let took = killed.elapsed();
    assert_eq!(left["type"], "member_left", "{left}");
    assert_eq!(left["payload"]["reason"], "instance_lost");
    assert_eq!(left["payload"]["members"], json!(["a", "b"]));
    assert!(took <= AT_MOST_LOST_AFTER + SLACK, "{took:?}");
    servers[0].wait_for("cluster.instance_lost");
    // Nothing follows, and who comes now is told of nobody else.
    let mut next = Client::connect(&servers[0], "next").await;
    assert_eq!(next.join("r").await["members"], json!(["here", "next"]));
    assert_eq!(change(&mut here).await["payload"]["members"], json!(["next"]));
    let lines = servers[0].lines();
    let lost = lines.iter().filter(|line| line["event"] == "cluster.instance_lost").count();
    assert_eq!(lost, 1);
}

#[tokio::test]
async fn a_newcomer_knows_what_was_there_before() {
    let nats = NatsServer::start();
    let first = on(&nats).start();
    let mut publisher = Client::connect(&first, "van").await;
    publisher.join("r").await;
    for n in 1..=3 {
        publisher.publish(numbered(n)).await;
    }
    let second: Server = on(&nats).start();
    super::know(&second, 1);
    let mut watcher = Client::connect(&second, "desk").await;
    let joined = watcher.join("r").await;
    assert_eq!(joined["positions"].as_array().unwrap().len(), 1, "{joined}");
    assert_eq!(joined["positions"][0]["n"], 3);
    publisher.publish(numbered(4)).await;
    assert_eq!(numbers(&watcher.recv_type("location_update").await).0, 4);
}
