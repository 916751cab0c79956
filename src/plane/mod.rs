//! The plane: whether work on the room log may go on, and the budgets of what is held while
//! it may not (plane.md, "The plane").
//!
//! The plane is open while no hold is on it. [`Held`] is one connection's share: raw frames
//! in the order of their arrival. The listener is open during every hold.

mod held;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::outgoing::Queue;
use crate::room_log::{FailureKind, StoreFailure};
use crate::rooms::LogWatcher;
use crate::telemetry::Metrics;
use crate::telemetry::metrics::{HoldLabel, set};

pub use held::{Held, Item, Kept};

/// Why the plane is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hold {
    /// The room log is not ready yet.
    Startup,
    /// The embedded log cannot write.
    Store,
    /// The link to the broker is down, or the broker does not take what it is given.
    Broker,
    /// The operator asked for it.
    Operator,
}

impl Hold {
    /// All of them, in the order in which they are named.
    pub const ALL: [Self; 4] = [Self::Startup, Self::Store, Self::Broker, Self::Operator];

    /// Whether every instance has it at the same time: then no other instance would do
    /// better, and traffic may as well come here.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Broker)
    }

    /// The name in logs, readiness and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Store => "store",
            Self::Broker => "broker",
            Self::Operator => "operator",
        }
    }

    const fn label(self) -> HoldLabel {
        match self {
            Self::Startup => HoldLabel::Startup,
            Self::Store => HoldLabel::Store,
            Self::Broker => HoldLabel::Broker,
            Self::Operator => HoldLabel::Operator,
        }
    }
}

/// How much may be held. Sizes in bytes of frame text.
#[derive(Debug, Clone, Copy)]
pub struct Budgets {
    /// `plane.max_held_requests`, for a connection.
    pub requests: usize,
    /// `plane.max_held_notifications`, for a connection.
    pub notifications: usize,
    /// `plane.max_held_bytes_per_connection`.
    pub bytes_per_connection: usize,
    /// `plane.max_held_bytes`, for the process.
    pub bytes: usize,
}

#[derive(Debug, Clone)]
struct Reason {
    text: String,
    since: Instant,
}

#[derive(Debug, Default)]
struct State {
    holds: [Option<Reason>; Hold::ALL.len()],
    /// When this pause began: with its first hold.
    paused_since: Option<Instant>,
    /// Whose connections hold something, to be woken when the plane opens.
    waiting: Vec<Weak<Queue>>,
    /// A pause that is over, but for what is still held from it.
    ended: Option<(Hold, Duration)>,
}

/// Sums of one pause, for its last log line.
#[derive(Debug, Default)]
struct Totals {
    held: AtomicU64,
    flushed: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
}

/// The plane of the process.
#[derive(Debug)]
pub struct Plane {
    budgets: Budgets,
    open: AtomicBool,
    /// Whether [`State::ended`] is set; looked at for every item of a flush.
    ending: AtomicBool,
    state: Mutex<State>,
    /// How often it has opened, so that a connection that was too busy to see it open and
    /// pause again still learns of it.
    openings: AtomicU64,
    held_bytes: AtomicUsize,
    held_requests: AtomicUsize,
    held_notifications: AtomicUsize,
    totals: Totals,
    metrics: Arc<Metrics>,
}

impl Plane {
    /// An open plane.
    #[must_use]
    pub fn new(budgets: Budgets, metrics: Arc<Metrics>) -> Self {
        Self {
            budgets,
            open: AtomicBool::new(true),
            ending: AtomicBool::new(false),
            state: Mutex::default(),
            openings: AtomicU64::new(0),
            held_bytes: AtomicUsize::new(0),
            held_requests: AtomicUsize::new(0),
            held_notifications: AtomicUsize::new(0),
            totals: Totals::default(),
            metrics,
        }
    }

    /// Whether work may go on.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Puts a hold on the plane, or changes its reason. Returns whether it is new.
    pub fn hold(&self, hold: Hold, reason: impl Into<String>) -> bool {
        let text = reason.into();
        let mut state = self.state.lock();
        let place = &mut state.holds[hold as usize];
        if let Some(reason) = place {
            reason.text = text;
            return false;
        }
        let since = Instant::now();
        macro_rules! say {
            ($level:ident) => {
                tracing::$level!(
                    event = "plane.paused",
                    hold = hold.name(),
                    reason = text,
                    "plane: paused ({})",
                    hold.name()
                )
            };
        }
        // Every start begins with a hold; only the others are out of the ordinary.
        if hold == Hold::Startup {
            say!(info);
        } else {
            say!(warn);
        }
        *place = Some(Reason { text, since });
        // Paused again before the last pause was flushed: its line comes now.
        self.say_ended(&mut state);
        state.paused_since.get_or_insert(since);
        self.open.store(false, Ordering::Release);
        self.metrics.plane_paused.get(hold.label()).set(1);
        true
    }

    /// Takes a hold off; when it was the last one the plane opens and those who hold
    /// something are woken. Returns whether it was on.
    pub fn release(&self, hold: Hold) -> bool {
        let waiting = {
            let mut state = self.state.lock();
            let Some(reason) = state.holds[hold as usize].take() else { return false };
            self.metrics.plane_paused.get(hold.label()).set(0);
            let seconds = reason.since.elapsed().as_secs_f64();
            self.metrics.plane_paused_seconds.get(hold.label()).inc_by(seconds);
            if state.holds.iter().any(Option::is_some) {
                return true;
            }
            self.opened(hold, &mut state);
            std::mem::take(&mut state.waiting)
        };
        for queue in waiting.iter().filter_map(Weak::upgrade) {
            queue.wake();
        }
        self.flushed_some();
        true
    }

    fn opened(&self, hold: Hold, state: &mut State) {
        let length = state.paused_since.take().map(|since| since.elapsed()).unwrap_or_default();
        state.ended = Some((hold, length));
        self.ending.store(true, Ordering::Release);
        self.openings.fetch_add(1, Ordering::AcqRel);
        self.open.store(true, Ordering::Release);
    }

    /// Called when something held has been handled or given up: the last line of a pause
    /// comes when nothing is held any more.
    fn flushed_some(&self) {
        let nothing = |held: &AtomicUsize| held.load(Ordering::Acquire) == 0;
        if self.ending.load(Ordering::Acquire)
            && nothing(&self.held_requests)
            && nothing(&self.held_notifications)
        {
            self.say_ended(&mut self.state.lock());
        }
    }

    fn say_ended(&self, state: &mut State) {
        let Some((hold, length)) = state.ended.take() else { return };
        self.ending.store(false, Ordering::Release);
        let sum = |total: &AtomicU64| total.swap(0, Ordering::AcqRel);
        let totals = &self.totals;
        tracing::info!(
            event = "plane.resumed",
            hold = hold.name(),
            duration_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX),
            held = sum(&totals.held),
            flushed = sum(&totals.flushed),
            refused = sum(&totals.refused),
            dropped = sum(&totals.dropped),
            "plane: resumed ({})",
            hold.name()
        );
    }

    /// The holds that are on, with their reasons.
    #[must_use]
    pub fn holds(&self) -> Vec<(Hold, String)> {
        let state = self.state.lock();
        let reason = |hold: Hold| state.holds[hold as usize].as_ref().map(|r| r.text.clone());
        Hold::ALL.into_iter().filter_map(|hold| Some((hold, reason(hold)?))).collect()
    }

    /// Sets the gauges of what is held.
    pub fn scrape(&self, metrics: &Metrics) {
        set(&metrics.held_requests, self.held_requests.load(Ordering::Relaxed));
        set(&metrics.held_notifications, self.held_notifications.load(Ordering::Relaxed));
        set(&metrics.held_bytes, self.held_bytes.load(Ordering::Relaxed));
    }

    /// What is held by all connections: requests, notifications, bytes.
    #[must_use]
    pub fn held(&self) -> (usize, usize, usize) {
        (
            self.held_requests.load(Ordering::Acquire),
            self.held_notifications.load(Ordering::Acquire),
            self.held_bytes.load(Ordering::Acquire),
        )
    }

    /// Wakes `queue` when the plane opens; returns how often it had opened before.
    fn wait(&self, queue: &Arc<Queue>) -> u64 {
        let mut state = self.state.lock();
        let openings = self.openings.load(Ordering::Acquire);
        if state.holds.iter().any(Option::is_some) {
            state.waiting.push(Arc::downgrade(queue));
        } else {
            drop(state);
            queue.wake();
        }
        openings
    }

    fn take_bytes(&self, bytes: usize) -> bool {
        let fits = |held: usize| {
            let sum = held.checked_add(bytes)?;
            (sum <= self.budgets.bytes).then_some(sum)
        };
        self.held_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    fn give_back_bytes(&self, bytes: usize) {
        self.held_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

impl LogWatcher for Plane {
    fn failing(&self, failure: &StoreFailure) {
        let error = failure.to_string();
        match failure.kind {
            FailureKind::Store => {
                tracing::error!(event = "room_log.failing", error, "room log: cannot write");
                self.hold(Hold::Store, error);
            }
            FailureKind::Broker => {
                let text = "room log: the broker takes nothing, positions wait";
                tracing::error!(event = "room_log.failing", error, "{text}");
                self.hold(Hold::Broker, error);
            }
        }
    }

    fn recovered(&self) {
        // The log says only that all is well again.
        if self.release(Hold::Broker) {
            let text = "room log: the broker takes positions again";
            tracing::info!(event = "room_log.recovered", "{text}");
        }
        if self.release(Hold::Store) {
            tracing::info!(event = "room_log.recovered", "room log: writes again");
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use proptest::prelude::*;

    use super::*;

    fn plane() -> Plane {
        let budgets = Budgets { requests: 1, notifications: 1, bytes_per_connection: 1, bytes: 1 };
        Plane::new(budgets, Arc::new(Metrics::new(&Counter::default())))
    }

    /// Every hold pauses by itself, and the plane opens with the last, whatever their order.
    #[test]
    fn the_plane_is_open_while_no_hold_is_on() {
        proptest!(|(steps in proptest::collection::vec((0..Hold::ALL.len(), any::<bool>()), 0..24))| {
            let plane = plane();
            let mut on = std::collections::BTreeSet::new();
            for (hold, put) in steps {
                let changed = if put {
                    prop_assert_eq!(plane.hold(Hold::ALL[hold], "why"), on.insert(hold));
                    1
                } else {
                    prop_assert_eq!(plane.release(Hold::ALL[hold]), on.remove(&hold));
                    0
                };
                prop_assert_eq!(plane.is_open(), on.is_empty());
                let names: Vec<_> = plane.holds().iter().map(|(hold, _)| *hold).collect();
                let expected: Vec<_> = on.iter().map(|hold| Hold::ALL[*hold]).collect();
                prop_assert_eq!(names, expected);
                let gauge = plane.metrics.plane_paused.get(Hold::ALL[hold].label());
                prop_assert_eq!(gauge.get(), changed);
            }
        });
    }

    #[test]
    fn a_failure_of_the_broker_is_a_hold_of_its_own() {
        let plane = plane();
        plane.failing(&StoreFailure::broker("nats://a:4222: no connection"));
        assert_eq!(plane.holds(), [(Hold::Broker, "nats://a:4222: no connection".to_owned())]);
        assert_eq!(Hold::Broker.name(), "broker");
        // What is known of it changes, the pause goes on.
        plane.failing(&StoreFailure::broker("nats://a:4222: no answer"));
        assert_eq!(plane.holds(), [(Hold::Broker, "nats://a:4222: no answer".to_owned())]);
        plane.recovered();
        assert!(plane.is_open());
        plane.failing(&StoreFailure::store("disk full"));
        assert_eq!(plane.holds(), [(Hold::Store, "disk full".to_owned())]);
        plane.recovered();
        assert!(plane.is_open());
        assert!(Hold::ALL.iter().all(|hold| hold.is_shared() == (*hold == Hold::Broker)));
    }
}
