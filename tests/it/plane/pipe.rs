//! A client that pipelines: it writes many frames at once and reads whenever the test says.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use tokio::time::Instant;

use serde_json::{Value, json};

use crate::harness::client::Seen;
use crate::harness::{PATIENCE, Server, raw};

/// A WebSocket connection on a plain socket.
pub(crate) struct Pipe {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    waiting: Vec<u8>,
    /// The `welcome` payload.
    pub(crate) welcome: Value,
    pings: u64,
}

impl Pipe {
    pub(crate) fn connect(server: &Server, client: &str) -> Self {
        Self::over(raw::connect(server.public), &format!("/ws?clientId={client}"))
    }

    pub(crate) fn with_token(server: &Server, token: &str) -> Self {
        Self::over(raw::connect(server.public), &format!("/ws?token={token}"))
    }

    /// Shakes hands and reads the welcome.
    pub(crate) fn over(mut stream: TcpStream, path: &str) -> Self {
        let head = raw::upgrade(&mut stream, path);
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        let reader = BufReader::new(stream.try_clone().unwrap());
        let mut pipe = Self { stream, reader, waiting: Vec::new(), welcome: Value::Null, pings: 0 };
        let welcome = pipe.recv();
        assert_eq!(welcome["type"], "welcome", "{welcome}");
        pipe.welcome = welcome["payload"].clone();
        pipe
    }

    pub(crate) fn session(&self) -> &str {
        self.welcome["sessionId"].as_str().unwrap()
    }

    /// Puts a message with the next write.
    pub(crate) fn queue(&mut self, message: &Value) -> &mut Self {
        self.queue_text(&message.to_string())
    }

    pub(crate) fn queue_text(&mut self, text: &str) -> &mut Self {
        self.waiting.extend_from_slice(&raw::text_frame(text));
        self
    }

    /// Puts a request with the next write.
    pub(crate) fn ask(&mut self, kind: &str, id: u64, payload: Value) -> &mut Self {
        self.queue(&json!({ "type": kind, "id": id, "payload": payload }))
    }

    /// Writes what waits, at once.
    pub(crate) fn write(&mut self) -> &mut Self {
        self.stream.write_all(&self.waiting).unwrap();
        self.waiting.clear();
        self
    }

    /// Writes what waits from another thread, for a server that does not read yet.
    pub(crate) fn write_aside(&mut self) -> std::thread::JoinHandle<()> {
        let mut stream = self.stream.try_clone().unwrap();
        let bytes = std::mem::take(&mut self.waiting);
        std::thread::spawn(move || stream.write_all(&bytes).unwrap())
    }

    /// A second handle on the socket, to write to.
    pub(crate) fn socket(&self) -> TcpStream {
        self.stream.try_clone().unwrap()
    }

    pub(crate) fn request(&mut self, kind: &str, id: u64, payload: Value) -> Value {
        self.ask(kind, id, payload).write();
        self.recv_where(|message| message["id"] == id)
    }

    pub(crate) fn join(&mut self, room: &str) -> Value {
        let answer = self.request("join_room", 900_000, json!({ "roomId": room }));
        assert_eq!(answer["type"], "room_joined", "{answer}");
        answer["payload"].clone()
    }

    /// Sends a ping behind everything and returns what came before its pong. A ping passes
    /// a pause, so with its pong the server has taken in all that was sent before it.
    pub(crate) fn until_pong(&mut self) -> Vec<Value> {
        self.pings += 1;
        let id = format!("ping {}", self.pings);
        self.queue(&json!({ "type": "ping", "id": id })).write();
        let mut before = Vec::new();
        loop {
            let message = self.recv();
            if message["id"] == id.as_str() {
                assert_eq!(message["type"], "pong");
                return before;
            }
            before.push(message);
        }
    }

    /// The text of the next message; anything else is a failure.
    pub(crate) fn recv_text(&mut self) -> String {
        match self.next_frame() {
            Some((1, payload)) => String::from_utf8(payload).unwrap(),
            other => panic!("a message was expected, there came {other:?}"),
        }
    }

    pub(crate) fn recv(&mut self) -> Value {
        serde_json::from_str(&self.recv_text()).unwrap()
    }

    pub(crate) fn recv_where(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.recv();
            if wanted(&message) {
                return message;
            }
        }
    }

    pub(crate) fn recv_type(&mut self, kind: &str) -> Value {
        self.recv_where(|message| message["type"] == kind)
    }

    /// The next `count` messages.
    pub(crate) fn take(&mut self, count: usize) -> Vec<Value> {
        (0..count).map(|_| self.recv()).collect()
    }

    /// Everything until the close frame, which is answered, or the end of the stream.
    pub(crate) fn see_to_end(&mut self) -> (Vec<Value>, Seen) {
        let mut messages = Vec::new();
        loop {
            match self.next_frame() {
                Some((1, payload)) => messages.push(serde_json::from_slice(&payload).unwrap()),
                Some((8, payload)) => {
                    let code = u16::from_be_bytes([payload[0], payload[1]]);
                    let reason = String::from_utf8(payload[2..].to_vec()).unwrap();
                    let _ = self.stream.write_all(&raw::frame(8, true, &payload[..2]));
                    return (messages, Seen::Close(code, reason));
                }
                None => return (messages, Seen::End),
                Some(other) => panic!("unexpected frame {other:?}"),
            }
        }
    }

    /// The next frame that is no ping or pong of the protocol; `None` at the end.
    pub(crate) fn next_frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let started = Instant::now();
        loop {
            let mut head = [0; 2];
            self.reader.read_exact(&mut head).ok()?;
            let len = match head[1] & 0x7f {
                126 => {
                    let mut len = [0; 2];
                    self.reader.read_exact(&mut len).ok()?;
                    usize::from(u16::from_be_bytes(len))
                }
                127 => {
                    let mut len = [0; 8];
                    self.reader.read_exact(&mut len).ok()?;
                    u64::from_be_bytes(len) as usize
                }
                len => usize::from(len),
            };
            let mut payload = vec![0; len];
            self.reader.read_exact(&mut payload).ok()?;
            let opcode = head[0] & 0x0f;
            if !matches!(opcode, 9 | 10) {
                return Some((opcode, payload));
            }
            // The server's pings keep the socket's own time limit from ending this.
            assert!(started.elapsed() < PATIENCE * 2, "nothing came");
        }
    }
}
