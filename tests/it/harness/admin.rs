//! Plain HTTP to the ports: probes, metrics and the calls of the admin port.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{PATIENCE, Server, raw};

/// Sends a request without a body; status and body of the answer.
pub fn call(address: SocketAddr, method: &str, path: &str) -> (u16, String) {
    let mut stream = raw::connect(address);
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let (bytes, _) = raw::read_to_end(&mut stream);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A JSON answer.
pub fn json(address: SocketAddr, method: &str, path: &str) -> (u16, Value) {
    let (status, body) = call(address, method, path);
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

/// The admin port's `/status`.
pub fn status(server: &Server) -> Value {
    json(server.admin, "GET", "/status").1
}

/// One sample of `/metrics`, named with its labels as it stands there.
pub fn metric(server: &Server, sample: &str) -> f64 {
    let (_, text) = call(server.admin, "GET", "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {sample} in {text}")).parse().unwrap()
}

/// Asks until the answer satisfies `wanted`.
pub fn until<T: std::fmt::Debug>(mut ask: impl FnMut() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = ask();
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "it stays {answer:?}");
        // Another process has to get there; it can only be asked.
        std::thread::sleep(Duration::from_millis(10));
    }
}
