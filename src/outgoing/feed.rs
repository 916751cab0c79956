//! One room's event stream: the shared tail, the newest position per vehicle, and a seat
//! for each subscribed connection with its cursor.
//!
//! Publishing appends once and marks the parked seats as due: O(1) plus the wakes. A seat
//! that is not caught up costs a publisher nothing. It knows queues, never sockets.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use slab::Slab;

use super::joined::Joined;
use super::newest::{Newest, NewestMap};
use super::queue::{Backlog, Queue};
use super::reader::{PageRequest, count_skipped};
use super::seat::{Events, Pace, Replay, Seat};
use super::snapshot::SnapshotWalk;
use super::tail::{Cursor, EntryKind, Tail};
use crate::ids::{ConnId, RoomId, VehicleId};
use crate::telemetry::Metrics;
use crate::time::UnixMillis;

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

/// Where a subscriber begins to read.
#[derive(Debug, Clone, Copy)]
pub enum Start {
    /// With what comes from now on.
    Head,
    /// Behind the position `seq`: from the tail if it holds everything since, else from the
    /// log.
    After(u64),
}

/// What a feed may hold and send, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The most that the tail keeps of each kind of event.
    pub tail_bytes: usize,
    /// Of what a subscriber missed at most this much counts as its queue.
    pub replay_rest: usize,
    /// The longest frame of a snapshot.
    pub max_frame_out: usize,
}

/// The state of a feed, reached through [`Feed::with`].
#[derive(Debug)]
pub struct FeedState {
    pub(super) tail: Tail,
    pub(super) newest: NewestMap,
    pub(super) seats: Slab<Seat>,
    pub(super) by_conn: FxHashMap<ConnId, u32>,
    pub(super) parked: Vec<u32>,
    pub(super) last_seq: u64,
    pub(super) epoch: Arc<str>,
    pub(super) joined: Joined,
}

/// One room's event stream.
#[derive(Debug)]
pub struct Feed {
    pub(super) room: RoomId,
    pub(super) max_frame_out: usize,
    pub(super) replay_rest: u64,
    pub(super) state: Mutex<FeedState>,
    pub(super) metrics: Arc<Metrics>,
}

impl Feed {
    /// The stream of `room` as of the log's head `seq` in `epoch`, with the newest positions
    /// in ascending order of their seqs.
    #[must_use]
    pub fn new(
        room: RoomId,
        epoch: Arc<str>,
        seq: u64,
        newest: Vec<PositionEvent>,
        bounds: Bounds,
        metrics: Arc<Metrics>,
    ) -> Self {
        let mut map = NewestMap::default();
        let mut index = 0;
        for event in newest {
            put_newest(&mut map, index, &event);
            index += 1;
        }
        let state = FeedState {
            tail: Tail::new(index, seq, bounds.tail_bytes),
            newest: map,
            seats: Slab::new(),
            by_conn: FxHashMap::default(),
            parked: Vec::new(),
            last_seq: seq,
            joined: Joined::default(),
            epoch,
        };
        let Bounds { replay_rest, max_frame_out, .. } = bounds;
        let replay_rest = replay_rest as u64;
        Self { room, max_frame_out, replay_rest, state: Mutex::new(state), metrics }
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

    /// Gives `queue` a seat, which first sends `snapshot`. The caller has put what must come
    /// before the first event into the queue's lane already, and holds the lock through
    /// `state`.
    pub fn subscribe(
        self: &Arc<Self>,
        state: &mut FeedState,
        queue: &Arc<Queue>,
        events: Events,
        start: Start,
        snapshot: Option<SnapshotWalk>,
    ) {
        let head = state.tail.head();
        let (cursor, sent_seq, replay) = match start {
            Start::Head => (head, state.last_seq, None),
            Start::After(seq) => match state.tail.resume_near(seq, self.replay_rest) {
                Some(cursor) => (cursor, seq, None),
                None => (head, seq, Some(Box::new(Replay::new(seq)))),
            },
        };
        let mut seat = Seat {
            queue: queue.clone(),
            slot: 0,
            events,
            cursor,
            sent_seq,
            skipped: Backlog::default(),
            skipped_positions: 0,
            replay_until: head.index,
            end: None,
            mark: 0,
            parked: false,
            pace: Pace::Full,
            snapshot: snapshot.map(Box::new),
            replay,
        };
        count_skipped(&mut seat, &state.tail);
        let due = cursor != head || seat.snapshot.is_some() || seat.replay.is_some();
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
            self.subscribe(state, queue, Events::All, Start::Head, Some(walk));
            if let Some(id) = state.by_conn.remove(&queue.conn()) {
                state.seats[id as usize].end = Some(head);
            }
            return;
        };
        let seat = &mut state.seats[id as usize];
        seat.snapshot = Some(Box::new(walk));
        if std::mem::take(&mut seat.parked)
            && let Some(waker) = seat.queue.due(seat.slot)
        {
            waker.wake();
        }
    }

    /// Gives `conn` the page that it asked for: events in ascending order, and where the
    /// next page starts; `None`: the whole of what was asked for has been read.
    pub fn page_read(
        &self,
        conn: ConnId,
        asked: PageRequest,
        page: VecDeque<(u64, Bytes)>,
        next: Option<u64>,
    ) {
        self.with(|state| {
            let Some(seat) = state.seat_of(conn) else { return };
            // The page of a seat that it had before is of no use to its present one.
            let Some(replay) = seat.replay.as_mut().filter(|r| r.waits_for(asked)) else { return };
            replay.take_page(page, next.unwrap_or(asked.up_to));
            if let Some(waker) = seat.queue.due(seat.slot) {
                waker.wake();
            }
        });
    }

    /// Lets `conn` go on from the head after its replay failed: `snapshot` is the truth. The
    /// caller has put the new `room_joined` into its lane.
    pub fn reset(&self, state: &mut FeedState, conn: ConnId, snapshot: Option<SnapshotWalk>) {
        let head = state.tail.head();
        let last_seq = state.last_seq;
        let Some(seat) = state.seat_of(conn) else { return };
        let idle = std::mem::take(&mut seat.parked) || seat.waits_for_page();
        seat.replay = None;
        seat.snapshot = snapshot.map(Box::new);
        seat.catch_up(head);
        seat.sent_seq = last_seq;
        seat.pace = Pace::Full;
        if idle && let Some(waker) = seat.queue.due(seat.slot) {
            waker.wake();
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
            EntryKind::Position { seq } => {
                if let Some(id) = sender.and_then(|conn| self.by_conn.get(&conn)) {
                    let seat = &mut self.seats[*id as usize];
                    skip_unparked(seat, bytes, kind);
                    if let Some(replay) = &mut seat.replay {
                        replay.own.push(seq);
                    }
                }
            }
            EntryKind::Other => {
                for (_, seat) in &mut self.seats {
                    if !seat.wants(index, kind, sender) && seat.end.is_none() {
                        skip_unparked(seat, bytes, kind);
                    }
                }
            }
        }
    }

    pub(super) fn park(&mut self, id: u32) {
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

    pub(super) fn remove(&mut self, id: u32) -> Seat {
        let seat = self.seats.remove(id as usize);
        let conn = seat.queue.conn();
        if self.by_conn.get(&conn) == Some(&id) {
            self.by_conn.remove(&conn);
        }
        seat
    }

    fn seat_of(&mut self, conn: ConnId) -> Option<&mut Seat> {
        let id = *self.by_conn.get(&conn)?;
        self.seats.get_mut(id as usize)
    }

    /// Whether `conn` waits for the page `asked`.
    #[must_use]
    pub fn waits_for_page(&self, conn: ConnId, asked: PageRequest) -> bool {
        let id = self.by_conn.get(&conn);
        let seat = id.and_then(|id| self.seats.get(*id as usize));
        seat.and_then(|seat| seat.replay.as_ref()).is_some_and(|replay| replay.waits_for(asked))
    }

    /// Connections that get the newest per vehicle only.
    #[must_use]
    pub fn lagging(&self) -> usize {
        self.seats.iter().filter(|(_, seat)| seat.pace != Pace::Full).count()
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

    /// The epoch of its seqs.
    #[must_use]
    pub fn epoch(&self) -> Arc<str> {
        self.epoch.clone()
    }

    /// Begins anew as of `seq` in `epoch`. What was in the tail is gone: every subscriber
    /// has to be reset before the lock is given back.
    pub fn renew(&mut self, epoch: Arc<str>, seq: u64, newest: &[PositionEvent]) {
        let mut index = self.tail.head().index;
        self.newest = NewestMap::default();
        for event in newest {
            put_newest(&mut self.newest, index, event);
            index += 1;
        }
        self.tail = self.tail.renewed(index, seq);
        self.joined = Joined::default();
        (self.epoch, self.last_seq) = (epoch, seq);
    }

    /// The connections that are subscribed, and what each gets.
    #[must_use]
    pub fn subscribers(&self) -> Vec<(Arc<Queue>, Events)> {
        let seats = self.by_conn.values().filter_map(|id| self.seats.get(*id as usize));
        seats.map(|seat| (seat.queue.clone(), seat.events)).collect()
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
}

fn skip_unparked(seat: &mut Seat, bytes: usize, kind: EntryKind) {
    if !seat.parked {
        seat.skip(bytes, kind);
    }
}
