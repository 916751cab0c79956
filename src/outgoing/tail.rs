//! The shared tail of one room: the last encoded frames, each with a running index.
//!
//! Every subscriber reads the same frames at its own cursor, so an event costs its
//! bytes once, however many connections wait for it. Counts and bytes between two
//! indices are differences of running totals, hence exact and O(1) also for what has
//! been trimmed already.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::ids::ConnId;

/// What an entry is, for those who skip some kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A vehicle's position; the ladder may replace it by a newer one.
    Position {
        /// Its place in the room log.
        seq: u64,
    },
    /// Presence and the like: never skipped, not replayed.
    Other,
}

/// One encoded event.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The whole WebSocket frame, shared by all who send it.
    pub frame: Bytes,
    /// What it is.
    pub kind: EntryKind,
    /// Who must not get it back.
    pub sender: Option<ConnId>,
    /// Where it stands.
    at: Cursor,
}

impl Entry {
    /// Where it stands.
    #[must_use]
    pub fn at(&self) -> Cursor {
        self.at
    }

    /// The cursor behind it.
    #[must_use]
    pub fn after(&self) -> Cursor {
        Cursor {
            index: self.at.index + 1,
            bytes: self.at.bytes + self.frame.len() as u64,
            positions: self.at.positions
                + u64::from(matches!(self.kind, EntryKind::Position { .. })),
        }
    }
}

/// Events that may not be skipped are no longer held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("events that are no positions have been trimmed")]
pub struct Trimmed;

/// A place in a tail: the next entry to read, with the running total before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Index of the next entry.
    pub index: u64,
    /// Bytes of all entries before it.
    pub bytes: u64,
    /// Positions among the entries before it.
    pub positions: u64,
}

/// The last entries of one room, bounded by bytes.
#[derive(Debug)]
pub struct Tail {
    entries: VecDeque<Entry>,
    first: Cursor,
    head: Cursor,
    /// Every position of the room with a higher `seq` is held.
    floor: u64,
    /// Events that are no positions, held on their own and up to the same bound: a flood of
    /// positions must not push them out of reach of a slow reader.
    others: VecDeque<Entry>,
    others_bytes: u64,
    /// Every such event at or above this index is held.
    others_floor: u64,
    max_bytes: u64,
}

impl Tail {
    /// An empty tail whose first entry will have index `first`, behind all positions up
    /// to `seq`; it keeps at most `max_bytes` of frames (and always the newest one).
    #[must_use]
    pub fn new(first: u64, seq: u64, max_bytes: usize) -> Self {
        let start = Cursor { index: first, bytes: 0, positions: 0 };
        Self {
            entries: VecDeque::new(),
            first: start,
            head: start,
            floor: seq,
            others: VecDeque::new(),
            others_bytes: 0,
            others_floor: first,
            max_bytes: max_bytes as u64,
        }
    }

    /// An empty tail that goes on at index `first`, behind all positions up to `seq`. The
    /// running totals go on too, so that a cursor into the old one is merely behind.
    #[must_use]
    pub fn renewed(&self, first: u64, seq: u64) -> Self {
        let start = Cursor { index: first, ..self.head };
        let max_bytes = usize::try_from(self.max_bytes).unwrap_or(usize::MAX);
        Self { first: start, head: start, ..Self::new(first, seq, max_bytes) }
    }

    /// Adds an entry at the head and trims what is over the bound.
    pub fn append(&mut self, frame: Bytes, kind: EntryKind, sender: Option<ConnId>) {
        let entry = Entry { frame, kind, sender, at: self.head };
        self.head = entry.after();
        if kind == EntryKind::Other {
            self.others_bytes += entry.frame.len() as u64;
            self.others.push_back(entry.clone());
            while self.others_bytes > self.max_bytes && self.others.len() > 1 {
                if let Some(gone) = self.others.pop_front() {
                    self.others_bytes -= gone.frame.len() as u64;
                    self.others_floor = gone.at.index + 1;
                }
            }
        }
        self.entries.push_back(entry);
        while self.entries.len() > 1 && self.head.bytes - self.first.bytes > self.max_bytes {
            self.trim_one();
        }
    }

    fn trim_one(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            if let EntryKind::Position { seq } = entry.kind {
                self.floor = seq;
            }
            self.first = entry.after();
        }
    }

    /// The first event at or above `index` that is no position; these are held longer than
    /// positions.
    ///
    /// # Errors
    /// [`Trimmed`] if one in between is no longer held.
    pub fn next_other(&self, index: u64) -> Result<Option<&Entry>, Trimmed> {
        if index < self.others_floor {
            return Err(Trimmed);
        }
        let at = self.others.partition_point(|entry| entry.at.index < index);
        Ok(self.others.get(at))
    }

    /// Events at or above `index` that are no positions, as far as they are held.
    pub fn others_since(&self, index: u64) -> impl Iterator<Item = &Entry> {
        let at = self.others.partition_point(|entry| entry.at.index < index);
        self.others.range(at..)
    }

    /// Every position with a higher `seq` is held.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Where the next entry will be appended.
    #[must_use]
    pub fn head(&self) -> Cursor {
        self.head
    }

    /// The oldest entry still held (the head if there is none).
    #[must_use]
    pub fn first(&self) -> Cursor {
        self.first
    }

    /// The entry at `index`, unless it is trimmed or not there yet.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<&Entry> {
        let offset = index.checked_sub(self.first.index)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }

    /// The same, if at most `rest` bytes are to be read from there.
    #[must_use]
    pub fn resume_near(&self, seq: u64, rest: u64) -> Option<Cursor> {
        self.resume_after(seq).filter(|cursor| self.head.bytes - cursor.bytes <= rest)
    }

    /// The cursor from which all positions after `seq` are read, if the tail still holds
    /// them all.
    #[must_use]
    pub fn resume_after(&self, seq: u64) -> Option<Cursor> {
        if seq < self.floor {
            return None;
        }
        // Seqs of positions ascend, but entries without one stand between them; resumes
        // are mostly near the head, so search from there.
        let mut cursor = self.head;
        for entry in self.entries.iter().rev() {
            if let EntryKind::Position { seq: at } = entry.kind {
                if at <= seq {
                    break;
                }
                cursor = entry.at;
            }
        }
        Some(cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(len: usize) -> Bytes {
        Bytes::from(vec![0; len])
    }

    #[test]
    fn totals_stay_exact_when_entries_are_trimmed() {
        let mut tail = Tail::new(5, 0, 100);
        let start = tail.head();
        for seq in 1..=10 {
            tail.append(frame(30), EntryKind::Position { seq }, None);
        }
        assert_eq!(tail.head().bytes - start.bytes, 300);
        assert_eq!(tail.head().index, 15);
        assert_eq!(tail.first().index, 12, "three frames of 30 fit 100");
        assert!(tail.get(11).is_none() && tail.get(12).is_some() && tail.get(15).is_none());
    }

    #[test]
    fn other_events_outlive_the_positions_around_them() {
        let mut tail = Tail::new(0, 0, 100);
        tail.append(frame(10), EntryKind::Other, None);
        for seq in 1..=10 {
            tail.append(frame(50), EntryKind::Position { seq }, None);
        }
        assert!(tail.get(0).is_none());
        assert_eq!(tail.next_other(0).unwrap().map(|entry| entry.at().index), Some(0));
        assert!(tail.next_other(1).unwrap().is_none());
        for _ in 0..9 {
            tail.append(frame(10), EntryKind::Other, None);
        }
        assert!(tail.next_other(0).is_ok(), "ten frames of 10 fit 100");
        tail.append(frame(10), EntryKind::Other, None);
        assert_eq!(tail.next_other(0).err(), Some(Trimmed));
        assert_eq!(tail.others_since(0).count(), 10);
    }

    #[test]
    fn one_entry_over_the_bound_is_kept() {
        let mut tail = Tail::new(0, 0, 10);
        tail.append(frame(50), EntryKind::Other, None);
        assert!(tail.get(0).is_some());
    }

    #[test]
    fn resumes_only_when_nothing_is_missing() {
        let mut tail = Tail::new(0, 7, 100);
        assert_eq!(tail.resume_after(6), None, "events before the tail began may be missing");
        assert_eq!(tail.resume_after(7).map(|c| c.index), Some(0));
        tail.append(frame(40), EntryKind::Position { seq: 10 }, None);
        tail.append(frame(10), EntryKind::Other, None);
        tail.append(frame(40), EntryKind::Position { seq: 12 }, None);
        assert_eq!(tail.resume_after(7).map(|c| c.index), Some(0));
        assert_eq!(tail.resume_after(10).map(|c| c.index), Some(2));
        assert_eq!(tail.resume_after(11).map(|c| c.index), Some(2));
        assert_eq!(tail.resume_after(12).map(|c| c.index), Some(3));
        tail.append(frame(40), EntryKind::Position { seq: 15 }, None);
        assert_eq!(tail.resume_after(9), None, "seq 10 is trimmed");
        assert_eq!(tail.resume_after(10).map(|c| c.index), Some(2));
    }
}
