//! Brings what the room log has committed to the rooms and the publishers.
//!
//! One task, in the log's order: so a room's events ascend, and one sender's positions
//! reach a receiver in the order in which they were accepted. It encodes each event once.

use std::sync::Arc;
use std::task::Waker;

use tokio::sync::mpsc;

use super::encode::{Fix, encode, encode_stored};
use super::hub::Hub;
use crate::room_log::{
    Append, Committed, ELSEWHERE, LogEvent, Receipt, RoomOutcome, StoreFailure, Verdict,
};
use crate::telemetry::Metrics;
use crate::time::UnixMillis;

/// How many events are taken from the log's channel before those who wait are woken.
const TAKEN_AT_ONCE: usize = 64;

/// What the rest of the process has to know of the log.
pub trait LogWatcher: Send + Sync {
    /// The store cannot write; appends wait.
    fn failing(&self, failure: &StoreFailure);
    /// It writes again.
    fn recovered(&self);
}

/// The task that distributes. Spawn [`Distributor::run`].
pub struct Distributor {
    hub: Arc<Hub>,
    metrics: Arc<Metrics>,
    events: mpsc::UnboundedReceiver<LogEvent>,
    watcher: Arc<dyn LogWatcher>,
    wakes: Vec<Waker>,
}

impl Distributor {
    /// Distributes `events` to the rooms of `hub`.
    #[must_use]
    pub fn new(
        hub: Arc<Hub>,
        metrics: Arc<Metrics>,
        events: mpsc::UnboundedReceiver<LogEvent>,
        watcher: Arc<dyn LogWatcher>,
    ) -> Self {
        Self { hub, metrics, events, watcher, wakes: Vec::new() }
    }

    /// Runs until the log is closed.
    pub async fn run(mut self) {
        let mut taken = Vec::with_capacity(TAKEN_AT_ONCE);
        while self.events.recv_many(&mut taken, TAKEN_AT_ONCE).await > 0 {
            for event in taken.drain(..) {
                self.distribute(event);
            }
            self.wakes.drain(..).for_each(Waker::wake);
        }
    }

    fn distribute(&mut self, event: LogEvent) {
        match event {
            LogEvent::Committed(batch) => {
                self.metrics.room_log_batch_size.observe(batch.len() as f64);
                for mut committed in batch {
                    self.count(&committed);
                    self.publish(&committed.append, &committed.outcomes);
                    if let Some(reply) = committed.append.reply.take() {
                        reply(Receipt { outcomes: committed.outcomes });
                    }
                }
            }
            LogEvent::Arrived(batch) => {
                for Committed { append, outcomes } in batch {
                    self.publish(&append, &outcomes);
                }
            }
            LogEvent::Answered(batch) => {
                for mut committed in batch {
                    self.count(&committed);
                    if let Some(reply) = committed.append.reply.take() {
                        reply(Receipt { outcomes: committed.outcomes });
                    }
                }
            }
            LogEvent::RoomLoaded { room, epoch, head, newest, trimmed_to } => {
                self.hub.set_log_state(epoch, head);
                let newest = newest.iter().map(|stored| encode_stored(&room, stored)).collect();
                self.hub.activate(&room, head, trimmed_to, newest);
            }
            LogEvent::HeadConfirmed { room, head } => self.hub.confirmed(&room, head),
            LogEvent::Failing(failure) => self.watcher.failing(&failure),
            LogEvent::Recovered => self.watcher.recovered(),
            LogEvent::Closed => {}
        }
    }

    /// Counts what this instance took.
    fn count(&self, committed: &Committed) {
        let waited = UnixMillis::now().get() - committed.append.received_at.get();
        self.metrics.room_log_append_seconds.observe(waited.max(0) as f64 / 1000.0);
        for outcome in &committed.outcomes {
            match outcome.verdict {
                Verdict::Duplicate => {
                    self.metrics.duplicates.inc();
                    continue;
                }
                Verdict::Stored { newest: false } => {
                    self.metrics.late.inc();
                }
                Verdict::Stored { newest: true } => {}
            }
            self.hub.set_head(outcome.seq);
        }
    }

    /// Sends a position to those who are in its rooms.
    fn publish(&mut self, append: &Append, outcomes: &[RoomOutcome]) {
        let sender = (append.sender != ELSEWHERE).then_some(append.sender);
        for outcome in outcomes {
            if outcome.verdict != (Verdict::Stored { newest: true }) {
                continue;
            }
            self.hub.set_head(outcome.seq);
            let Some(room) = self.hub.get(&outcome.room).filter(|_| !append.quiet) else {
                continue;
            };
            let event = encode(
                &outcome.room,
                outcome.seq,
                &Fix {
                    client: &append.client,
                    vehicle: &append.vehicle,
                    body: &append.body,
                    fix: append.fix_time(),
                    received_at: append.received_at,
                    sender,
                },
            );
            room.publish(&event, &mut self.wakes);
        }
    }
}
