//! The durable log of the rooms: the trait that every engine implements, and the
//! values that go in and come out (delivery.md, "The room log").
//!
//! An engine commits, judges newest, late and duplicate in its own order, and reports
//! through one channel of [`LogEvent`]s. It knows no connection, no subscription and
//! no wire format: bodies are JSON members that pass through unread.

pub mod embedded;
pub mod judge;
pub mod nats;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::ids::{ClientId, ConnId, RoomId, VehicleId};
use crate::time::UnixMillis;

pub use nats::Nats;

pub use embedded::{Embedded, Lock, LockError, OpenError, Settings};

/// The most rooms that one position may be published to (protocol.md).
pub const MAX_ROOMS: usize = 16;

/// The largest `seq`: what a JSON number holds exactly (2⁵³ − 1).
pub const MAX_SEQ: u64 = (1 << 53) - 1;

/// Answers one append. Called by the consumer of [`LogEvent::Committed`], never by the
/// engine, so that an answer and the events around it keep their order.
pub type Reply = Box<dyn FnOnce(Receipt) + Send>;

/// One accepted position on its way into the log.
pub struct Append {
    /// The rooms it goes to: 1 to [`MAX_ROOMS`], each once.
    pub rooms: Vec<RoomId>,
    /// Whose position it is.
    pub vehicle: VehicleId,
    /// Who published it.
    pub client: ClientId,
    /// The connection that published it and is not sent its own event.
    pub sender: ConnId,
    /// The idempotency key, if one was given.
    pub key: Option<Box<str>>,
    /// The time of the fix as sent; `None`: the time received counts.
    pub fix: Option<UnixMillis>,
    /// Degrees, WGS 84.
    pub latitude: f64,
    /// Degrees, WGS 84.
    pub longitude: f64,
    /// The position's JSON members, passed through unread.
    pub body: Box<str>,
    /// When the server received it.
    pub received_at: UnixMillis,
    /// Part of an upload: stored and judged, but never live before its
    /// [`RoomLog::release`].
    pub quiet: bool,
    /// How to answer the sender.
    pub reply: Option<Reply>,
}

impl Append {
    /// The time that counts as the time of the fix.
    #[must_use]
    pub fn fix_time(&self) -> UnixMillis {
        self.fix.unwrap_or(self.received_at)
    }
}

impl fmt::Debug for Append {
    /// Without the body and the key: no payload reaches a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Append")
            .field("rooms", &self.rooms)
            .field("vehicle", &self.vehicle)
            .field("fix", &self.fix)
            .field("quiet", &self.quiet)
            .finish_non_exhaustive()
    }
}

/// What the log made of a position in one room (protocol.md, "A position").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is in the log.
    Stored {
        /// `false`: late, older than the vehicle's newest in that room.
        newest: bool,
    },
    /// The log had it already; nothing was stored.
    Duplicate,
}

/// The outcome of an append in one room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomOutcome {
    /// The room.
    pub room: RoomId,
    /// The position's `seq`; a duplicate's is the first one's.
    pub seq: u64,
    /// What was decided.
    pub verdict: Verdict,
}

/// The answer to an append: one outcome per room, in the order of its rooms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// One outcome per room.
    pub outcomes: Vec<RoomOutcome>,
}

impl Receipt {
    /// Whether every room had it already.
    #[must_use]
    pub fn duplicate(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.verdict == Verdict::Duplicate)
    }

    /// The rooms in which it was late.
    pub fn late(&self) -> impl Iterator<Item = &RoomId> {
        self.outcomes
            .iter()
            .filter(|outcome| outcome.verdict == Verdict::Stored { newest: false })
            .map(|outcome| &outcome.room)
    }
}

/// An append that is durable, with what became of it.
#[derive(Debug)]
pub struct Committed {
    /// The append, its reply still to be called.
    pub append: Append,
    /// One outcome per room, in the order of its rooms.
    pub outcomes: Vec<RoomOutcome>,
}

/// A position as the log holds it in one room.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredPosition {
    /// Its place in the log.
    pub seq: u64,
    /// Whose position it is.
    pub vehicle: VehicleId,
    /// Who published it.
    pub client: ClientId,
    /// The time of the fix.
    pub fix: UnixMillis,
    /// When the server received it.
    pub received_at: UnixMillis,
    /// The position's JSON members.
    pub body: Box<str>,
    /// Late, or from an upload and never live: not part of a replay.
    pub late: bool,
}

/// What a failure is a failure of, and so which hold of the plane it is (plane.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The embedded log's own file.
    Store,
    /// The broker that all instances share, or the link to it.
    Broker,
}

/// Why the log cannot work now; the text names the file or server and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct StoreFailure {
    /// What failed.
    pub kind: FailureKind,
    /// For people.
    pub text: Arc<str>,
}

impl StoreFailure {
    /// A failure of the embedded log's file.
    #[must_use]
    pub fn store(text: impl Into<Arc<str>>) -> Self {
        Self { kind: FailureKind::Store, text: text.into() }
    }

    /// A failure of the broker or of the link to it.
    #[must_use]
    pub fn broker(text: impl Into<Arc<str>>) -> Self {
        Self { kind: FailureKind::Broker, text: text.into() }
    }
}

/// The sender of what another instance published: no connection has this id.
pub const ELSEWHERE: ConnId = ConnId(u64::MAX);

/// What an engine reports, in the log's order.
#[derive(Debug)]
pub enum LogEvent {
    /// These appends are durable, in this order.
    Committed(Vec<Committed>),
    /// These are in the log and wait for no answer here: other instances published them,
    /// or they are one room's part of a position for several, whose answer follows.
    Arrived(Vec<Committed>),
    /// These are durable in all their rooms; what was to be seen of them has been
    /// reported as [`LogEvent::Arrived`].
    Answered(Vec<Committed>),
    /// The answer to [`RoomLog::load_room`].
    RoomLoaded {
        /// The room.
        room: RoomId,
        /// The log's epoch.
        epoch: Arc<str>,
        /// The store's highest `seq` at this point: all of the room up to it is in
        /// `newest` or can be read, all after it follows as [`LogEvent::Committed`].
        head: u64,
        /// A resume from a `seq` below this one has missed what retention took.
        trimmed_to: u64,
        /// The newest position per vehicle, ascending `seq`.
        newest: Vec<StoredPosition>,
    },
    /// The answer to [`RoomLog::confirm_head`].
    HeadConfirmed {
        /// The room.
        room: RoomId,
        /// At least the highest `seq` that the log had when it was asked; all of the room
        /// up to it has been reported.
        head: u64,
    },
    /// The store cannot write; appends wait in their order. Once per stretch.
    Failing(StoreFailure),
    /// The store writes again.
    Recovered,
    /// Everything is committed and the store is closed. The last event.
    Closed,
}

/// A page of missed events.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// Ascending `seq`.
    pub events: Vec<StoredPosition>,
    /// The `after_seq` of the next page; `None`: `up_to_seq` is reached.
    pub next: Option<u64>,
}

/// Why a page could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Retention took events after the asked-for `seq`: the reader must be reset.
    #[error("the log was trimmed up to {trimmed_to}")]
    Trimmed {
        /// The lowest `seq` that a read may start after.
        trimmed_to: u64,
    },
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreFailure),
}

/// A question for the past of a room.
#[derive(Debug, Clone)]
pub struct HistoryQuery {
    /// The room.
    pub room: RoomId,
    /// One vehicle, or all.
    pub vehicle: Option<VehicleId>,
    /// The earliest time of the fix, inclusive.
    pub from: Option<UnixMillis>,
    /// The latest time of the fix, inclusive.
    pub to: Option<UnixMillis>,
    /// The most positions of a page.
    pub limit: usize,
    /// About the most bytes of a page: bodies, names and [`EVENT_OVERHEAD`] each. One
    /// position is always given.
    pub max_bytes: usize,
    /// Where the page before ended: its [`HistoryPage::cursor`].
    pub cursor: Option<Box<str>>,
}

/// A page of history by time of the fix, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryPage {
    /// The positions, late ones included.
    pub events: Vec<StoredPosition>,
    /// Where the next page starts; `None`: this was the last.
    pub cursor: Option<Box<str>>,
}

/// Why history could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// The cursor is none that this log gave.
    #[error("a cursor from the page before")]
    BadCursor,
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreFailure),
}

/// What an event costs a page beside its body and names, in bytes.
pub const EVENT_OVERHEAD: usize = 200;

/// The end of an upload in one room: its newest fix goes live if it is newer than the
/// vehicle's newest. Then it moves to a new `seq` (what is sent must ascend) and comes
/// as [`LogEvent::Committed`] with a new, replyless append; else nothing happens.
pub struct Release {
    /// The room.
    pub room: RoomId,
    /// The `seq` that the upload's newest fix was stored under, or was a duplicate of.
    pub seq: u64,
    /// The connection of the upload.
    pub sender: ConnId,
}

/// A durable log. All calls may come from any thread; none blocks.
pub trait RoomLog: Send + Sync {
    /// Queues a position. The order of the calls is the order in the log.
    fn append(&self, append: Append);

    /// Asks for a room's state; answered by [`LogEvent::RoomLoaded`], in the log's
    /// order: after every append called before, ahead of every append called later.
    fn load_room(&self, room: RoomId);

    /// Says that nobody here is in the room any more; a later [`RoomLog::load_room`] asks
    /// for it again.
    fn unload_room(&self, _room: RoomId) {}

    /// Whether other processes write to this log too, so that a `seq` above what was
    /// reported here may be one of its own.
    fn is_shared(&self) -> bool {
        false
    }

    /// Asks a shared log how far a room is; answered by [`LogEvent::HeadConfirmed`].
    fn confirm_head(&self, _room: RoomId) {}

    /// Ends an upload in one room, in the log's order.
    fn release(&self, release: Release);

    /// The epoch that this log's `seq`s belong to.
    fn epoch(&self) -> Arc<str>;

    /// Reads the events of `room` with `after_seq < seq ≤ up_to_seq`, without late ones
    /// if `live_only`, at most about `max_bytes` (at least one event). `up_to_seq` must
    /// be a `seq` that was reported. Runs off the runtime's workers.
    fn read(
        &self,
        room: RoomId,
        after_seq: u64,
        up_to_seq: u64,
        max_bytes: usize,
        live_only: bool,
    ) -> BoxFuture<'static, Result<Page, ReadError>>;

    /// Reads a page of history; stable while appends go on. Runs off the runtime's
    /// workers.
    fn history(&self, query: HistoryQuery)
    -> BoxFuture<'static, Result<HistoryPage, HistoryError>>;

    /// Ends when everything appended before the call is committed (which, while the
    /// store fails, it is not).
    fn flush(&self) -> BoxFuture<'static, ()>;

    /// Tries a failing store again now rather than at its next turn.
    fn poke(&self);

    /// Commits everything, closes the store cleanly and ends after [`LogEvent::Closed`]
    /// was sent. Appends called later are dropped with their replies uncalled.
    fn close(&self) -> BoxFuture<'static, ()>;
}

#[cfg(test)]
mod suite;
