//! Nobody there, and clients that do what they should.

use std::io::Write;

use serde_json::json;

use super::peer::{Got, Peer, going_away, notices};
use super::{admin, assert_figures, clean_end, closed_at, http, line_at, usual_lines};
use crate::harness::{Server, raw};

#[test]
fn without_clients_nothing_is_waited_for() {
    let mut server = Server::start();
    let signalled = server.terminate();
    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(0));
    assert_figures(
        &report,
        &[
            ("clients_at_start", 0),
            ("notified", 0),
            ("drained", 0),
            ("terminated", 0),
            ("acked", 0),
        ],
    );
    assert_eq!(report["level"], "INFO");
    assert_eq!(report["log_flushed"], true);
    // Each phase has a deadline 100 ms or more away: less means that none was waited for.
    for (phase, deadline) in
        [("stop_accepting_ms", 100), ("notify_ms", 400), ("drain_ms", 3500), ("close_ms", 1000)]
    {
        assert!(report[phase].as_u64().unwrap() < deadline, "{report:#}");
    }
    assert!(std::net::TcpStream::connect(server.public).is_err());
    assert!(std::net::TcpStream::connect(server.admin).is_err());
}

#[test]
fn healthy_clients_are_told_drained_and_closed() {
    let mut server = Server::start();
    let mut peers = [Peer::connect(&server, "a"), Peer::connect(&server, "b")];
    for peer in &mut peers {
        peer.join("north");
    }
    let signalled = server.terminate();
    let mut waits = Vec::new();
    for peer in &mut peers {
        let messages = peer.leave_well();
        assert_eq!(notices(&messages), 1, "{messages:#?}");
        let notice = &messages.iter().find(|m| m["type"] == "server_shutting_down").unwrap();
        let notice = &notice["payload"];
        assert_eq!(notice["reason"], "shutdown");
        assert_eq!(notice["resume"], true);
        let closes_in = notice["closesInMs"].as_u64().unwrap();
        assert!((1..=3900).contains(&closes_in), "{notice}");
        waits.push(notice["reconnectIn"].as_f64().unwrap());
        // Nobody is told of those who leave because of the shutdown.
        assert!(!messages.iter().any(|m| m["type"] == "member_left"), "{messages:#?}");
    }
    waits.sort_by(f64::total_cmp);
    assert_eq!(waits, [1.0, 1.0005], "even slots, 2,000 a second, from reconnect_min on");

    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(2));
    assert_figures(
        &report,
        &[
            ("clients_at_start", 2),
            ("notified", 2),
            ("drained", 2),
            ("terminated", 0),
            ("acked", 2),
            ("left_early", 0),
            ("unacked_close", 0),
            ("messages_dropped", 0),
            ("bytes_dropped", 0),
            ("held_notifications_dropped", 0),
            ("kernel_unacked_bytes", 0),
            ("requests_completed", 0),
            ("requests_refused", 0),
            ("exit_code", 0),
            ("deadline_ms", 5000),
        ],
    );
    assert_eq!(report["level"], "INFO");
    assert_eq!(report["broker_flushed"], true);
    // Phases 1 and 2 last while somebody is there, phase 3 ends with the last one drained.
    assert!(report["stop_accepting_ms"].as_u64().unwrap() >= 99, "{report:#}");
    assert!(report["notify_ms"].as_u64().unwrap() >= 390, "{report:#}");
    assert!(report["drain_ms"].as_u64().unwrap() < super::EARLY_MS, "{report:#}");
    assert!(report["close_ms"].as_u64().unwrap() < super::EARLY_MS, "{report:#}");
}

#[test]
fn every_line_has_the_fields_of_the_contract() {
    let mut server = Server::start();
    let mut peer = Peer::connect(&server, "a");
    assert_eq!(peer.request("ping", json!({}))["type"], "pong");
    let signalled = server.terminate();
    let messages = peer.leave_well();
    let report = clean_end(&mut server, signalled);
    // After the signal came the notice and the close frame.
    assert_eq!(messages.len(), 1, "{messages:#?}");
    assert_eq!(report["messages_flushed"], 2, "{report:#}");
    let close_frame = 2 + 2 + "server shutting down".len() as u64;
    assert!(report["bytes_flushed"].as_u64().unwrap() > 100 + close_frame, "{report:#}");
    let lines = server.shutdown_lines();
    let instance = server.wait_for("server.ready")["instance_id"].clone();
    let wanted = [
        ("shutdown.stop_accepting", "stop_accepting", 100, 1),
        ("shutdown.notify", "notify", 500, 1),
        ("shutdown.drain", "drain", 4000, 1),
        ("shutdown.close", "close", 5000, 1),
        ("shutdown.complete", "complete", 5000, 0),
    ];
    assert_eq!(lines.len(), wanted.len(), "{lines:#?}");
    let mut before = 0;
    for (line, (event, phase, deadline, clients)) in lines.iter().zip(wanted) {
        assert_eq!(line["event"], event);
        assert_eq!(line["phase"], phase);
        assert_eq!(line["deadline_ms"], deadline);
        assert_eq!(line["clients"], clients);
        assert_eq!(line["signal"], "SIGTERM");
        assert_eq!(line["instance_id"], instance);
        assert_eq!(line["level"], "INFO");
        let elapsed = line["elapsed_ms"].as_u64().unwrap();
        assert!(elapsed >= before, "{lines:#?}");
        before = elapsed;
    }
    let begun = |at: usize| lines[at]["elapsed_ms"].as_u64().unwrap();
    assert!(begun(1) >= 100 && begun(2) >= 500, "{lines:#?}");
    assert!(begun(0) < 100, "{lines:#?}");
}

#[test]
fn those_who_leave_at_the_notice_end_the_phase() {
    let mut server = Server::start();
    let mut peer = Peer::connect(&server, "a");
    let signalled = server.terminate();
    peer.wait_for(|message| message["type"] == "server_shutting_down");
    let mut close = 1000u16.to_be_bytes().to_vec();
    close.extend_from_slice(b"bye");
    peer.send_bytes(&raw::frame(8, true, &close)).unwrap();
    assert_eq!(peer.next(), Got::Close(1000, "bye".to_owned()));
    assert_eq!(peer.next(), Got::End);
    let report = clean_end(&mut server, signalled);
    assert_eq!(
        server.shutdown_messages(),
        [
            "shutdown: stopping accept",
            "shutdown: notifying 1 clients",
            "shutdown: draining 0 clients",
            "shutdown: closing 0 clients",
            "shutdown: complete",
        ]
    );
    assert_figures(&report, &[("notified", 1), ("left_early", 1), ("acked", 0), ("drained", 0)]);
    assert!(report["notify_ms"].as_u64().unwrap() < 400, "{report:#}");
}

/// One that is being closed already, with a code of its own, gets neither notice nor 1001.
#[test]
fn one_that_was_refused_with_a_close_code_keeps_it() {
    let mut server = Server::builder()
        .set("auth.mode", "jwt")
        .set("auth.secret", "0123456789012345678901234567890123456789")
        .start();
    let mut stream = raw::connect(server.public);
    raw::upgrade(&mut stream, "/ws");
    let (opcode, payload) = raw::read_frame(&mut stream).unwrap();
    assert_eq!((opcode, &payload[..2]), (8, &4001u16.to_be_bytes()[..]));
    let signalled = server.terminate();
    server.wait_for("shutdown.notify");
    stream.write_all(&raw::frame(8, true, &4001u16.to_be_bytes())).unwrap();
    assert_eq!(raw::read_frame(&mut stream), None, "nothing follows a close frame");
    let report = clean_end(&mut server, signalled);
    assert_figures(&report, &[("terminated", 0), ("unacked_close", 0), ("exit_code", 0)]);
    assert!(report["notify_ms"].as_u64().unwrap() < 400, "{report:#}");
}

#[test]
fn a_lame_duck_works_until_its_time_is_over() {
    let mut server = Server::builder().set("shutdown.lame_duck", "1500ms").start();
    let mut early = Peer::connect(&server, "early");
    let (status, ready) = admin(&server, "GET", "/readyz");
    assert_eq!((status, &ready["reason"]), (200, &json!(null)));

    let signalled = server.terminate();
    let line = server.wait_for("shutdown.lame_duck");
    assert_eq!(line["message"], "shutdown: lame duck");
    assert_eq!(line["phase"], "lame_duck");
    assert_eq!(line["deadline_ms"], 1500);
    assert_eq!(line["clients"], 1);
    let (status, ready) = admin(&server, "GET", "/readyz");
    assert_eq!(status, 503);
    assert_eq!(ready["reason"], "lame_duck");
    assert_eq!(ready["phase"], "lame_duck");
    assert_eq!(http(server.public, "GET", "/readyz").0, 503);
    assert_eq!(admin(&server, "GET", "/livez").0, 200);
    // Upgrades and requests work as ever.
    let mut late = Peer::connect(&server, "late");
    late.join("north");
    let ack = late.request("location_update", json!({ "latitude": 1, "longitude": 2 }));
    assert_eq!(ack["type"], "ack", "{ack}");
    let begun = server.wait_for("shutdown.stop_accepting");
    assert!(begun["elapsed_ms"].as_u64().unwrap() < 100, "t0 is the end of the lame duck");

    for peer in [&mut early, &mut late] {
        assert_eq!(notices(&peer.leave_well()), 1);
    }
    let exit = server.wait();
    assert_eq!(exit.code, Some(0));
    let took = exit.at - signalled;
    assert!(took <= super::BOUND + std::time::Duration::from_millis(1500), "{took:?}");
    let mut lines = vec!["shutdown: lame duck".to_owned()];
    lines.extend(usual_lines(2));
    assert_eq!(server.shutdown_messages(), lines);
    assert!(took >= std::time::Duration::from_millis(1500), "{took:?}");
}

#[test]
fn the_drained_are_closed_while_others_drain_still() {
    let mut server = Server::start();
    let mut healthy = Peer::connect(&server, "healthy");
    let mut stuck = super::stuck::full_window(&server, "stuck");
    let signalled = server.terminate();
    healthy.leave_well();
    // Before the end of the drain phase, which only the stuck one keeps from ending.
    assert!(signalled.elapsed() < std::time::Duration::from_secs(4));
    let (status, body) = admin(&server, "GET", "/status");
    assert_eq!((status, &body["phase"]), (200, &json!("drain")), "{body:#}");
    assert_eq!(body["shutdown"]["drained"], 1, "{body:#}");
    clean_end(&mut server, signalled);
    assert!(closed_at(&server, "healthy") < line_at(&server, "shutdown.close"));
    assert_ne!(stuck.read_to_close().1, going_away());
}
