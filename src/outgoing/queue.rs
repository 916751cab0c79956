//! The outgoing queue of one connection: a view, not a copy.
//!
//! It is a small lane of the connection's own frames (answers, notices, control) plus a
//! cursor into each joined room's shared tail. Its length is exact, so it stands for
//! `bufferedAmount`. It never touches a socket.
//!
//! Lock order: a feed's lock may be held when a queue's is taken, never the other way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use slab::Slab;

use super::batch::Batch;
use super::feed::Feed;
use super::reader::{PageRequest, Progress};
use crate::ids::ConnId;

/// Whether a frame of the lane holds up the drain (shutdown.md, phase 3, (b)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// An answer to an admitted rpc or upload: the drain waits for it.
    Counts,
    /// Refusals, pongs, notices: they go out, but do not move the mark.
    Free,
}

/// A number of messages and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Messages.
    pub messages: u64,
    /// Bytes of their frames.
    pub bytes: u64,
}

impl Backlog {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { messages: self.messages + other.messages, bytes: self.bytes + other.bytes }
    }
}

#[derive(Debug)]
struct Item {
    frame: Bytes,
    marked: bool,
}

#[derive(Debug)]
struct Subscription {
    feed: Arc<Feed>,
    seat: u32,
}

#[derive(Debug, Default)]
struct State {
    lane: VecDeque<Item>,
    lane_bytes: usize,
    /// Items of the lane that hold up the drain.
    marked: usize,
    /// Whether the drain has begun: answers are marked from then on.
    marking: bool,
    /// No more frames are taken in: the connection is over.
    closed: bool,
    subscriptions: Slab<Subscription>,
    /// Slots of the rooms that have something for this connection, each once.
    due: VecDeque<u32>,
}

/// The queue. Shared by the owner task, which takes, and all who push or wake.
#[derive(Debug)]
pub struct Queue {
    conn: ConnId,
    state: Mutex<State>,
    waker: AtomicWaker,
    /// Counts everything that could be a reason to look again.
    signals: AtomicU64,
    in_flight_messages: AtomicUsize,
    in_flight_bytes: AtomicUsize,
}

impl Queue {
    /// An empty queue of connection `conn`.
    #[must_use]
    pub fn new(conn: ConnId) -> Self {
        Self {
            conn,
            state: Mutex::default(),
            waker: AtomicWaker::new(),
            signals: AtomicU64::new(0),
            in_flight_messages: AtomicUsize::new(0),
            in_flight_bytes: AtomicUsize::new(0),
        }
    }

    /// Whose queue it is.
    #[must_use]
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// Registers the owner task's waker, to be called for signals after `seen`. Returns
    /// whether there was none since; otherwise look for work again.
    #[must_use]
    pub fn sleep(&self, waker: &Waker, seen: u64) -> bool {
        self.waker.register(waker);
        self.signals.load(Ordering::Acquire) == seen
    }

    /// How many signals there were. While the owner works it needs no waking: read this
    /// before looking for work, and give it to [`Queue::sleep`] after.
    #[must_use]
    pub fn signals(&self) -> u64 {
        drop(self.waker.take());
        self.signals.load(Ordering::Acquire)
    }

    /// Signals the owner task.
    pub fn wake(&self) {
        self.signals.fetch_add(1, Ordering::AcqRel);
        self.waker.wake();
    }

    /// Adds a frame to the end of the lane and wakes the owner. Ignored when the
    /// connection is over.
    pub fn push(&self, frame: Bytes, weight: Weight) {
        {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            let marked = state.marking && weight == Weight::Counts;
            state.lane_bytes += frame.len();
            state.marked += usize::from(marked);
            state.lane.push_back(Item { frame, marked });
        }
        self.wake();
    }

    /// Whether the connection is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Bytes of the connection's own frames that wait.
    #[must_use]
    pub fn lane_bytes(&self) -> usize {
        self.state.lock().lane_bytes
    }

    /// Adds the view of a room; the feed's lock is held by the caller.
    pub(super) fn subscribe(&self, feed: Arc<Feed>, seat: u32) -> u32 {
        let slot = self.state.lock().subscriptions.insert(Subscription { feed, seat });
        u32::try_from(slot).unwrap_or(u32::MAX)
    }

    /// Removes the view of a room; the feed's lock is held by the caller.
    pub(super) fn unsubscribe(&self, slot: u32) {
        let mut state = self.state.lock();
        state.subscriptions.try_remove(slot as usize);
        state.due.retain(|&due| due != slot);
    }

    /// Notes that the room in `slot` has something; returns the waker to call once no lock
    /// is held. The feed calls this only for a parked seat, so a slot is never due twice.
    pub(super) fn due(&self, slot: u32) -> Option<Waker> {
        self.state.lock().due.push_back(slot);
        self.signals.fetch_add(1, Ordering::AcqRel);
        self.waker.take()
    }

    /// Notes that the room in `slot` has nothing more; the feed's lock is held.
    pub(super) fn not_due(&self, slot: u32) {
        let mut state = self.state.lock();
        if state.due.front() == Some(&slot) {
            state.due.pop_front();
        } else {
            state.due.retain(|&due| due != slot);
        }
    }

    /// Moves frames into `batch` until it holds `budget` bytes or nothing is due: first
    /// the lane, then the rooms in turn. Only the owner task calls this.
    ///
    /// Rooms whose missed events have to be read from the log are added to `pages`.
    ///
    /// # Errors
    /// [`FellBehind`] when what this connection has to get is no longer held.
    pub fn take(
        &self,
        batch: &mut Batch,
        budget: usize,
        pages: &mut Vec<(Arc<Feed>, PageRequest)>,
    ) -> Result<(), FellBehind> {
        loop {
            let (feed, seat, slot) = {
                let mut state = self.state.lock();
                while batch.bytes() < budget {
                    let Some(item) = state.lane.pop_front() else { break };
                    state.lane_bytes -= item.frame.len();
                    state.marked -= usize::from(item.marked);
                    batch.push_own(item.frame);
                }
                if state.lane.is_empty() && state.lane.capacity() > 4 {
                    state.lane = VecDeque::new();
                }
                self.note_in_flight(batch);
                if batch.bytes() >= budget {
                    return Ok(());
                }
                let Some(&slot) = state.due.front() else { return Ok(()) };
                let Some(subscription) = state.subscriptions.get(slot as usize) else {
                    state.due.pop_front();
                    continue;
                };
                (subscription.feed.clone(), subscription.seat, slot)
            };
            match feed.read(seat, batch, budget) {
                Progress::CaughtUp => {}
                Progress::More => {
                    let mut state = self.state.lock();
                    if state.due.front() == Some(&slot) {
                        state.due.rotate_left(1);
                    }
                }
                Progress::FellBehind => return Err(FellBehind),
                Progress::NeedsPage(request) => pages.push((feed, request)),
            }
            self.note_in_flight(batch);
        }
    }

    /// Moves the whole lane into `batch`, and no events.
    pub fn take_lane(&self, batch: &mut Batch) {
        let mut state = self.state.lock();
        state.lane_bytes = 0;
        state.marked = 0;
        for item in std::mem::take(&mut state.lane) {
            batch.push_own(item.frame);
        }
    }

    /// Publishes how much the owner has taken and not yet written.
    pub fn note_in_flight(&self, batch: &Batch) {
        self.in_flight_messages.store(batch.len(), Ordering::Relaxed);
        self.in_flight_bytes.store(batch.bytes(), Ordering::Relaxed);
    }

    /// Everything that waits: the lane, the cursors' lag, and what is taken but not written.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        let (own, due) = {
            let state = self.state.lock();
            let own = Backlog { messages: state.lane.len() as u64, bytes: state.lane_bytes as u64 };
            (own, Self::due_feeds(&state))
        };
        let in_flight = Backlog {
            messages: self.in_flight_messages.load(Ordering::Relaxed) as u64,
            bytes: self.in_flight_bytes.load(Ordering::Relaxed) as u64,
        };
        due.into_iter().map(|(feed, seat)| feed.lag(seat)).fold(own.plus(in_flight), Backlog::plus)
    }

    /// What of it counts for the hard limits: the lane, and what of the rooms holds a copy
    /// for this connection.
    #[must_use]
    pub fn hard_backlog(&self) -> Backlog {
        let (own, due) = {
            let state = self.state.lock();
            let own = Backlog { messages: state.lane.len() as u64, bytes: state.lane_bytes as u64 };
            (own, Self::due_feeds(&state))
        };
        due.into_iter().map(|(feed, seat)| feed.hard_lag(seat)).fold(own, Backlog::plus)
    }

    /// Goes over to the newest per vehicle in every room that waits.
    pub fn squeeze(&self) {
        let due = Self::due_feeds(&self.state.lock());
        for (feed, seat) in due {
            feed.squeeze(seat);
        }
    }

    fn due_feeds(state: &State) -> Vec<(Arc<Feed>, u32)> {
        state
            .due
            .iter()
            .filter_map(|&slot| state.subscriptions.get(slot as usize))
            .map(|subscription| (subscription.feed.clone(), subscription.seat))
            .collect()
    }

    /// Sets the drain's mark: all that waits now has to go out, and every answer from now
    /// on (shutdown.md, phase 3, (b)).
    pub fn set_mark(&self) {
        let due = {
            let mut state = self.state.lock();
            state.marking = true;
            for item in &mut state.lane {
                item.marked = true;
            }
            state.marked = state.lane.len();
            Self::due_feeds(&state)
        };
        for (feed, seat) in due {
            feed.set_mark(seat);
        }
    }

    /// Whether everything up to the mark has been taken.
    #[must_use]
    pub fn passed_mark(&self) -> bool {
        let due = {
            let state = self.state.lock();
            if state.marked > 0 {
                return false;
            }
            Self::due_feeds(&state)
        };
        due.into_iter().all(|(feed, seat)| feed.passed_mark(seat))
    }

    /// Stops listening to all rooms: what has been appended until now still goes out,
    /// nothing newer.
    pub fn stop_listening(&self) {
        let all: Vec<_> = {
            let state = self.state.lock();
            state.subscriptions.iter().map(|(_, s)| (s.feed.clone(), s.seat)).collect()
        };
        for (feed, seat) in all {
            feed.stop_seat(seat);
        }
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.lane.is_empty() && state.due.is_empty()
    }

    /// Ends the queue: leaves all rooms' feeds and drops what waits. Returns what was
    /// dropped, without what the owner had taken.
    pub fn close(&self) -> Backlog {
        let backlog = self.backlog();
        let subscriptions = {
            let mut state = self.state.lock();
            state.closed = true;
            state.lane = VecDeque::new();
            state.lane_bytes = 0;
            state.marked = 0;
            state.due = VecDeque::new();
            std::mem::take(&mut state.subscriptions)
        };
        for (_, subscription) in &subscriptions {
            subscription.feed.leave_seat(subscription.seat);
        }
        Backlog {
            messages: backlog.messages
                - (self.in_flight_messages.load(Ordering::Relaxed) as u64).min(backlog.messages),
            bytes: backlog.bytes
                - (self.in_flight_bytes.load(Ordering::Relaxed) as u64).min(backlog.bytes),
        }
    }
}

/// What this connection has to get, and may not skip, is no longer held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("events that may not be skipped are no longer held for this connection")]
pub struct FellBehind;
