//! Where positions are kept and for how long: `[room_log]`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use super::units;

/// `[room_log]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoomLog {
    /// What keeps the log.
    pub engine: Engine,
    /// The file of the engine `embedded`, or `:memory:`.
    pub path: PathBuf,
    /// Age after which positions are removed.
    #[serde(deserialize_with = "units::duration")]
    pub retention_age: Duration,
    /// Bytes of the whole log above which the oldest are removed.
    #[serde(deserialize_with = "units::large_size")]
    pub retention_bytes: u64,
    /// Age of its last fix after which a vehicle leaves the snapshot.
    #[serde(deserialize_with = "units::duration")]
    pub newest_age: Duration,
    /// Free bytes of the disk below which the log warns and trims early.
    #[serde(deserialize_with = "units::large_size")]
    pub min_free: u64,
    /// How long to wait for another process to let go of the file.
    #[serde(deserialize_with = "units::duration")]
    pub lock_wait: Duration,
    /// Time from the commit within which a repeated position is a duplicate.
    #[serde(deserialize_with = "units::duration")]
    pub dedup_window: Duration,
}

impl RoomLog {
    /// Whether the log is kept in memory only.
    #[must_use]
    pub fn in_memory(&self) -> bool {
        self.path == Path::new(":memory:")
    }
}

impl Default for RoomLog {
    fn default() -> Self {
        Self {
            engine: Engine::Embedded,
            path: PathBuf::from("data/milepost.db"),
            retention_age: Duration::from_secs(7 * 86_400),
            retention_bytes: 4 << 30,
            newest_age: Duration::from_secs(86_400),
            min_free: 256 << 20,
            lock_wait: Duration::from_secs(10),
            dedup_window: Duration::from_secs(600),
        }
    }
}

/// What keeps the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// A file of this process.
    Embedded,
    /// A stream of NATS that several instances share: `[nats]`.
    Nats,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("embedded"),
            Self::Nats => f.write_str("nats"),
        }
    }
}

impl<'de> Deserialize<'de> for Engine {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        match String::deserialize(source)?.as_str() {
            "embedded" => Ok(Self::Embedded),
            "nats" => Ok(Self::Nats),
            other => Err(de::Error::unknown_variant(other, &["embedded", "nats"])),
        }
    }
}
