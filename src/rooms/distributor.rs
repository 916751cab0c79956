//! Brings what the room log has committed to the rooms and the publishers.
//!
//! One task, in the log's order: so a room's events ascend, and one sender's positions
//! reach a receiver in the order in which they were accepted. It encodes each event once.

use std::sync::Arc;
use std::task::Waker;

use tokio::sync::mpsc;

use super::encode::{Fix, encode, encode_stored};
use super::hub::Hub;
use crate::room_log::{Committed, LogEvent, Receipt, StoreFailure, Verdict};
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
                let now = UnixMillis::now();
                for committed in batch {
                    let waited = now.get() - committed.append.received_at.get();
                    self.metrics.room_log_append_seconds.observe(waited.max(0) as f64 / 1000.0);
                    self.committed(committed);
                }
            }
            LogEvent::RoomLoaded { room, head, newest, trimmed_to, .. } => {
                self.hub.set_head(head);
                let newest = newest.iter().map(|stored| encode_stored(&room, stored)).collect();
                self.hub.activate(&room, head, trimmed_to, newest);
            }
            LogEvent::Failing(failure) => self.watcher.failing(&failure),
            LogEvent::Recovered => self.watcher.recovered(),
            LogEvent::Closed => {}
        }
    }

    fn committed(&mut self, committed: Committed) {
        let Committed { mut append, outcomes } = committed;
        for outcome in &outcomes {
            match outcome.verdict {
                Verdict::Duplicate => {
                    self.metrics.duplicates.inc();
                    continue;
                }
                Verdict::Stored { newest: false } => {
                    self.metrics.late.inc();
                    self.hub.set_head(outcome.seq);
                    continue;
                }
                Verdict::Stored { newest: true } => self.hub.set_head(outcome.seq),
            }
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
                    sender: Some(append.sender),
                },
            );
            room.publish(&event, &mut self.wakes);
        }
        if let Some(reply) = append.reply.take() {
            reply(Receipt { outcomes });
        }
    }
}
