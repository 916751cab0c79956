//! Messages that hold lists, cut into pages that keep `limits.max_frame_out`.
//!
//! A builder takes items until the next one would pass the limit and says so; whoever
//! feeds it then finishes the page and starts the next. It never takes an item that it
//! could not also finish.

use super::client::{MAX_CURSOR_BYTES, Mode};
use super::envelope::RequestId;
use super::write::{Message, push_plain, push_string};
use crate::ids::{ClientId, RoomId};

/// What became of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Push {
    /// It stands on this page.
    Taken,
    /// It belongs on the next page, and so does what comes after it.
    Full,
    /// It does not even fit on an empty page: skip it. Cannot happen to positions while
    /// `max_position` + [`EVENT_OVERHEAD`](super::position::EVENT_OVERHEAD) is within the limit.
    TooLarge,
}

/// `,"more":false`, `,"cursor":"…"`: what is added when a page is finished.
const MORE_RESERVE: usize = 13;
const CURSOR_RESERVE: usize = MAX_CURSOR_BYTES + 12;

/// One page being filled.
#[derive(Debug)]
pub struct PageBuilder {
    text: String,
    limit: usize,
    /// Bytes kept free for what finishing adds.
    reserve: usize,
    lists: &'static [&'static str],
    /// The list being filled.
    at: usize,
    in_list: usize,
    items: usize,
}

impl PageBuilder {
    fn new(head: Message, lists: &'static [&'static str], tail: usize, limit: usize) -> Self {
        // `[`, `]`, `,"name":` for each list, `}}` at the end.
        let closing: usize = lists.iter().map(|name| name.len() + 6).sum();
        let mut page = Self {
            text: head.unfinished(),
            limit,
            reserve: closing + tail + 2,
            lists,
            at: 0,
            in_list: 0,
            items: 0,
        };
        page.open_list();
        page
    }

    /// `room_joined` with members and positions, or its first page.
    #[must_use]
    #[allow(clippy::too_many_arguments)]
    pub fn room_joined(
        id: Option<&RequestId>,
        room: &RoomId,
        mode: Mode,
        epoch: &str,
        seq: u64,
        recovered: bool,
        member_count: usize,
        limit: usize,
    ) -> Self {
        let head = Message::new("room_joined", id)
            .text("roomId", room.as_str())
            .text("mode", mode.name())
            .text("epoch", epoch)
            .plain("seq", seq)
            .plain("recovered", recovered)
            .plain("memberCount", member_count);
        Self::new(head, &["members", "positions"], MORE_RESERVE, limit)
    }

    /// `snapshot`: the further pages of a `room_joined`.
    #[must_use]
    pub fn snapshot(room: &RoomId, limit: usize) -> Self {
        let head = Message::new("snapshot", None).text("roomId", room.as_str());
        Self::new(head, &["members", "positions"], MORE_RESERVE, limit)
    }

    /// `positions`: the newest per vehicle.
    #[must_use]
    pub fn positions(
        id: Option<&RequestId>,
        room: &RoomId,
        epoch: &str,
        seq: u64,
        limit: usize,
    ) -> Self {
        let head = Message::new("positions", id)
            .text("roomId", room.as_str())
            .text("epoch", epoch)
            .plain("seq", seq);
        Self::new(head, &["positions"], MORE_RESERVE, limit)
    }

    /// `history`, finished with [`finish_cursor`](Self::finish_cursor).
    #[must_use]
    pub fn history(id: Option<&RequestId>, limit: usize) -> Self {
        Self::new(Message::new("history", id), &["positions"], CURSOR_RESERVE, limit)
    }

    /// `member_joined` or `member_left`: one list, `clientId` where it has one member.
    pub(super) fn presence(kind: &str, room: &RoomId, tail: usize, limit: usize) -> Self {
        let head = Message::new(kind, None).text("roomId", room.as_str());
        Self::new(head, &["members"], tail, limit)
    }

    /// `backfill_result`: the rejected items, as many as fit.
    pub(super) fn rejected(head: Message, tail: usize, limit: usize) -> Self {
        Self::new(head, &["rejected"], tail, limit)
    }

    /// How many items stand on this page.
    #[must_use]
    pub fn items(&self) -> usize {
        self.items
    }

    /// How long the finished page is at most, in bytes.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.text.len() + self.reserve
    }

    /// Adds a member. After the first position a page takes no more members.
    pub fn push_member(&mut self, client: &ClientId) -> Push {
        let mut text = String::with_capacity(client.as_str().len() + 2);
        push_string(&mut text, client.as_str());
        self.push_to("members", &text)
    }

    /// Adds a position: the members of an item, without braces.
    pub fn push_item(&mut self, item: &str) -> Push {
        self.push_framed("positions", "{", item, "}")
    }

    pub(super) fn push_to(&mut self, list: &str, value: &str) -> Push {
        self.push_framed(list, "", value, "")
    }

    fn push_framed(&mut self, list: &str, open: &str, value: &str, close: &str) -> Push {
        let Some(target) = self.lists.iter().position(|name| *name == list) else {
            return Push::TooLarge;
        };
        if target < self.at {
            return Push::Full;
        }
        let comma = usize::from(target == self.at && self.in_list > 0);
        let added = comma + open.len() + value.len() + close.len();
        if self.max_len() + added > self.limit {
            return if self.items == 0 { Push::TooLarge } else { Push::Full };
        }
        while self.at < target {
            self.next_list();
        }
        if self.in_list > 0 {
            self.text.push(',');
        }
        self.text.push_str(open);
        self.text.push_str(value);
        self.text.push_str(close);
        self.in_list += 1;
        self.items += 1;
        Push::Taken
    }

    /// What is written here was counted in `reserve` from the start.
    fn open_list(&mut self) {
        let before = self.text.len();
        if !self.text.ends_with('{') {
            self.text.push(',');
        }
        self.text.push('"');
        self.text.push_str(self.lists[self.at]);
        self.text.push_str("\":[");
        self.in_list = 0;
        self.reserve = self.reserve.saturating_sub(self.text.len() - before);
    }

    fn next_list(&mut self) {
        self.text.push(']');
        self.reserve = self.reserve.saturating_sub(1);
        self.at += 1;
        self.open_list();
    }

    /// Closes every list; the payload is still open.
    pub(super) fn close_lists(&mut self) {
        while self.at + 1 < self.lists.len() {
            self.next_list();
        }
        self.text.push(']');
    }

    pub(super) fn text_mut(&mut self) -> &mut String {
        &mut self.text
    }

    pub(super) fn end(mut self) -> String {
        self.text.push_str("}}");
        self.text
    }

    /// The page as a message, with `more`.
    #[must_use]
    pub fn finish_more(mut self, more: bool) -> String {
        self.close_lists();
        self.text.push_str(",\"more\":");
        push_plain(&mut self.text, more);
        self.end()
    }

    /// The page as a message, with the cursor of the next if there is one: at most 256
    /// bytes that need no escapes in JSON.
    #[must_use]
    pub fn finish_cursor(mut self, cursor: Option<&str>) -> String {
        self.close_lists();
        if let Some(cursor) = cursor {
            debug_assert!(cursor.len() <= MAX_CURSOR_BYTES);
            self.text.push_str(",\"cursor\":");
            push_string(&mut self.text, cursor);
        }
        self.end()
    }
}
