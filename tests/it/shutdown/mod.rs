//! The shutdown from outside (shutdown.md, "What must be shown"): the real binary, real
//! sockets, real signals; for each case the bound, the exit code, the log lines in their
//! order, the report, and what every client saw.

mod arriving;
mod busy;
mod crowd;
mod half_open;
mod output;
mod peer;
mod requests;
mod signals;
mod simple;
mod store;
mod stuck;
mod wedged;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::server::Exit;
use crate::harness::{Server, raw};

/// From the signal to the end of the process, at most (shutdown.md, phase 5).
const BOUND: Duration = Duration::from_millis(5250);
/// Tells a drain that ended by itself, on a busy machine, from one that its deadline ended
/// (which takes 3,500 ms).
const EARLY_MS: u64 = 2500;

/// The lines of a shutdown in which every one of `clients` clients got its close frame.
fn usual_lines(clients: usize) -> Vec<String> {
    vec![
        "shutdown: stopping accept".to_owned(),
        format!("shutdown: notifying {clients} clients"),
        format!("shutdown: draining {clients} clients"),
        format!("shutdown: closing {clients} clients"),
        "shutdown: complete".to_owned(),
    ]
}

/// Waits for the end of the process and checks it against the bound.
fn wait_within_bound(server: &mut Server, signalled: Instant) -> Exit {
    let exit = server.wait();
    let took = exit.at - signalled;
    assert!(took <= BOUND, "{took:?}: {:#?}", server.shutdown_messages());
    exit
}

/// Waits for a clean end within the bound and returns the report.
fn clean_end(server: &mut Server, signalled: Instant) -> Value {
    let exit = wait_within_bound(server, signalled);
    assert_eq!(exit.code, Some(0), "{:#?}", server.shutdown_lines());
    report(server)
}

/// The report in the last line of the shutdown.
fn report(server: &Server) -> Value {
    let lines = server.shutdown_lines();
    let last = lines.last().expect("the shutdown left no line").clone();
    assert!(last["exit_code"].is_number(), "the last line is no report: {last:#}");
    last
}

/// Checks numbers of the report, all at once.
fn assert_figures(report: &Value, wanted: &[(&str, u64)]) {
    for (name, value) in wanted {
        assert_eq!(report[name], *value, "{name} in {report:#}");
    }
}

/// Where in the log a client's connection closed, as an index into all lines.
fn closed_at(server: &Server, client: &str) -> usize {
    let closed = |line: &Value| line["event"] == "connection.closed" && line["client_id"] == client;
    let lines = server.all_lines();
    lines.iter().position(closed).unwrap_or_else(|| panic!("{client} never closed: {lines:#?}"))
}

/// Where in the log a shutdown line is.
fn line_at(server: &Server, event: &str) -> usize {
    let lines = server.all_lines();
    let at = lines.iter().position(|line| line["event"] == event);
    at.unwrap_or_else(|| panic!("no {event}: {lines:#?}"))
}

/// An HTTP call; its status and its whole answer.
fn http(address: SocketAddr, method: &str, path: &str) -> (u16, String) {
    use std::io::Write as _;
    let mut stream = raw::connect(address);
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: \
         0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let (answer, end) = raw::read_to_end(&mut stream);
    end.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {answer}")), answer)
}

/// An HTTP call to the admin port whose answer is JSON.
fn admin(server: &Server, method: &str, path: &str) -> (u16, Value) {
    let (status, answer) = http(server.admin, method, path);
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, serde_json::from_str(body).unwrap())
}

/// Opens the room log of a server that has ended, or beside it while it runs.
fn room_log(server: &Server) -> rusqlite::Connection {
    room_log_at(server.path())
}

/// As [`room_log`], in a server's directory.
fn room_log_at(dir: &Path) -> rusqlite::Connection {
    let path = dir.join("data/milepost.db");
    assert!(path.exists(), "the room log has moved");
    rusqlite::Connection::open(path).unwrap()
}

/// How many positions of a vehicle the room log holds.
fn stored(server: &Server, vehicle: &str) -> usize {
    let sql = "SELECT count(*) FROM positions WHERE vehicle = ?1";
    let count: i64 = room_log(server).query_row(sql, [vehicle], |row| row.get(0)).unwrap();
    count as usize
}
