//! Logs and metrics: what an operator sees of the server.
//!
//! [`events`] writes a log line and its metric together; [`logs`] formats lines,
//! [`sink`] gets them out without ever making a caller wait; [`metrics`] holds
//! the counters. Nothing here decides anything, and no token, query string or
//! payload passes through.

pub mod events;
pub mod logs;
pub mod metrics;
pub mod nonblocking;
pub mod process;
pub mod sink;

pub use logs::{Format, LogHandle, LogSettings};
pub use metrics::Metrics;
pub use sink::Sink;
