//! The figures of the shutdown report as metrics (shutdown.md, "The log contract"):
//! the same names, so that a dashboard and a log query read alike.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::set;

macro_rules! figures {
    ($($(#[$doc:meta])* $figure:ident = $name:literal,)+) => {
        /// A figure of the report; yes and no are 1 and 0.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ShutdownFigure { $(#[doc = concat!("`", $name, "`")] $figure,)+ }

        impl ShutdownFigure {
            /// All figures in the order of the report.
            pub const ALL: &'static [Self] = &[$(Self::$figure,)+];

            /// The name in the report; the metric is `milepost_shutdown_` and this.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$figure => $name,)+ }
            }
        }
    };
}

figures! {
    ClientsAtStart = "clients_at_start",
    Notified = "notified",
    Drained = "drained",
    Terminated = "terminated",
    Acked = "acked",
    LeftEarly = "left_early",
    UnackedClose = "unacked_close",
    MessagesFlushed = "messages_flushed",
    BytesFlushed = "bytes_flushed",
    MessagesDropped = "messages_dropped",
    BytesDropped = "bytes_dropped",
    HeldNotificationsDropped = "held_notifications_dropped",
    KernelUnackedBytes = "kernel_unacked_bytes",
    RequestsCompleted = "requests_completed",
    RequestsRefused = "requests_refused",
    LogFlushed = "log_flushed",
    BrokerFlushed = "broker_flushed",
    ExitCode = "exit_code",
    DurationMs = "duration_ms",
    StopAcceptingMs = "stop_accepting_ms",
    NotifyMs = "notify_ms",
    DrainMs = "drain_ms",
    CloseMs = "close_ms",
}

/// A gauge for each figure.
#[derive(Debug)]
pub struct ShutdownGauges(Box<[Gauge]>);

impl Default for ShutdownGauges {
    fn default() -> Self {
        Self(ShutdownFigure::ALL.iter().map(|_| Gauge::default()).collect())
    }
}

impl ShutdownGauges {
    /// Sets a figure.
    pub fn set(&self, figure: ShutdownFigure, value: impl TryInto<i64>) {
        set(&self.0[figure as usize], value);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        for (figure, gauge) in ShutdownFigure::ALL.iter().zip(&self.0) {
            let name = figure.name();
            let help = format!("{name} of the shutdown report");
            registry.register(format!("shutdown_{name}"), help, gauge.clone());
        }
    }
}
