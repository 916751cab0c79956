//! What asks for the stop, how often, and when.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::peer::{Got, Peer, going_away, notices};
use super::{admin, assert_figures, clean_end, http, report, usual_lines, wait_within_bound};
use crate::harness::{PATIENCE, Server};

const RUNNING: &str = "shutdown: already running";

#[test]
fn a_second_sigterm_joins_the_running_shutdown() {
    let mut server = Server::start();
    let mut mute = Peer::connect(&server, "mute");
    let signalled = server.terminate();
    server.wait_for("shutdown.stop_accepting");
    server.terminate();
    let line = server.wait_for("shutdown.already_running");
    assert_eq!(line["level"], "INFO");
    assert_eq!(line["signal"], "SIGTERM");
    assert_eq!(line["deadline_ms"], 5000);
    assert_eq!(line["clients"], 1);
    server.wait_for("shutdown.drain");
    server.terminate();
    server.wait_for("shutdown.close");
    server.terminate();
    let (messages, end) = mute.read_to_close();
    assert_eq!(notices(&messages), 1, "the notice comes once: {messages:#?}");
    assert_eq!(end, going_away());
    // The same budget: at 5 s from the first.
    let exit = wait_within_bound(&mut server, signalled);
    assert_eq!(exit.code, Some(1));
    let mut lines = server.shutdown_messages();
    assert_eq!(lines.iter().filter(|line| *line == RUNNING).count(), 1, "{lines:#?}");
    lines.retain(|line| line != RUNNING);
    let mut wanted = usual_lines(1);
    wanted.truncate(4);
    wanted.extend(["shutdown: client terminated".to_owned(), "shutdown: force exit".to_owned()]);
    assert_eq!(lines, wanted);
    assert_figures(&report(&server), &[("notified", 1), ("drained", 1), ("unacked_close", 1)]);
}

#[test]
fn a_second_sigint_ends_the_process_at_once() {
    let mut server = Server::start();
    let mut peer = Peer::connect(&server, "a");
    server.signal(Signal::INT);
    let line = server.wait_for("shutdown.notify");
    assert_eq!(line["signal"], "SIGINT");
    let again = server.signal(Signal::INT);
    let exit = server.wait();
    assert_eq!(exit.code, Some(130));
    let took = exit.at - again;
    assert!(took < Duration::from_secs(2), "{took:?} is not at once");
    assert_eq!(
        server.shutdown_messages(),
        ["shutdown: stopping accept", "shutdown: notifying 1 clients", "shutdown: force exit"]
    );
    let report = report(&server);
    assert_eq!(report["signal"], "SIGINT");
    assert_eq!(report["level"], "ERROR");
    assert_figures(
        &report,
        &[("exit_code", 130), ("clients", 1), ("clients_at_start", 1), ("notified", 1)],
    );
    let (messages, _) = peer.read_to_close();
    assert_eq!(notices(&messages), 1);
}

#[test]
fn a_first_sigint_after_sigterm_joins() {
    let mut server = Server::start();
    let mut peer = Peer::connect(&server, "a");
    let signalled = server.terminate();
    server.wait_for("shutdown.stop_accepting");
    server.signal(Signal::INT);
    let line = server.wait_for("shutdown.already_running");
    assert_eq!(line["signal"], "SIGINT");
    assert_eq!(notices(&peer.leave_well()), 1);
    let report = clean_end(&mut server, signalled);
    let mut lines = server.shutdown_messages();
    assert_eq!(lines.iter().filter(|line| *line == RUNNING).count(), 1, "{lines:#?}");
    lines.retain(|line| line != RUNNING);
    assert_eq!(lines, usual_lines(1));
    assert_eq!(report["signal"], "SIGTERM", "the first one's");
}

#[test]
fn sigterm_during_start_up() {
    let mut first = Server::start();
    let path = first.path().join("data/milepost.db");
    let mut second = Server::builder().set("room_log.path", path.display()).spawn();
    second.wait_for("room_log.waiting");
    let (status, body) = admin(&second, "GET", "/readyz");
    assert_eq!((status, body["reason"].as_str()), (503, Some("startup")), "{body}");
    // The listener is open during start-up; what is asked for is held, and never starts.
    let mut early = Peer::connect(&second, "early");
    let id = early.ask("join_room", json!({ "roomId": "north" }));
    assert_eq!(early.request("ping", json!({}))["type"], "pong");
    let signalled = second.terminate();
    let messages = early.leave_well();
    assert_eq!(notices(&messages), 1);
    let answers: Vec<_> = messages.iter().filter(|message| message["id"] == id).collect();
    assert_eq!(answers.len(), 1, "{messages:#?}");
    assert_eq!(answers[0]["payload"]["code"], "SERVER_DRAINING", "{answers:#?}");
    let report = clean_end(&mut second, signalled);
    assert_eq!(second.shutdown_messages(), usual_lines(1));
    assert_figures(&report, &[("requests_refused", 1), ("drained", 1), ("acked", 1)]);
    assert!(second.all_lines().iter().all(|line| line["event"] != "server.ready"));
    assert!(report["duration_ms"].as_u64().unwrap() < super::EARLY_MS, "{report:#}");

    // The one that has the log does not notice.
    let mut peer = Peer::connect(&first, "a");
    peer.join("north");
    let signalled = first.terminate();
    peer.leave_well();
    clean_end(&mut first, signalled);
}

#[test]
fn sigterm_as_soon_as_the_ports_are_open() {
    let mut server = Server::builder().spawn();
    let signalled = server.terminate();
    clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(0));
}

#[test]
fn the_admin_port_stops_as_sigterm_does() {
    let mut server = Server::start();
    let mut peer = Peer::connect(&server, "a");
    let called = Instant::now();
    assert_eq!(admin(&server, "POST", "/shutdown").0, 202);
    assert_eq!(admin(&server, "POST", "/shutdown").0, 202);
    assert_eq!(notices(&peer.leave_well()), 1);
    let report = clean_end(&mut server, called);
    let mut lines = server.shutdown_messages();
    lines.retain(|line| line != RUNNING);
    assert_eq!(lines, usual_lines(1));
    assert_eq!(report["signal"], "admin");
    assert!(server.shutdown_lines().iter().all(|line| line["signal"] == "admin"));
}

/// The evacuation notices one a second; the signal comes with the second notice.
#[test]
fn sigterm_takes_an_evacuation_over() {
    let mut server = Server::start();
    let peers: Vec<_> = ["a", "b", "c"].map(|name| Peer::connect(&server, name)).into();
    let (noticed, notice) = std::sync::mpsc::channel();
    let (sender, ends) = std::sync::mpsc::channel();
    let (first, stopping) = (AtomicBool::new(true), AtomicBool::new(false));
    let signalled = std::thread::scope(|scope| {
        for mut peer in peers {
            let (noticed, sender) = (noticed.clone(), sender.clone());
            let (first, stopping) = (&first, &stopping);
            scope.spawn(move || {
                let one = peer.wait_for(|message| message["type"] == "server_shutting_down");
                let is_first = first.swap(false, Ordering::AcqRel);
                noticed.send(()).unwrap();
                let (messages, end) = peer.read_to_close();
                assert_eq!(end, going_away());
                assert_eq!(notices(&messages), 0, "a second notice: {messages:#?}");
                // The others stay until the signal has come.
                while !is_first && !stopping.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                peer.acknowledge();
                assert_eq!(peer.next(), Got::End);
                sender.send(one["payload"]["reason"].as_str().unwrap().to_owned()).unwrap();
            });
        }
        assert_eq!(admin(&server, "POST", "/drain?rate=1").0, 200);
        notice.recv_timeout(PATIENCE).unwrap();
        assert_eq!(ends.recv_timeout(PATIENCE).unwrap(), "drain");
        server.wait_for("connection.closed");
        notice.recv_timeout(PATIENCE).unwrap();
        let signalled = server.terminate();
        server.wait_for("shutdown.stop_accepting");
        assert_eq!(admin(&server, "POST", "/drain?rate=1").0, 409);
        stopping.store(true, Ordering::Release);
        signalled
    });
    let mut ends: Vec<String> = ends.try_iter().collect();
    ends.sort();
    assert_eq!(ends, ["drain", "shutdown"]);
    let report = clean_end(&mut server, signalled);
    // The one that was gone is no part of it.
    let figures = ["clients_at_start", "drained", "acked"].map(|figure| (figure, 2));
    assert_figures(&report, &figures);
    let lines = server.shutdown_messages();
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert_eq!(lines[3], "shutdown: closing 2 clients");
}

#[test]
fn an_evacuation_that_is_over_leaves_nothing_to_the_shutdown() {
    let mut server = Server::start();
    let mut peer = Peer::connect(&server, "a");
    assert_eq!(admin(&server, "POST", "/drain?rate=100").0, 200);
    assert_eq!(notices(&peer.leave_well()), 1);
    server.wait_for("connection.closed");
    let signalled = server.terminate();
    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(0));
    assert_figures(&report, &[("clients_at_start", 0), ("notified", 0), ("drained", 0)]);
}

#[test]
fn sighup_and_sigpipe_are_no_stop() {
    let mut server = Server::start();
    let mut peer = Peer::connect(&server, "a");
    server.signal(Signal::HUP);
    server.wait_for("auth.reloaded");
    server.signal(Signal::PIPE);
    peer.join("north");
    assert_eq!(http(server.public, "GET", "/readyz").0, 200);
    let signalled = server.terminate();
    server.signal(Signal::HUP);
    peer.leave_well();
    clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(1));
}

/// Keys are read again at SIGHUP; a file that hangs (a dead network disk; here a pipe) must
/// not keep the next signal waiting.
#[test]
fn a_reload_that_hangs_does_not_keep_the_server_from_stopping() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, "0123456789012345678901234567890123456789").unwrap();
    let mut server =
        Server::builder().set("auth.mode", "jwt").set("auth.secret_file", file.display()).start();
    server.signal(Signal::HUP);
    server.wait_for("auth.reloaded");
    std::fs::remove_file(&file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    server.signal(Signal::HUP);
    wait_for_reader(&file);
    let signalled = server.terminate();
    clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(0));
}

/// Waits until somebody hangs in opening the pipe `file`: then it can be opened for writing
/// without waiting. Nothing is written, and it stays open.
fn wait_for_reader(file: &std::path::Path) {
    use std::os::unix::fs::OpenOptionsExt as _;
    let deadline = Instant::now() + PATIENCE;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).custom_flags(libc::O_NONBLOCK);
    loop {
        if let Ok(pipe) = options.open(file) {
            // Leaked: at its end the reader would go on.
            std::mem::forget(pipe);
            return;
        }
        assert!(Instant::now() < deadline, "nobody reads the keys");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn as_process_one_of_a_container() {
    let mut server =
        Server::builder().under("unshare", &["--pid", "--fork", "--kill-child"]).start();
    let pid = only_child(server.pid());
    assert!(is_process_one(pid), "unshare (see .ci/setup) gave it no namespace of its own");
    let mut peer = Peer::connect(&server, "a");
    let signalled = Instant::now();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(notices(&peer.leave_well()), 1);
    clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(1));
}

/// The one child of a process.
fn only_child(parent: Pid) -> Pid {
    let parent = parent.as_raw_nonzero();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        if let Some(child) = children.unwrap().split_whitespace().next() {
            return Pid::from_raw(child.parse().unwrap()).unwrap();
        }
        assert!(Instant::now() < deadline, "unshare (see .ci/setup) started nothing");
    }
}

fn is_process_one(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
    inner.split_whitespace().last() == Some("1")
}
