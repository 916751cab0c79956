//! One upload (`backfill_begin` … `backfill_end`): a stream of past positions with one
//! result (protocol.md; plane.md, "Classes").
//!
//! What is committed stays committed, whatever becomes of the upload. Nothing of it is
//! live but, at its end, the newest fix of each vehicle.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::admission::Admitted;
use crate::ids::{ConnId, RoomId, VehicleId};
use crate::outgoing::{Queue, Weight};
use crate::protocol::server::{MAX_REJECTED, Rejected};
use crate::protocol::{RequestId, frame, server};
use crate::room_log::{Receipt, Release, RoomLog};
use crate::time::UnixMillis;

/// How an upload ended for another reason than its end.
pub(super) const IDLE: &str = "idle";

/// An open upload.
pub(super) struct Upload {
    pub(super) id: RequestId,
    pub(super) rooms: Vec<RoomId>,
    pub(super) vehicle: VehicleId,
    pub(super) last_frame: Instant,
    next_index: u64,
    course: Arc<Course>,
}

/// What the answers from the log work on.
pub(super) struct Course {
    state: Mutex<State>,
    queue: Arc<Queue>,
    log: Arc<dyn RoomLog>,
    conn: ConnId,
    max_frame_out: usize,
}

struct State {
    admitted: Option<Admitted>,
    accepted: u64,
    duplicates: u64,
    rejected: Vec<Rejected>,
    rejected_total: u64,
    /// Positions that the log has not committed yet.
    outstanding: usize,
    newest: FxHashMap<(RoomId, VehicleId), (UnixMillis, u64)>,
    ending: Option<Option<&'static str>>,
}

/// The positions of one chunk; told as progress once all are committed.
pub(super) struct Chunk {
    course: Arc<Course>,
    left: Mutex<usize>,
}

impl Upload {
    pub(super) fn new(
        id: RequestId,
        rooms: Vec<RoomId>,
        vehicle: VehicleId,
        admitted: Admitted,
        queue: Arc<Queue>,
        log: Arc<dyn RoomLog>,
        max_frame_out: usize,
    ) -> Self {
        let conn = queue.conn();
        let state = State {
            admitted: Some(admitted),
            accepted: 0,
            duplicates: 0,
            rejected: Vec::new(),
            rejected_total: 0,
            outstanding: 0,
            newest: FxHashMap::default(),
            ending: None,
        };
        let course = Arc::new(Course { state: Mutex::new(state), queue, log, conn, max_frame_out });
        Self { id, rooms, vehicle, last_frame: Instant::now(), next_index: 0, course }
    }

    /// The index of the next position of the whole upload.
    pub(super) fn next_index(&mut self) -> u64 {
        self.next_index += 1;
        self.next_index - 1
    }

    pub(super) fn reject(&self, index: u64, reason: String) {
        let mut state = self.course.state.lock();
        state.rejected_total += 1;
        if state.rejected.len() < MAX_REJECTED {
            state.rejected.push(Rejected { index, reason });
        }
    }

    /// A chunk with `positions` that go to the log.
    pub(super) fn chunk(&self, positions: usize) -> Arc<Chunk> {
        self.course.state.lock().outstanding += positions;
        let chunk = Arc::new(Chunk { course: self.course.clone(), left: Mutex::new(positions) });
        if positions == 0 {
            self.course.tell_progress();
        }
        chunk
    }

    /// Whether the log has not committed all that was sent.
    pub(super) fn is_committing(&self) -> bool {
        self.course.state.lock().outstanding > 0
    }

    /// Takes no more; the result follows when everything is committed.
    pub(super) fn end(self, reason: Option<&'static str>) {
        let mut state = self.course.state.lock();
        state.ending = Some(reason);
        self.course.finish_if_done(&mut state);
    }

    /// Ends without a result: the answer is given otherwise or there is nobody to answer.
    pub(super) fn abandon(self) -> Option<Admitted> {
        self.course.state.lock().admitted.take()
    }
}

impl Chunk {
    /// Takes note of what became of one position.
    pub(super) fn committed(&self, fix: UnixMillis, vehicle: &VehicleId, receipt: &Receipt) {
        let course = &self.course;
        let mut state = course.state.lock();
        if receipt.duplicate() {
            state.duplicates += 1;
        } else {
            state.accepted += 1;
        }
        for outcome in &receipt.outcomes {
            let newest = state
                .newest
                .entry((outcome.room.clone(), vehicle.clone()))
                .or_insert((fix, outcome.seq));
            if fix > newest.0 {
                *newest = (fix, outcome.seq);
            }
        }
        state.outstanding -= 1;
        let mut left = self.left.lock();
        *left -= 1;
        if *left == 0 {
            course.say_progress(&state);
        }
        course.finish_if_done(&mut state);
    }
}

impl Course {
    fn tell_progress(&self) {
        self.say_progress(&self.state.lock());
    }

    fn say_progress(&self, state: &State) {
        let text =
            server::backfill_progress(state.accepted, state.duplicates, state.rejected_total);
        self.queue.push(frame::text_frame(&text), Weight::Counts);
    }

    fn finish_if_done(&self, state: &mut State) {
        let Some(reason) = state.ending.filter(|_| state.outstanding == 0) else { return };
        let Some(admitted) = state.admitted.take() else { return };
        for ((room, _), (_, seq)) in state.newest.drain() {
            self.log.release(Release { room, seq, sender: self.conn });
        }
        let text = server::backfill_result(
            admitted.id(),
            state.accepted,
            state.duplicates,
            &state.rejected,
            state.rejected_total,
            reason,
            self.max_frame_out,
        );
        admitted.answer(&text);
    }
}
