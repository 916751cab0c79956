//! Runs the phases: writes the phase, gives the connections their orders, waits for them
//! no longer than the phase's deadline, and writes the log contract's lines.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::handover::Handover;
use super::lines::Scene;
use super::others::{OthersSlot, TheirGenerations};
use super::report::{PhaseTimes, Report, ms};
use super::signals::Trigger;
use super::slots::{Spread, slots};
use crate::connection::{Handle, LogSlot, Order, Progress, Registry};
use crate::phase::{Phase, PhaseSetter};
use crate::protocol::frame;
use crate::protocol::server::{ShutdownReason, server_shutting_down};
use crate::rooms::Hub;
use crate::telemetry::Metrics;

/// How long before the last deadline the log is flushed if somebody is still there: what it
/// takes to hear of the result in time.
const LAST_FLUSH: Duration = Duration::from_millis(50);

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
    phase: Phase,
    clients_at_start: usize,
    times: PhaseTimes,
    log_flushed: bool,
    broker_flushed: bool,
}

/// When clients are to come back, with and without anybody to go to meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct Returns {
    /// Nobody else serves them: the successor has to start.
    pub alone: Spread,
    /// Other instances do.
    pub with_others: Spread,
    /// How long each is served on after its time, if others do.
    pub handover: Duration,
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
    pub log: LogSlot,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Returns (a future that ends) when no handshake is pending.
    pub no_handshakes: H,
    /// When each phase ends.
    pub deadlines: Deadlines,
    /// The other instances, if there can be any.
    pub others: OthersSlot,
    /// When clients are to come back.
    pub returns: Returns,
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
            (self.log_flushed, self.broker_flushed),
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
    /// Shuts down because of `trigger` and returns how that ended. Further triggers join
    /// the running shutdown; a second SIGINT ends it at once.
    pub async fn run(
        self,
        trigger: Trigger,
        mut triggers: mpsc::UnboundedReceiver<Trigger>,
    ) -> Outcome {
        let status = self.status.clone();
        let registry = self.registry.clone();
        let metrics = self.metrics.clone();
        let no_broker = self.others.get().is_none();
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
                            phase: Phase::LameDuck,
                            clients_at_start: registry.len(),
                            times: PhaseTimes::default(),
                            log_flushed: false,
                            broker_flushed: no_broker,
                        });
                        let mut report = timeline.report(&registry);
                        report.exit_code = 130;
                        let t0 = timeline.t0;
                        let scene = Scene { t0, budget, trigger: again, instance_id: &instance_id };
                        scene.force_exit(&report, registry.len() as u64);
                        report.publish(&metrics);
                        return Outcome { report, left: Duration::ZERO };
                    }
                    if !std::mem::replace(&mut joined, true) {
                        let (t0, phase) = status
                            .0
                            .lock()
                            .map_or((started, Phase::LameDuck), |line| (line.t0, line.phase));
                        let scene = Scene { t0, budget, trigger: again, instance_id: &instance_id };
                        scene.already_running(phase, registry.len() as u64);
                    }
                }
                outcome = &mut shutdown => return outcome,
            }
        }
    }

    fn scene(&self, trigger: Trigger, t0: Instant) -> Scene<'_> {
        Scene { t0, budget: self.deadlines.close, trigger, instance_id: &self.instance_id }
    }

    async fn shut_down(self, trigger: Trigger) -> Outcome {
        if let Some(others) = self.others.get() {
            others.announce_draining();
        }
        if !self.deadlines.lame_duck.is_zero() {
            let end = Instant::now() + self.deadlines.lame_duck;
            self.phase.advance(Phase::LameDuck);
            self.metrics.set_phase(Phase::LameDuck);
            self.scene(trigger, Instant::now())
                .lame_duck(self.deadlines.lame_duck, self.registry.len() as u64);
            sleep_until(end).await;
        }
        let hands_over = self.others.live() > 0;
        let run = Run { trigger, t0: Instant::now(), hands_over, coordinator: &self };
        run.phases().await
    }
}

/// How the close phase ended.
#[derive(Debug, Clone, Copy)]
enum Closed {
    /// Everybody is gone.
    ByAll,
    /// Somebody is still there, and there is no more time.
    AtDeadline {
        /// Whether everything accepted until just before is committed.
        log_flushed: bool,
        /// Whether the broker has everything that was said until just before.
        broker_flushed: bool,
    },
}

/// A running shutdown.
struct Run<'a, H> {
    coordinator: &'a Coordinator<H>,
    trigger: Trigger,
    t0: Instant,
    /// Whether there is anybody to hand the clients over to.
    hands_over: bool,
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
        *self.coordinator.status.0.lock() = Some(self.timeline(registry.len()));

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
        let mut handover = self.notify(handles);
        self.until(deadlines.notify, async {
            let gone = async {
                registry.until(|registry| registry.is_empty()).await;
                // Those who were refused half-way through their handshake get to read it.
                (self.coordinator.no_handshakes)().await;
            };
            tokio::select! {
                () = gone => {}
                () = handover.let_go() => {}
            }
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
                () = handover.let_go() => {}
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
        let closing = registry.tally().closing.load(Ordering::Acquire);
        let began = self.enter_with(Phase::Close, deadlines.close, closing);
        self.terminate(&undrained);
        let closed = self.close().await;
        self.took(began, |times| &mut times.close);
        self.finish(closed).await
    }

    /// Gives everybody the notice; returns who is served on for how long.
    fn notify(&self, handles: Vec<Arc<Handle>>) -> Handover {
        let Returns { alone, with_others, handover: longer } = self.coordinator.returns;
        let spread = if self.hands_over { with_others } else { alone };
        let slots = slots(handles.len(), spread);
        let closes_in = self.coordinator.deadlines.drain.saturating_sub(self.t0.elapsed());
        let mut notified = 0;
        let generations = self.coordinator.others.generations();
        let mut handover = Handover::default();
        for (handle, slot) in handles.into_iter().zip(slots) {
            let generations = generations.as_ref().map(TheirGenerations::told);
            let reason = ShutdownReason::Shutdown;
            let text = server_shutting_down(slot, ms(closes_in), reason, generations);
            // Whom an evacuation has noticed gets no second notice, but has been notified.
            let until = self.hands_over.then(|| Instant::now() + slot + longer);
            handle.notify(frame::text_frame(&text), until);
            notified += 1;
            handover.add(handle);
        }
        handover.sort();
        self.coordinator.registry.tally().notified.fetch_add(notified, Ordering::AcqRel);
        handover
    }

    /// Waits for the close frames to be acknowledged; at the drain's deadline those that
    /// have not sent theirs do so at once.
    async fn close(&self) -> Closed {
        let Coordinator { registry, deadlines, log, others, .. } = self.coordinator;
        let gone =
            self.until(deadlines.drain, registry.until(|registry| registry.is_empty())).await;
        if gone {
            return Closed::ByAll;
        }
        for handle in registry.handles() {
            if handle.progress() == Progress::Drained {
                handle.order(Order::Finish);
            }
        }
        let everybody = registry.until(|registry| registry.is_empty());
        let log_flushed = AtomicBool::new(false);
        let flushed = async {
            sleep_until(self.t0 + deadlines.close.saturating_sub(LAST_FLUSH)).await;
            if let Some(log) = log.get() {
                log.flush().await;
            }
            log_flushed.store(true, Ordering::Relaxed);
            match others.get() {
                Some(others) => others.flush(self.t0 + deadlines.close).await,
                None => true,
            }
        };
        tokio::pin!(everybody, flushed);
        let broker_flushed = tokio::select! {
            biased;
            () = &mut everybody => return Closed::ByAll,
            broker_flushed = &mut flushed => broker_flushed,
            () = sleep_until(self.t0 + deadlines.close) => {
                let log_flushed = log_flushed.load(Ordering::Relaxed);
                return Closed::AtDeadline { log_flushed, broker_flushed: false };
            }
        };
        if self.until(deadlines.close, everybody).await {
            Closed::ByAll
        } else {
            Closed::AtDeadline { log_flushed: true, broker_flushed }
        }
    }

    fn terminate(&self, handles: &[Arc<Handle>]) {
        let registry = &self.coordinator.registry;
        let terminated: Vec<_> = handles
            .iter()
            .map(|handle| {
                let unanswered = handle.requests.pending() > 0;
                let reason = if unanswered { "request_unanswered" } else { "not_drained" };
                (reason, registry.terminated(handle.clone()))
            })
            .collect();
        self.scene().terminated(registry.len() as u64, &terminated);
        for handle in handles {
            handle.order(Order::Terminate);
        }
    }

    fn scene(&self) -> Scene<'_> {
        self.coordinator.scene(self.trigger, self.t0)
    }

    async fn finish(self, closed: Closed) -> Outcome {
        let Coordinator { registry, deadlines, log, others, phase, metrics, .. } = self.coordinator;
        let log_flushed = match (closed, log.get()) {
            (_, None) => true,
            (Closed::ByAll, Some(log)) => self.until(deadlines.close, log.close()).await,
            (Closed::AtDeadline { log_flushed, .. }, Some(_)) => log_flushed,
        };
        // After the log, whose last appends go through the same link.
        let broker_flushed = match (closed, others.get()) {
            (_, None) => true,
            (Closed::ByAll, Some(others)) => {
                let deadline = self.t0 + deadlines.close;
                tokio::select! {
                    biased;
                    left = others.leave(deadline) => left,
                    () = sleep_until(deadline) => false,
                }
            }
            (Closed::AtDeadline { broker_flushed, .. }, Some(_)) => broker_flushed,
        };
        if let Some(timeline) = &mut *self.coordinator.status.0.lock() {
            timeline.log_flushed = log_flushed;
            timeline.broker_flushed = broker_flushed;
        }
        let left = deadlines.close.saturating_sub(self.t0.elapsed());
        // Those for whose close frame the kernel had no room.
        let given_up: Vec<_> =
            registry.take_given_up().into_iter().map(|lost| ("not_drained", lost)).collect();
        self.scene().terminated(registry.len() as u64, &given_up);
        let remaining = registry.handles();
        let mut report = self.report();
        if remaining.is_empty() && log_flushed && broker_flushed {
            phase.advance(Phase::Complete);
            metrics.set_phase(Phase::Complete);
            self.scene().complete(&report);
        } else {
            phase.advance(Phase::ForceExit);
            metrics.set_phase(Phase::ForceExit);
            let unacked = remaining.len() as u64;
            registry.tally().unacked_close.fetch_add(unacked, Ordering::AcqRel);
            let terminated: Vec<_> = remaining
                .into_iter()
                .map(|handle| ("close_unacked", registry.terminated(handle)))
                .collect();
            self.scene().terminated(unacked, &terminated);
            report = self.report();
            report.exit_code = 1;
            self.scene().force_exit(&report, unacked);
        }
        report.publish(metrics);
        Outcome { report, left }
    }

    fn report(&self) -> Report {
        let timeline = *self.coordinator.status.0.lock();
        timeline.unwrap_or_else(|| self.timeline(0)).report(&self.coordinator.registry)
    }

    fn timeline(&self, clients_at_start: usize) -> Timeline {
        Timeline {
            t0: self.t0,
            phase: Phase::StopAccepting,
            clients_at_start,
            times: PhaseTimes::default(),
            log_flushed: false,
            // Without a broker there is nothing that could be unflushed.
            broker_flushed: self.coordinator.others.get().is_none(),
        }
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
        if let Some(timeline) = &mut *self.coordinator.status.0.lock() {
            timeline.phase = phase;
        }
        self.scene().phase(phase, deadline, clients);
        Instant::now()
    }

    fn took(&self, began: Instant, time: impl FnOnce(&mut PhaseTimes) -> &mut Duration) {
        if let Some(timeline) = &mut *self.coordinator.status.0.lock() {
            // Never zero: zero means that the phase is still to come.
            *time(&mut timeline.times) = began.elapsed().max(Duration::from_nanos(1));
        }
    }
}
