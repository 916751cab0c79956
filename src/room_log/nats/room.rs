//! What an instance knows of one room: how far it has heard it, and per vehicle what it
//! needs to judge the next position.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use futures_util::stream::AbortHandle;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::message::{Event, Fix, Kind};
use super::publish::Then;
use crate::ids::{ConnId, RoomId, VehicleId};
use crate::room_log::judge::{Judge, Marks, Newest, VehicleNo};
use crate::time::UnixMillis;

/// A judge per room: the one room it knows.
pub(super) const ONLY: u32 = 0;

/// How a room stands to the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is to be loaded, or being loaded: what is heard waits.
    Loading,
    /// It may have missed something, which is being read: what is heard waits.
    Filling,
    /// What is heard is next.
    Live,
}

/// What an instance knows of a vehicle in a room.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// The last event on the live subject and on the late one; 0: none known.
    last: [u64; 2],
    /// An append is being published.
    pub(super) busy: bool,
    /// Who wants to publish next.
    pub(super) waiting: VecDeque<ConnId>,
    /// When the last late event was stored; such as an upload's are not in the newest.
    pub(super) late_at: Option<i64>,
    /// The judge knows all marks of the window, until then; needed for late positions and
    /// after them only.
    pub(super) window_until: Option<i64>,
    /// They are being read.
    pub(super) reading: bool,
}

impl Track {
    pub(super) fn last(&self, kind: Kind) -> u64 {
        self.last[kind as usize]
    }

    pub(super) fn set_last(&mut self, kind: Kind, seq: u64) {
        self.last[kind as usize] = seq;
    }
}

/// One room.
pub(super) struct Room {
    pub(super) id: RoomId,
    pub(super) token: String,
    pub(super) phase: Phase,
    /// A load or fill is under way.
    pub(super) working: bool,
    /// The number of the latest work: what an earlier one brings is dropped.
    pub(super) work: u64,
    pub(super) subscription: Option<AbortHandle>,
    /// Somebody here is in it.
    pub(super) wanted: bool,
    /// It has been reported as loaded.
    pub(super) reported: bool,
    /// Loads to answer, each with the number of the first append called after it.
    pub(super) loads: VecDeque<u64>,
    /// Heads to confirm, at the next fill.
    pub(super) heads: VecDeque<u64>,
    /// Every event up to here has been applied, or is older than the load.
    pub(super) upto: u64,
    /// Everything up to here is accounted for, whatever an event says of the one before.
    pub(super) base: u64,
    /// What was heard meanwhile.
    pub(super) backlog: Vec<Event>,
    pub(super) judge: Judge,
    numbers: FxHashMap<VehicleId, VehicleNo>,
    pub(super) tracks: Vec<Track>,
    /// Appends that are not done in this room.
    pub(super) pending: BTreeSet<u64>,
    /// What waits until the room is heard up to a `seq`: that, the append and its part.
    pub(super) awaited: BTreeMap<(u64, u64, usize), Then>,
    /// Who waits until the room is live.
    pub(super) waiting: Vec<ConnId>,
    pub(super) idle_since: Instant,
}

impl Room {
    pub(super) fn new(id: RoomId, token: String, window_ms: i64) -> Self {
        Self {
            id,
            token,
            phase: Phase::Loading,
            working: false,
            work: 0,
            subscription: None,
            wanted: false,
            reported: false,
            loads: VecDeque::new(),
            heads: VecDeque::new(),
            upto: 0,
            base: 0,
            backlog: Vec::new(),
            judge: Judge::new(window_ms),
            numbers: FxHashMap::default(),
            tracks: Vec::new(),
            pending: BTreeSet::new(),
            awaited: BTreeMap::new(),
            waiting: Vec::new(),
            idle_since: Instant::now(),
        }
    }

    /// The number of a vehicle.
    pub(super) fn vehicle(&mut self, vehicle: &VehicleId) -> VehicleNo {
        if let Some(number) = self.numbers.get(vehicle) {
            return *number;
        }
        let number = VehicleNo::try_from(self.tracks.len()).unwrap_or(VehicleNo::MAX);
        self.numbers.insert(vehicle.clone(), number);
        self.tracks.push(Track::default());
        number
    }

    pub(super) fn track(&mut self, vehicle: VehicleNo) -> &mut Track {
        &mut self.tracks[vehicle as usize]
    }

    /// Whether nothing needs it.
    pub(super) fn is_idle(&self) -> bool {
        !self.wanted && self.pending.is_empty() && self.loads.is_empty() && self.heads.is_empty()
    }

    /// Whether a load can be answered: every append called before it is done.
    pub(super) fn can_report(&self) -> bool {
        self.loads
            .front()
            .is_some_and(|before| self.pending.first().is_none_or(|first| first >= before))
    }

    /// The marks of a position.
    pub(super) fn marks(&self, vehicle: &VehicleId, fix: &Fix) -> Marks {
        self.judge.marks(
            &self.id,
            vehicle,
            fix.key.as_deref(),
            fix.timed.then_some(fix.fix.get()),
            fix.latitude,
            fix.longitude,
        )
    }

    /// Forgets all that was known; it is loaded again, and reported again if it was.
    pub(super) fn start_over(&mut self, window_ms: i64) {
        if self.reported {
            self.loads.push_front(0);
        }
        self.work = 0;
        self.working = false;
        self.phase = Phase::Loading;
        self.reported = false;
        (self.upto, self.base) = (0, 0);
        self.backlog.clear();
        self.judge = Judge::new(window_ms);
        for track in &mut self.tracks {
            track.last = [0, 0];
            track.window_until = None;
            track.late_at = None;
        }
    }

    /// Whether an event that is not after all others is part of what is known.
    pub(super) fn knows(&mut self, event: &Event) -> bool {
        let vehicle = self.vehicle(&event.vehicle);
        event.seq <= self.base || event.seq <= self.track(vehicle).last(event.kind)
    }

    /// Takes note of an event of the stream. Returns whether an event in between is
    /// missing, in which case nothing has changed.
    pub(super) fn note(&mut self, event: &Event, now: i64, told: bool) -> Result<(), Missing> {
        let vehicle = self.vehicle(&event.vehicle);
        let base = self.base;
        let track = &mut self.tracks[vehicle as usize];
        if told && event.after > track.last(event.kind) && event.after > base {
            return Err(if event.after > self.upto { Missing::Next } else { Missing::Earlier });
        }
        track.set_last(event.kind, event.seq);
        if event.kind == Kind::Late {
            track.late_at = Some(event.stored_at.unwrap_or(now));
        }
        let remembers = track.window_until.is_some_and(|until| now < until);
        if !remembers {
            track.window_until = None;
        }
        self.upto = event.seq;
        let Some(fix) = &event.fix else { return Ok(()) };
        let marks = self.marks(&event.vehicle, fix);
        if remembers {
            self.judge.remember(&marks, event.seq, event.stored_at.unwrap_or(now).min(now));
        }
        if event.kind == Kind::Live {
            self.advance(vehicle, event.seq, fix.fix, marks);
        }
        Ok(())
    }

    /// Makes a position the vehicle's newest.
    pub(super) fn advance(&mut self, vehicle: VehicleNo, seq: u64, fix: UnixMillis, marks: Marks) {
        self.judge.advance(ONLY, vehicle, Newest { seq, fix: fix.get(), place: marks.place });
    }
}

/// An event before this one was not heard.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is newer than all that was applied.
    Next,
    /// Newer ones have been applied.
    Earlier,
}
