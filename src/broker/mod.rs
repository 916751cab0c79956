//! The link to a NATS broker: connecting, how the link is, and closing it.
//!
//! Everybody who talks to the broker shares one [`Link`]. It knows no room, stream or
//! position. Whether the link works is read from the connection's state, its count of
//! connections and a round trip every second, never from the client's events alone,
//! which may be lost (async-nats 0.51 drops them when its queue is full).

mod error;
mod link;
pub mod subject;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

pub use error::BrokerError;
pub use link::Link;

/// Where the broker is and what this process calls itself there.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Servers of one cluster: `nats://` or `tls://`, host and port. At least one.
    pub urls: Vec<String>,
    /// A credentials file (JWT and seed), as `nsc` writes it.
    pub credentials_file: Option<PathBuf>,
    /// The name of the stream, and the first token of all subjects.
    pub stream: String,
    /// On how many servers of the cluster the stream is kept: 1 to 5.
    pub replicas: usize,
    /// This instance, in the connection's name (`nats server report connections`).
    pub instance: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            urls: vec!["nats://127.0.0.1:4222".to_owned()],
            credentials_file: None,
            stream: "milepost".to_owned(),
            replicas: 1,
            instance: String::new(),
        }
    }
}

/// How the link is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// It answers.
    Up {
        /// Counts the connections that there were. When it changes, everything that was
        /// under way on the one before may be lost.
        generation: u64,
    },
    /// It does not: nothing may be published.
    Down {
        /// What is known of the reason, and which server; for people.
        reason: Arc<str>,
    },
    /// [`Link::close`] was called.
    Closed,
}

impl LinkState {
    /// Whether the link answers.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self, Self::Up { .. })
    }
}

#[cfg(test)]
mod tests;
