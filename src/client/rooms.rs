//! The rooms that a client wants to be in, and where it stands in the log of each.
//!
//! One link at a time speaks for a room; what another one says about it is old. Knows no
//! socket.

use std::collections::BTreeMap;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::error::Error;
use crate::ids::RoomId;
use crate::protocol::decode::RoomJoined;
use crate::protocol::{Mode, Since};

/// One who waits for a room to be joined.
pub(super) struct Waiter {
    pub(super) key: u64,
    pub(super) reply: oneshot::Sender<Result<Box<RoomJoined>, Error>>,
}

/// A room that the client wants.
pub(super) struct Room {
    pub(super) mode: Mode,
    /// Where to go on.
    pub(super) cursor: Option<Since>,
    /// Where to go on once the snapshot that is being read is complete.
    snapshot: Option<Since>,
    /// The link that speaks for the room.
    pub(super) link: Option<u64>,
    /// The link that was asked to join.
    pub(super) joining: Option<u64>,
    asked_since: bool,
    /// Not before this time, after a refusal.
    pub(super) retry_at: Option<Instant>,
    /// The last sequence number that the link delivered.
    last_on_link: u64,
    /// It was joined once: it stays wanted when a later join fails for now.
    pub(super) established: bool,
    pub(super) waiters: Vec<Waiter>,
}

/// What to do with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Deliver,
    /// Seen already, or not this link's to say.
    Skip,
    /// Its sequence number does not ascend on its own link.
    OutOfOrder,
}

impl Room {
    pub(super) const fn new(mode: Mode, cursor: Option<Since>) -> Self {
        Self {
            mode,
            cursor,
            snapshot: None,
            link: None,
            joining: None,
            asked_since: false,
            retry_at: None,
            last_on_link: 0,
            established: false,
            waiters: Vec::new(),
        }
    }

    /// A join goes out on `link`; the answer is where it resumes from.
    pub(super) fn join(&mut self, link: u64) -> Option<&Since> {
        self.joining = Some(link);
        self.retry_at = None;
        let since = self.cursor.as_ref().filter(|_| self.mode.subscribes());
        self.asked_since = since.is_some();
        since
    }

    /// `link` has joined; `true` if the view was reset, that is, events are missing.
    pub(super) fn joined(&mut self, link: u64, joined: &RoomJoined) -> bool {
        let answers = self.joining == Some(link);
        // Without an id it is a change of the epoch under the subscription.
        let reset =
            !joined.recovered && if answers { self.asked_since } else { self.cursor.is_some() };
        if answers {
            self.joining = None;
        }
        self.link = Some(link);
        self.last_on_link = 0;
        self.established = true;
        if !joined.recovered && self.mode.subscribes() {
            let head = Since { epoch: joined.epoch.clone(), seq: joined.seq };
            // A connection that dies in the middle of a snapshot must get all of it again.
            (self.cursor, self.snapshot) =
                if joined.more { (None, Some(head)) } else { (Some(head), None) };
        }
        reset
    }

    /// A page of the snapshot came.
    pub(super) fn snapshot(&mut self, link: u64, more: bool) -> Verdict {
        if self.link != Some(link) {
            return Verdict::Skip;
        }
        if !more && let Some(head) = self.snapshot.take() {
            self.cursor = Some(head);
        }
        Verdict::Deliver
    }

    /// An event with a sequence number came.
    pub(super) fn event(&mut self, link: u64, seq: u64) -> Verdict {
        if self.link != Some(link) {
            return Verdict::Skip;
        }
        let ascends = seq > self.last_on_link;
        self.last_on_link = self.last_on_link.max(seq);
        match &mut self.cursor {
            _ if !ascends => Verdict::OutOfOrder,
            Some(cursor) if seq <= cursor.seq => Verdict::Skip,
            Some(cursor) => {
                cursor.seq = seq;
                Verdict::Deliver
            }
            None => Verdict::Deliver,
        }
    }

    /// The lag is over: everything up to `seq` was sent or superseded.
    pub(super) fn caught_up(&mut self, link: u64, epoch: &str, seq: u64) -> Verdict {
        if self.link != Some(link) {
            return Verdict::Skip;
        }
        if let Some(cursor) = &mut self.cursor
            && cursor.epoch == epoch
        {
            cursor.seq = cursor.seq.max(seq);
        }
        Verdict::Deliver
    }

    /// `link` is gone.
    pub(super) fn link_gone(&mut self, link: u64) {
        if self.link == Some(link) {
            self.link = None;
        }
        if self.joining == Some(link) {
            self.joining = None;
        }
    }
}

/// All of them, by name.
pub(super) type Rooms = BTreeMap<RoomId, Room>;

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(epoch: &str, seq: u64, recovered: bool, more: bool) -> RoomJoined {
        serde_json::from_value(serde_json::json!({
            "roomId": "r", "epoch": epoch, "seq": seq, "recovered": recovered, "more": more
        }))
        .unwrap()
    }

    fn at(room: &Room) -> Option<(&str, u64)> {
        room.cursor.as_ref().map(|since| (since.epoch.as_str(), since.seq))
    }

    #[test]
    fn resumes_from_the_last_event() {
        let mut room = Room::new(Mode::Both, None);
        assert_eq!(room.join(1), None);
        assert!(!room.joined(1, &joined("e", 10, false, false)));
        assert_eq!(room.event(1, 12), Verdict::Deliver);
        assert_eq!(room.event(2, 13), Verdict::Skip);
        room.link_gone(1);
        assert_eq!(room.join(2).map(|since| since.seq), Some(12));
        assert!(!room.joined(2, &joined("e", 20, true, false)));
        assert_eq!(at(&room), Some(("e", 12)), "the head is no resume point while replaying");
        assert_eq!(room.event(2, 15), Verdict::Deliver);
        assert_eq!(at(&room), Some(("e", 15)));
    }

    #[test]
    fn a_reset_is_told_and_starts_from_the_new_head() {
        let mut room = Room::new(Mode::Both, Some(Since { epoch: "e".into(), seq: 9 }));
        room.join(1);
        assert!(room.joined(1, &joined("f", 3, false, false)));
        assert_eq!(at(&room), Some(("f", 3)));
        // Under a live subscription as well.
        assert!(room.joined(1, &joined("g", 1, false, false)));
        assert_eq!(at(&room), Some(("g", 1)));
    }

    #[test]
    fn half_a_snapshot_is_no_resume_point() {
        let mut room = Room::new(Mode::Subscribe, None);
        room.join(1);
        room.joined(1, &joined("e", 10, false, true));
        assert_eq!(at(&room), None);
        assert_eq!(room.snapshot(1, true), Verdict::Deliver);
        assert_eq!(at(&room), None);
        assert_eq!(room.snapshot(2, false), Verdict::Skip);
        room.snapshot(1, false);
        assert_eq!(at(&room), Some(("e", 10)));
    }

    #[test]
    fn two_links_deliver_each_event_once() {
        let mut room = Room::new(Mode::Both, None);
        room.join(1);
        room.joined(1, &joined("e", 0, false, false));
        assert_eq!(room.event(1, 1), Verdict::Deliver);
        room.join(2);
        assert_eq!(room.event(1, 2), Verdict::Deliver, "the old link speaks until the new one");
        room.joined(2, &joined("e", 3, true, false));
        assert_eq!(room.event(1, 3), Verdict::Skip);
        assert_eq!(room.event(2, 2), Verdict::Skip, "seen on the old link");
        assert_eq!(room.event(2, 3), Verdict::Deliver);
        assert_eq!(room.event(2, 3), Verdict::OutOfOrder);
    }

    #[test]
    fn publishers_have_no_place_in_the_log() {
        let mut room = Room::new(Mode::Publish, None);
        room.join(1);
        assert!(!room.joined(1, &joined("e", 10, false, false)));
        assert_eq!(at(&room), None);
    }

    #[test]
    fn caught_up_moves_forward_within_its_epoch() {
        let mut room = Room::new(Mode::Both, None);
        room.join(1);
        room.joined(1, &joined("e", 5, false, false));
        room.caught_up(1, "other", 50);
        assert_eq!(at(&room), Some(("e", 5)));
        room.caught_up(1, "e", 9);
        assert_eq!(at(&room), Some(("e", 9)));
    }
}
