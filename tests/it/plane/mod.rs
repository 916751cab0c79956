//! The pause of the plane, from outside: what is held, in which order it comes out, what
//! becomes of it in a drain, and how much memory it may take.

mod acceptance;
mod flood;
mod leaving;
mod order;
pub(crate) mod pipe;
mod tokens;
mod uploads;

use std::io::{Read, Write};
use std::time::Duration;
use tokio::time::Instant;

use serde_json::{Value, json};

use crate::harness::{PATIENCE, Server, raw};
pub(crate) use tokens::token;

/// A call on the admin port that has to succeed; returns the body.
pub(crate) fn admin(server: &Server, method: &str, path: &str) -> Value {
    let mut stream = raw::connect(server.admin);
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(body).unwrap()
}

pub(crate) fn pause(server: &Server) {
    let body = admin(server, "POST", "/quiesce?reason=test");
    assert_eq!(body, json!({ "paused": true, "changed": true }));
}

pub(crate) fn resume(server: &Server) {
    let body = admin(server, "DELETE", "/quiesce");
    assert_eq!(body, json!({ "paused": false, "changed": true }));
}

/// Waits until the admin port's status satisfies `wanted`, and returns it.
pub(crate) fn status_where(server: &Server, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = admin(server, "GET", "/status");
        if wanted(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "the status did not come: {status:#}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A figure of `/proc/PID/status`, in bytes.
fn memory(server: &Server, figure: &str) -> u64 {
    let path = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(figure)).unwrap();
    let number = line.trim_matches([':', ' ', '\t', 'k', 'B']);
    number.parse::<u64>().unwrap() * 1024
}

fn ids(messages: &[Value]) -> Vec<u64> {
    messages.iter().filter_map(|message| message["id"].as_u64()).collect()
}

/// The answers' outcomes: the type, or the code of an error.
pub(crate) fn outcomes(messages: &[Value]) -> Vec<(u64, String)> {
    messages
        .iter()
        .filter_map(|message| {
            let outcome = match &message["payload"]["code"] {
                Value::String(code) if message["type"] == "error" => code,
                _ => message["type"].as_str().unwrap(),
            };
            Some((message["id"].as_u64()?, outcome.to_owned()))
        })
        .collect()
}

/// The wanted outcomes, for comparing.
pub(crate) fn wanted(outcomes: &[(u64, &str)]) -> Vec<(u64, String)> {
    outcomes.iter().map(|(id, outcome)| (*id, (*outcome).to_owned())).collect()
}

/// The log lines with this event, reduced to some of their fields.
fn logged(server: &Server, event: &str, fields: &[&str]) -> Vec<Vec<Value>> {
    server
        .lines()
        .iter()
        .filter(|line| line["event"] == event)
        .map(|line| fields.iter().map(|field| line[*field].clone()).collect())
        .collect()
}

/// A position that is told apart by `n`.
pub(crate) fn fix(n: u64) -> Value {
    json!({ "latitude": 1.0 + n as f64 / 10_000.0, "longitude": 20.0, "n": n })
}

/// The `n` of the positions among `messages`.
pub(crate) fn numbers(messages: &[Value]) -> Vec<u64> {
    messages
        .iter()
        .filter(|message| message["type"] == "location_update")
        .map(|message| message["payload"]["n"].as_u64().unwrap())
        .collect()
}
