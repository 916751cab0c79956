//! A blocking WebSocket peer on a raw socket, which can send any bytes.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use tokio::time::Instant;

use crate::harness::{PATIENCE, raw};

pub(super) struct Peer {
    pub(super) stream: TcpStream,
}

/// What came.
#[derive(Debug, PartialEq)]
pub(super) enum Got {
    Message(Value),
    Pong(Vec<u8>),
    /// Code (1005 for none) and reason.
    Close(u16, String),
    /// The stream ended.
    End,
}

impl Got {
    pub(super) fn close(code: u16, reason: &str) -> Self {
        Self::Close(code, reason.to_owned())
    }
}

impl Peer {
    /// Connects and reads the welcome.
    pub(super) fn connect(address: SocketAddr, client_id: &str) -> Self {
        let mut stream = raw::connect(address);
        let head = raw::upgrade(&mut stream, &format!("/ws?clientId={client_id}"));
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let mut peer = Self { stream };
        peer.welcome();
        peer
    }

    /// Reads the welcome and returns its payload.
    pub(super) fn welcome(&mut self) -> Value {
        let welcome = self.recv();
        assert_eq!(welcome["type"], "welcome", "{welcome}");
        welcome["payload"].clone()
    }

    pub(super) fn send(&mut self, message: &Value) {
        self.send_bytes(&raw::text_frame(&message.to_string()));
    }

    pub(super) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next thing that comes; the server's own pings aside.
    pub(super) fn recv_raw(&mut self) -> Got {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "nothing but pings came");
            return match raw::read_frame(&mut self.stream) {
                None => Got::End,
                Some((1, payload)) => Got::Message(serde_json::from_slice(&payload).unwrap()),
                Some((8, payload)) if payload.is_empty() => Got::close(1005, ""),
                Some((8, payload)) => {
                    let reason = std::str::from_utf8(&payload[2..]).unwrap();
                    Got::close(u16::from_be_bytes([payload[0], payload[1]]), reason)
                }
                Some((9, _)) => continue,
                Some((10, payload)) => Got::Pong(payload),
                Some(other) => panic!("unexpected frame {other:?}"),
            };
        }
    }

    /// The next message.
    pub(super) fn recv(&mut self) -> Value {
        match self.recv_raw() {
            Got::Message(message) => message,
            other => panic!("a message was expected, there came {other:?}"),
        }
    }

    pub(super) fn recv_where(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.recv();
            if wanted(&message) {
                return message;
            }
        }
    }

    /// Everything until the close frame or the end.
    pub(super) fn until_end(&mut self) -> Vec<Got> {
        let mut all = Vec::new();
        loop {
            let got = self.recv_raw();
            let over = matches!(got, Got::Close(..) | Got::End);
            all.push(got);
            if over {
                return all;
            }
        }
    }
}
