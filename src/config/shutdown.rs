//! How the server stops: `[shutdown]`.

use std::time::Duration;

use serde::Deserialize;

use super::units;

/// `[shutdown]`. The four phases' times are the ends of the phases, counted from the
/// signal (from the end of the lame duck, if there is one).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shutdown {
    /// Time after the signal in which readiness is 503 and all else works.
    #[serde(deserialize_with = "units::duration")]
    pub lame_duck: Duration,
    /// End of refusing what was connecting.
    #[serde(deserialize_with = "units::duration")]
    pub stop_accepting: Duration,
    /// End of telling every client.
    #[serde(deserialize_with = "units::duration")]
    pub notify: Duration,
    /// End of waiting for queues and requests.
    #[serde(deserialize_with = "units::duration")]
    pub drain: Duration,
    /// End of waiting for closes; the process is gone then.
    #[serde(deserialize_with = "units::duration")]
    pub close: Duration,
    /// The earliest `reconnectIn` told to a client.
    #[serde(deserialize_with = "units::duration")]
    pub reconnect_min: Duration,
    /// The latest one.
    #[serde(deserialize_with = "units::duration")]
    pub reconnect_max: Duration,
    /// Clients told to come back a second.
    pub reconnect_rate: u32,
    /// What the container allows between the signal and the kill, less a preStop hook.
    #[serde(deserialize_with = "units::optional_duration")]
    pub grace_period: Option<Duration>,
}

impl Shutdown {
    /// What a container must allow between the signal and the kill: the lame duck, the
    /// whole budget, and a second for the end of the process.
    #[must_use]
    pub fn needed_grace(&self) -> Duration {
        self.lame_duck.saturating_add(self.close).saturating_add(Duration::from_secs(1))
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            lame_duck: Duration::ZERO,
            stop_accepting: Duration::from_millis(100),
            notify: Duration::from_millis(500),
            drain: Duration::from_secs(4),
            close: Duration::from_secs(5),
            reconnect_min: Duration::from_secs(1),
            reconnect_max: Duration::from_secs(10),
            reconnect_rate: 2_000,
            grace_period: None,
        }
    }
}
