//! The lines of the log contract (shutdown.md): fixed texts, stable fields.

use std::time::Duration;

use tokio::time::Instant;

use super::report::{Report, ms};
use super::signals::Trigger;
use crate::connection::{Handle, Terminated};
use crate::phase::Phase;

/// The most lines about single terminated clients.
const MAX_TERMINATED_LINES: usize = 100;

/// What every line of one shutdown has in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) t0: Instant,
    /// The end of the whole budget, from `t0`.
    pub(super) budget: Duration,
    pub(super) trigger: Trigger,
    pub(super) instance_id: &'a str,
}

/// A line with the fields that all have.
macro_rules! line {
    (
        $level:ident, $scene:expr, $event:literal, $phase:expr, $deadline:expr, $clients:expr,
        { $($fields:tt)* }, $($message:tt)+
    ) => {
        tracing::$level!(
            event = $event,
            phase = $phase.name(),
            elapsed_ms = ms($scene.t0.elapsed()),
            deadline_ms = ms($deadline),
            clients = $clients,
            signal = %$scene.trigger,
            instance_id = $scene.instance_id,
            $($fields)*
            $($message)+
        )
    };
}

/// A line that carries the whole report.
macro_rules! report_line {
    ($level:ident, $scene:expr, $event:literal, $phase:expr, $clients:expr, $report:expr, $message:literal) => {
        line!($level, $scene, $event, $phase, $scene.budget, $clients, {
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
        }, $message)
    };
}

impl Scene<'_> {
    pub(super) fn lame_duck(&self, time: Duration, clients: u64) {
        let phase = Phase::LameDuck;
        line!(info, self, "shutdown.lame_duck", phase, time, clients, {}, "shutdown: lame duck");
    }

    pub(super) fn already_running(&self, phase: Phase, clients: u64) {
        line!(
            info,
            self,
            "shutdown.already_running",
            phase,
            self.budget,
            clients,
            {},
            "shutdown: already running"
        );
    }

    /// The line of a phase that begins and ends at `deadline` at the latest.
    pub(super) fn phase(&self, phase: Phase, deadline: Duration, clients: u64) {
        match phase {
            Phase::StopAccepting => line!(
                info,
                self,
                "shutdown.stop_accepting",
                phase,
                deadline,
                clients,
                {},
                "shutdown: stopping accept"
            ),
            Phase::Notify => line!(
                info,
                self,
                "shutdown.notify",
                phase,
                deadline,
                clients,
                {},
                "shutdown: notifying {} clients",
                clients
            ),
            Phase::Drain => line!(
                info,
                self,
                "shutdown.drain",
                phase,
                deadline,
                clients,
                {},
                "shutdown: draining {} clients",
                clients
            ),
            _ => line!(
                info,
                self,
                "shutdown.close",
                phase,
                deadline,
                clients,
                {},
                "shutdown: closing {} clients",
                clients
            ),
        }
    }

    pub(super) fn terminated(&self, clients: u64, terminated: &[(&'static str, Terminated)]) {
        for (reason, lost) in terminated.iter().take(MAX_TERMINATED_LINES) {
            let handle: &Handle = &lost.handle;
            line!(warn, self, "shutdown.client_terminated", Phase::Close, self.budget, clients, {
                session_id = &*handle.session_id,
                client_id = handle.client.as_ref().map_or("", |client| client.as_str()),
                peer = %handle.peer,
                reason = *reason,
                queued_messages = lost.queued.messages,
                queued_bytes = lost.queued.bytes,
                kernel_unacked_bytes = lost.kernel_unacked_bytes,
            }, "shutdown: client terminated");
        }
        let more = terminated.len().saturating_sub(MAX_TERMINATED_LINES);
        if more > 0 {
            line!(warn, self, "shutdown.clients_terminated", Phase::Close, self.budget, clients, {
                more = more as u64,
            }, "shutdown: {} more clients terminated", more);
        }
    }

    pub(super) fn complete(&self, report: &Report) {
        let phase = Phase::Complete;
        if report.has_losses() {
            report_line!(
                warn,
                self,
                "shutdown.complete",
                phase,
                0u64,
                report,
                "shutdown: complete"
            );
        } else {
            report_line!(
                info,
                self,
                "shutdown.complete",
                phase,
                0u64,
                report,
                "shutdown: complete"
            );
        }
    }

    pub(super) fn force_exit(&self, report: &Report, clients: u64) {
        let phase = Phase::ForceExit;
        report_line!(
            error,
            self,
            "shutdown.force_exit",
            phase,
            clients,
            report,
            "shutdown: force exit"
        );
    }
}
