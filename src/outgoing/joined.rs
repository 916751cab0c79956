//! What many read in a row, joined once.
//!
//! The second who asks for the same frames has them joined: a burst is one piece for all who
//! stand at its beginning. Who stands elsewhere shares the single frames, so nobody holds a
//! copy alone.

use super::batch::Run;
use super::tail::{Cursor, EntryKind, Tail};

/// The frames from one cursor to the head of a room's tail. Forget it when the head moves.
#[derive(Debug, Default)]
pub(super) struct Joined {
    /// Where the last reader began.
    asked: Option<u64>,
    /// The frames, and the last position's `seq` among them.
    run: Option<(Run, Option<u64>)>,
}

impl Joined {
    /// The frames from `cursor` to the head, `bytes` long in all, once somebody has read
    /// just these before.
    pub(super) fn run(
        &mut self,
        tail: &Tail,
        cursor: Cursor,
        bytes: usize,
    ) -> Option<(Run, Option<u64>)> {
        if self.asked.replace(cursor.index) != Some(cursor.index) {
            self.run = None;
            return None;
        }
        if self.run.is_none() {
            let entries = || (cursor.index..tail.head().index).map_while(|index| tail.get(index));
            let seqs = entries().filter_map(|entry| match entry.kind {
                EntryKind::Position { seq } => Some(seq),
                EntryKind::Other => None,
            });
            let run = Run::join(entries().map(|entry| &entry.frame), bytes);
            self.run = Some((run, seqs.last()));
        }
        self.run.clone()
    }
}
