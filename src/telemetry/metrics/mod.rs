//! The metrics (operation.md, "Metrics"): what is counted, and its text form.
//!
//! Whoever counts holds the metric itself: counting is one addition to an atomic,
//! never a look-up. Names and labels are stable; nothing is per room, vehicle or
//! client. What is a sum over live things is set when someone asks
//! ([`Metrics::on_scrape`]).

mod labels;
mod shutdown;

use std::fmt;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};

pub use labels::{
    By, ByBoth, CloseCode, HoldLabel, Label, LadderStep, MessageResult, MessageType, RefusalCode,
    RefusedBecause, ResumeOutcome,
};
pub use shutdown::{ShutdownFigure, ShutdownGauges};

use super::events::FloodLog;
use super::process::ProcessFigures;
use crate::phase::Phase;

/// A counter of seconds.
pub type Seconds = Counter<f64, AtomicU64>;

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Hook = Box<dyn Fn(&Metrics) + Send + Sync>;

/// Every metric of the server.
pub struct Metrics {
    /// Open connections.
    pub connections: Gauge,
    /// Connections opened.
    pub connections_opened: Counter,
    /// Connections closed, by code.
    pub connections_closed: By<CloseCode>,
    /// Handshakes refused, by reason.
    pub handshakes_refused: By<RefusedBecause>,
    /// Rooms with members.
    pub rooms: Gauge,
    /// Members of all rooms.
    pub members: Gauge,
    /// Messages from clients, by type and result.
    pub messages_in: ByBoth<MessageType, MessageResult>,
    /// Events put before subscribers.
    pub deliveries: Counter,
    /// Messages in outgoing queues, the sum.
    pub outgoing_messages: Gauge,
    /// Bytes in outgoing queues, the sum.
    pub outgoing_bytes: Gauge,
    /// Messages in the longest outgoing queue.
    pub outgoing_messages_max: Gauge,
    /// Bytes in the largest outgoing queue.
    pub outgoing_bytes_max: Gauge,
    /// Connections that get the newest positions only.
    pub lagging_connections: Gauge,
    /// Steps taken on the ladder for slow consumers.
    pub ladder_steps: By<LadderStep>,
    /// Requests held while the plane is paused.
    pub held_requests: Gauge,
    /// Notifications held while the plane is paused.
    pub held_notifications: Gauge,
    /// Bytes held while the plane is paused.
    pub held_bytes: Gauge,
    /// Held notifications that newer ones pushed out.
    pub held_notifications_dropped: Counter,
    /// Requests and notifications refused, by error code.
    pub refusals: By<RefusalCode>,
    /// 1 for each hold that pauses the plane now.
    pub plane_paused: By<HoldLabel, Gauge>,
    /// Seconds under each hold.
    pub plane_paused_seconds: By<HoldLabel, Seconds>,
    /// From the hand-over to the room log to its commit, in seconds.
    pub room_log_append_seconds: Histogram,
    /// Positions in one commit of the room log.
    pub room_log_batch_size: Histogram,
    /// 1 while the broker is connected.
    pub broker_connected: Gauge,
    /// Publishes that the broker has not acknowledged yet.
    pub broker_lag: Gauge,
    /// What became of `since`, by outcome.
    pub resumes: By<ResumeOutcome>,
    /// Positions that were in the log already.
    pub duplicates: Counter,
    /// Positions older than the newest of their vehicle.
    pub late: Counter,
    /// The figures of the shutdown report.
    pub shutdown: ShutdownGauges,
    /// Summaries of refused handshakes; see [`super::events::HandshakeRefused`].
    pub(super) handshake_floods: By<RefusedBecause, FloodLog>,
    phase: By<Phase, Gauge>,
    process: ProcessGauges,
    registry: Registry,
    hooks: Mutex<Vec<Hook>>,
}

#[derive(Debug, Clone, Default)]
struct ProcessGauges {
    resident: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    threads: Gauge,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

/// Registers metrics under their names while the struct is built.
struct Book(Registry);

impl Book {
    fn put<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    fn zero<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.put(name, help, M::default())
    }
}

impl Metrics {
    /// All metrics at zero. `log_lines_dropped` is the counter of the log's
    /// [`Sink`](super::Sink).
    #[must_use]
    pub fn new(log_lines_dropped: &Counter) -> Self {
        let mut book = Book(Registry::with_prefix("milepost"));
        let b = &mut book;
        b.put(
            "log_lines_dropped",
            "Log lines dropped because nobody read",
            log_lines_dropped.clone(),
        );
        let metrics = Self {
            connections: b.zero("connections", "Open connections"),
            connections_opened: b.zero("connections_opened", "Connections opened"),
            connections_closed: b.zero("connections_closed", "Connections closed, by close code"),
            handshakes_refused: b.zero("handshakes_refused", "Handshakes refused, by reason"),
            rooms: b.zero("rooms", "Rooms with members"),
            members: b.zero("members", "Members of all rooms"),
            messages_in: b.zero("messages_in", "Messages from clients, by type and result"),
            deliveries: b.zero("deliveries", "Events put before subscribers"),
            outgoing_messages: b.zero("outgoing_messages", "Messages in outgoing queues"),
            outgoing_bytes: b.zero("outgoing_bytes", "Bytes in outgoing queues"),
            outgoing_messages_max: b
                .zero("outgoing_messages_max", "Messages in the longest outgoing queue"),
            outgoing_bytes_max: b.zero("outgoing_bytes_max", "Bytes in the largest outgoing queue"),
            lagging_connections: b
                .zero("lagging_connections", "Connections that get the newest positions only"),
            ladder_steps: b.zero("ladder_steps", "Steps taken on the ladder for slow consumers"),
            held_requests: b.zero("held_requests", "Requests held while the plane is paused"),
            held_notifications: b
                .zero("held_notifications", "Notifications held while the plane is paused"),
            held_bytes: b.zero("held_bytes", "Bytes held while the plane is paused"),
            held_notifications_dropped: b.zero(
                "held_notifications_dropped",
                "Held notifications pushed out by newer ones or gone with their connection",
            ),
            refusals: b.zero("refusals", "Requests and notifications refused, by error code"),
            plane_paused: b.zero("plane_paused", "1 for each hold that pauses the plane now"),
            plane_paused_seconds: b.zero("plane_paused_seconds", "Seconds under each hold"),
            room_log_append_seconds: b.put(
                "room_log_append_seconds",
                "From the hand-over to the room log to its commit",
                Histogram::new(exponential_buckets(0.000_25, 2.0, 16)),
            ),
            room_log_batch_size: b.put(
                "room_log_batch_size",
                "Positions in one commit of the room log",
                Histogram::new(exponential_buckets(1.0, 2.0, 14)),
            ),
            broker_connected: b.zero("broker_connected", "1 while the broker is connected"),
            broker_lag: b.zero("broker_lag", "Publishes the broker has not acknowledged yet"),
            resumes: b.zero("resumes", "What became of since, by outcome"),
            duplicates: b.zero("duplicates", "Positions that were in the log already"),
            late: b.zero("late", "Positions older than the newest of their vehicle"),
            shutdown: ShutdownGauges::default(),
            handshake_floods: By::default(),
            phase: b.zero("phase", "1 for the phase that the process is in"),
            process: ProcessGauges {
                resident: b.zero("process_resident_memory_bytes", "Resident memory"),
                open_fds: b.zero("process_open_fds", "Open file descriptors"),
                max_fds: b.zero("process_max_fds", "File descriptors that may be open"),
                threads: b.zero("process_threads", "Threads"),
            },
            registry: Registry::default(),
            hooks: Mutex::default(),
        };
        metrics.shutdown.register(&mut book.0);
        metrics.set_phase(Phase::Running);
        Self { registry: book.0, ..metrics }
    }

    /// Sets the phase, and the others to 0.
    pub fn set_phase(&self, phase: Phase) {
        for other in Phase::ALL {
            self.phase.get(other).set(i64::from(other == phase));
        }
    }

    /// Runs `hook` before every [`Metrics::encode`], to set what nobody counts as it
    /// goes. It must not wait, and not add a hook.
    pub fn on_scrape(&self, hook: impl Fn(&Self) + Send + Sync + 'static) {
        self.hooks.lock().push(Box::new(hook));
    }

    /// Everything as OpenMetrics text ([`CONTENT_TYPE`]).
    #[must_use]
    pub fn encode(&self) -> String {
        for hook in self.hooks.lock().iter() {
            hook(self);
        }
        let figures = ProcessFigures::read();
        let known = [
            (&self.process.resident, figures.resident_bytes),
            (&self.process.open_fds, figures.open_fds),
            (&self.process.max_fds, figures.max_fds),
            (&self.process.threads, figures.threads),
        ];
        for (gauge, figure) in known {
            set(gauge, figure.unwrap_or_default());
        }
        let mut out = String::with_capacity(16 * 1024);
        // Writing to a string does not fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}

/// Sets a gauge to a count or a size.
pub fn set(gauge: &Gauge, value: impl TryInto<i64>) {
    gauge.set(value.try_into().unwrap_or(i64::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        Metrics::new(&Counter::default())
    }

    #[test]
    fn names_and_labels_are_those_of_the_contract() {
        let dropped = Counter::default();
        dropped.inc_by(7);
        let metrics = Metrics::new(&dropped);
        metrics.connections_closed.get(CloseCode::from(4008)).inc();
        metrics.messages_in.get(MessageType::History, MessageResult::Refused).inc();
        metrics.handshakes_refused.get(RefusedBecause::Origin).inc();
        metrics.plane_paused.get(HoldLabel::Broker).set(1);
        metrics.plane_paused_seconds.get(HoldLabel::Broker).inc_by(1.5);
        metrics.room_log_append_seconds.observe(0.001);
        metrics.shutdown.set(ShutdownFigure::UnackedClose, 2_u64);
        metrics.set_phase(Phase::Drain);
        let text = metrics.encode();
        for line in [
            "milepost_log_lines_dropped_total 7",
            "milepost_connections_closed_total{code=\"4008\"} 1",
            "milepost_connections_closed_total{code=\"1001\"} 0",
            "milepost_messages_in_total{type=\"history\",result=\"refused\"} 1",
            "milepost_messages_in_total{type=\"positions\",result=\"accepted\"} 0",
            "milepost_handshakes_refused_total{reason=\"origin\"} 1",
            "milepost_plane_paused{hold=\"broker\"} 1",
            "milepost_plane_paused_seconds_total{hold=\"broker\"} 1.5",
            "milepost_room_log_append_seconds_count 1",
            "milepost_shutdown_unacked_close 2",
            "milepost_shutdown_held_notifications_dropped 0",
            "milepost_phase{phase=\"drain\"} 1",
            "milepost_phase{phase=\"running\"} 0",
            "# TYPE milepost_connections_closed counter",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn every_series_stands_once() {
        let text = metrics().encode();
        let mut series: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(series, _)| series)
            .collect();
        let all = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), all);
        assert!(series.iter().all(|name| name.starts_with("milepost_")));
    }

    #[test]
    fn hooks_set_what_is_summed_up() {
        let metrics = metrics();
        metrics.on_scrape(|metrics| set(&metrics.outgoing_bytes, 4096_usize));
        assert!(metrics.encode().contains("\nmilepost_outgoing_bytes 4096\n"));
    }
}
