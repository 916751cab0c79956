//! Peers that keep to the letter and are a nuisance: slow, deaf, or endless.

use std::io::Write;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::Bench;
use super::peer::Got;
use crate::harness::raw::{self, frame, text_frame};

#[test]
fn a_handshake_that_does_not_end() {
    let mut bench = Bench::start_with(|builder| builder.set("limits.handshake_timeout", "500ms"));
    for start in ["", "GET /ws HTT", "GET /ws HTTP/1.1\r\nHost: x\r\nX-"] {
        let mut stream = raw::connect(bench.server.public);
        stream.write_all(start.as_bytes()).unwrap();
        let (answer, _) = raw::read_to_end(&mut stream);
        assert!(!answer.starts_with(b"HTTP/1.1 101"), "{start:?}");
        bench.check("half a handshake");
    }
    // Byte by byte is no way to stay: the time counts from the beginning.
    let mut stream = raw::connect(bench.server.public);
    stream.write_all(b"GET /ws HTTP/1.1\r\nX: ").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < crate::harness::PATIENCE, "still open");
        if stream.write_all(b"y").is_err() {
            break;
        }
        match std::io::Read::read(&mut stream, &mut [0; 1024]) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    bench.check("a handshake byte by byte");
    let line = bench
        .server
        .wait_for_line(|line| line["event"] == "handshake.refused" && line["reason"] == "timeout");
    assert_eq!(line["level"], "WARN", "{line}");
    bench.finish();
}

#[test]
fn frames_byte_by_byte() {
    let mut bench = Bench::start();
    let mut peer = bench.peer();
    for byte in text_frame(r#"{"type":"ping","id":1}"#) {
        peer.send_bytes(&[byte]);
    }
    assert_eq!(peer.recv()["id"], 1);
    drop(peer);
    bench.check("a frame byte by byte");
    bench.finish();
}

/// Resident memory of the server, in bytes.
fn memory(bench: &Bench) -> u64 {
    let pid = bench.server.pid().as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Sends `flood` over and over, never reading, until the server takes no more of it.
fn flood(bench: &mut Bench, name: &str, flood: &[u8]) {
    let mut peer = bench.peer();
    let before = memory(bench);
    peer.stream.set_nonblocking(true).unwrap();
    let mut sent = 0_usize;
    let mut at = 0;
    let mut stuck_since = None;
    // Until the server has stopped reading, or has taken far more than it could keep.
    while sent < 256 << 20 {
        match peer.stream.write(&flood[at..]) {
            Ok(written) => {
                sent += written;
                at = (at + written) % flood.len();
                stuck_since = None;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                // Others are served meanwhile, and that takes its time.
                bench.check(name);
                let since = *stuck_since.get_or_insert_with(Instant::now);
                if since.elapsed() > Duration::from_millis(500) {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    bench.check(name);
    let grown = memory(bench).saturating_sub(before);
    assert!(grown < 32 << 20, "{name}: {grown} bytes more after {sent} bytes of flood");
    assert!(sent < 256 << 20, "{name}: the server goes on reading what is never answered");
}

#[test]
fn floods_whose_answers_nobody_reads() {
    let mut bench = Bench::start();
    flood(&mut bench, "protocol pings", &frame(9, true, &[b'x'; 125]));
    flood(&mut bench, "application pings", &text_frame(r#"{"type":"ping","id":1}"#));
    let leave = json!({ "type": "leave_room", "id": 1, "payload": { "roomId": "nowhere" } });
    flood(&mut bench, "failing requests", &text_frame(&leave.to_string()));
    bench.finish();
}

#[test]
fn many_errors_are_told_fifty_times_a_second() {
    let mut bench = Bench::start();
    let mut peer = bench.peer();
    let bad = text_frame("nonsense").repeat(5000);
    peer.send_bytes(&bad);
    peer.send(&json!({ "type": "ping", "id": "end" }));
    let mut errors = 0;
    while let Got::Message(message) = peer.recv_raw() {
        if message["id"] == "end" {
            break;
        }
        assert_eq!(message["payload"]["code"], "INVALID_JSON", "{message}");
        errors += 1;
    }
    // Fifty, and fifty more for each second that this took.
    assert!((50..=1000).contains(&errors), "{errors}");
    drop(peer);
    bench.check("5000 bad messages");
    bench.finish();
}

#[test]
fn many_connections_that_do_nothing_right() {
    let mut bench = Bench::start();
    for round in 0..200 {
        let mut stream = raw::connect(bench.server.public);
        match round % 4 {
            0 => drop(stream),
            1 => stream.write_all(b"\0\0\0\0").unwrap(),
            2 => stream.write_all(raw::handshake_head("/ws", "").as_bytes()).unwrap(),
            _ => {
                raw::upgrade(&mut stream, "/ws");
                let _ = stream.write_all(&[0xff; 64]);
            }
        }
    }
    bench.check("200 bad connections");
    bench.finish();
}
