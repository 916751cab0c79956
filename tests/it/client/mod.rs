//! The client library against the real binary, and against servers that misbehave.

mod drop;
mod fake;
mod moves;
mod past;
mod proxy;
mod survive;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use milepost::client::{BackoffTimes, Builder, Client, Event, Events, Phase, ResendRefused, State};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use tokio::time::timeout;

use crate::harness::{PATIENCE, Server, raw};

/// A client of `addresses` as `name`, with waits that suit a test.
fn builder(name: &str, addresses: &[SocketAddr]) -> Builder {
    let backoff =
        BackoffTimes { first: Duration::from_millis(50), cap: Duration::from_millis(500) };
    let resend = ResendRefused { max_resends: 5, new_session_wait: PATIENCE };
    addresses
        .iter()
        .fold(Client::builder(), |builder, address| builder.endpoint(format!("ws://{address}/ws")))
        .client_id(name)
        .backoff(backoff)
        .connect_timeout(Duration::from_secs(5))
        .resend_refused(Some(resend))
}

async fn connect(name: &str, addresses: &[SocketAddr]) -> (Client, Events) {
    timeout(PATIENCE, builder(name, addresses).connect()).await.expect("no session").unwrap()
}

/// Waits until the client's state is as wanted.
async fn until(client: &Client, wanted: impl FnMut(&State) -> bool) -> State {
    let mut state = client.state();
    let reached = timeout(PATIENCE, state.wait_for(wanted)).await;
    reached.unwrap_or_else(|_| panic!("still {:?}", client.state().borrow())).unwrap().clone()
}

async fn until_phase(client: &Client, phase: Phase) {
    until(client, |state| state.phase == phase).await;
}

async fn next(events: &mut Events) -> Event {
    timeout(PATIENCE, events.next()).await.expect("no event").expect("the client has ended")
}

/// A call on the admin port, answered with JSON.
fn call(server: &Server, method: &str, path: &str) -> Value {
    serde_json::from_str(&admin(server, method, path)).unwrap()
}

/// The body of the answer to a call on the admin port.
fn admin(server: &Server, method: &str, path: &str) -> String {
    let mut stream = raw::connect(server.admin);
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}

/// Waits until the paused server holds `count` requests.
async fn until_held(server: &Server, count: u64) {
    let held = async {
        while call(server, "GET", "/status")["held"]["requests"] != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, held).await.expect("not held");
}

/// What the log in a server's directory holds.
fn log_of(server: &Server) -> Connection {
    open_log(&server.path().join("data/milepost.db"))
}

fn open_log(file: &Path) -> Connection {
    Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

fn keys(log: &Connection) -> Vec<String> {
    let mut rows = log.prepare("SELECT key FROM positions WHERE key IS NOT NULL").unwrap();
    rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// The room's events that are live, in their order.
fn live(log: &Connection, room: &str) -> Vec<u64> {
    let sql = "SELECT seq FROM positions WHERE room = ?1 AND NOT late ORDER BY seq";
    let mut rows = log.prepare(sql).unwrap();
    rows.query_map([room], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}
