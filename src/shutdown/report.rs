//! The report of a shutdown: what became of every client, message and request
//! (shutdown.md, "The log contract"). The exit code follows from it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use crate::admission::Totals;
use crate::connection::Tally;
use crate::telemetry::Metrics;
use crate::telemetry::metrics::ShutdownFigure;

/// How long each phase took.
#[derive(Debug, Clone, Copy, Default)]
pub struct PhaseTimes {
    /// Phase 1.
    pub stop_accepting: Duration,
    /// Phase 2.
    pub notify: Duration,
    /// Phase 3.
    pub drain: Duration,
    /// Phase 4.
    pub close: Duration,
}

/// The figures, under the names of the log contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names are explained in shutdown.md")]
pub struct Report {
    pub clients_at_start: u64,
    pub notified: u64,
    pub drained: u64,
    pub terminated: u64,
    pub acked: u64,
    pub left_early: u64,
    pub unacked_close: u64,
    pub messages_flushed: u64,
    pub bytes_flushed: u64,
    pub messages_dropped: u64,
    pub bytes_dropped: u64,
    pub held_notifications_dropped: u64,
    pub kernel_unacked_bytes: u64,
    pub requests_completed: u64,
    pub requests_refused: u64,
    pub log_flushed: bool,
    pub broker_flushed: bool,
    pub exit_code: i32,
    pub duration_ms: u64,
    pub stop_accepting_ms: u64,
    pub notify_ms: u64,
    pub drain_ms: u64,
    pub close_ms: u64,
}

/// Milliseconds for a log field.
#[must_use]
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Report {
    /// Collects the figures as they are now.
    #[must_use]
    pub fn collect(
        clients_at_start: usize,
        tally: &Tally,
        requests: &Totals,
        (log_flushed, broker_flushed): (bool, bool),
        times: PhaseTimes,
        duration: Duration,
    ) -> Self {
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Acquire);
        Self {
            clients_at_start: clients_at_start as u64,
            notified: read(&tally.notified),
            drained: read(&tally.drained),
            terminated: read(&tally.terminated),
            acked: read(&tally.acked),
            left_early: read(&tally.left_early),
            unacked_close: read(&tally.unacked_close),
            messages_flushed: read(&tally.messages_flushed),
            bytes_flushed: read(&tally.bytes_flushed),
            messages_dropped: read(&tally.messages_dropped),
            bytes_dropped: read(&tally.bytes_dropped),
            held_notifications_dropped: read(&tally.held_notifications_dropped),
            kernel_unacked_bytes: read(&tally.kernel_unacked_bytes),
            requests_completed: read(&requests.completed_draining),
            requests_refused: read(&requests.refused),
            log_flushed,
            broker_flushed,
            exit_code: 0,
            duration_ms: ms(duration),
            stop_accepting_ms: ms(times.stop_accepting),
            notify_ms: ms(times.notify),
            drain_ms: ms(times.drain),
            close_ms: ms(times.close),
        }
    }

    /// Whether anything was lost or anyone terminated.
    #[must_use]
    pub fn has_losses(&self) -> bool {
        self.terminated > 0
            || self.messages_dropped > 0
            || self.held_notifications_dropped > 0
            || self.kernel_unacked_bytes > 0
            || !self.log_flushed
            || !self.broker_flushed
    }

    /// Publishes the figures as metrics.
    pub fn publish(&self, metrics: &Metrics) {
        use ShutdownFigure as F;
        let set = |figure, value: u64| metrics.shutdown.set(figure, value);
        set(F::ClientsAtStart, self.clients_at_start);
        set(F::Notified, self.notified);
        set(F::Drained, self.drained);
        set(F::Terminated, self.terminated);
        set(F::Acked, self.acked);
        set(F::LeftEarly, self.left_early);
        set(F::UnackedClose, self.unacked_close);
        set(F::MessagesFlushed, self.messages_flushed);
        set(F::BytesFlushed, self.bytes_flushed);
        set(F::MessagesDropped, self.messages_dropped);
        set(F::BytesDropped, self.bytes_dropped);
        set(F::HeldNotificationsDropped, self.held_notifications_dropped);
        set(F::KernelUnackedBytes, self.kernel_unacked_bytes);
        set(F::RequestsCompleted, self.requests_completed);
        set(F::RequestsRefused, self.requests_refused);
        set(F::LogFlushed, self.log_flushed.into());
        set(F::BrokerFlushed, self.broker_flushed.into());
        set(F::ExitCode, u64::try_from(self.exit_code).unwrap_or(0));
        set(F::DurationMs, self.duration_ms);
        set(F::StopAcceptingMs, self.stop_accepting_ms);
        set(F::NotifyMs, self.notify_ms);
        set(F::DrainMs, self.drain_ms);
        set(F::CloseMs, self.close_ms);
    }
}
