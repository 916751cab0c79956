//! Fan-out: the outgoing queue of a connection as a view of the rooms' shared tails
//! (performance.md, "What follows" 1).
//!
//! An event is encoded once and appended to its room's [`Tail`]; each subscriber has a
//! cursor into it. Nothing here knows a socket, a session or the room log.

mod batch;
mod feed;
mod joined;
mod ladder;
mod newest;
mod queue;
mod reader;
mod seat;
mod snapshot;
mod tail;

pub use batch::Batch;
pub use feed::{Feed, FeedState, PositionEvent, Start};
pub use newest::{Newest, NewestMap};
pub use queue::{Backlog, FellBehind, Queue, Weight};
pub use reader::PageRequest;
pub use seat::Events;
pub use snapshot::SnapshotWalk;
pub use tail::{Cursor, Entry, EntryKind, Tail, Trimmed};
