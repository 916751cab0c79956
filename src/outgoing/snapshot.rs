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
use crate::protocol::page::{PageBuilder, Push};
use crate::time::UnixMillis;

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

    /// Puts as much as fits on `page`. Returns whether that was all.
    pub fn fill(&mut self, page: &mut PageBuilder, newest: &NewestMap) -> bool {
        while let Some(member) = self.members.front() {
            if page.push_member(member) == Push::Full {
                return false;
            }
            self.members.pop_front();
        }
        for position in newest.walk(self.next..self.end, self.oldest) {
            let item = std::str::from_utf8(position.item()).unwrap_or_default();
            if page.push_item(item) == Push::Full {
                return false;
            }
            self.next = position.index + 1;
        }
        true
    }

    /// The next `snapshot` page as a frame, and whether it is the last.
    pub(super) fn page(
        &mut self,
        room: &RoomId,
        newest: &NewestMap,
        max_frame_out: usize,
    ) -> (Bytes, bool) {
        let mut page = PageBuilder::snapshot(room, max_frame_out);
        let finished = self.fill(&mut page, newest);
        (frame::text_frame(&page.finish_more(!finished)), finished)
    }
}
