//! The server's messages as a client reads them. What a newer server adds is ignored or
//! kept, never an error.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::envelope::RequestId;
pub use super::payloads::{
    Ack, BackfillProgress, BackfillResult, CaughtUp, ErrorMessage, History, Lagging, Location,
    MembersChanged, MembersNamed, NotificationsDropped, Pong, Positions, Rejected, ReplayGap,
    RoomJoined, RoomLeft, ServerShuttingDown, Snapshot, TokenExpiring, TokenRefreshOk, Welcome,
};

/// A text that is no message of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a message of this protocol: {0}")]
pub struct DecodeError(String);

/// A message of the server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerFrame {
    /// The id of the request that this answers.
    pub id: Option<RequestId>,
    /// What it says.
    pub message: ServerMessage,
}

macro_rules! messages {
    ($( $(#[$doc:meta])* $variant:ident($payload:ty) = $name:literal, )*) => {
        /// What the server says, by `type`.
        #[derive(Debug, Clone, PartialEq)]
        pub enum ServerMessage {
            $( $(#[$doc])* $variant($payload), )*
            /// The old gateway's `replay_gap`.
            ReplayGap(ReplayGap),
            /// A type that this version does not know.
            Other {
                /// The `type`.
                kind: String,
            },
        }

        impl ServerMessage {
            /// The `type`.
            #[must_use]
            pub fn kind(&self) -> &str {
                match self {
                    $( Self::$variant(_) => $name, )*
                    Self::ReplayGap(_) => "replay_gap",
                    Self::Other { kind } => kind,
                }
            }

            fn read(kind: &str, payload: &str, whole: &str) -> Result<Self, DecodeError> {
                match kind {
                    $( $name => decode(kind, payload).map(Self::$variant), )*
                    "replay_gap" => decode(kind, whole).map(Self::ReplayGap),
                    _ => Ok(Self::Other { kind: kind.to_owned() }),
                }
            }
        }
    };
}

messages! {
    /// The first message of a connection.
    Welcome(Box<Welcome>) = "welcome",
    /// The answer to `ping`.
    Pong(Pong) = "pong",
    /// A room is joined, or its epoch changed.
    RoomJoined(Box<RoomJoined>) = "room_joined",
    /// A further page of `room_joined`.
    Snapshot(Snapshot) = "snapshot",
    /// A room is left.
    RoomLeft(RoomLeft) = "room_left",
    /// A position is in the log.
    Ack(Ack) = "ack",
    /// The newest per vehicle.
    Positions(Positions) = "positions",
    /// A page of the past.
    History(History) = "history",
    /// A chunk is committed.
    BackfillProgress(BackfillProgress) = "backfill_progress",
    /// An upload ended.
    BackfillResult(BackfillResult) = "backfill_result",
    /// The new token holds.
    TokenRefreshOk(TokenRefreshOk) = "token_refresh_ok",
    /// The token is about to expire.
    TokenExpiring(TokenExpiring) = "token_expiring",
    /// A vehicle moved.
    LocationUpdate(Box<Location>) = "location_update",
    /// Members came.
    MemberJoined(MembersNamed) = "member_joined",
    /// Members went.
    MemberLeft(MembersNamed) = "member_left",
    /// Members of a big room changed.
    MembersChanged(MembersChanged) = "members_changed",
    /// Events are being dropped.
    Lagging(Lagging) = "lagging",
    /// Nothing is missing any more.
    CaughtUp(CaughtUp) = "caught_up",
    /// A pause evicted notifications.
    NotificationsDropped(NotificationsDropped) = "notifications_dropped",
    /// The server is about to close this connection.
    ServerShuttingDown(ServerShuttingDown) = "server_shutting_down",
    /// A message was refused or failed.
    Error(Box<ErrorMessage>) = "error",
}

fn decode<T: DeserializeOwned>(kind: &str, text: &str) -> Result<T, DecodeError> {
    serde_json::from_str(text).map_err(|error| DecodeError(format!("{kind}: {error}")))
}

impl ServerFrame {
    /// Reads a message of the server.
    ///
    /// # Errors
    /// [`DecodeError`] for what is no JSON object with a `type`, or lacks a field that its
    /// type always has.
    pub fn parse(text: &str) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Outer<'a> {
            #[serde(rename = "type", borrow)]
            kind: Cow<'a, str>,
            #[serde(default)]
            id: Option<RequestId>,
            #[serde(default, borrow)]
            payload: Option<&'a RawValue>,
        }
        let outer: Outer<'_> =
            serde_json::from_str(text).map_err(|error| DecodeError(error.to_string()))?;
        let payload = outer.payload.map_or("{}", RawValue::get);
        let message = ServerMessage::read(&outer.kind, payload, text)?;
        Ok(Self { id: outer.id, message })
    }
}
