//! The payloads of the server's messages, one struct each, as [`decode`](super::decode)
//! reads them. Fields that a message may lack are optional or empty.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use serde_json::{Map, Value};

use crate::time::UnixMillis;

struct Time;

impl Visitor<'_> for Time {
    type Value = UnixMillis;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an RFC 3339 time")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<UnixMillis, E> {
        UnixMillis::parse_rfc3339(text).ok_or_else(|| E::custom("expected an RFC 3339 time"))
    }
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UnixMillis, D::Error> {
    deserializer.deserialize_str(Time)
}

fn time_if<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<UnixMillis>, D::Error> {
    match Option::<Cow<'de, str>>::deserialize(deserializer)? {
        Some(text) => Time.visit_str(&text).map(Some),
        None => Ok(None),
    }
}

macro_rules! payload {
    ($(#[$doc:meta])* $name:ident { $( $(#[$field:meta])* $member:ident: $of:ty, )* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $( $(#[$field])* pub $member: $of, )*
        }
    };
}

payload! {
    /// `welcome`; times in milliseconds, sizes in bytes.
    Welcome {
        /// The session, new for every connection.
        session_id: String,
        /// The identity from the token.
        client_id: String,
        /// The server's process.
        instance_id: String,
        /// The release or deployment that the process belongs to; an older server says none.
        #[serde(default)]
        generation: String,
        /// The protocol version.
        protocol: u32,
        /// The server's clock.
        #[serde(deserialize_with = "time")]
        server_time: UnixMillis,
        /// How often the server pings.
        heartbeat_ms: u64,
        /// After how much silence the socket is dead.
        heartbeat_timeout_ms: u64,
        /// The longest frame that the server takes.
        max_frame_bytes: usize,
        /// The longest frame that the server sends.
        max_frame_out_bytes: usize,
        /// The longest payload of a position.
        max_position_bytes: usize,
        /// How long an idempotency key is remembered.
        dedup_window_ms: u64,
    }
}

payload! {
    /// `pong`
    Pong {
        /// The server's clock.
        #[serde(deserialize_with = "time")]
        server_time: UnixMillis,
    }
}

payload! {
    /// `room_joined`; a flat join's has only the room, epoch and seq.
    RoomJoined {
        /// The room.
        room_id: String,
        /// The mode granted.
        #[serde(default)]
        mode: Option<String>,
        /// The log's epoch.
        epoch: String,
        /// The head of the log.
        seq: u64,
        /// Whether `since` is honoured.
        #[serde(default)]
        recovered: bool,
        /// The members' client ids, or the first of them.
        #[serde(default)]
        members: Vec<String>,
        /// How many there are.
        #[serde(default)]
        member_count: u64,
        /// The newest position per vehicle, or the first of them.
        #[serde(default)]
        positions: Vec<Location>,
        /// Whether `snapshot` messages follow.
        #[serde(default)]
        more: bool,
    }
}

payload! {
    /// `snapshot`
    Snapshot {
        /// The room.
        room_id: String,
        /// Further members.
        #[serde(default)]
        members: Vec<String>,
        /// Further positions.
        #[serde(default)]
        positions: Vec<Location>,
        /// Whether another one follows.
        more: bool,
    }
}

payload! {
    /// `room_left`
    RoomLeft {
        /// The room.
        room_id: String,
        /// Why, if the server decided it.
        #[serde(default)]
        reason: Option<String>,
    }
}

payload! {
    /// `ack`
    Ack {
        /// The sequence number in every room.
        rooms: BTreeMap<String, u64>,
        /// Whether every room had it already.
        duplicate: bool,
        /// The rooms where it is older than the newest.
        #[serde(default)]
        late: Vec<String>,
    }
}

payload! {
    /// `positions`
    Positions {
        /// The room.
        room_id: String,
        /// The log's epoch.
        epoch: String,
        /// The head of the log; no resume point.
        seq: u64,
        /// The newest position per vehicle.
        positions: Vec<Location>,
        /// Whether there are more than fit.
        more: bool,
    }
}

payload! {
    /// `history`
    History {
        /// By time of the fix, oldest first.
        positions: Vec<Location>,
        /// Where the next page begins, if there is one.
        #[serde(default)]
        cursor: Option<String>,
    }
}

payload! {
    /// `backfill_progress`
    BackfillProgress {
        /// Positions taken so far.
        accepted: u64,
        /// Positions that were there already.
        duplicates: u64,
        /// Positions refused.
        rejected: u64,
    }
}

payload! {
    /// One refused position of an upload.
    Rejected {
        /// Where it stood in the whole upload, from 0.
        index: u64,
        /// Why.
        reason: String,
    }
}

payload! {
    /// `backfill_result`
    BackfillResult {
        /// Positions taken.
        accepted: u64,
        /// Positions that were there already.
        duplicates: u64,
        /// The refused ones, or the first of them.
        rejected: Vec<Rejected>,
        /// How many were refused.
        rejected_total: u64,
        /// Why the upload was ended, if not by the client.
        #[serde(default)]
        reason: Option<String>,
    }
}

payload! {
    /// `token_refresh_ok`
    TokenRefreshOk {
        /// The identity.
        client_id: String,
        /// When the new token expires, if it does.
        #[serde(default, deserialize_with = "time_if")]
        expires_at: Option<UnixMillis>,
    }
}

payload! {
    /// `token_expiring`
    TokenExpiring {
        /// When.
        #[serde(deserialize_with = "time")]
        expires_at: UnixMillis,
        /// In how many milliseconds.
        in_ms: u64,
    }
}

payload! {
    /// `location_update`, or an item of a list of positions (then without `room_id`).
    Location {
        /// The room.
        #[serde(default)]
        room_id: Option<String>,
        /// The sequence number in the room's log.
        seq: u64,
        /// Who published it.
        client_id: String,
        /// Whose position it is.
        vehicle_id: String,
        /// Degrees, WGS 84.
        latitude: f64,
        /// Degrees, WGS 84.
        longitude: f64,
        /// Metres.
        #[serde(default)]
        altitude: Option<f64>,
        /// Metres.
        #[serde(default)]
        accuracy: Option<f64>,
        /// Metres.
        #[serde(default)]
        altitude_accuracy: Option<f64>,
        /// Metres a second.
        #[serde(default)]
        speed: Option<f64>,
        /// Degrees clockwise from true north.
        #[serde(default)]
        heading: Option<f64>,
        /// The time of the fix.
        #[serde(deserialize_with = "time")]
        timestamp: UnixMillis,
        /// The time of receipt.
        #[serde(deserialize_with = "time")]
        received_at: UnixMillis,
        /// What else the device sent.
        #[serde(flatten)]
        extra: Map<String, Value>,
    }
}

payload! {
    /// `member_joined`, `member_left`
    MembersNamed {
        /// The room.
        room_id: String,
        /// Their client ids.
        members: Vec<String>,
        /// Why they left.
        #[serde(default)]
        reason: Option<String>,
    }
}

payload! {
    /// `members_changed`
    MembersChanged {
        /// The room.
        room_id: String,
        /// How many came.
        joined: u64,
        /// How many went.
        left: u64,
        /// How many there are.
        member_count: u64,
    }
}

payload! {
    /// `lagging`
    Lagging {
        /// The room.
        room_id: String,
        /// The log's epoch.
        epoch: String,
        /// From where on events are missing.
        from_seq: u64,
        /// How many so far.
        dropped: u64,
        /// The rung of the ladder.
        mode: String,
    }
}

payload! {
    /// `caught_up`
    CaughtUp {
        /// The room.
        room_id: String,
        /// The log's epoch.
        epoch: String,
        /// Up to where nothing is missing now; a resume point.
        seq: u64,
        /// How many were dropped in all.
        dropped: u64,
    }
}

payload! {
    /// `notifications_dropped`
    NotificationsDropped {
        /// How many.
        count: u64,
        /// Why.
        reason: String,
    }
}

payload! {
    /// `server_shutting_down`
    ServerShuttingDown {
        /// Seconds until this client may come back to this server.
        reconnect_in: f64,
        /// Milliseconds until the close.
        closes_in_ms: u64,
        /// `shutdown` or `drain`.
        reason: String,
        /// Whether `since` will be honoured.
        resume: bool,
        /// The generation of the server that stops.
        #[serde(default)]
        generation: String,
        /// Other generations to which a client had better go.
        #[serde(default)]
        newer: Vec<String>,
    }
}

payload! {
    /// `error`
    ErrorMessage {
        /// The code's name.
        code: String,
        /// The code's number.
        number: i32,
        /// A sentence for people.
        message: String,
        /// `never`, `later` or `elsewhere`.
        retry: String,
        /// The offending message's type.
        #[serde(default, rename = "type")]
        kind: Option<String>,
        /// The offending message's room.
        #[serde(default)]
        room_id: Option<String>,
        /// The path of the offending field.
        #[serde(default)]
        field: Option<String>,
        /// Milliseconds to wait.
        #[serde(default)]
        retry_after_ms: Option<u64>,
        /// How many more errors were not sent.
        #[serde(default)]
        suppressed: Option<u64>,
    }
}

payload! {
    /// `replay_gap`, whose fields stand at the top level.
    ReplayGap {
        /// The room.
        #[serde(default)]
        room_id: Option<String>,
        /// What was asked for.
        from_seq: u64,
        /// The head of the log.
        current_seq: u64,
    }
}
