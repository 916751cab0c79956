//! Reading a seat: snapshot, missed events from the log, then the tail; and what waits
//! for it. Everything here is asked by the queue that owns the seat.

use super::batch::Batch;
use super::feed::{Feed, FeedState};
use super::ladder::{self, Walked};
use super::queue::Backlog;
use super::seat::{Events, Pace, Replay, Seat};
use super::tail::{EntryKind, Tail};

/// More bytes than any configured limit.
const OVER_EVERY_LIMIT: u64 = 1 << 40;

/// How reading a seat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// At the head; the seat is parked and will be marked due again.
    CaughtUp,
    /// The budget is used up; there is more.
    More,
    /// What this seat has to get is no longer held, and may not be skipped.
    FellBehind,
    /// Its missed events have to be read from the log.
    NeedsPage(PageRequest),
}

/// A page of missed events that is to be read from the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// Events with a higher `seq` …
    pub after: u64,
    /// … up to this one.
    pub up_to: u64,
}

impl Feed {
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
        if seat.replay.is_some()
            && let Some(progress) = replay(seat, &state.tail, state.last_seq, batch, budget)
        {
            return progress;
        }
        let end = seat.end.unwrap_or(state.tail.head());
        let behind = seat.cursor.index < end.index;
        if behind && seat.cursor.index < state.tail.first().index {
            seat.lag_behind();
        }
        if seat.pace != Pace::Full {
            let room = ladder::Room {
                id: &self.room,
                epoch: &state.epoch,
                tail: &state.tail,
                newest: &state.newest,
                metrics: &self.metrics,
            };
            let walked = ladder::walk(seat, &room, batch, budget);
            if !matches!(walked, Walked::CaughtUp) {
                return walked.progress();
            }
        }
        while seat.cursor.index < end.index {
            if batch.bytes() >= budget {
                return Progress::More;
            }
            let index = seat.cursor.index;
            let Some(entry) = state.tail.get(index) else { return Progress::More };
            seat.cursor = entry.after();
            if seat.wants(index, entry.kind, entry.sender) {
                batch.push(entry.frame.clone());
                if let EntryKind::Position { seq } = entry.kind {
                    seat.sent_seq = seq;
                }
            } else {
                seat.unskip(entry.frame.len(), entry.kind);
            }
        }
        if seat.end.is_some() {
            let seat = state.remove(id);
            seat.queue.unsubscribe(seat.slot);
        } else {
            seat.parked = true;
            seat.queue.not_due(seat.slot);
            state.park(id);
        }
        Progress::CaughtUp
    }

    /// What seat `id` still has to get. What is still to be read from the log or built from
    /// the newest positions is no part of the queue.
    pub(super) fn lag(&self, id: u32) -> Backlog {
        let state = self.state.lock();
        let Some(seat) = state.seats.get(id as usize) else { return Backlog::default() };
        match (&seat.replay, seat.pace) {
            (Some(replay), _) => page_backlog(replay),
            (None, Pace::Newest { .. }) => ladder::lag(seat, &self.ladder_room(&state)),
            (None, Pace::Full) => full_lag(seat, &state.tail),
        }
    }

    /// What of seat `id` counts for the hard limits: positions of a lagging seat do not,
    /// they hold no copy.
    pub(super) fn hard_lag(&self, id: u32) -> Backlog {
        let state = self.state.lock();
        let Some(seat) = state.seats.get(id as usize) else { return Backlog::default() };
        match (&seat.replay, seat.pace) {
            (Some(_), _) => Backlog::default(),
            // What it may not skip is not held any more: that is over every limit.
            (None, Pace::Newest { .. })
                if seat.events == Events::All
                    && state.tail.next_other(seat.cursor.index).is_err() =>
            {
                Backlog { messages: 1, bytes: OVER_EVERY_LIMIT }
            }
            (None, Pace::Newest { .. }) => ladder::others(seat, &self.ladder_room(&state)),
            (None, Pace::Full) => full_lag(seat, &state.tail),
        }
    }

    /// Puts seat `id` on the ladder's second step, if it is on the first.
    pub(super) fn squeeze(&self, id: u32) {
        let mut state = self.state.lock();
        let head = state.tail.head();
        if let Some(seat) = state.seats.get_mut(id as usize)
            && seat.replay.is_none()
            && seat.cursor.index < head.index
        {
            seat.lag_behind();
        }
    }

    fn ladder_room<'a>(&'a self, state: &'a FeedState) -> ladder::Room<'a> {
        ladder::Room {
            id: &self.room,
            epoch: &state.epoch,
            tail: &state.tail,
            newest: &state.newest,
            metrics: &self.metrics,
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
        state
            .seats
            .get(id as usize)
            .is_none_or(|seat| seat.replay.is_some() || seat.cursor.index >= seat.mark)
    }

    /// Lets seat `id` end at the present head.
    pub(super) fn stop_seat(&self, id: u32) {
        let mut state = self.state.lock();
        let head = state.tail.head();
        let Some(seat) = state.seats.get_mut(id as usize) else { return };
        if seat.parked || seat.replay.is_some() {
            // Its last `seq` is a valid resume point: the rest of a replay is had elsewhere.
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

/// Counts what of the tail from the cursor on the seat will not get.
pub(super) fn count_skipped(seat: &mut Seat, tail: &Tail) {
    seat.skipped = Backlog::default();
    seat.skipped_positions = 0;
    for index in seat.cursor.index..tail.head().index {
        if let Some(entry) = tail.get(index)
            && !seat.wants(index, entry.kind, entry.sender)
        {
            seat.skip(entry.frame.len(), entry.kind);
        }
    }
}

fn full_lag(seat: &Seat, tail: &Tail) -> Backlog {
    let end = seat.end.unwrap_or(tail.head());
    Backlog {
        messages: (end.index - seat.cursor.index).saturating_sub(seat.skipped.messages),
        bytes: (end.bytes - seat.cursor.bytes).saturating_sub(seat.skipped.bytes),
    }
}

fn page_backlog(replay: &Replay) -> Backlog {
    replay.page.iter().fold(Backlog::default(), |sum, (_, frame)| {
        sum.plus(Backlog { messages: 1, bytes: frame.len() as u64 })
    })
}

/// Sends what has been read from the log; asks for more, or goes over to the tail once that
/// holds all the rest (`None`).
fn replay(
    seat: &mut Seat,
    tail: &Tail,
    last_seq: u64,
    batch: &mut Batch,
    budget: usize,
) -> Option<Progress> {
    let replay = seat.replay.as_mut()?;
    while let Some((seq, frame)) = replay.page.pop_front() {
        batch.push(frame);
        seat.sent_seq = seq;
        if batch.bytes() >= budget {
            return Some(Progress::More);
        }
    }
    let after = replay.after;
    let Some(cursor) = tail.resume_after(after) else {
        // Due again when the page has been read.
        replay.reading = true;
        seat.queue.not_due(seat.slot);
        return Some(Progress::NeedsPage(PageRequest { after, up_to: last_seq }));
    };
    // Other events since the join stood between the positions that came from the log.
    if tail.next_other(seat.replay_until).is_err() {
        return Some(Progress::FellBehind);
    }
    for entry in tail.others_since(seat.replay_until) {
        let at = entry.at().index;
        if at < cursor.index && seat.wants(at, entry.kind, entry.sender) {
            batch.push(entry.frame.clone());
        }
    }
    seat.replay = None;
    seat.cursor = cursor;
    count_skipped(seat, tail);
    None
}
