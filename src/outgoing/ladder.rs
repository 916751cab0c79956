//! The second step of the ladder: a seat that cannot keep up gets the newest position per
//! vehicle only, told so by `lagging` before and `caught_up` after.
//!
//! The cursor walks the room's vehicles by the index of their newest event, so what is sent
//! ascends and any `seq` sent is a valid resume point. Other events are never skipped.

use super::batch::Batch;
use super::newest::NewestMap;
use super::queue::Backlog;
use super::reader::Progress;
use super::seat::{Events, Pace, Seat};
use super::tail::{EntryKind, Tail};
use crate::ids::RoomId;
use crate::protocol::{frame, server};
use crate::telemetry::Metrics;
use crate::telemetry::metrics::LadderStep;

/// The room as the ladder sees it.
pub(super) struct Room<'a> {
    pub(super) id: &'a RoomId,
    pub(super) epoch: &'a str,
    pub(super) tail: &'a Tail,
    pub(super) newest: &'a NewestMap,
    pub(super) metrics: &'a Metrics,
}

/// How far a lagging seat got.
pub(super) enum Walked {
    /// To the end; it is back on the full stream.
    CaughtUp,
    /// As far as the budget goes.
    More,
    /// Something that may not be skipped is no longer held.
    Lost,
}

impl Walked {
    pub(super) fn progress(&self) -> Progress {
        match self {
            Self::CaughtUp | Self::More => Progress::More,
            Self::Lost => Progress::FellBehind,
        }
    }
}

/// Moves events of a lagging seat into `batch`.
pub(super) fn walk(seat: &mut Seat, room: &Room<'_>, batch: &mut Batch, budget: usize) -> Walked {
    let Pace::Newest { began, mut sent, told } = seat.pace else { return Walked::CaughtUp };
    if !told {
        room.metrics.ladder_steps.get(LadderStep::Lagging).inc();
    }
    if !told && seat.events == Events::All {
        let text = server::lagging(room.id, room.epoch, seat.sent_seq, 0, "newest");
        batch.push(frame::text_frame(&text));
    }
    let end = seat.end.unwrap_or(room.tail.head());
    loop {
        if batch.bytes() >= budget {
            seat.pace = Pace::Newest { began, sent, told: true };
            return Walked::More;
        }
        let from = seat.cursor.index;
        let own = Some(seat.queue.conn());
        let position =
            room.newest.since(from).find(|newest| newest.sender.is_none() || newest.sender != own);
        let other = match room.tail.next_other(from) {
            Ok(other) => other,
            Err(_) if seat.events == Events::All => return Walked::Lost,
            // It gets none of them anyway.
            Err(_) => None,
        };
        let other = other.filter(|entry| entry.at().index < end.index);
        let position = position.filter(|newest| newest.index < end.index);
        match (position, other) {
            (Some(newest), other) if other.is_none_or(|entry| newest.index < entry.at().index) => {
                batch.push(newest.frame.clone());
                sent += 1;
                seat.sent_seq = newest.seq;
                seat.cursor.index = newest.index + 1;
            }
            (_, Some(entry)) => {
                if seat.wants(entry.at().index, EntryKind::Other, entry.sender) {
                    batch.push(entry.frame.clone());
                }
                seat.cursor.index = entry.at().index + 1;
            }
            _ => break,
        }
    }
    let passed = end.positions.saturating_sub(began);
    let dropped = passed.saturating_sub(sent).saturating_sub(seat.skipped_positions);
    if seat.events == Events::All {
        let text = server::caught_up(room.id, room.epoch, seat.sent_seq, dropped);
        batch.push(frame::text_frame(&text));
    }
    room.metrics.ladder_steps.get(LadderStep::CaughtUp).inc();
    seat.catch_up(end);
    seat.pace = Pace::Full;
    Walked::CaughtUp
}

/// What a lagging seat still gets as things are now.
pub(super) fn lag(seat: &Seat, room: &Room<'_>) -> Backlog {
    let own = Some(seat.queue.conn());
    let positions = room
        .newest
        .since(seat.cursor.index)
        .filter(|newest| newest.sender.is_none() || newest.sender != own)
        .map(|newest| newest.frame.len());
    let others = others(seat, room);
    positions.fold(others, |sum, bytes| sum.plus(Backlog { messages: 1, bytes: bytes as u64 }))
}

/// Events that wait for a lagging seat and may not be skipped.
pub(super) fn others(seat: &Seat, room: &Room<'_>) -> Backlog {
    room.tail
        .others_since(seat.cursor.index)
        .filter(|entry| seat.wants(entry.at().index, entry.kind, entry.sender))
        .fold(Backlog::default(), |sum, entry| {
            sum.plus(Backlog { messages: 1, bytes: entry.frame.len() as u64 })
        })
}
