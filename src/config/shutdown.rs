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
    /// The earliest `reconnectIn` told to a client; unset: see [`Shutdown::alone`] and
    /// [`Shutdown::with_others`]. What is set holds in both cases.
    #[serde(deserialize_with = "units::optional_duration")]
    pub reconnect_min: Option<Duration>,
    /// The latest one, likewise.
    #[serde(deserialize_with = "units::optional_duration")]
    pub reconnect_max: Option<Duration>,
    /// Clients told to come back a second.
    pub reconnect_rate: u32,
    /// With other instances about: how long a client is served on after its `reconnectIn`,
    /// so that it can join elsewhere before it leaves here.
    #[serde(deserialize_with = "units::duration")]
    pub handover: Duration,
    /// What the container allows between the signal and the kill, less a preStop hook.
    #[serde(deserialize_with = "units::optional_duration")]
    pub grace_period: Option<Duration>,
}

/// Between which times clients are told to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReturnTimes {
    /// The first one's `reconnectIn`.
    pub min: Duration,
    /// The last one's.
    pub max: Duration,
}

impl Shutdown {
    /// When clients come back where nobody else serves them: 1 s (the successor has to
    /// start) to 10 s.
    #[must_use]
    pub fn alone(&self) -> ReturnTimes {
        ReturnTimes {
            min: self.reconnect_min.unwrap_or(Duration::from_secs(1)),
            max: self.reconnect_max.unwrap_or(Duration::from_secs(10)),
        }
    }

    /// When they do where other instances are about: 0 to 3 s, so that everyone's time
    /// falls inside the drain.
    #[must_use]
    pub fn with_others(&self) -> ReturnTimes {
        ReturnTimes {
            min: self.reconnect_min.unwrap_or(Duration::ZERO),
            max: self.reconnect_max.unwrap_or(Duration::from_secs(3)),
        }
    }

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
            reconnect_min: None,
            reconnect_max: None,
            reconnect_rate: 2_000,
            handover: Duration::from_millis(250),
            grace_period: None,
        }
    }
}
