//! A subscriber's seat in a room's stream: its cursor, what it skips, and its step on the
//! ladder for slow consumers (delivery.md, "The outgoing queue").

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::queue::{Backlog, Queue};
use super::reader::PageRequest;
use super::snapshot::SnapshotWalk;
use super::tail::{Cursor, EntryKind};
use crate::ids::ConnId;

/// Which events a seat gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Events {
    /// All of the room.
    All,
    /// Positions only (a flat join of old firmware).
    PositionsOnly,
}

/// How a seat reads the room's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// Every event.
    Full,
    /// The newest per vehicle only, since the cursor it had then.
    Newest {
        /// Positions before the cursor when it began to lag.
        began: u64,
        /// Positions sent since.
        sent: u64,
        /// Whether `lagging` has been said.
        told: bool,
    },
}

/// Missed events that are read from the log, page by page.
#[derive(Debug)]
pub(super) struct Replay {
    /// The last `seq` that was read.
    pub(super) after: u64,
    /// The page that is being sent.
    pub(super) page: VecDeque<(u64, Bytes)>,
    /// A page is being read; nothing is due until it comes.
    pub(super) reading: bool,
    /// The subscriber's own positions after `after`: the log does not know whose they are.
    pub(super) own: Vec<u64>,
    /// The page that is being sent was there when the drain began.
    pub(super) marked: bool,
}

impl Replay {
    /// From behind the position `after` on.
    pub(super) fn new(after: u64) -> Self {
        Self { after, page: VecDeque::new(), reading: false, own: Vec::new(), marked: false }
    }

    /// Whether this page is the one that is being read.
    pub(super) fn waits_for(&self, asked: PageRequest) -> bool {
        self.reading && self.after == asked.after
    }

    /// Takes a page that has been read up to `after`.
    pub(super) fn take_page(&mut self, mut page: VecDeque<(u64, Bytes)>, after: u64) {
        page.retain(|(seq, _)| self.own.binary_search(seq).is_err());
        self.own.retain(|seq| *seq > after);
        (self.page, self.after, self.reading) = (page, after, false);
    }
}

#[derive(Debug)]
pub(super) struct Seat {
    pub(super) queue: Arc<Queue>,
    pub(super) slot: u32,
    pub(super) events: Events,
    pub(super) cursor: Cursor,
    /// The last position sent, or the point that the subscriber came with.
    pub(super) sent_seq: u64,
    /// Entries from the cursor to the head that this seat will not get: its own, those
    /// before it joined that are not replayed, kinds that it does not want.
    pub(super) skipped: Backlog,
    /// Positions among them.
    pub(super) skipped_positions: u64,
    /// Entries without a seq below this index are not replayed.
    pub(super) replay_until: u64,
    /// Where it stops listening, once it does.
    pub(super) end: Option<Cursor>,
    /// The drain's mark: an index that the cursor has to reach.
    pub(super) mark: u64,
    pub(super) parked: bool,
    pub(super) pace: Pace,
    pub(super) snapshot: Option<Box<SnapshotWalk>>,
    pub(super) replay: Option<Box<Replay>>,
}

impl Seat {
    pub(super) fn wants(&self, index: u64, kind: EntryKind, sender: Option<ConnId>) -> bool {
        if sender == Some(self.queue.conn()) {
            return false;
        }
        match kind {
            EntryKind::Position { .. } => true,
            EntryKind::Other => self.events == Events::All && index >= self.replay_until,
        }
    }

    pub(super) fn skip(&mut self, bytes: usize, kind: EntryKind) {
        self.skipped = self.skipped.plus(Backlog { messages: 1, bytes: bytes as u64 });
        self.skipped_positions += u64::from(matches!(kind, EntryKind::Position { .. }));
    }

    pub(super) fn unskip(&mut self, bytes: usize, kind: EntryKind) {
        self.skipped.messages = self.skipped.messages.saturating_sub(1);
        self.skipped.bytes = self.skipped.bytes.saturating_sub(bytes as u64);
        let position = u64::from(matches!(kind, EntryKind::Position { .. }));
        self.skipped_positions = self.skipped_positions.saturating_sub(position);
    }

    /// Moves the cursor to `head`, over everything in between.
    pub(super) fn catch_up(&mut self, head: Cursor) {
        self.cursor = head;
        self.skipped = Backlog::default();
        self.skipped_positions = 0;
    }

    /// Whether it is neither at the head nor in the queue's list of what is due.
    pub(super) fn waits_for_page(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| replay.reading)
    }

    /// Goes over to the newest per vehicle.
    pub(super) fn lag_behind(&mut self) {
        if self.pace == Pace::Full {
            let began = self.cursor.positions;
            self.pace = Pace::Newest { began, sent: 0, told: false };
        }
    }
}
