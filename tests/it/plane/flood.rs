//! One that pipelines requests and does not read the answers: it stops itself, and nobody
//! else notices.
//!
//! `PLANE_FLOOD=1000000` sets how many requests it sends.

use std::io::Write;
use std::time::Duration;
use tokio::time::Instant;

use serde_json::json;

use super::pipe::Pipe;
use super::{fix, memory, pause, resume, status_where};
use crate::harness::{Server, raw};

/// What the process may grow by because of one flooder, beyond what it may hold.
const BOUND: u64 = 32 << 20;

fn requests() -> u64 {
    std::env::var("PLANE_FLOOD").map_or(60_000, |count| count.parse().unwrap())
}

/// Pipelines requests without an end in sight until all are written or the socket fails.
fn flood(pipe: &Pipe, count: u64) -> std::thread::JoinHandle<std::io::Result<()>> {
    let mut socket = pipe.socket();
    socket.set_write_timeout(None).unwrap();
    std::thread::spawn(move || {
        for from in (0..count).step_by(500) {
            let mut bytes = Vec::new();
            for id in from..count.min(from + 500) {
                let text =
                    format!(r#"{{"type":"positions","id":{id},"payload":{{"roomId":"nowhere"}}}}"#);
                bytes.extend(raw::text_frame(&text));
            }
            socket.write_all(&bytes)?;
        }
        Ok(())
    })
}

/// The id and the outcome of an answer, without reading all of it.
fn glance(text: &str) -> (u64, &str) {
    let after = |name: &str, end: char| {
        let (_, rest) = text.split_once(name).unwrap();
        rest.split_once(end).unwrap().0
    };
    (after("\"id\":", ',').parse().unwrap(), after("\"code\":\"", '"'))
}

fn high_water(status: &serde_json::Value) -> bool {
    status["queues"]["maxBytes"].as_u64().unwrap() > 200 * 1024
}

/// Another connection works all the same; returns the slowest of its answers.
fn others_work(other: &mut Pipe, paused: bool) -> Duration {
    let mut slowest = Duration::ZERO;
    for n in 0..50 {
        let at = Instant::now();
        if paused {
            assert!(other.until_pong().is_empty());
        } else {
            assert_eq!(other.request("location_update", n, fix(n))["type"], "ack");
        }
        slowest = slowest.max(at.elapsed());
    }
    slowest
}

#[allow(clippy::print_stdout, reason = "the figures are for whoever runs it by hand")]
fn a_flood_that_is_read_in_the_end(paused: bool) {
    let count = requests();
    let server = Server::builder()
        .set("limits.message_rate", 0)
        .set("outgoing.slow_timeout", "10m")
        .set("heartbeat.timeout", "10m")
        .start();
    let mut other = Pipe::connect(&server, "other");
    other.join("r");
    let mut flooder = Pipe::connect(&server, "flooder");
    if paused {
        pause(&server);
    }
    let before = memory(&server, "VmRSS");
    let started = Instant::now();
    let writing = flood(&flooder, count);
    // The server has stopped reading: the answers have nowhere to go.
    let status = status_where(&server, high_water);
    assert!(status["queues"]["maxBytes"].as_u64().unwrap() < 2 << 20, "{status:#}");
    let slowest = others_work(&mut other, paused);

    let reading = std::thread::spawn(move || {
        let held = if paused { 10_000 } else { 0 };
        for id in held..count {
            let text = flooder.recv_text();
            let outcome = if paused { "SERVER_BUSY" } else { "NOT_JOINED" };
            assert_eq!(glance(&text), (id, outcome), "in their order");
        }
        flooder
    });
    let slowest = slowest.max(others_work(&mut other, paused));
    let mut flooder = reading.join().unwrap();
    writing.join().unwrap().unwrap();
    if paused {
        resume(&server);
        for id in 0..10_000 {
            assert_eq!(glance(&flooder.recv_text()), (id, "NOT_JOINED"));
        }
    }
    assert!(flooder.until_pong().is_empty(), "each was answered once");
    let grown = memory(&server, "VmHWM").saturating_sub(before);
    println!(
        "{count} requests, paused: {paused}, in {:?}: RSS {before} + {grown} at its peak; the \
         slowest answer of another connection took {slowest:?}",
        started.elapsed()
    );
    assert!(grown < BOUND, "{grown}");
}

#[test]
fn a_flood_while_the_plane_is_open() {
    a_flood_that_is_read_in_the_end(false);
}

#[test]
fn a_flood_while_the_plane_is_paused() {
    a_flood_that_is_read_in_the_end(true);
}

#[test]
fn one_that_never_reads_is_closed_as_slow() {
    for paused in [false, true] {
        let server = Server::builder()
            .set("limits.message_rate", 0)
            .set("outgoing.slow_timeout", "1s")
            .start();
        let mut other = Pipe::connect(&server, "other");
        other.join("r");
        let mut flooder = Pipe::connect(&server, "flooder");
        if paused {
            pause(&server);
        }
        let before = memory(&server, "VmRSS");
        let writing = flood(&flooder, requests().max(300_000));
        let closed = server.wait_for_line(|line| {
            line["event"] == "connection.closed" && line["client_id"] == "flooder"
        });
        assert_eq!((&closed["code"], &closed["reason"]), (&json!(4008), &json!("slow consumer")));
        // It may have written all or not: what it sends is thrown away until it is gone.
        let _ = writing.join().unwrap();
        others_work(&mut other, paused);
        assert!(memory(&server, "VmHWM") - before < BOUND);
        // What was sent to it before is right; the rest is gone with the connection.
        let mut next = if paused { 10_000 } else { 0 };
        while let Some((1, payload)) = flooder.next_frame() {
            let text = String::from_utf8(payload).unwrap();
            assert_eq!(glance(&text).0, next);
            next += 1;
        }
        if paused {
            status_where(&server, |status| status["held"]["requests"] == 0);
        }
    }
}
