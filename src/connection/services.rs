//! What every connection needs of the process, shared by all.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::auth::Authenticator;
use crate::phase::PhaseWatch;
use crate::plane::Plane;
use crate::protocol::position::PositionRules;
use crate::room_log::RoomLog;
use crate::rooms::Hub;
use crate::telemetry::Metrics;

/// The figures that connections go by. Sizes in bytes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This process's public name.
    pub instance_id: Arc<str>,
    /// `server.generation`.
    pub generation: Arc<str>,
    /// `limits.max_frame`.
    pub max_frame: usize,
    /// `limits.max_frame_out`.
    pub max_frame_out: usize,
    /// What a position has to keep.
    pub position: PositionRules,
    /// `limits.message_rate`, a second; 0: no limit.
    pub message_rate: u32,
    /// `limits.message_burst`.
    pub message_burst: u32,
    /// `limits.rooms_per_connection`; 0: no limit.
    pub rooms_per_connection: usize,
    /// `limits.upload_idle`.
    pub upload_idle: Duration,
    /// `heartbeat.interval`.
    pub heartbeat_interval: Duration,
    /// `heartbeat.timeout`.
    pub heartbeat_timeout: Duration,
    /// `outgoing.high_water`.
    pub high_water: usize,
    /// Half of it: below this a connection is read from again.
    pub low_water: usize,
    /// `outgoing.max_bytes`.
    pub max_bytes: usize,
    /// `outgoing.max_messages`.
    pub max_messages: usize,
    /// `outgoing.slow_timeout`.
    pub slow_timeout: Duration,
    /// `auth.expiry = "enforce"`: a live connection ends with its token.
    pub enforce_expiry: bool,
    /// `auth.expiry_warning`.
    pub expiry_warning: Duration,
    /// `room_log.dedup_window`.
    pub dedup_window: Duration,
}

/// The room log, once it is open. Until then the plane is on hold, so nobody needs it.
#[derive(Clone, Default)]
pub struct LogSlot(Arc<OnceLock<Arc<dyn RoomLog>>>);

impl LogSlot {
    /// The log, if it is open.
    #[must_use]
    pub fn get(&self) -> Option<&Arc<dyn RoomLog>> {
        self.0.get()
    }

    /// Notes that the log is open; a second time changes nothing.
    pub fn set(&self, log: Arc<dyn RoomLog>) {
        let _ = self.0.set(log);
    }
}

/// The process as a connection sees it.
pub struct Services {
    /// The rooms.
    pub hub: Arc<Hub>,
    /// The room log.
    pub log: LogSlot,
    /// Whether work on it may go on.
    pub plane: Arc<Plane>,
    /// Verifies refreshed tokens.
    pub auth: Arc<Authenticator>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The phase of the process.
    pub phase: PhaseWatch,
    /// The figures.
    pub settings: Settings,
}
