//! A room log that hangs while the server stops: another program holds the database.

use std::time::Duration;

use serde_json::json;

use super::peer::{Got, Peer, fix, going_away, notices};
use super::{
    EARLY_MS, assert_figures, clean_end, closed_at, line_at, report, room_log, stored,
    wait_within_bound,
};
use crate::harness::Server;

/// Keeps the server from writing its room log until this is dropped.
fn hold(server: &Server) -> rusqlite::Connection {
    let connection = room_log(server);
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
    connection
}

#[test]
fn a_request_that_is_never_answered_and_a_log_that_cannot_be_flushed() {
    let mut server = Server::start();
    let mut vehicle = Peer::connect(&server, "vehicle");
    vehicle.join("north");
    let mut idle = Peer::connect(&server, "idle");
    idle.join("north");
    let held = hold(&server);
    let mut payload = fix(1, 10);
    payload["roomId"] = json!("north");
    vehicle.ask("location_update", payload);
    // The server has it: what came behind it is answered.
    assert_eq!(vehicle.request("ping", json!({}))["type"], "pong");
    let signalled = server.terminate();
    assert_eq!(notices(&idle.leave_well()), 1);
    let (messages, end) = vehicle.read_to_close();
    assert!(matches!(end, Got::Reset | Got::End), "the outcome is unknown, so no close: {end:?}");
    assert_eq!(notices(&messages), 1);
    assert!(messages.iter().all(|message| message["id"].is_null()), "{messages:#?}");

    let exit = wait_within_bound(&mut server, signalled);
    drop(held);
    assert_eq!(exit.code, Some(1));
    assert_eq!(
        server.shutdown_messages(),
        [
            "shutdown: stopping accept",
            "shutdown: notifying 2 clients",
            "shutdown: draining 2 clients",
            "shutdown: closing 1 clients",
            "shutdown: client terminated",
            "shutdown: force exit",
        ]
    );
    let lines = server.shutdown_lines();
    assert_eq!(lines[4]["reason"], "request_unanswered");
    assert_eq!(lines[4]["client_id"], "vehicle");
    assert!(closed_at(&server, "idle") < line_at(&server, "shutdown.close"));
    let report = report(&server);
    assert_eq!(report["log_flushed"], false);
    assert_figures(
        &report,
        &[("terminated", 1), ("drained", 1), ("acked", 1), ("clients", 0), ("unacked_close", 0)],
    );
}

#[test]
fn a_request_that_is_answered_late_is_waited_for() {
    let mut server = Server::start();
    let mut vehicle = Peer::connect(&server, "vehicle");
    vehicle.join("north");
    let held = hold(&server);
    let mut payload = fix(1, 10);
    payload["roomId"] = json!("north");
    let id = vehicle.ask("location_update", payload);
    assert_eq!(vehicle.request("ping", json!({}))["type"], "pong");
    let signalled = server.terminate();
    server.wait_for("shutdown.drain");
    assert!(!super::admin(&server, "GET", "/status").1["shutdown"].is_null());
    drop(held);
    let messages = vehicle.leave_well();
    let answer = messages.iter().find(|message| message["id"] == id);
    assert_eq!(answer.expect("closed before its answer")["type"], "ack");
    let report = clean_end(&mut server, signalled);
    assert_figures(&report, &[("requests_completed", 1), ("requests_refused", 0), ("drained", 1)]);
    assert_eq!(stored(&server, "vehicle"), 1);
}

/// A join that waits for its room to be read is a subscription: the drain does not wait
/// for it, it is undone and refused in front of the close frame.
#[test]
fn a_subscription_is_not_waited_for() {
    let mut server = Server::start();
    let mut publisher = Peer::connect(&server, "publisher");
    publisher.join("north");
    let mut joiner = Peer::connect(&server, "joiner");
    let held = hold(&server);
    // The log's writer waits with this one, and what comes behind it waits too.
    publisher.send_bytes(&super::peer::notification("north", 1, 10)).unwrap();
    assert_eq!(publisher.request("ping", json!({}))["type"], "pong");
    let id = joiner.ask("join_room", json!({ "roomId": "south" }));
    assert_eq!(joiner.request("ping", json!({}))["type"], "pong");

    let signalled = server.terminate();
    let (messages, end) = joiner.read_to_close();
    assert_eq!(end, going_away());
    assert!(signalled.elapsed() < Duration::from_millis(500 + EARLY_MS));
    assert_eq!(notices(&messages), 1);
    let answers: Vec<_> = messages.iter().filter(|message| message["id"] == id).collect();
    assert_eq!(answers.len(), 1, "{messages:#?}");
    assert_eq!(answers[0]["payload"]["code"], "SERVER_DRAINING", "{answers:#?}");
    assert_eq!(answers[0]["payload"]["type"], "join_room");
    joiner.acknowledge();
    assert_eq!(joiner.next(), Got::End);
    publisher.leave_well();
    drop(held);
    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), super::usual_lines(2));
    assert!(report["drain_ms"].as_u64().unwrap() < EARLY_MS, "{report:#}");
    assert_figures(&report, &[("drained", 2), ("requests_refused", 1), ("requests_completed", 0)]);
    assert_eq!(stored(&server, "publisher"), 1, "accepted positions are committed");
}
