//! The rest of a snapshot that did not fit into `room_joined`, as a walk.
//!
//! Pages are built one at a time, when the socket takes them: a snapshot costs no memory
//! while it waits. A vehicle that moves before its page is built is left to the live
//! events, which follow the snapshot anyway.

use std::collections::VecDeque;

use bytes::Bytes;

use super::newest::NewestMap;
use crate::ids::{ClientId, RoomId};
use crate::protocol::frame;
use crate::time::UnixMillis;

/// What closes a page behind its lists: `],"more":false}}` and what an `id` adds.
const CLOSING: usize = 128;

/// Members and positions still to be told.
#[derive(Debug)]
pub struct SnapshotWalk {
    members: VecDeque<ClientId>,
    next: u64,
    end: u64,
    oldest: UnixMillis,
}

impl SnapshotWalk {
    /// A walk over `members` and over the newest positions that stand below index `end`,
    /// of vehicles with a fix not before `oldest`.
    #[must_use]
    pub fn new(members: VecDeque<ClientId>, end: u64, oldest: UnixMillis) -> Self {
        Self { members, next: 0, end, oldest }
    }

    /// Appends `"members":[…],"positions":[…],"more":…` to `text`, as much as keeps it under
    /// `limit` bytes (but at least one element, so that every page gets on). Returns whether
    /// that was all.
    pub fn fill(&mut self, text: &mut String, newest: &NewestMap, limit: usize) -> bool {
        let room_for = |text: &String, more: usize| text.len() + more + CLOSING <= limit;
        text.push_str("\"members\":[");
        let mut first = true;
        let mut full = false;
        while let Some(member) = self.members.front() {
            let name = serde_json::to_string(member).unwrap_or_default();
            if !first && !room_for(text, name.len() + 1) {
                full = true;
                break;
            }
            if !first {
                text.push(',');
            }
            first = false;
            text.push_str(&name);
            self.members.pop_front();
        }
        text.push_str("],\"positions\":[");
        let mut first_position = true;
        if !full {
            for position in newest.walk(self.next..self.end, self.oldest) {
                let item = std::str::from_utf8(position.item()).unwrap_or_default();
                if !(first && first_position) && !room_for(text, item.len() + 3) {
                    full = true;
                    break;
                }
                if !first_position {
                    text.push(',');
                }
                first_position = false;
                text.push('{');
                text.push_str(item);
                text.push('}');
                self.next = position.index + 1;
            }
        }
        text.push_str("],\"more\":");
        text.push_str(if full { "true" } else { "false" });
        !full
    }

    /// The next `snapshot` page as a frame, and whether it is the last.
    pub(super) fn page(
        &mut self,
        room: &RoomId,
        newest: &NewestMap,
        max_frame_out: usize,
    ) -> (Bytes, bool) {
        let room = serde_json::to_string(room).unwrap_or_default();
        let mut text = format!("{{\"type\":\"snapshot\",\"payload\":{{\"roomId\":{room},");
        let finished = self.fill(&mut text, newest, max_frame_out);
        text.push_str("}}");
        (frame::text_frame(&text), finished)
    }
}
