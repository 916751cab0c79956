//! One room's event stream: the shared tail, the newest position per vehicle, and a seat
//! for each subscribed connection with its cursor.
//!
//! Publishing appends once and marks the parked seats as due: O(1) plus the wakes. A seat
//! that is not caught up costs a publisher nothing. It knows queues, never sockets.

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use slab::Slab;

use super::batch::{Batch, Run};
use super::newest::{Newest, NewestMap};
use super::queue::{Backlog, Queue};
use super::snapshot::SnapshotWalk;
use super::tail::{Cursor, Entry, EntryKind, Tail};
use crate::ids::{ConnId, RoomId, VehicleId};
use crate::time::UnixMillis;

/// How reading a seat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// At the head; the seat is parked and will be marked due again.
    CaughtUp,
    /// The budget is used up; there is more.
    More,
    /// The tail has trimmed what this seat has to get.
    FellBehind,
}

/// A position as it is appended: encoded once, shared by all.
#[derive(Debug, Clone)]
pub struct PositionEvent {
    /// Whose position.
    pub vehicle: VehicleId,
    /// Its place in the room log.
    pub seq: u64,
    /// Time of the fix.
    pub fix: UnixMillis,
    /// The whole frame.
    pub frame: Bytes,
    /// The members of the position's JSON object within the frame.
    pub item: Range<usize>,
    /// The connection that published it, if it is one of this process.
    pub sender: Option<ConnId>,
}

/// Which events a seat gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Events {
    /// All of the room.
    All,
    /// Positions only (a flat join of old firmware).
    PositionsOnly,
}

#[derive(Debug)]
struct Seat {
    queue: Arc<Queue>,
    slot: u32,
    events: Events,
    cursor: Cursor,
    /// Entries from the cursor to the head that this seat will not get: its own, those
    /// before it joined that are not replayed, kinds that it does not want.
    skipped: Backlog,
    /// Entries without a seq below this index are not replayed.
    replay_until: u64,
    /// Where it stops listening, once it does.
    end: Option<Cursor>,
    /// The drain's mark: an index that the cursor has to reach.
    mark: u64,
    parked: bool,
    snapshot: Option<Box<SnapshotWalk>>,
}

impl Seat {
    fn wants(&self, index: u64, kind: EntryKind, sender: Option<ConnId>) -> bool {
        if sender == Some(self.queue.conn()) {
            return false;
        }
        match kind {
            EntryKind::Position { .. } => true,
            EntryKind::Other => self.events == Events::All && index >= self.replay_until,
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.skipped = self.skipped.plus(Backlog { messages: 1, bytes: bytes as u64 });
    }

    fn unskip(&mut self, bytes: usize) {
        self.skipped.messages = self.skipped.messages.saturating_sub(1);
        self.skipped.bytes = self.skipped.bytes.saturating_sub(bytes as u64);
    }
}

/// Where a subscriber begins to read.
#[derive(Debug, Default)]
pub struct Start {
    /// The first event to replay; `None`: the head.
    pub cursor: Option<Cursor>,
    /// What of the snapshot did not fit into the first page; it goes out before any event.
    pub snapshot: Option<SnapshotWalk>,
}

/// The state of a feed, reached through [`Feed::lock`].
#[derive(Debug)]
pub struct FeedState {
    tail: Tail,
    newest: NewestMap,
    seats: Slab<Seat>,
    by_conn: FxHashMap<ConnId, u32>,
    parked: Vec<u32>,
    last_seq: u64,
    joined: Joined,
}

/// What several seats read in a row is joined once, for the second who asks: a burst is one
/// piece for all who are at its beginning. Who is elsewhere shares the single frames.
#[derive(Debug, Default)]
struct Joined {
    /// From where the last reader began to the head.
    asked: Option<u64>,
    run: Option<Run>,
}

/// One room's event stream.
#[derive(Debug)]
pub struct Feed {
    room: RoomId,
    max_frame_out: usize,
    state: Mutex<FeedState>,
}

impl Feed {
    /// The stream of `room` as of the log's head `seq`, with the newest positions in
    /// ascending order of their seqs. The tail keeps at most `tail_bytes`.
    #[must_use]
    pub fn new(
        room: RoomId,
        seq: u64,
        newest: Vec<PositionEvent>,
        tail_bytes: usize,
        max_frame_out: usize,
    ) -> Self {
        let mut map = NewestMap::default();
        let mut index = 0;
        for event in newest {
            put_newest(&mut map, index, &event);
            index += 1;
        }
        let state = FeedState {
            tail: Tail::new(index, seq, tail_bytes),
            newest: map,
            seats: Slab::new(),
            by_conn: FxHashMap::default(),
            parked: Vec::new(),
            last_seq: seq,
            joined: Joined::default(),
        };
        Self { room, max_frame_out, state: Mutex::new(state) }
    }

    /// The room.
    #[must_use]
    pub fn room(&self) -> &RoomId {
        &self.room
    }

    /// Looks at or changes the stream under its lock.
    pub fn with<T>(&self, change: impl FnOnce(&mut FeedState) -> T) -> T {
        change(&mut self.state.lock())
    }

    /// Gives `queue` a seat. The caller has put what must come before the first event into
    /// the queue's lane already, and holds the lock through `state`.
    pub fn subscribe(
        self: &Arc<Self>,
        state: &mut FeedState,
        queue: &Arc<Queue>,
        events: Events,
        start: Start,
    ) {
        let head = state.tail.head();
        let cursor = start.cursor.unwrap_or(head);
        let snapshot = start.snapshot.map(Box::new);
        let mut seat = Seat {
            queue: queue.clone(),
            slot: 0,
            events,
            cursor,
            skipped: Backlog::default(),
            replay_until: head.index,
            end: None,
            mark: 0,
            parked: false,
            snapshot,
        };
        for index in cursor.index..head.index {
            if let Some(entry) = state.tail.get(index)
                && !seat.wants(index, entry.kind, entry.sender)
            {
                seat.skip(entry.frame.len());
            }
        }
        let due = cursor != head || seat.snapshot.is_some();
        seat.parked = !due;
        let id = u32::try_from(state.seats.insert(seat)).unwrap_or(u32::MAX);
        state.by_conn.insert(queue.conn(), id);
        let slot = queue.subscribe(self.clone(), id);
        state.seats[id as usize].slot = slot;
        if due {
            if let Some(waker) = queue.due(slot) {
                waker.wake();
            }
        } else {
            state.park(id);
        }
    }

    /// Sends `walk` to a connection that is in the room, ahead of the room's further events.
    /// The caller holds the lock through `state`.
    pub fn show(self: &Arc<Self>, state: &mut FeedState, queue: &Arc<Queue>, walk: SnapshotWalk) {
        let Some(id) = state.by_conn.get(&queue.conn()).copied() else {
            // It publishes only: a seat for the walk, which ends with it.
            let head = state.tail.head();
            let start = Start { cursor: None, snapshot: Some(walk) };
            self.subscribe(state, queue, Events::All, start);
            if let Some(id) = state.by_conn.remove(&queue.conn()) {
                state.seats[id as usize].end = Some(head);
            }
            return;
        };
        let seat = &mut state.seats[id as usize];
        seat.snapshot = Some(Box::new(walk));
        if seat.parked {
            seat.parked = false;
            if let Some(waker) = seat.queue.due(seat.slot) {
                waker.wake();
            }
        }
    }

    /// Takes the seat of `conn` away. What was not taken yet is not sent.
    pub fn unsubscribe(&self, conn: ConnId) {
        let mut state = self.state.lock();
        if let Some(id) = state.by_conn.get(&conn).copied() {
            let seat = state.remove(id);
            seat.queue.unsubscribe(seat.slot);
        }
    }

    /// Moves events of seat `id` into `batch`. Only the owner of the queue calls this.
    pub(super) fn read(&self, id: u32, batch: &mut Batch, budget: usize) -> Progress {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(seat) = state.seats.get_mut(id as usize) else { return Progress::CaughtUp };
        if let Some(walk) = &mut seat.snapshot {
            let (frame, finished) = walk.page(&self.room, &state.newest, self.max_frame_out);
            batch.push(frame);
            if finished {
                seat.snapshot = None;
            }
            return Progress::More;
        }
        let end = seat.end.unwrap_or(state.tail.head());
        if seat.cursor.index < end.index && seat.cursor.index < state.tail.first().index {
            return Progress::FellBehind;
        }
        let head = state.tail.head();
        let lag = usize::try_from(head.bytes - seat.cursor.bytes).unwrap_or(usize::MAX);
        if end == head
            && head.index - seat.cursor.index >= 2
            && seat.skipped.messages == 0
            && batch.bytes() + lag <= budget
            && let Some(run) = state.joined.run(&state.tail, seat.cursor, lag)
        {
            batch.push_run(run);
            seat.cursor = head;
        }
        while seat.cursor.index < end.index {
            if batch.bytes() >= budget {
                return Progress::More;
            }
            let index = seat.cursor.index;
            let Some(entry) = state.tail.get(index) else { return Progress::FellBehind };
            seat.cursor = Tail::after(index, entry);
            if seat.wants(index, entry.kind, entry.sender) {
                batch.push(entry.frame.clone());
            } else {
                seat.unskip(entry.frame.len());
            }
        }
        if seat.end.is_some() {
            let seat = state.remove(id);
            seat.queue.unsubscribe(seat.slot);
        } else {
            seat.parked = true;
            seat.queue.not_due(seat.slot);
            state.park(id);
            if state.parked.len() >= state.seats.len() {
                // Everybody has it: an idle room holds no copy.
                state.joined = Joined::default();
            }
        }
        Progress::CaughtUp
    }

    /// What seat `id` still has to get.
    pub(super) fn lag(&self, id: u32) -> Backlog {
        let state = self.state.lock();
        let Some(seat) = state.seats.get(id as usize) else { return Backlog::default() };
        let end = seat.end.unwrap_or(state.tail.head());
        Backlog {
            messages: (end.index - seat.cursor.index).saturating_sub(seat.skipped.messages),
            bytes: (end.bytes - seat.cursor.bytes).saturating_sub(seat.skipped.bytes),
        }
    }

    pub(super) fn set_mark(&self, id: u32) {
        let mut state = self.state.lock();
        let head = state.tail.head().index;
        if let Some(seat) = state.seats.get_mut(id as usize) {
            seat.mark = head;
        }
    }

    pub(super) fn passed_mark(&self, id: u32) -> bool {
        let state = self.state.lock();
        state.seats.get(id as usize).is_none_or(|seat| seat.cursor.index >= seat.mark)
    }

    /// Lets seat `id` end at the present head.
    pub(super) fn stop_seat(&self, id: u32) {
        let mut state = self.state.lock();
        let head = state.tail.head();
        let Some(seat) = state.seats.get_mut(id as usize) else { return };
        if seat.parked {
            let seat = state.remove(id);
            seat.queue.unsubscribe(seat.slot);
        } else {
            seat.end = Some(head);
            // Its own later events no longer count against it.
            let conn = seat.queue.conn();
            state.by_conn.remove(&conn);
        }
    }

    /// Takes seat `id` away from a queue that is over.
    pub(super) fn leave_seat(&self, id: u32) {
        let mut state = self.state.lock();
        if state.seats.contains(id as usize) {
            state.remove(id);
        }
    }
}

fn put_newest(map: &mut NewestMap, index: u64, event: &PositionEvent) {
    map.put(
        event.vehicle.clone(),
        Newest {
            index,
            seq: event.seq,
            fix: event.fix,
            frame: event.frame.clone(),
            item: event.item.clone(),
            sender: event.sender,
        },
    );
}

impl FeedState {
    /// Appends a position, which becomes its vehicle's newest. Wakers of those who have to
    /// get it are added to `wakes`: call them when no lock is held.
    pub fn append_position(&mut self, event: &PositionEvent, wakes: &mut Vec<Waker>) {
        put_newest(&mut self.newest, self.tail.head().index, event);
        self.last_seq = event.seq;
        let kind = EntryKind::Position { seq: event.seq };
        self.append(event.frame.clone(), kind, event.sender, wakes);
    }

    /// Appends an event that is no position; `sender` does not get it.
    pub fn append_other(&mut self, frame: Bytes, sender: Option<ConnId>, wakes: &mut Vec<Waker>) {
        self.append(frame, EntryKind::Other, sender, wakes);
    }

    fn append(
        &mut self,
        frame: Bytes,
        kind: EntryKind,
        sender: Option<ConnId>,
        wakes: &mut Vec<Waker>,
    ) {
        let index = self.tail.head().index;
        let bytes = frame.len();
        self.tail.append(frame, kind, sender);
        self.joined = Joined::default();
        let head = self.tail.head();
        let seats = &mut self.seats;
        // Parked seats that do not want it move along with the head and stay parked.
        self.parked.retain(|&id| {
            let Some(seat) = seats.get_mut(id as usize).filter(|seat| seat.parked) else {
                return false;
            };
            if seat.wants(index, kind, sender) {
                seat.parked = false;
                wakes.extend(seat.queue.due(seat.slot));
                false
            } else {
                seat.cursor = head;
                true
            }
        });
        match kind {
            EntryKind::Position { .. } => {
                if let Some(id) = sender.and_then(|conn| self.by_conn.get(&conn)) {
                    skip_unparked(&mut self.seats[*id as usize], bytes);
                }
            }
            EntryKind::Other => {
                for (_, seat) in &mut self.seats {
                    if !seat.wants(index, kind, sender) && seat.end.is_none() {
                        skip_unparked(seat, bytes);
                    }
                }
            }
        }
    }

    fn park(&mut self, id: u32) {
        // Seats that left stay in the list until the next event; a quiet room with many
        // comings and goings must not collect them.
        if self.parked.len() > 2 * self.seats.len() + 16 {
            let seats = &self.seats;
            self.parked.retain(|&id| seats.get(id as usize).is_some_and(|seat| seat.parked));
            self.parked.sort_unstable();
            self.parked.dedup();
        }
        self.parked.push(id);
    }

    fn remove(&mut self, id: u32) -> Seat {
        let seat = self.seats.remove(id as usize);
        let conn = seat.queue.conn();
        if self.by_conn.get(&conn) == Some(&id) {
            self.by_conn.remove(&conn);
        }
        seat
    }

    /// The cursor to resume from behind `seq`, if the tail holds everything since.
    #[must_use]
    pub fn resume_after(&self, seq: u64) -> Option<Cursor> {
        self.tail.resume_after(seq)
    }

    /// The `seq` that a client which has everything until now may resume from.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Where the next event will stand.
    #[must_use]
    pub fn head(&self) -> Cursor {
        self.tail.head()
    }

    /// The newest positions.
    #[must_use]
    pub fn newest(&self) -> &NewestMap {
        &self.newest
    }

    /// Forgets vehicles whose last fix is before `oldest`.
    pub fn expire(&mut self, oldest: UnixMillis) {
        self.newest.expire(oldest);
    }

    /// How many connections listen.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        self.seats.len()
    }

    /// The entry at `index` of the tail.
    #[must_use]
    pub fn entry(&self, index: u64) -> Option<&Entry> {
        self.tail.get(index)
    }
}

impl Joined {
    /// The frames from `cursor` to the head, `bytes` long in all, once somebody has read
    /// just these before.
    fn run(&mut self, tail: &Tail, cursor: Cursor, bytes: usize) -> Option<Run> {
        if self.asked.replace(cursor.index) != Some(cursor.index) {
            self.run = None;
            return None;
        }
        if self.run.is_none() {
            let frames = (cursor.index..tail.head().index)
                .map_while(|index| tail.get(index))
                .map(|entry| &entry.frame);
            self.run = Some(Run::join(frames, bytes));
        }
        self.run.clone()
    }
}

fn skip_unparked(seat: &mut Seat, bytes: usize) {
    if !seat.parked {
        seat.skip(bytes);
    }
}
