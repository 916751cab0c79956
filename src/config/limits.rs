//! How much a client, an address and the server may do and hold: `[limits]`,
//! `[heartbeat]`, `[outgoing]`, `[plane]`.

use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use super::units;

/// `[limits]`. 0 turns a rate or a count off.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Messages a second and connection.
    pub message_rate: u32,
    /// Messages at once, above the rate.
    pub message_burst: u32,
    /// New connections a minute and address.
    pub connects_per_minute: u32,
    /// Connections at once and address.
    pub connections_per_address: u32,
    /// Proxies whose `X-Forwarded-For` counts.
    #[serde(deserialize_with = "units::networks")]
    pub trusted_proxies: Vec<IpNet>,
    /// Handshakes a second, the server.
    pub handshake_rate: u32,
    /// Time for a handshake.
    #[serde(deserialize_with = "units::duration")]
    pub handshake_timeout: Duration,
    /// Rooms a connection may be in.
    pub rooms_per_connection: usize,
    /// Connections in a room.
    pub members_per_room: usize,
    /// Rooms at once.
    pub rooms: usize,
    /// Bytes of a message from a client.
    #[serde(deserialize_with = "units::size")]
    pub max_frame: usize,
    /// Bytes of a message to a client; what is longer comes in pages.
    #[serde(deserialize_with = "units::size")]
    pub max_frame_out: usize,
    /// Silence after which an upload is ended.
    #[serde(deserialize_with = "units::duration")]
    pub upload_idle: Duration,
    /// Members above which a room sends counts instead of lists.
    pub presence_members: usize,
    /// What becomes of a position's unknown fields.
    pub extra_fields: ExtraFields,
    /// Bytes of a position's payload.
    #[serde(deserialize_with = "units::size")]
    pub max_position: usize,
    /// How far ahead of the server's clock a fix may be.
    #[serde(deserialize_with = "units::duration")]
    pub max_future_skew: Duration,
    /// Whether exactly 0, 0 is a place.
    pub accept_null_island: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_rate: 100,
            message_burst: 200,
            connects_per_minute: 3_000,
            connections_per_address: 1_000,
            trusted_proxies: Vec::new(),
            handshake_rate: 4_000,
            handshake_timeout: Duration::from_secs(5),
            rooms_per_connection: 500,
            members_per_room: 10_000,
            rooms: 100_000,
            max_frame: 64 << 10,
            max_frame_out: 64 << 10,
            upload_idle: Duration::from_secs(30),
            presence_members: 1_000,
            extra_fields: ExtraFields::Pass,
            max_position: 512,
            max_future_skew: Duration::from_secs(30),
            accept_null_island: false,
        }
    }
}

/// What becomes of a position's unknown fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExtraFields {
    /// They are carried through.
    Pass,
    /// They are dropped.
    Drop,
}

/// `[heartbeat]`: how a dead connection is noticed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Heartbeat {
    /// Silence of ours after which a ping is sent (± 10 %).
    #[serde(deserialize_with = "units::duration")]
    pub interval: Duration,
    /// Silence of the peer after which it is dead; at least 2 × interval + 5 s.
    #[serde(deserialize_with = "units::duration")]
    pub timeout: Duration,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { interval: Duration::from_secs(20), timeout: Duration::from_secs(50) }
    }
}

/// `[outgoing]`: the queue of a connection and its ladder (see the delivery chapter).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outgoing {
    /// Bytes above which a connection gets the newest position per vehicle only.
    #[serde(deserialize_with = "units::size")]
    pub high_water: usize,
    /// Bytes above which it is closed with 4008.
    #[serde(deserialize_with = "units::size")]
    pub max_bytes: usize,
    /// Messages above which it is closed with 4008.
    pub max_messages: usize,
    /// Time without an accepted byte after which it is closed with 4008.
    #[serde(deserialize_with = "units::duration")]
    pub slow_timeout: Duration,
    /// Bytes that the kernel may hold unsent for it.
    #[serde(deserialize_with = "units::size")]
    pub kernel_buffer: usize,
}

impl Outgoing {
    /// Bytes under which a connection that was over `high_water` is read from again.
    #[must_use]
    pub const fn low_water(&self) -> usize {
        self.high_water / 2
    }
}

impl Default for Outgoing {
    fn default() -> Self {
        Self {
            high_water: 256 << 10,
            max_bytes: 1 << 20,
            max_messages: 4_096,
            slow_timeout: Duration::from_secs(30),
            kernel_buffer: 64 << 10,
        }
    }
}

/// `[plane]`: what is held while the plane is paused.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plane {
    /// Requests of a connection; one more is refused.
    pub max_held_requests: usize,
    /// Notifications of a connection; one more evicts the oldest.
    pub max_held_notifications: usize,
    /// Bytes of a connection.
    #[serde(deserialize_with = "units::size")]
    pub max_held_bytes_per_connection: usize,
    /// Bytes of all connections.
    #[serde(deserialize_with = "units::size")]
    pub max_held_bytes: usize,
}

impl Default for Plane {
    fn default() -> Self {
        Self {
            max_held_requests: 10_000,
            max_held_notifications: 1_000,
            max_held_bytes_per_connection: 16 << 20,
            max_held_bytes: 256 << 20,
        }
    }
}
