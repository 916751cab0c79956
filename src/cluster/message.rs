//! What instances say to each other about presence: JSON, one message a payload.
//!
//! Unknown messages and fields are ignored, so that instances of two versions get along
//! during a deploy. Names that no room or client may have make a message unreadable.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{ClientId, RoomId};
use crate::rooms::LeaveReason;

/// The name of an instance, new for every process.
pub(super) type Node = Arc<str>;

/// To whom a message goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// To all instances.
    All,
    /// To those with members in a room.
    Room(RoomId),
    /// To one instance.
    Node(Node),
}

/// A message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// The sender lives.
    Beat(Beat),
    /// The sender has ended.
    Bye {
        /// The sender.
        from: String,
    },
    /// Who came to and left a room of the sender.
    Delta(Delta),
    /// The versions of rooms that changed lately.
    Digest {
        /// The sender.
        from: String,
        /// Rooms and their versions.
        rooms: Vec<(RoomId, u64)>,
    },
    /// The sender wants the lists of rooms of which it does not have these versions.
    Ask {
        /// The sender.
        from: String,
        /// Rooms and the versions that it has; 0: none.
        rooms: Vec<(RoomId, u64)>,
    },
    /// A part of the answer for one room.
    List(List),
    /// The answer for rooms of which the asker has all.
    Same {
        /// The sender.
        from: String,
        /// The rooms.
        rooms: Vec<RoomId>,
    },
}

/// A heartbeat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Beat {
    pub(super) from: String,
    /// `server.generation`.
    #[serde(default)]
    pub(super) generation: String,
    /// When the process started, in milliseconds of the Unix epoch.
    #[serde(default)]
    pub(super) started: i64,
    /// It is being stopped: its clients come back within so many milliseconds.
    #[serde(default)]
    pub(super) draining: Option<u64>,
    /// It takes no new clients, but goes on.
    #[serde(default)]
    pub(super) away: bool,
    /// Connections.
    #[serde(default)]
    pub(super) clients: u64,
    /// Rooms in which it has members.
    #[serde(default)]
    pub(super) rooms: u64,
    /// It has just started or come back: the others are to say that they live.
    #[serde(default)]
    pub(super) hello: bool,
}

/// A change of the list of one room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Delta {
    pub(super) from: String,
    pub(super) room: RoomId,
    /// The version that this changes; 0: nobody was there.
    pub(super) prev: u64,
    /// The version that it makes. Versions of one instance only ascend.
    pub(super) version: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) joined: Vec<ClientId>,
    /// Who left, by reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) left: Vec<(String, Vec<ClientId>)>,
}

/// A part of the list of one room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct List {
    pub(super) from: String,
    pub(super) room: RoomId,
    pub(super) version: u64,
    /// From 0.
    pub(super) part: u32,
    pub(super) last: bool,
    pub(super) members: Vec<ClientId>,
}

impl Message {
    /// Reads a message; `None` for what this version cannot read.
    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // Only maps with keys that are no text and failing writers make this fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The reason of that name; an unknown one, of a newer instance, is as good as any.
pub(super) fn reason_of(name: &str) -> LeaveReason {
    LeaveReason::from_name(name).unwrap_or(LeaveReason::Disconnected)
}

/// How many bytes a name takes at most: each byte may need an escape.
pub(super) fn cost(name: &str) -> usize {
    name.len() * 2 + 4
}

/// Cuts `items` into runs of at most `limit` bytes; a single item may exceed it.
pub(super) fn runs<T>(
    items: impl IntoIterator<Item = T>,
    limit: usize,
    cost: impl Fn(&T) -> usize,
) -> Vec<Vec<T>> {
    let mut runs = vec![Vec::new()];
    let mut bytes = 0;
    for item in items {
        let more = cost(&item);
        if bytes + more > limit && bytes > 0 {
            runs.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(run) = runs.last_mut() {
            run.push(item);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_newer_version_adds_is_ignored() {
        let beat = Message::decode(br#"{"beat":{"from":"a","mood":"good"}}"#).unwrap();
        assert!(matches!(beat, Message::Beat(beat) if beat.from == "a" && !beat.hello));
        for unreadable in [
            &br#"{"song":{"from":"a"}}"#[..],
            br#"{"delta":{"from":"a","room":"","prev":0,"version":1}}"#,
            b"",
            b"\xff",
            b"[]",
        ] {
            assert_eq!(Message::decode(unreadable), None);
        }
        assert_eq!(reason_of("abducted"), LeaveReason::Disconnected);
    }

    #[test]
    fn messages_come_back_from_their_bytes() {
        let name = |text| ClientId::parse(text).unwrap();
        let delta = Message::Delta(Delta {
            from: "a".to_owned(),
            room: RoomId::parse("r\"\u{1F68C}").unwrap(),
            prev: 1,
            version: 1 << 60,
            joined: vec![name("x"), name("y\\")],
            left: vec![("left".to_owned(), vec![name("z")])],
        });
        assert_eq!(Message::decode(&delta.encode()), Some(delta));
    }

    #[test]
    fn runs_keep_the_limit_and_lose_nothing() {
        let items: Vec<usize> = (1..50).collect();
        let runs = runs(items.clone(), 60, |item| *item);
        assert!(runs.iter().all(|run| run.iter().sum::<usize>() <= 60));
        assert_eq!(runs.concat(), items);
        assert_eq!(super::runs(Vec::<usize>::new(), 60, |item| *item), [Vec::<usize>::new()]);
    }
}
