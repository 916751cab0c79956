//! A subscriber on a raw socket that reads as little as it likes.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::harness::{Server, raw};

/// A reader with a small window.
pub struct Reader {
    stream: TcpStream,
    unread: Vec<u8>,
    /// Everything that came, in order.
    pub seen: Vec<Value>,
}

impl Reader {
    /// Connects, joins `room` (in the old gateway's flat form if `flat`) and reads until
    /// the answer.
    pub fn join(server: &Server, client: &str, room: &str, flat: bool) -> Self {
        let mut stream = raw::connect_with_window(server.public, 4096);
        let head = raw::upgrade(&mut stream, &format!("/ws?clientId={client}"));
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        let join = if flat {
            json!({ "type": "join_room", "roomId": room })
        } else {
            json!({ "type": "join_room", "payload": { "roomId": room } })
        };
        stream.write_all(&raw::text_frame(&join.to_string())).unwrap();
        let mut reader = Self { stream, unread: Vec::new(), seen: Vec::new() };
        reader.read_until(|message| message["type"] == "room_joined");
        reader
    }

    /// Reads at most `bytes` once.
    pub fn sip(&mut self, bytes: usize) {
        let mut buffer = vec![0; bytes];
        let read = self.stream.read(&mut buffer).unwrap();
        assert!(read > 0, "the stream ended after {:?}", self.seen.last());
        self.unread.extend_from_slice(&buffer[..read]);
        while let Some(message) = self.next_frame() {
            self.seen.push(message);
        }
    }

    /// Reads as fast as it can until a message satisfies `wanted`.
    pub fn read_until(&mut self, wanted: impl Fn(&Value) -> bool) {
        let mut from = 0;
        loop {
            if self.seen[from..].iter().any(&wanted) {
                return;
            }
            from = self.seen.len();
            self.sip(64 * 1024);
        }
    }

    fn next_frame(&mut self) -> Option<Value> {
        let head = self.unread.get(..2)?;
        let opcode = head[0] & 0x0f;
        let (start, len) = match head[1] {
            126 => {
                let len = self.unread.get(2..4)?;
                (4, usize::from(u16::from_be_bytes([len[0], len[1]])))
            }
            127 => panic!("a frame over 64 KiB"),
            len => (2, usize::from(len)),
        };
        let payload = self.unread.get(start..start + len)?;
        let message = match opcode {
            1 => serde_json::from_slice(payload).unwrap(),
            opcode => json!({ "type": "frame", "opcode": opcode }),
        };
        self.unread.drain(..start + len);
        Some(message)
    }

    /// Messages of a type.
    pub fn of_type(&self, kind: &str) -> Vec<&Value> {
        self.seen.iter().filter(|message| message["type"] == kind).collect()
    }
}

/// The `seq` and vehicle of each position.
pub fn positions<'a>(messages: impl IntoIterator<Item = &'a Value>) -> Vec<(u64, String)> {
    messages
        .into_iter()
        .filter(|message| message["type"] == "location_update")
        .map(|message| {
            let payload = &message["payload"];
            let vehicle = payload["vehicleId"].as_str().unwrap().to_owned();
            (payload["seq"].as_u64().unwrap(), vehicle)
        })
        .collect()
}

/// The last `seq` of each vehicle.
pub fn newest(positions: &[(u64, String)]) -> std::collections::BTreeMap<&str, u64> {
    positions.iter().map(|(seq, vehicle)| (vehicle.as_str(), *seq)).collect()
}
