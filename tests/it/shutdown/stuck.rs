//! Clients that do not read or do not answer.

use std::time::{Duration, Instant};

use serde_json::json;

use super::peer::{Got, Peer, fix, going_away, notices};
use super::{
    admin, assert_figures, clean_end, closed_at, line_at, report, usual_lines, wait_within_bound,
};
use crate::harness::{PATIENCE, Server};

/// A client that has stopped reading, with its receive window full and more in its queue.
pub(super) fn full_window(server: &Server, client: &str) -> Peer {
    let mut stuck = Peer::connect_with_window(server, client, 4096);
    stuck.join("north");
    let mut publisher = Peer::connect(server, "filler");
    publisher.join("north");
    let deadline = Instant::now() + PATIENCE;
    let mut n = 0;
    // What waits in the server is what the kernels have no room for.
    loop {
        for _ in 0..50 {
            n += 1;
            let mut payload = fix(n, 300);
            payload["roomId"] = json!("north");
            let answer = publisher.request("location_update", payload);
            if answer["type"] != "ack" {
                assert_eq!(answer["payload"]["code"], "RATE_LIMITED", "{answer}");
                std::thread::sleep(Duration::from_millis(
                    answer["payload"]["retryAfterMs"].as_u64().unwrap(),
                ));
            }
        }
        let waiting = admin(server, "GET", "/status").1["queues"]["messages"].as_u64().unwrap();
        if waiting >= 50 {
            break;
        }
        assert!(Instant::now() < deadline, "the window does not fill");
    }
    let mut close = 1000u16.to_be_bytes().to_vec();
    close.extend_from_slice(b"done");
    publisher.send_bytes(&crate::harness::raw::frame(8, true, &close)).unwrap();
    let (_, end) = publisher.read_to_close();
    assert_eq!(end, Got::Close(1000, "done".to_owned()));
    server.wait_for_line(|line| {
        line["event"] == "connection.closed" && line["client_id"] == "filler"
    });
    stuck
}

#[test]
fn one_that_never_reads_with_its_window_full_is_terminated_alone() {
    let mut server = Server::builder().set("limits.message_rate", 0).start();
    let mut healthy = [Peer::connect(&server, "a"), Peer::connect(&server, "b")];
    let mut stuck = full_window(&server, "stuck");
    let signalled = server.terminate();
    for peer in &mut healthy {
        assert_eq!(notices(&peer.leave_well()), 1);
    }
    let report = clean_end(&mut server, signalled);
    assert_eq!(
        server.shutdown_messages(),
        [
            "shutdown: stopping accept",
            "shutdown: notifying 3 clients",
            "shutdown: draining 3 clients",
            "shutdown: closing 2 clients",
            "shutdown: client terminated",
            "shutdown: complete",
        ]
    );
    // The healthy ones did not wait for it.
    for healthy in ["a", "b"] {
        assert!(closed_at(&server, healthy) < line_at(&server, "shutdown.close"));
    }
    let lines = server.shutdown_lines();
    let terminated = &lines[4];
    assert_eq!(terminated["level"], "WARN");
    assert_eq!(terminated["event"], "shutdown.client_terminated");
    assert_eq!(terminated["client_id"], "stuck");
    assert_eq!(terminated["reason"], "not_drained");
    assert_eq!(terminated["peer"], stuck.stream.local_addr().unwrap().to_string());
    assert!(terminated["session_id"].as_str().is_some_and(|id| id.len() > 8), "{terminated}");
    for lost in ["queued_messages", "queued_bytes", "kernel_unacked_bytes"] {
        assert!(terminated[lost].as_u64().unwrap() > 0, "{lost}: {terminated:#}");
    }
    assert!(terminated["elapsed_ms"].as_u64().unwrap() >= 4000, "{terminated:#}");
    assert_figures(
        &report,
        &[
            ("clients_at_start", 3),
            ("notified", 3),
            ("drained", 2),
            ("terminated", 1),
            ("acked", 2),
            ("left_early", 0),
            ("unacked_close", 0),
            ("exit_code", 0),
        ],
    );
    assert_eq!(report["level"], "WARN", "something was lost");
    // What was counted as lost in the line is what the report sums up.
    assert_eq!(report["messages_dropped"], terminated["queued_messages"], "{report:#}");
    assert_eq!(report["bytes_dropped"], terminated["queued_bytes"], "{report:#}");
    assert_eq!(report["kernel_unacked_bytes"], terminated["kernel_unacked_bytes"], "{report:#}");
    // No close frame: the outcome of what it was waiting for is unknown.
    let (messages, end) = stuck.read_to_close();
    assert!(matches!(end, Got::Reset | Got::End), "{end:?}");
    assert_eq!(notices(&messages), 0);
}

#[test]
fn one_that_never_reads_with_room_in_its_window_is_closed_and_waited_for() {
    let mut server = Server::start();
    let mut silent = Peer::connect(&server, "silent");
    let mut healthy = Peer::connect(&server, "healthy");
    let signalled = server.terminate();
    healthy.leave_well();
    never_answers(&mut server, signalled, "silent");
    let (messages, end) = silent.read_to_close();
    assert_eq!(notices(&messages), 1, "{messages:#?}");
    assert_eq!(end, going_away());
}

#[test]
fn one_that_reads_but_never_answers_the_close_is_waited_for() {
    let mut server = Server::start();
    let mut mute = Peer::connect(&server, "mute");
    let mut healthy = Peer::connect(&server, "healthy");
    let signalled = server.terminate();
    healthy.leave_well();
    let (messages, end) = mute.read_to_close();
    assert_eq!(notices(&messages), 1, "{messages:#?}");
    assert_eq!(end, going_away());
    // It has read everything and hears nothing more until the end.
    assert!(matches!(mute.next(), Got::End | Got::Reset));
    assert!(signalled.elapsed() >= Duration::from_secs(5), "its socket is kept for its answer");
    never_answers(&mut server, signalled, "mute");
}

/// The end of a server with two clients, one of which never answers its close frame.
fn never_answers(server: &mut Server, signalled: Instant, client: &str) {
    let exit = wait_within_bound(server, signalled);
    assert_eq!(exit.code, Some(1));
    assert!(exit.at - signalled >= Duration::from_secs(5), "{:?}", exit.at - signalled);
    let mut lines = usual_lines(2);
    lines.truncate(4);
    lines.push("shutdown: client terminated".to_owned());
    lines.push("shutdown: force exit".to_owned());
    assert_eq!(server.shutdown_messages(), lines);
    let lines = server.shutdown_lines();
    assert_eq!(lines[4]["reason"], "close_unacked");
    assert_eq!(lines[4]["client_id"], client);
    assert_eq!(lines[4]["queued_messages"], 0);
    assert_eq!(lines[4]["kernel_unacked_bytes"], 0);
    let report = report(server);
    assert_eq!(report["level"], "ERROR");
    assert_eq!(report["event"], "shutdown.force_exit");
    assert_eq!(report["phase"], "force_exit");
    assert_figures(
        &report,
        &[
            ("clients", 1),
            ("clients_at_start", 2),
            ("notified", 2),
            ("drained", 2),
            ("acked", 1),
            ("unacked_close", 1),
            ("exit_code", 1),
            ("messages_dropped", 0),
            ("kernel_unacked_bytes", 0),
        ],
    );
    assert_eq!(report["log_flushed"], true);
    assert!(report["drain_ms"].as_u64().unwrap() < super::EARLY_MS, "{report:#}");
    assert!(closed_at(server, "healthy") < line_at(server, "shutdown.client_terminated"));
}
