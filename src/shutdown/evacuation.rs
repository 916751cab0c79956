//! The admin drain: a paced evacuation without stopping (shutdown.md, "The admin drain").
//!
//! Clients are noticed one after the other at a rate; from its own notice each has the
//! drain's time to finish. It may be called off: who was noticed is finished, nobody else
//! is. A shutdown takes over at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::report::ms;
use crate::connection::{Handle, Order, Progress, Registry};
use crate::phase::{Phase, PhaseWatch};
use crate::protocol::frame;
use crate::protocol::server::{ShutdownReason, server_shutting_down};

/// What each client has from its notice until it is given up.
pub const DRAIN_TIME: Duration = Duration::from_millis(3500);
/// What it has from its close frame until it is given up.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// Over how long those who are noticed together are spread.
const JITTER: Duration = Duration::from_secs(1);

/// The evacuation as the admin port shows it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvacuationStatus {
    /// Whether one is on: upgrades are refused, readiness says 503.
    pub draining: bool,
    /// Clients a second.
    pub rate: u32,
    /// Clients when it began.
    pub clients_at_start: usize,
    /// Clients noticed since.
    pub notified: usize,
    /// Clients still connected.
    pub clients: usize,
    /// Milliseconds since it began.
    pub elapsed_ms: u64,
}

#[derive(Debug)]
struct Running {
    rate: u32,
    clients_at_start: usize,
    notified: Arc<AtomicUsize>,
    since: Instant,
    stop: CancellationToken,
}

/// Evacuates clients.
#[derive(Debug)]
pub struct Evacuation {
    registry: Arc<Registry>,
    phase: PhaseWatch,
    reconnect_min: Duration,
    runtime: Runtime,
    on: AtomicBool,
    running: Mutex<Option<Running>>,
}

/// The process is shutting down already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server is shutting down")]
pub struct ShuttingDown;

impl Evacuation {
    /// None is on. Must be called on the runtime of the connections.
    #[must_use]
    pub fn new(registry: Arc<Registry>, phase: PhaseWatch, reconnect_min: Duration) -> Self {
        Self {
            registry,
            phase,
            reconnect_min,
            runtime: Runtime::current(),
            on: AtomicBool::new(false),
            running: Mutex::new(None),
        }
    }

    /// Whether one is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Begins to notice `rate` clients a second, or goes on at another rate.
    ///
    /// # Errors
    /// [`ShuttingDown`]: everybody is noticed anyway.
    pub fn begin(self: &Arc<Self>, rate: u32) -> Result<EvacuationStatus, ShuttingDown> {
        if self.phase.get() >= Phase::StopAccepting {
            return Err(ShuttingDown);
        }
        let mut running = self.running.lock();
        let before = running.take();
        if let Some(before) = &before {
            before.stop.cancel();
        }
        let (clients_at_start, notified, since) = before.map_or_else(
            || (self.registry.len(), Arc::default(), Instant::now()),
            |before| (before.clients_at_start, before.notified, before.since),
        );
        let stop = CancellationToken::new();
        let next = Running { rate, clients_at_start, notified: notified.clone(), since, stop };
        let stop = next.stop.clone();
        *running = Some(next);
        self.on.store(true, Ordering::Release);
        drop(running);
        tracing::warn!(
            event = "drain.started",
            rate,
            clients = clients_at_start as u64,
            "drain: started"
        );
        self.runtime.spawn(self.clone().notice(rate, notified, stop));
        Ok(self.status())
    }

    /// Stops noticing; who was noticed is finished. Upgrades are taken again.
    ///
    /// # Errors
    /// [`ShuttingDown`]: it cannot be called off.
    pub fn stop(&self) -> Result<EvacuationStatus, ShuttingDown> {
        if self.phase.get() >= Phase::StopAccepting {
            return Err(ShuttingDown);
        }
        let mut running = self.running.lock();
        if let Some(running) = running.take() {
            running.stop.cancel();
            tracing::warn!(event = "drain.stopped", "drain: stopped");
        }
        self.on.store(false, Ordering::Release);
        drop(running);
        Ok(self.status())
    }

    /// How far it is.
    #[must_use]
    pub fn status(&self) -> EvacuationStatus {
        let running = self.running.lock();
        let of = |f: fn(&Running) -> usize| running.as_ref().map_or(0, f);
        EvacuationStatus {
            draining: running.is_some(),
            rate: running.as_ref().map_or(0, |running| running.rate),
            clients_at_start: of(|running| running.clients_at_start),
            notified: of(|running| running.notified.load(Ordering::Acquire)),
            clients: self.registry.len(),
            elapsed_ms: running.as_ref().map_or(0, |running| ms(running.since.elapsed())),
        }
    }

    async fn notice(
        self: Arc<Self>,
        rate: u32,
        notified: Arc<AtomicUsize>,
        stop: CancellationToken,
    ) {
        let mut phase = self.phase.clone();
        let pace = Duration::from_secs(1) / rate.max(1);
        let noticing = async {
            let mut next = Instant::now();
            loop {
                let mut waiting: Vec<_> = self
                    .registry
                    .handles()
                    .into_iter()
                    .filter(|handle| !handle.is_notified())
                    .collect();
                if waiting.is_empty() {
                    // Handshakes that were under way when it began may still come in.
                    sleep(pace.max(Duration::from_millis(100))).await;
                    continue;
                }
                fastrand::shuffle(&mut waiting);
                for handle in waiting {
                    sleep_until(next).await;
                    next = next.max(Instant::now()) + pace;
                    if self.notify(&handle) {
                        notified.fetch_add(1, Ordering::AcqRel);
                        self.runtime.spawn(finish(handle, self.phase.clone()));
                    }
                }
            }
        };
        tokio::select! {
            () = noticing => {}
            () = stop.cancelled() => {}
            () = phase.reached(Phase::StopAccepting) => {}
        }
    }

    fn notify(&self, handle: &Handle) -> bool {
        let jitter = fastrand::u64(0..=ms(JITTER));
        let reconnect_in = self.reconnect_min + Duration::from_millis(jitter);
        let text = server_shutting_down(reconnect_in, ms(DRAIN_TIME), ShutdownReason::Drain);
        let first = handle.notify(frame::text_frame(&text));
        if first {
            handle.order(Order::Drain);
        }
        first
    }
}

/// Sees one noticed client off, unless a shutdown takes it over.
async fn finish(handle: Arc<Handle>, mut phase: PhaseWatch) {
    let deadline = Instant::now() + DRAIN_TIME;
    let seeing_off = async {
        // It waits for its peer's kernel on its own: sampled here, as nobody else does.
        let mut pause = Duration::from_millis(2);
        while Instant::now() < deadline && handle.progress() == Progress::Open {
            sleep(pace(pause, deadline)).await;
            pause = (pause * 3 / 2).min(Duration::from_millis(20));
            handle.sample_acknowledged();
        }
        sleep_until_gone(&handle, deadline).await;
        match handle.progress() {
            Progress::Open => handle.order(Order::Terminate),
            Progress::Drained => handle.order(Order::Finish),
            Progress::Closing | Progress::Terminated => {}
        }
        sleep_until_gone(&handle, deadline + CLOSE_TIME).await;
        handle.order(Order::Terminate);
    };
    tokio::select! {
        () = seeing_off => {}
        () = phase.reached(Phase::StopAccepting) => {}
    }
}

fn pace(pause: Duration, deadline: Instant) -> Duration {
    pause.min(deadline.saturating_duration_since(Instant::now()))
}

async fn sleep_until_gone(handle: &Handle, deadline: Instant) {
    tokio::select! {
        () = handle.gone() => {}
        () = sleep_until(deadline) => {}
    }
}
