//! A row of a message and the one answer that it gets, as protocol.md's table has it.

use serde_json::{Value, json};

use super::Bench;
use super::peer::{Got, Peer};
use crate::harness::raw;

/// `code`, `number`, `retry` of protocol.md, "Error codes".
const CODES: [(&str, i64, &str); 6] = [
    ("INVALID_JSON", -32700, "never"),
    ("UNKNOWN_TYPE", -32601, "never"),
    ("VALIDATION_ERROR", -32602, "never"),
    ("MESSAGE_TOO_LARGE", -32602, "never"),
    ("NOT_JOINED", -32010, "never"),
    ("FORBIDDEN", -32011, "never"),
];

/// A message and what has to come of it.
pub(super) struct Row {
    name: String,
    frame: Vec<u8>,
    expected: Expected,
}

enum Expected {
    /// An error; `type` and `roomId` are compared only if the row says so.
    Error { code: &'static str, field: Value, id: Value, kind: Option<Value>, room: Option<Value> },
    /// A message of this type with this id.
    Answer { kind: &'static str, id: Value },
    /// Nothing at all.
    Nothing,
}

impl Row {
    fn new(name: impl Into<String>, text: impl AsRef<str>, expected: Expected) -> Self {
        Self { name: name.into(), frame: raw::text_frame(text.as_ref()), expected }
    }

    pub(super) fn error(
        name: impl Into<String>,
        text: impl AsRef<str>,
        code: &'static str,
    ) -> Self {
        let expected =
            Expected::Error { code, field: Value::Null, id: Value::Null, kind: None, room: None };
        Self::new(name, text, expected)
    }

    /// A `VALIDATION_ERROR` about `field`.
    pub(super) fn wrong(name: impl Into<String>, text: impl AsRef<str>, field: &str) -> Self {
        Self::error(name, text, "VALIDATION_ERROR").field(field)
    }

    pub(super) fn answer(
        name: impl Into<String>,
        text: impl AsRef<str>,
        kind: &'static str,
        id: Value,
    ) -> Self {
        Self::new(name, text, Expected::Answer { kind, id })
    }

    pub(super) fn nothing(name: impl Into<String>, text: impl AsRef<str>) -> Self {
        Self::new(name, text, Expected::Nothing)
    }

    pub(super) fn field(mut self, path: &str) -> Self {
        if let Expected::Error { field, .. } = &mut self.expected {
            *field = json!(path);
        }
        self
    }

    pub(super) fn id(mut self, sent: impl Into<Value>) -> Self {
        if let Expected::Error { id, .. } = &mut self.expected {
            *id = sent.into();
        }
        self
    }

    /// The error repeats this `type`; `null` is none.
    pub(super) fn kind(mut self, sent: impl Into<Value>) -> Self {
        if let Expected::Error { kind, .. } = &mut self.expected {
            *kind = Some(sent.into());
        }
        self
    }

    /// The error repeats this `roomId`; `null` is none.
    pub(super) fn room(mut self, sent: impl Into<Value>) -> Self {
        if let Expected::Error { room, .. } = &mut self.expected {
            *room = Some(sent.into());
        }
        self
    }

    /// The same in a binary frame.
    pub(super) fn binary(mut self) -> Self {
        self.frame[0] = 0x82;
        self
    }

    /// Any bytes in a binary frame.
    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.frame = raw::frame(2, true, bytes);
        self
    }
}

/// Runs each row on a fresh connection: exactly this answer, and the connection goes on.
pub(super) fn run(bench: &mut Bench, rows: Vec<Row>) {
    run_prepared(bench, rows, |_| {});
}

/// The same with a connection that `prepare` has made ready.
pub(super) fn run_prepared(bench: &mut Bench, rows: Vec<Row>, prepare: impl Fn(&mut Peer)) {
    let mut failures = Vec::new();
    for row in rows {
        let mut peer = bench.peer();
        prepare(&mut peer);
        peer.send_bytes(&row.frame);
        // Held behind a join whose room is being loaded, so it comes last.
        let fence = json!({ "roomId": "never joined" });
        peer.send(&json!({ "type": "leave_room", "id": "that is all", "payload": fence }));
        let expects_none = matches!(row.expected, Expected::Nothing);
        let mut got = Vec::new();
        let mut over = false;
        // The `ack` of a position waits for the disk, nothing else does.
        while !over || (got.is_empty() && !expects_none) {
            match peer.recv_raw() {
                Got::Message(message) if message["id"] == "that is all" => over = true,
                Got::Message(message) => got.push(message),
                other => {
                    got.push(json!(format!("{other:?}")));
                    break;
                }
            }
        }
        if let Err(why) = judge(&row.expected, &got) {
            failures.push(format!("{}: {why}; got {}", row.name, json!(got)));
        }
        bench.check(&row.name);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn judge(expected: &Expected, got: &[Value]) -> Result<(), String> {
    let one = match (expected, got) {
        (Expected::Nothing, []) => return Ok(()),
        (_, [one]) => one,
        _ => return Err("not the one message that was expected".to_owned()),
    };
    let same = |name: &str, found: &Value, wanted: &Value| {
        if found == wanted { Ok(()) } else { Err(format!("{name}: {found}, expected {wanted}")) }
    };
    match expected {
        Expected::Nothing => Err("nothing was expected".to_owned()),
        Expected::Answer { kind, id } => {
            same("type", &one["type"], &json!(kind))?;
            same("id", &one["id"], id)
        }
        Expected::Error { code, field, id, kind, room } => {
            let payload = &one["payload"];
            let (_, number, retry) = CODES.into_iter().find(|row| row.0 == *code).unwrap();
            same("type", &one["type"], &json!("error"))?;
            same("code", &payload["code"], &json!(code))?;
            same("number", &payload["number"], &json!(number))?;
            same("retry", &payload["retry"], &json!(retry))?;
            same("field", &payload["field"], field)?;
            same("id", &one["id"], id)?;
            if let Some(kind) = kind {
                same("payload.type", &payload["type"], kind)?;
            }
            if let Some(room) = room {
                same("payload.roomId", &payload["roomId"], room)?;
            }
            let message = payload["message"].as_str().unwrap_or_default();
            if message.is_empty() {
                return Err("no message for people".to_owned());
            }
            // The message names the field and what was expected.
            let name = field.as_str().and_then(|path| path.rsplit('.').next());
            match name {
                Some(field) if !message.contains(field) => Err("the field is not named".to_owned()),
                _ => Ok(()),
            }
        }
    }
}
