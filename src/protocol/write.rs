//! Writing JSON text member by member, without an intermediate tree.
//!
//! The server's messages are small and of fixed shape; writing them straight into the
//! buffer that goes out saves the copies. Raw parts are trusted: they come from
//! [`Position`](super::Position) bodies and event items, which this floor has checked.

use std::fmt::{Display, Write as _};

use serde::Serialize;

use super::envelope::RequestId;

/// Appends `text` as a JSON string.
pub(super) fn push_string(out: &mut String, text: &str) {
    if text.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        push_json(out, text);
    } else {
        out.push('"');
        out.push_str(text);
        out.push('"');
    }
}

/// Appends any value as JSON; `null` for one that has no JSON form (a map whose keys are
/// no strings), which no type of this crate is.
pub(super) fn push_json<T: Serialize + ?Sized>(out: &mut String, value: &T) {
    match serde_json::to_string(value) {
        Ok(text) => out.push_str(&text),
        Err(error) => {
            debug_assert!(false, "no JSON form: {error}");
            out.push_str("null");
        }
    }
}

/// Appends what needs no escapes: numbers, booleans.
pub(super) fn push_plain(out: &mut String, value: impl Display) {
    // Writing to a `String` cannot fail.
    let _ = write!(out, "{value}");
}

/// A message being written: `{"type":…,"id":…,"payload":{` and what is added.
pub(super) struct Message {
    out: String,
    empty: bool,
}

impl Message {
    pub(super) fn new(kind: &str, id: Option<&RequestId>) -> Self {
        Self::with_capacity(kind, id, 192)
    }

    pub(super) fn with_capacity(kind: &str, id: Option<&RequestId>, capacity: usize) -> Self {
        let mut out = String::with_capacity(capacity);
        push_head(&mut out, kind, id);
        out.push_str(",\"payload\":{");
        Self { out, empty: true }
    }

    fn key(&mut self, name: &str) {
        if !self.empty {
            self.out.push(',');
        }
        self.empty = false;
        self.out.push('"');
        self.out.push_str(name);
        self.out.push_str("\":");
    }

    pub(super) fn text(mut self, name: &str, text: &str) -> Self {
        self.key(name);
        push_string(&mut self.out, text);
        self
    }

    pub(super) fn text_if(self, name: &str, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.text(name, text),
            None => self,
        }
    }

    pub(super) fn plain(mut self, name: &str, value: impl Display) -> Self {
        self.key(name);
        push_plain(&mut self.out, value);
        self
    }

    pub(super) fn json<T: Serialize + ?Sized>(mut self, name: &str, value: &T) -> Self {
        self.key(name);
        push_json(&mut self.out, value);
        self
    }

    /// The text so far, for a [`PageBuilder`](super::PageBuilder) to go on with.
    pub(super) fn unfinished(self) -> String {
        self.out
    }

    pub(super) fn finish(mut self) -> String {
        self.out.push_str("}}");
        self.out
    }
}

/// Appends `{"type":…` and the id.
pub(super) fn push_head(out: &mut String, kind: &str, id: Option<&RequestId>) {
    out.push_str("{\"type\":");
    push_string(out, kind);
    if let Some(id) = id {
        out.push_str(",\"id\":");
        match id {
            RequestId::Text(text) => push_string(out, text),
            RequestId::Number(number) => push_plain(out, number),
        }
    }
}

/// Any message, of a client or a server, from a payload that serializes to an object.
#[must_use]
pub fn message<T: Serialize + ?Sized>(kind: &str, id: Option<&RequestId>, payload: &T) -> String {
    let mut out = String::with_capacity(192);
    push_head(&mut out, kind, id);
    out.push_str(",\"payload\":");
    push_json(&mut out, payload);
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn strings_read_back(text in any::<String>()) {
            let mut out = String::new();
            push_string(&mut out, &text);
            prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
        }
    }

    #[test]
    fn any_payload() {
        assert_eq!(
            message("ping", Some(&RequestId::from("a\"b")), &serde_json::json!({"x": 1})),
            r#"{"type":"ping","id":"a\"b","payload":{"x":1}}"#
        );
    }
}
