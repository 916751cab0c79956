//! Those who come while the server stops.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::peer::{Peer, going_away};
use super::{admin, clean_end, http, usual_lines, wait_within_bound};
use crate::harness::{PATIENCE, Server, raw};

/// Checks the answer that everybody gets who comes too late.
fn assert_draining(answer: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("no whole head");
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 503"), "{answer}");
    assert!(head.contains("\r\nretry-after: 1"), "{answer}");
    assert!(head.contains("\r\nconnection: close"), "{answer}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["error"], "SERVER_DRAINING", "{answer}");
    assert!(body["message"].is_string(), "{answer}");
}

#[test]
fn a_handshake_byte_by_byte_gets_its_503_and_no_reset() {
    let mut server = Server::start();
    let mut stream = raw::connect(server.public);
    let head = raw::handshake_head("/ws?clientId=slow", "X-Padding: 0123456789\r\n");
    stream.write_all(&head.as_bytes()[..10]).unwrap();
    // The server has accepted it when it has answered one that came later.
    assert_eq!(http(server.public, "GET", "/health").0, 200);
    let mut writer = stream.try_clone().unwrap();
    let answered = AtomicBool::new(false);
    let signalled = thread::scope(|scope| {
        scope.spawn(|| {
            // A byte at a time: through the whole first phase, never done by its end, and
            // some more behind the answer.
            for byte in &head.as_bytes()[10..head.len() - 20] {
                if writer.write_all(&[*byte]).is_err() || answered.load(Ordering::Acquire) {
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let signalled = server.terminate();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("a reset instead of an answer");
        assert_draining(&String::from_utf8(answer).unwrap());
        // It ends its side only now; until then the server reads on.
        let mut writer = stream.try_clone().unwrap();
        writer.write_all(b"more").expect("the server does not read on");
        answered.store(true, Ordering::Release);
        signalled
    });
    stream.shutdown(Shutdown::Write).unwrap();
    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(0));
    assert!(report["stop_accepting_ms"].as_u64().unwrap() >= 99, "it was waited for: {report:#}");
}

#[test]
fn a_half_sent_head_that_is_completed_in_the_first_phase_is_refused() {
    let mut server = Server::builder().set("shutdown.stop_accepting", "450ms").start();
    let mut stream = raw::connect(server.public);
    let head = raw::handshake_head("/ws?clientId=half", "");
    let (first, rest) = head.as_bytes().split_at(40);
    stream.write_all(first).unwrap();
    assert_eq!(http(server.public, "GET", "/health").0, 200);
    let signalled = server.terminate();
    server.wait_for("shutdown.stop_accepting");
    stream.write_all(rest).unwrap();
    let (answer, end) = raw::read_to_end(&mut stream);
    end.expect("a reset instead of an answer");
    assert_draining(&String::from_utf8(answer).unwrap());
    drop(stream);
    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(0));
    assert_eq!(report["clients_at_start"], 0);
}

#[test]
fn one_that_reconnects_during_each_phase_is_refused() {
    // Long phases: what is looked at here is what each one does.
    let mut server = Server::builder()
        .set("shutdown.stop_accepting", "1500ms")
        .set("shutdown.notify", "2500ms")
        .set("shutdown.drain", "3500ms")
        .start();
    let mut mute = Peer::connect(&server, "mute");
    // Keeps the drain phase going to its deadline.
    let stuck = super::stuck::full_window(&server, "stuck");
    let signalled = server.terminate();

    server.wait_for("shutdown.stop_accepting");
    for path in ["/", "/ws?clientId=again"] {
        let mut stream = raw::connect(server.public);
        stream.write_all(raw::handshake_head(path, "").as_bytes()).unwrap();
        let (answer, end) = raw::read_to_end(&mut stream);
        end.unwrap();
        assert_draining(&String::from_utf8(answer).unwrap());
    }
    assert_eq!(http(server.public, "GET", "/health").0, 200);
    let (status, answer) = http(server.public, "GET", "/readyz");
    assert_eq!(status, 503, "{answer}");
    assert!(answer.contains("\"phase\":\"stop_accepting\""), "{answer}");
    assert_not_ready(&server, "stop_accepting", 2);

    for (event, phase, clients) in [
        ("shutdown.notify", "notify", 2),
        ("shutdown.drain", "drain", 2),
        ("shutdown.close", "close", 1),
    ] {
        server.wait_for(event);
        assert_refused(&server);
        if phase == "close" {
            // The stuck one is gone as soon as its task has run.
            server.wait_for("connection.closed");
            server.wait_for_line(|line| {
                line["event"] == "connection.closed" && line["client_id"] == "stuck"
            });
        }
        assert_not_ready(&server, phase, clients);
    }
    let (messages, end) = mute.read_to_close();
    assert_eq!(super::peer::notices(&messages), 1);
    assert_eq!(end, going_away());
    let exit = wait_within_bound(&mut server, signalled);
    assert_eq!(exit.code, Some(1));
    assert_eq!(
        server.shutdown_messages(),
        [
            "shutdown: stopping accept",
            "shutdown: notifying 2 clients",
            "shutdown: draining 2 clients",
            "shutdown: closing 1 clients",
            "shutdown: client terminated",
            "shutdown: client terminated",
            "shutdown: force exit",
        ]
    );
    drop(stuck);
}

/// Readiness says 503 with the phase and who is left; liveness stays.
fn assert_not_ready(server: &Server, phase: &str, clients: u64) {
    let (status, body) = admin(server, "GET", "/readyz");
    assert_eq!(status, 503);
    assert_eq!(body["phase"], phase, "{body}");
    assert_eq!(body["reason"], phase, "{body}");
    assert_eq!(body["clients"], clients, "{body}");
    assert_eq!(admin(server, "GET", "/livez").0, 200);
    let (status, body) = admin(server, "GET", "/status");
    assert_eq!((status, &body["phase"]), (200, &phase.into()), "{body}");
    assert_eq!(body["shutdown"]["clients_at_start"], 2, "{body}");
}

/// Nobody listens any more; what comes in the moment of closing may be answered or reset.
fn assert_refused(server: &Server) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect(server.public) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            Ok(mut stream) => {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let head = raw::handshake_head("/ws", "");
                let mut answer = String::new();
                let read = stream
                    .write_all(head.as_bytes())
                    .and_then(|()| stream.read_to_string(&mut answer));
                assert!(read.is_err() || answer.starts_with("HTTP/1.1 503"), "{answer}");
            }
        }
        assert!(Instant::now() < deadline, "the listener stays open");
    }
}

#[test]
fn a_prober_that_keeps_its_connection_holds_nothing_up() {
    let mut server = Server::start();
    let mut idle = raw::connect(server.public);
    let get = format!("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", server.public);
    idle.write_all(get.as_bytes()).unwrap();
    let head = raw::read_head(&mut idle);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let signalled = server.terminate();
    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(0));
    assert!(report["stop_accepting_ms"].as_u64().unwrap() < 100, "{report:#}");
}
