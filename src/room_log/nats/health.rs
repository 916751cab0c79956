//! Whether the broker takes what it is sent, and what follows when it does not.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::api::StreamInfo;
use super::engine::Engine;
use super::room::Phase;
use super::stream::{self, StreamError};
use crate::broker::{Link, LinkState};
use crate::room_log::{LogEvent, StoreFailure};

/// A failing broker is tried again after this, doubled each time …
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// … up to this.
const LAST_RETRY: Duration = Duration::from_millis(500);
/// A publish without an answer for this long is one that failed.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// What was acknowledged should be heard within this.
const HEARD_WITHIN: Duration = Duration::from_millis(250);
/// What the stream has should be heard within this.
pub(super) const VERIFY_AFTER: Duration = Duration::from_millis(150);
/// How often the stream is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Between two checks of a room.
const CHECK_EVERY: Duration = Duration::from_millis(50);

pub(super) struct Health {
    /// The link's generation while it is up.
    generation: Option<u64>,
    /// The generation for which the stream was seen.
    seen: Option<u64>,
    /// Why it fails, told or to be told.
    failing: Option<Arc<str>>,
    told: bool,
    /// Publishing goes on at this time.
    retry_at: Option<Instant>,
    retry: Duration,
    looking: bool,
    look_at: Instant,
}

impl Health {
    pub(super) fn new(link: &Link) -> Self {
        let generation = match &*link.state().borrow() {
            LinkState::Up { generation } => Some(*generation),
            LinkState::Down { .. } | LinkState::Closed => None,
        };
        Self {
            generation,
            seen: generation,
            failing: None,
            told: false,
            retry_at: None,
            retry: FIRST_RETRY,
            looking: false,
            look_at: Instant::now() + LOOK_EVERY,
        }
    }

    /// Whether the stream can be asked.
    pub(super) fn can_read(&self) -> bool {
        self.generation.is_some() && self.seen == self.generation
    }

    /// Whether anything may be published.
    pub(super) fn can_publish(&self) -> bool {
        self.can_read() && self.retry_at.is_none()
    }

    /// Something failed: publishing pauses.
    pub(super) fn lost(&mut self, why: &str) {
        if self.failing.is_none() {
            self.failing = Some(why.into());
        }
        if self.retry_at.is_none() {
            self.retry_at = Some(Instant::now() + self.retry);
            self.retry = (self.retry * 2).min(LAST_RETRY);
        }
    }

    pub(super) fn try_now(&mut self) {
        if self.retry_at.is_some() {
            self.retry_at = Some(Instant::now());
        }
        self.look_at = Instant::now();
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    fn well(&mut self) {
        self.failing = None;
        self.retry = FIRST_RETRY;
    }
}

impl Engine {
    pub(super) fn link_changed(&mut self, state: &LinkState) {
        match state {
            // Of a connection that is gone again.
            LinkState::Up { generation } if *generation != self.heard_generation => {}
            LinkState::Up { generation } => {
                self.metrics.broker_connected.set(1);
                self.health.generation = Some(*generation);
                if self.health.seen != Some(*generation) {
                    self.health.lost(&format!("nats {}: the link was lost", self.api.link.urls()));
                    self.look_at_stream();
                }
            }
            LinkState::Down { reason } => {
                self.metrics.broker_connected.set(0);
                self.health.generation = None;
                self.health.seen = None;
                self.health.lost(reason);
            }
            LinkState::Closed => {
                self.metrics.broker_connected.set(0);
                self.health.generation = None;
                self.health.seen = None;
                self.health.lost("the link to the broker is closed");
            }
        }
        self.tell_health();
    }

    /// Notes that there is another connection, before anything that came over it is
    /// applied: what was missed in between comes first.
    pub(super) fn note_generation(&mut self) {
        let now = self.api.link.generation();
        if self.heard_generation == now {
            return;
        }
        self.heard_generation = now;
        self.health.generation = None;
        self.health.seen = None;
        self.health.lost(&format!("nats {}: the link was lost", self.api.link.urls()));
        for (_, room) in &mut self.rooms {
            if room.phase == Phase::Live {
                room.phase = Phase::Filling;
            }
            room.working = false;
            room.work = 0;
        }
        // The fills put it in order.
        for (room, event) in self.order.all() {
            self.hear(room, event);
        }
        let state = self.api.link.state().borrow().clone();
        if state == (LinkState::Up { generation: now }) {
            self.link_changed(&state);
        }
    }

    fn look_at_stream(&mut self) {
        if !self.health.looking && self.health.generation.is_some() {
            self.health.looking = true;
            self.jobs.stream();
        }
    }

    /// Takes what was seen of the stream.
    pub(super) fn stream_seen(&mut self, result: Result<StreamInfo, StreamError>) {
        self.health.looking = false;
        self.health.look_at = Instant::now() + LOOK_EVERY;
        let info = match result {
            Ok(info) => info,
            Err(error) => {
                if self.health.generation.is_some() {
                    self.health.seen = None;
                    self.health.look_at = Instant::now() + self.health.retry;
                    self.health.lost(&error.to_string());
                }
                return;
            }
        };
        let epoch = stream::epoch(&info, self.api.subjects.stream());
        if *self.epoch.read() != epoch {
            self.epoch_changed(epoch);
        }
        let version = self.api.link.client().server_info().version;
        self.order.set_server(&version, self.settings.replicas);
        if self.health.generation.is_some() && self.health.seen != self.health.generation {
            self.health.seen = self.health.generation;
            self.repeat_all();
            self.fill_all();
            let waiting: Vec<usize> = self.rooms.iter().map(|(number, _)| number).collect();
            for number in waiting {
                self.see_to(number);
            }
        }
        if self.again.is_empty() && self.under_way.is_empty() {
            self.health.retry_at = None;
            self.published();
        }
    }

    /// The stream is another one: all that was known is of the one before.
    fn epoch_changed(&mut self, epoch: Arc<str>) {
        let window = self.window();
        tracing::warn!(
            event = "room_log.epoch_changed",
            stream = self.api.subjects.stream(),
            "room log: the stream was made anew"
        );
        *self.epoch.write() = epoch;
        for (_, room) in &mut self.rooms {
            // What is being read is of the other stream.
            room.start_over(window);
        }
        // What was under way is published into the new one.
        self.health.seen = None;
    }

    /// Every room may have missed something.
    pub(super) fn fill_all(&mut self) {
        let numbers: Vec<usize> = self.rooms.iter().map(|(number, _)| number).collect();
        for number in numbers {
            self.fill(number);
        }
    }

    /// Something was missed in every room, and newer things may have been reported: they
    /// start over.
    pub(super) fn start_all_over(&mut self) {
        let numbers: Vec<usize> = self.rooms.iter().map(|(number, _)| number).collect();
        for number in numbers {
            self.start_over(number);
        }
    }

    /// An event was missed and newer ones have been reported. Whoever is in the room is
    /// told to start over.
    pub(super) fn start_over(&mut self, number: usize) {
        let window = self.window();
        let Some(room) = self.rooms.get_mut(number) else { return };
        tracing::warn!(
            event = "room_log.missed",
            room = room.id.as_str(),
            "room log: the broker did not deliver an event; the room starts over"
        );
        room.start_over(window);
        self.see_to(number);
    }

    /// The room may have missed something: nothing newer is applied before that is known.
    pub(super) fn fill(&mut self, number: usize) {
        let Some(room) = self.rooms.get_mut(number) else { return };
        match room.phase {
            Phase::Live => room.phase = Phase::Filling,
            // What is under way was asked for before: it may end before what was missed.
            Phase::Filling => {
                room.work = 0;
                room.working = false;
            }
            Phase::Loading if room.working && room.subscription.is_some() => {
                room.work = 0;
                room.working = false;
            }
            Phase::Loading => {}
        }
        self.see_to(number);
    }

    /// A publish got through.
    pub(super) fn published(&mut self) {
        if self.health.failing.is_some() && self.health.can_read() {
            self.health.well();
            self.tell_health();
        }
    }

    /// Reports failure and recovery, each once.
    fn tell_health(&mut self) {
        match (&self.health.failing, self.health.told) {
            (Some(why), false) => {
                self.out.send(LogEvent::Failing(StoreFailure::broker(why.clone())));
                self.health.told = true;
            }
            (None, true) => {
                self.out.send(LogEvent::Recovered);
                self.health.told = false;
            }
            _ => {}
        }
    }

    /// What is due by the clock.
    pub(super) fn tick(&mut self) {
        let at = Instant::now();
        self.give_up_waiting(at - ANSWER_WITHIN, at - HEARD_WITHIN);
        if self.health.retry_at.is_some_and(|when| at >= when) {
            self.health.retry_at = None;
        }
        if at >= self.health.look_at {
            self.look_at_stream();
        }
        self.tell_health();
        if self.health.can_read() && at >= self.check_at {
            self.check_at = at + CHECK_EVERY;
            self.check_one();
        }
        if self.health.can_read() {
            self.later();
        }
        self.sweep();
    }

    /// Compares one room with the stream, each in its turn: the last event of a vehicle
    /// could be lost without a later one that tells.
    fn check_one(&mut self) {
        let next = self.rooms.iter().map(|(number, _)| number).find(|n| *n >= self.check_next);
        let Some(number) = next else {
            self.check_next = 0;
            return;
        };
        self.check_next = number + 1;
        let room = &self.rooms[number];
        if room.phase == Phase::Live {
            self.jobs.check(number, room.work, &room.token);
        } else {
            self.see_to(number);
        }
    }
}
