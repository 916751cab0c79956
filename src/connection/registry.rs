//! All connections of the process, and what becomes of them in a shutdown.
//!
//! A connection is registered before its `101` is written and leaves when its task (or the
//! handshake that never became one) is dropped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::handle::{Handle, Progress};
use crate::admission::{Requests, Totals};
use crate::ids::{ClientId, ConnId, fresh_id};
use crate::outgoing::{Backlog, Queue};
use crate::transport::Socket;

const SHARDS: usize = 16;
/// How often connections' due times are looked at; the resolution of their timers.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// What became of the connections in a shutdown (shutdown.md, "The log contract").
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names are those of the report, explained in shutdown.md")]
pub struct Tally {
    pub notified: AtomicU64,
    pub drained: AtomicU64,
    pub acked: AtomicU64,
    pub left_early: AtomicU64,
    pub terminated: AtomicU64,
    pub unacked_close: AtomicU64,
    pub closing: AtomicU64,
    pub messages_flushed: AtomicU64,
    pub bytes_flushed: AtomicU64,
    pub messages_dropped: AtomicU64,
    pub bytes_dropped: AtomicU64,
    pub kernel_unacked_bytes: AtomicU64,
    pub held_notifications_dropped: AtomicU64,
}

impl Tally {
    pub(super) fn held_notifications_dropped(&self, count: u64) {
        self.held_notifications_dropped.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, backlog: Backlog) {
        self.messages_dropped.fetch_add(backlog.messages, Ordering::Relaxed);
        self.bytes_dropped.fetch_add(backlog.bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_acked(&self) {
        self.acked.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_left_early(&self) {
        self.left_early.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn flushed(&self, messages: usize, bytes: usize) {
        self.messages_flushed.fetch_add(messages as u64, Ordering::Relaxed);
        self.bytes_flushed.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// All connections.
#[derive(Debug)]
pub struct Registry {
    shards: [Mutex<FxHashMap<ConnId, Arc<Handle>>>; SHARDS],
    next: AtomicU64,
    live: AtomicUsize,
    /// Live connections that are not drained yet, or are served on.
    undrained: AtomicUsize,
    changed: Notify,
    started: Instant,
    tally: Tally,
    tallying: AtomicBool,
    requests: Arc<Totals>,
    given_up: Mutex<Vec<Terminated>>,
}

/// A connection that was given up in a shutdown, with what was lost.
#[derive(Debug, Clone)]
pub struct Terminated {
    /// The connection.
    pub handle: Arc<Handle>,
    /// What its queue held.
    pub queued: Backlog,
    /// What its peer's kernel had not acknowledged.
    pub kernel_unacked_bytes: u64,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            next: AtomicU64::new(1),
            live: AtomicUsize::new(0),
            undrained: AtomicUsize::new(0),
            changed: Notify::new(),
            started: Instant::now(),
            tally: Tally::default(),
            tallying: AtomicBool::new(false),
            requests: Arc::default(),
            given_up: Mutex::default(),
        }
    }
}

/// A registered connection; dropping it takes the connection out.
#[derive(Debug)]
pub struct Registered {
    handle: Arc<Handle>,
    registry: Arc<Registry>,
}

impl Registered {
    /// The connection.
    #[must_use]
    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Where it is registered.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Notes that all that had to arrive has arrived.
    pub(crate) fn set_drained(&self) {
        if self.handle.advance(Progress::Drained) {
            self.registry.tally.drained.fetch_add(1, Ordering::Relaxed);
            // Its close frame follows, now or later.
            self.registry.tally.closing.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Takes what does not belong into the report out of the tally again.
    fn uncount(&self) {
        let tally = &self.registry.tally;
        match self.handle.progress() {
            Progress::Open => {}
            // It went in an evacuation, before any shutdown.
            _ if self.registry.tally_if_stopping().is_none() => {
                one_less(&tally.drained);
                one_less(&tally.closing);
            }
            // It left before its close frame.
            Progress::Drained => one_less(&tally.closing),
            Progress::Closing | Progress::Terminated => {}
        }
    }

    /// Notes that the drain need not wait for it any more: drained, and not served on.
    pub(crate) fn settle(&self) {
        if self.handle.settle() {
            self.registry.undrained.fetch_sub(1, Ordering::AcqRel);
            self.registry.changed.notify_waiters();
        }
    }

    /// Notes that the shutdown's close frame is on its way.
    pub(crate) fn set_closing(&self) {
        let counted = self.handle.progress() == Progress::Drained;
        if self.handle.advance(Progress::Closing) {
            self.registry.tally.closing.fetch_add(u64::from(!counted), Ordering::AcqRel);
            self.settle();
        }
    }
}

fn one_less(counter: &AtomicU64) {
    // Never below zero; an error means that it is zero.
    let _ = counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
}

impl Drop for Registered {
    fn drop(&mut self) {
        let shard = self.registry.shard(self.handle.conn);
        if shard.lock().remove(&self.handle.conn).is_some() {
            if self.handle.settle() {
                self.registry.undrained.fetch_sub(1, Ordering::AcqRel);
            }
            self.uncount();
            self.handle.set_gone();
            self.registry.live.fetch_sub(1, Ordering::AcqRel);
            self.registry.changed.notify_waiters();
        }
    }
}

impl Registry {
    fn shard(&self, conn: ConnId) -> &Mutex<FxHashMap<ConnId, Arc<Handle>>> {
        // Numbers are consecutive, so the low bits spread evenly.
        let at = usize::try_from(conn.0 % SHARDS as u64).unwrap_or(0);
        &self.shards[at]
    }

    /// Registers a connection. Read the phase after this, not before: then it is either
    /// refused or notified.
    #[must_use]
    pub fn register(
        self: &Arc<Self>,
        client: Option<ClientId>,
        peer: SocketAddr,
        socket: Socket,
    ) -> Registered {
        let conn = ConnId(self.next.fetch_add(1, Ordering::Relaxed));
        let queue = Arc::new(Queue::new(conn));
        let requests = Arc::new(Requests::new(queue.clone(), self.requests.clone()));
        let handle = Arc::new(Handle::new(conn, fresh_id(), client, peer, socket, requests, queue));
        self.live.fetch_add(1, Ordering::AcqRel);
        self.undrained.fetch_add(1, Ordering::AcqRel);
        self.shard(conn).lock().insert(conn, handle.clone());
        Registered { handle, registry: self.clone() }
    }

    /// Live connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Live connections that have not drained, or are served on.
    #[must_use]
    pub fn undrained(&self) -> usize {
        self.undrained.load(Ordering::Acquire)
    }

    /// All connections now.
    #[must_use]
    pub fn handles(&self) -> Vec<Arc<Handle>> {
        let mut all = Vec::with_capacity(self.len());
        for shard in &self.shards {
            all.extend(shard.lock().values().cloned());
        }
        all
    }

    /// Returns when `condition` holds; it is looked at whenever a connection drains or goes.
    pub async fn until(&self, condition: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Listen before looking, or a change in between is missed.
            changed.as_mut().enable();
            if condition(self) {
                return;
            }
            changed.await;
        }
    }

    /// What became of connections in the shutdown.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// From now on what becomes of connections is counted. What an evacuation gave up before
    /// is not.
    pub fn begin_tally(&self) {
        let tally = &self.tally;
        for counter in [
            &tally.terminated,
            &tally.messages_dropped,
            &tally.bytes_dropped,
            &tally.kernel_unacked_bytes,
        ] {
            counter.store(0, Ordering::Release);
        }
        self.given_up.lock().clear();
        self.tallying.store(true, Ordering::Release);
    }

    /// The tally, if the shutdown has begun.
    #[must_use]
    pub fn tally_if_stopping(&self) -> Option<&Tally> {
        self.tallying.load(Ordering::Acquire).then_some(&self.tally)
    }

    /// Counts a connection as terminated and notes what it loses.
    pub fn terminated(&self, handle: Arc<Handle>) -> Terminated {
        handle.advance(Progress::Terminated);
        let queued = handle.queue.backlog();
        let kernel_unacked_bytes = handle.socket.unacknowledged();
        self.tally.terminated.fetch_add(1, Ordering::AcqRel);
        self.tally.kernel_unacked_bytes.fetch_add(kernel_unacked_bytes, Ordering::AcqRel);
        Terminated { handle, queued, kernel_unacked_bytes }
    }

    /// As [`Registry::terminated`], by the connection itself.
    pub(super) fn give_up(&self, handle: Arc<Handle>) {
        let terminated = self.terminated(handle);
        self.given_up.lock().push(terminated);
    }

    /// Those that gave themselves up since the last call.
    #[must_use]
    pub fn take_given_up(&self) -> Vec<Terminated> {
        std::mem::take(&mut self.given_up.lock())
    }

    /// Requests completed and refused.
    #[must_use]
    pub fn request_totals(&self) -> &Totals {
        &self.requests
    }

    /// Milliseconds since the registry began: the clock of [`Handle`]'s due times.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Gives connections the ticks they asked for, until the process ends.
    pub async fn sweep(self: Arc<Self>) {
        let mut interval = tokio::time::interval(SWEEP_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            interval.tick().await;
            let now = self.now_ms();
            for shard in &self.shards {
                for handle in shard.lock().values() {
                    handle.tick(now);
                }
            }
        }
    }

    /// Polls those that wait for their peers' kernels alone: every 2 ms at first, then
    /// slower up to 20 ms (a delayed acknowledgement takes about 45 ms). Runs until
    /// dropped.
    pub async fn sample_acknowledged(&self) {
        const FIRST: Duration = Duration::from_millis(2);
        const LAST: Duration = Duration::from_millis(20);
        let mut wait = FIRST;
        loop {
            tokio::time::sleep(wait).await;
            let mut any = false;
            for shard in &self.shards {
                for handle in shard.lock().values() {
                    any |= handle.sample_acknowledged();
                }
            }
            wait = if any { (wait * 3 / 2).min(LAST) } else { FIRST };
        }
    }
}
