//! Runs the phases: writes the phase, gives the connections their orders, waits for them
//! no longer than the phase's deadline, and writes the log contract's lines.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::report::{PhaseTimes, Report, ms};
use super::signals::Trigger;
use super::slots::{Spread, slots};
use crate::connection::{Handle, Order, Progress, Registry};
use crate::phase::{Phase, PhaseSetter};
use crate::protocol::server::{ShutdownReason, server_shutting_down};
use crate::protocol::frame;
use crate::room_log::RoomLog;
use crate::rooms::Hub;
use crate::telemetry::Metrics;

/// The most lines about single terminated clients.
const MAX_TERMINATED_LINES: usize = 100;

/// The ends of the phases, from `t0`.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// Before `t0`: readiness says 503, everything else works.
    pub lame_duck: Duration,
    /// End of phase 1.
    pub stop_accepting: Duration,
    /// End of phase 2.
    pub notify: Duration,
    /// End of phase 3.
    pub drain: Duration,
    /// End of phase 4.
    pub close: Duration,
}

impl Deadlines {
    /// From the signal to the last deadline.
    #[must_use]
    pub fn whole(&self) -> Duration {
        self.lame_duck + self.close
    }
}

/// How the shutdown ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What became of everything.
    pub report: Report,
    /// What is left of the budget for the log's last lines.
    pub left: Duration,
}

/// The shutdown as the admin port shows it.
#[derive(Debug, Clone, Default)]
pub struct Status(Arc<Mutex<Option<Timeline>>>);

#[derive(Debug, Clone, Copy)]
struct Timeline {
    t0: Instant,
    clients_at_start: usize,
    times: PhaseTimes,
    log_flushed: bool,
}

/// The one coordinator. Everything it waits for is injected, so that tests hold the clock.
pub struct Coordinator<H> {
    /// The connections.
    pub registry: Arc<Registry>,
    /// The phase, which only this writes.
    pub phase: PhaseSetter,
    /// The rooms.
    pub hub: Arc<Hub>,
    /// The room log.
    pub log: Arc<dyn RoomLog>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Returns (a future that ends) when no handshake is pending.
    pub no_handshakes: H,
    /// When each phase ends.
    pub deadlines: Deadlines,
    /// When clients are to come back.
    pub spread: Spread,
    /// This process's public name.
    pub instance_id: Arc<str>,
    /// Where the admin port looks.
    pub status: Status,
}

impl Status {
    /// The report so far, once the shutdown has begun.
    #[must_use]
    pub fn report(&self, registry: &Registry) -> Option<Report> {
        let timeline = (*self.0.lock())?;
        Some(timeline.report(registry))
    }
}

impl Timeline {
    fn report(&self, registry: &Registry) -> Report {
        Report::collect(
            self.clients_at_start,
            registry.tally(),
            registry.request_totals(),
            self.log_flushed,
            self.times,
            self.t0.elapsed(),
        )
    }
}

impl<H, F> Coordinator<H>
where
    H: Fn() -> F,
    F: Future<Output = ()>,
{
    /// Waits for the first trigger, shuts down, and returns how that ended. Further
    /// triggers join the running shutdown; a second SIGINT ends it at once.
    pub async fn run(self, mut triggers: mpsc::UnboundedReceiver<Trigger>) -> Outcome {
        let Some(trigger) = triggers.recv().await else {
            // Nobody can ask any more, so nobody has to be waited for.
            return std::future::pending().await;
        };
        let status = self.status.clone();
        let registry = self.registry.clone();
        let metrics = self.metrics.clone();
        let instance_id = self.instance_id.clone();
        let budget = self.deadlines.close;
        let started = Instant::now();
        let mut interrupts = u8::from(trigger == Trigger::Sigint);
        let mut joined = false;
        let shutdown = self.shut_down(trigger);
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                Some(again) = triggers.recv() => {
                    interrupts += u8::from(again == Trigger::Sigint);
                    if interrupts >= 2 {
                        let timeline = *status.0.lock();
                        let timeline = timeline.unwrap_or(Timeline {
                            t0: started,
                            clients_at_start: registry.len(),
                            times: PhaseTimes::default(),
                            log_flushed: false,
                        });
                        let mut report = timeline.report(&registry);
                        report.exit_code = 130;
                        force_exit(&report, &registry, again, &instance_id, budget);
                        report.publish(&metrics);
                        return Outcome { report, left: Duration::ZERO };
                    }
                    if !std::mem::replace(&mut joined, true) {
                        let t0 = status.0.lock().map_or(started, |timeline| timeline.t0);
                        tracing::info!(
                            event = "shutdown.already_running",
                            phase = registry_phase(&status, &registry),
                            elapsed_ms = ms(t0.elapsed()),
                            deadline_ms = ms(budget),
                            clients = registry.len() as u64,
                            signal = %again,
                            instance_id = %instance_id,
                            "shutdown: already running"
                        );
                    }
                }
                outcome = &mut shutdown => return outcome,
            }
        }
    }

    async fn shut_down(self, trigger: Trigger) -> Outcome {
        if !self.deadlines.lame_duck.is_zero() {
            let end = Instant::now() + self.deadlines.lame_duck;
            self.phase.advance(Phase::LameDuck);
            self.metrics.set_phase(Phase::LameDuck);
            tracing::info!(
                event = "shutdown.lame_duck",
                phase = Phase::LameDuck.name(),
                elapsed_ms = 0u64,
                deadline_ms = ms(self.deadlines.lame_duck),
                clients = self.registry.len() as u64,
                signal = %trigger,
                instance_id = %self.instance_id,
                "shutdown: lame duck"
            );
            sleep_until(end).await;
        }
        let run = Run { trigger, t0: Instant::now(), coordinator: &self };
        run.phases().await
    }
}

/// The name of the phase that the orders show; for a line that stands outside the phases.
fn registry_phase(status: &Status, registry: &Registry) -> &'static str {
    let Some(timeline) = *status.0.lock() else { return Phase::LameDuck.name() };
    let times = timeline.times;
    let _ = registry;
    if times.stop_accepting.is_zero() {
        Phase::StopAccepting.name()
    } else if times.notify.is_zero() {
        Phase::Notify.name()
    } else if times.drain.is_zero() {
        Phase::Drain.name()
    } else {
        Phase::Close.name()
    }
}

/// A running shutdown.
struct Run<'a, H> {
    coordinator: &'a Coordinator<H>,
    trigger: Trigger,
    t0: Instant,
}

impl<H, F> Run<'_, H>
where
    H: Fn() -> F,
    F: Future<Output = ()>,
{
    async fn phases(self) -> Outcome {
        let Coordinator { registry, phase, deadlines, hub, .. } = self.coordinator;
        registry.begin_tally();
        phase.advance(Phase::StopAccepting);
        *self.coordinator.status.0.lock() = Some(Timeline {
            t0: self.t0,
            clients_at_start: registry.len(),
            times: PhaseTimes::default(),
            log_flushed: false,
        });

        let began = self.enter(Phase::StopAccepting, deadlines.stop_accepting, registry.len());
        let nobody = async {
            loop {
                (self.coordinator.no_handshakes)().await;
                registry.until(|registry| registry.is_empty()).await;
                // A handshake that began meanwhile is waited for too.
                let mut check = std::pin::pin!((self.coordinator.no_handshakes)());
                if futures_util::poll!(check.as_mut()).is_ready() {
                    return;
                }
            }
        };
        self.until(deadlines.stop_accepting, nobody).await;
        self.took(began, |times| &mut times.stop_accepting);

        phase.advance(Phase::Notify);
        hub.stop_announcing();
        let handles = registry.handles();
        let began = self.enter(Phase::Notify, deadlines.notify, handles.len());
        self.notify(handles);
        self.until(deadlines.notify, async {
            registry.until(|registry| registry.is_empty()).await;
            // Those who were refused half-way through their handshake get to read it.
            (self.coordinator.no_handshakes)().await;
        })
        .await;
        self.took(began, |times| &mut times.notify);

        phase.advance(Phase::Drain);
        let began = self.enter(Phase::Drain, deadlines.drain, registry.len());
        for handle in registry.handles() {
            handle.order(Order::Drain);
        }
        self.until(deadlines.drain, async {
            tokio::select! {
                () = registry.until(|registry| registry.undrained() == 0) => {}
                () = registry.sample_acknowledged() => {}
            }
        })
        .await;
        self.took(began, |times| &mut times.drain);

        phase.advance(Phase::Close);
        let undrained: Vec<_> = registry
            .handles()
            .into_iter()
            .filter(|handle| handle.progress() == Progress::Open)
            .collect();
        let closing = registry.tally().closing.load(Ordering::Acquire) + self.yet_to_close();
        let began = self.enter_with(Phase::Close, deadlines.close, closing);
        self.terminate(&undrained);
        let clean = self.close().await;
        self.took(began, |times| &mut times.close);
        self.finish(clean).await
    }

    /// Drained clients whose close frame is still to come.
    fn yet_to_close(&self) -> u64 {
        let drained = |handle: &&Arc<Handle>| handle.progress() == Progress::Drained;
        self.coordinator.registry.handles().iter().filter(drained).count() as u64
    }

    fn notify(&self, handles: Vec<Arc<Handle>>) {
        let slots = slots(handles.len(), self.coordinator.spread);
        let closes_in = self.coordinator.deadlines.drain.saturating_sub(self.t0.elapsed());
        let mut notified = 0;
        for (handle, slot) in handles.into_iter().zip(slots) {
            let text = server_shutting_down(slot, ms(closes_in), ShutdownReason::Shutdown);
            notified += u64::from(handle.notify(frame::text_frame(&text)));
        }
        self.coordinator.registry.tally().notified.fetch_add(notified, Ordering::AcqRel);
    }

    /// Waits for the close frames to be acknowledged; at the drain's deadline those that
    /// have not sent theirs do so at once. Returns whether everybody is gone.
    async fn close(&self) -> bool {
        let Coordinator { registry, deadlines, log, .. } = self.coordinator;
        let gone = self
            .until(deadlines.drain, registry.until(|registry| registry.is_empty()))
            .await;
        if gone {
            return true;
        }
        for handle in registry.handles() {
            if handle.progress() == Progress::Drained {
                handle.order(Order::Finish);
            }
        }
        // What was accepted is committed while the last clients are waited for.
        let flush = log.flush();
        let gone = self
            .until(deadlines.close, async {
                let everybody = registry.until(|registry| registry.is_empty());
                let ((), ()) = tokio::join!(everybody, flush);
            })
            .await;
        gone || registry.is_empty()
    }

    fn terminate(&self, handles: &[Arc<Handle>]) {
        for (index, handle) in handles.iter().enumerate() {
            let reason = if handle.requests.pending() > 0 {
                "request_unanswered"
            } else {
                "not_drained"
            };
            terminated(
                &self.coordinator.registry,
                handle,
                reason,
                self.trigger,
                &self.coordinator.instance_id,
                self.t0,
                self.coordinator.deadlines.close,
                index,
            );
            handle.order(Order::Terminate);
        }
        summarise_terminated(handles.len(), &self.coordinator.instance_id);
    }

    async fn finish(self, everybody_gone: bool) -> Outcome {
        let Coordinator { registry, deadlines, log, phase, metrics, .. } = self.coordinator;
        let log_flushed = if everybody_gone {
            self.until(deadlines.close, log.close()).await
        } else {
            self.until(deadlines.close, log.flush()).await
        };
        if let Some(timeline) = &mut *self.coordinator.status.0.lock() {
            timeline.log_flushed = log_flushed;
        }
        let left = deadlines.close.saturating_sub(self.t0.elapsed());
        let remaining = registry.handles();
        let mut report = self.report();
        if remaining.is_empty() && log_flushed {
            phase.advance(Phase::Complete);
            metrics.set_phase(Phase::Complete);
            self.complete(&report);
        } else {
            phase.advance(Phase::ForceExit);
            metrics.set_phase(Phase::ForceExit);
            for (index, handle) in remaining.iter().enumerate() {
                registry.tally().unacked_close.fetch_add(1, Ordering::AcqRel);
                terminated(
                    registry,
                    handle,
                    "close_unacked",
                    self.trigger,
                    &self.coordinator.instance_id,
                    self.t0,
                    deadlines.close,
                    index,
                );
            }
            summarise_terminated(remaining.len(), &self.coordinator.instance_id);
            report = self.report();
            report.exit_code = 1;
            let instance_id = &self.coordinator.instance_id;
            force_exit(&report, registry, self.trigger, instance_id, deadlines.close);
        }
        report.publish(metrics);
        Outcome { report, left }
    }

    fn report(&self) -> Report {
        let timeline = *self.coordinator.status.0.lock();
        let fallback = Timeline {
            t0: self.t0,
            clients_at_start: 0,
            times: PhaseTimes::default(),
            log_flushed: false,
        };
        timeline.unwrap_or(fallback).report(&self.coordinator.registry)
    }

    /// Waits for `event`, at most until `deadline` from `t0`; returns whether it came.
    async fn until(&self, deadline: Duration, event: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = event => true,
            () = sleep_until(self.t0 + deadline) => false,
        }
    }

    fn enter(&self, phase: Phase, deadline: Duration, clients: usize) -> Instant {
        self.enter_with(phase, deadline, clients as u64)
    }

    fn enter_with(&self, phase: Phase, deadline: Duration, clients: u64) -> Instant {
        self.coordinator.metrics.set_phase(phase);
        let (elapsed_ms, deadline_ms) = (ms(self.t0.elapsed()), ms(deadline));
        let instance_id = &self.coordinator.instance_id;
        macro_rules! line {
            ($event:literal, $($message:tt)+) => {
                tracing::info!(
                    event = $event,
                    phase = phase.name(),
                    elapsed_ms,
                    deadline_ms,
                    clients,
                    signal = %self.trigger,
                    instance_id = %instance_id,
                    $($message)+
                )
            };
        }
        match phase {
            Phase::StopAccepting => {
                line!("shutdown.stop_accepting", "shutdown: stopping accept");
            }
            Phase::Notify => {
                line!("shutdown.notify", "shutdown: notifying {} clients", clients);
            }
            Phase::Drain => line!("shutdown.drain", "shutdown: draining {} clients", clients),
            _ => line!("shutdown.close", "shutdown: closing {} clients", clients),
        }
        Instant::now()
    }

    fn took(&self, began: Instant, time: impl FnOnce(&mut PhaseTimes) -> &mut Duration) {
        if let Some(timeline) = &mut *self.coordinator.status.0.lock() {
            // Never zero: zero means that the phase is still to come.
            *time(&mut timeline.times) = began.elapsed().max(Duration::from_nanos(1));
        }
    }

    fn complete(&self, report: &Report) {
        let (elapsed_ms, deadline_ms) =
            (ms(self.t0.elapsed()), ms(self.coordinator.deadlines.close));
        macro_rules! line {
            ($level:ident) => {
                report_line!(
                    $level,
                    "shutdown.complete",
                    Phase::Complete,
                    elapsed_ms,
                    deadline_ms,
                    0u64,
                    self.trigger,
                    self.coordinator.instance_id,
                    report,
                    "shutdown: complete"
                )
            };
        }
        if report.has_losses() {
            line!(warn);
        } else {
            line!(info);
        }
    }
}

/// A line that carries the whole report.
macro_rules! report_line {
    (
        $level:ident, $event:literal, $phase:expr, $elapsed:expr, $deadline:expr, $clients:expr,
        $signal:expr, $instance:expr, $report:expr, $message:literal
    ) => {
        tracing::$level!(
            event = $event,
            phase = $phase.name(),
            elapsed_ms = $elapsed,
            deadline_ms = $deadline,
            clients = $clients,
            signal = %$signal,
            instance_id = %$instance,
            clients_at_start = $report.clients_at_start,
            notified = $report.notified,
            drained = $report.drained,
            terminated = $report.terminated,
            acked = $report.acked,
            left_early = $report.left_early,
            unacked_close = $report.unacked_close,
            messages_flushed = $report.messages_flushed,
            bytes_flushed = $report.bytes_flushed,
            messages_dropped = $report.messages_dropped,
            bytes_dropped = $report.bytes_dropped,
            held_notifications_dropped = $report.held_notifications_dropped,
            kernel_unacked_bytes = $report.kernel_unacked_bytes,
            requests_completed = $report.requests_completed,
            requests_refused = $report.requests_refused,
            log_flushed = $report.log_flushed,
            broker_flushed = $report.broker_flushed,
            exit_code = $report.exit_code,
            duration_ms = $report.duration_ms,
            stop_accepting_ms = $report.stop_accepting_ms,
            notify_ms = $report.notify_ms,
            drain_ms = $report.drain_ms,
            close_ms = $report.close_ms,
            $message
        )
    };
}
use report_line;

fn force_exit(
    report: &Report,
    registry: &Registry,
    trigger: Trigger,
    instance_id: &str,
    budget: Duration,
) {
    report_line!(
        error,
        "shutdown.force_exit",
        Phase::ForceExit,
        report.duration_ms,
        ms(budget),
        registry.len() as u64,
        trigger,
        instance_id,
        report,
        "shutdown: force exit"
    );
}

#[allow(clippy::too_many_arguments)]
fn terminated(
    registry: &Registry,
    handle: &Handle,
    reason: &'static str,
    trigger: Trigger,
    instance_id: &str,
    t0: Instant,
    budget: Duration,
    index: usize,
) {
    let backlog = handle.queue.backlog();
    let kernel_unacked_bytes = handle.socket.unacknowledged();
    let tally = registry.tally();
    tally.terminated.fetch_add(1, Ordering::AcqRel);
    tally.kernel_unacked_bytes.fetch_add(kernel_unacked_bytes, Ordering::AcqRel);
    if index >= MAX_TERMINATED_LINES {
        return;
    }
    tracing::warn!(
        event = "shutdown.client_terminated",
        phase = Phase::Close.name(),
        elapsed_ms = ms(t0.elapsed()),
        deadline_ms = ms(budget),
        clients = registry.len() as u64,
        signal = %trigger,
        instance_id = %instance_id,
        session_id = &*handle.session_id,
        client_id = handle.client.as_ref().map_or("", |client| client.as_str()),
        peer = %handle.peer,
        reason,
        queued_messages = backlog.messages,
        queued_bytes = backlog.bytes,
        kernel_unacked_bytes,
        "shutdown: client terminated"
    );
}

fn summarise_terminated(clients: usize, instance_id: &str) {
    if clients > MAX_TERMINATED_LINES {
        tracing::warn!(
            event = "shutdown.clients_terminated",
            clients = clients as u64,
            more = (clients - MAX_TERMINATED_LINES) as u64,
            instance_id = %instance_id,
            "shutdown: {} more clients terminated",
            clients - MAX_TERMINATED_LINES
        );
    }
}
