//! A client that blocks on a raw socket and does exactly what it is told: it answers no
//! close by itself and reads only when asked to.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Server, raw};

/// What comes from the server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Got {
    /// A message.
    Message(Value),
    /// A close frame.
    Close(u16, String),
    /// The end of the stream.
    End,
    /// The connection was reset.
    Reset,
}

/// The close frame of the shutdown.
pub(super) fn going_away() -> Got {
    Got::Close(1001, "server shutting down".to_owned())
}

/// The client.
pub(super) struct Peer {
    /// Its socket.
    pub(super) stream: TcpStream,
    next_id: u64,
}

impl Peer {
    /// Connects and reads nothing beyond the handshake.
    pub(super) fn connect(server: &Server, client: &str) -> Self {
        Self::over(raw::connect(server.public), client)
    }

    /// As [`Peer::connect`], to another address of the server.
    pub(super) fn connect_to(address: SocketAddr, client: &str) -> Self {
        Self::over(raw::connect(address), client)
    }

    /// As [`Peer::connect`], with a small receive window.
    pub(super) fn connect_with_window(server: &Server, client: &str, bytes: usize) -> Self {
        Self::over(raw::connect_with_window(server.public, bytes), client)
    }

    fn over(mut stream: TcpStream, client: &str) -> Self {
        let head = raw::upgrade(&mut stream, &format!("/ws?clientId={client}"));
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        Self { stream, next_id: 1 }
    }

    /// A second handle on the same connection, for another thread.
    pub(super) fn second(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap(), next_id: 1_000_000 }
    }

    /// Sends bytes; an error means that the server is gone.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &Value) {
        self.try_send(message).unwrap();
    }

    /// Sends a message; an error means that the server is gone.
    pub(super) fn try_send(&mut self, message: &Value) -> io::Result<()> {
        self.send_bytes(&raw::text_frame(&message.to_string()))
    }

    /// Sends a request and returns its id.
    pub(super) fn ask(&mut self, kind: &str, payload: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({ "type": kind, "id": id, "payload": payload }));
        id
    }

    /// Sends a request and reads up to its answer.
    pub(super) fn request(&mut self, kind: &str, payload: Value) -> Value {
        let id = self.ask(kind, payload);
        self.wait_for(|message| message["id"] == id)
    }

    /// Joins a room and reads up to the answer.
    pub(super) fn join(&mut self, room: &str) {
        let answer = self.request("join_room", json!({ "roomId": room }));
        assert_eq!(answer["type"], "room_joined", "{answer}");
    }

    /// Answers the server's close frame.
    pub(super) fn acknowledge(&mut self) {
        let mut payload = 1001u16.to_be_bytes().to_vec();
        payload.extend_from_slice(b"server shutting down");
        self.send_bytes(&raw::frame(8, true, &payload)).unwrap();
    }

    /// Reads the next thing, control frames for the connection's health aside.
    pub(super) fn next(&mut self) -> Got {
        match self.try_next() {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Got::End,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                ) =>
            {
                Got::Reset
            }
            Err(error) => panic!("reading: {error}"),
        }
    }

    fn try_next(&mut self) -> io::Result<Got> {
        loop {
            let mut head = [0; 2];
            self.stream.read_exact(&mut head)?;
            let mut long = [0; 2];
            let len = match head[1] {
                126 => {
                    self.stream.read_exact(&mut long)?;
                    usize::from(u16::from_be_bytes(long))
                }
                len @ 0..126 => usize::from(len),
                _ => panic!("a frame over 64 KiB, or a masked one"),
            };
            let mut payload = vec![0; len];
            self.stream.read_exact(&mut payload)?;
            match head[0] {
                0x81 => return Ok(Got::Message(serde_json::from_slice(&payload).unwrap())),
                0x88 => {
                    let code = u16::from_be_bytes([payload[0], payload[1]]);
                    let reason = String::from_utf8(payload[2..].to_vec()).unwrap();
                    return Ok(Got::Close(code, reason));
                }
                0x89 | 0x8a => {}
                other => panic!("an unexpected frame: {other:#x}"),
            }
        }
    }

    /// Reads up to a message that is wanted.
    pub(super) fn wait_for(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            match self.next() {
                Got::Message(message) if wanted(&message) => return message,
                Got::Message(_) => {}
                other => panic!("a message was expected, there came {other:?}"),
            }
        }
    }

    /// Reads up to the close frame or the end.
    pub(super) fn read_to_close(&mut self) -> (Vec<Value>, Got) {
        let mut messages = Vec::new();
        loop {
            match self.next() {
                Got::Message(message) => messages.push(message),
                end => return (messages, end),
            }
        }
    }

    /// Does what a good client does: reads to the close frame, answers it and reads on to
    /// the end. Returns the messages before the close frame.
    pub(super) fn leave_well(&mut self) -> Vec<Value> {
        let (messages, end) = self.read_to_close();
        assert_eq!(end, going_away(), "after {messages:#?}");
        self.acknowledge();
        assert_eq!(self.next(), Got::End, "nothing follows a close frame");
        messages
    }

    /// Reads with pauses, `bytes` after each `pause`, until the end of what it is given:
    /// returns messages and end like [`Peer::read_to_close`].
    pub(super) fn read_slowly(&mut self, bytes: usize, pause: Duration) -> (Vec<Value>, Got) {
        let mut messages = Vec::new();
        let mut since_pause = 0;
        loop {
            match self.next() {
                Got::Message(message) => {
                    since_pause += message.to_string().len();
                    messages.push(message);
                    if since_pause >= bytes {
                        since_pause = 0;
                        std::thread::sleep(pause);
                    }
                }
                end => return (messages, end),
            }
        }
    }
}

/// A position that is about `bytes` long, different for each `n`.
pub(super) fn fix(n: usize, bytes: usize) -> Value {
    json!({
        "latitude": 60.0 + (n % 10_000) as f64 / 1e5,
        "longitude": 24.0 + (n / 10_000) as f64 / 1e5,
        "n": n,
        "pad": "x".repeat(bytes),
    })
}

/// The frame of a position without an id.
pub(super) fn notification(room: &str, n: usize, bytes: usize) -> Vec<u8> {
    let mut payload = fix(n, bytes);
    payload["roomId"] = json!(room);
    raw::text_frame(&json!({ "type": "location_update", "payload": payload }).to_string())
}

/// The numbers of the positions among `messages`, in their order.
pub(super) fn numbers(messages: &[Value]) -> Vec<u64> {
    messages
        .iter()
        .filter(|message| message["type"] == "location_update")
        .map(|message| message["payload"]["n"].as_u64().unwrap())
        .collect()
}

/// How many notices are among `messages`.
pub(super) fn notices(messages: &[Value]) -> usize {
    messages.iter().filter(|message| message["type"] == "server_shutting_down").count()
}
