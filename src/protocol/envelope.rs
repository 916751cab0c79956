//! The outer object of a client's message: `type`, `id`, and where the payload lies.
//!
//! This is all that is read before admission: one pass over a flat borrowed struct, the
//! payload untouched (performance.md, item 6). It must not judge the payload: a request
//! is registered before anything runs for it.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::{ErrorCode, WireError, unknown_type};
use super::fields;
use crate::ids::RoomId;

/// The longest textual request id, in bytes.
pub const MAX_ID_BYTES: usize = 64;

/// The longest `type` that an error repeats, in bytes.
const MAX_TYPE_BYTES: usize = 64;

/// What the sender calls its request; the answer repeats it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RequestId {
    /// A string of 1 to 64 bytes.
    Text(Box<str>),
    /// An integer within ±(2⁵³−1).
    Number(i64),
}

impl RequestId {
    /// `Ok(None)` is `null`; `Err` is anything that is no id.
    fn read(raw: &str) -> Result<Option<Self>, ()> {
        if raw == "null" {
            return Ok(None);
        }
        if let Some(text) = fields::string(raw) {
            let fits = (1..=MAX_ID_BYTES).contains(&text.len());
            return if fits { Ok(Some(Self::Text(text.into()))) } else { Err(()) };
        }
        fields::integer(raw).map(|number| Some(Self::Number(number))).ok_or(())
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
        }
    }
}

impl From<i64> for RequestId {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for RequestId {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

/// The types of message that a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `join_room`
    JoinRoom,
    /// `leave_room`
    LeaveRoom,
    /// `location_update`
    LocationUpdate,
    /// `positions`
    Positions,
    /// `history`
    History,
    /// `backfill_begin`
    BackfillBegin,
    /// `backfill_chunk`
    BackfillChunk,
    /// `backfill_end`
    BackfillEnd,
    /// `token_refresh`
    TokenRefresh,
    /// `ping`
    Ping,
    /// `ack` of the old gateway's clients, ignored
    Ack,
    /// `nack` of the old gateway's clients, ignored
    Nack,
    /// `reconnect` of the old gateway's clients
    Reconnect,
}

impl Kind {
    /// All of them, for metrics and tests.
    pub const ALL: [Self; 13] = [
        Self::JoinRoom,
        Self::LeaveRoom,
        Self::LocationUpdate,
        Self::Positions,
        Self::History,
        Self::BackfillBegin,
        Self::BackfillChunk,
        Self::BackfillEnd,
        Self::TokenRefresh,
        Self::Ping,
        Self::Ack,
        Self::Nack,
        Self::Reconnect,
    ];

    /// The `type` on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::JoinRoom => "join_room",
            Self::LeaveRoom => "leave_room",
            Self::LocationUpdate => "location_update",
            Self::Positions => "positions",
            Self::History => "history",
            Self::BackfillBegin => "backfill_begin",
            Self::BackfillChunk => "backfill_chunk",
            Self::BackfillEnd => "backfill_end",
            Self::TokenRefresh => "token_refresh",
            Self::Ping => "ping",
            Self::Ack => "ack",
            Self::Nack => "nack",
            Self::Reconnect => "reconnect",
        }
    }

    /// Reads the `type` on the wire.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// How a message is admitted, held and drained (plane.md, "Classes").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Answered once; the drain waits for it.
    Rpc,
    /// Several frames, answered once at the end; the drain waits for it.
    Upload,
    /// A join: the drain does not wait for it.
    Subscription,
    /// A position without `id`: unanswered unless it fails.
    Notification,
    /// Never held, answered in every phase.
    Control,
    /// What the old gateway's clients send beyond that; never held.
    Legacy,
}

/// A message whose outer object is in order. The payload is not looked at yet.
#[derive(Debug, Clone)]
pub struct Envelope<'a> {
    /// The `type`.
    pub kind: Kind,
    /// The request's id; without one the message is a notification.
    pub id: Option<RequestId>,
    /// The old gateway's form: `roomId` at the top level and no `payload`.
    pub flat: bool,
    pub(super) payload: Option<&'a str>,
    pub(super) room_id: Option<&'a str>,
    pub(super) token: Option<&'a str>,
    pub(super) from_seq: Option<&'a str>,
}

/// A message that could not be read as far as its payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct EnvelopeError {
    /// What is wrong.
    pub error: WireError,
    /// The request's id, if it could be read: the answer carries it.
    pub id: Option<RequestId>,
    /// The `type`, if it could be read and is at most 64 bytes: the answer repeats it.
    pub kind: Option<String>,
}

impl EnvelopeError {
    fn bare(error: WireError) -> Self {
        Self { error, id: None, kind: None }
    }

    fn invalid_json() -> Self {
        Self::bare(WireError::new(ErrorCode::InvalidJson, "A message must be one JSON object."))
    }

    /// The error for bytes that are no UTF-8, which is no JSON text (RFC 8259, 8.1).
    #[must_use]
    pub fn not_utf8() -> Self {
        Self::bare(WireError::new(
            ErrorCode::InvalidJson,
            "A message must be one JSON object in UTF-8.",
        ))
    }
}

const TYPE: usize = 0;
const ID: usize = 1;
const PAYLOAD: usize = 2;
const ROOM_ID: usize = 3;
const TOKEN: usize = 4;
const FROM_SEQ: usize = 5;
const NAMES: [&str; 6] = ["type", "id", "payload", "roomId", "token", "fromSeq"];

impl<'a> Envelope<'a> {
    /// Reads the outer object of `text`.
    ///
    /// # Errors
    /// `INVALID_JSON` if it is not one JSON object, `VALIDATION_ERROR` with the field
    /// `type` or `id` if that is wrong or missing or a known field occurs twice,
    /// `UNKNOWN_TYPE` for a type that a client does not send.
    pub fn parse(text: &'a str) -> Result<Self, EnvelopeError> {
        let mut found: [Option<&'a str>; NAMES.len()] = [None; NAMES.len()];
        let mut twice: Option<usize> = None;
        fields::each_member(text, |member| {
            if let Some(at) = NAMES.iter().position(|name| *name == member.key)
                && found[at].replace(member.value).is_some()
            {
                twice.get_or_insert(at);
            }
            true
        })
        .map_err(|_| EnvelopeError::invalid_json())?;

        // Of two ids none is known to be the one that the sender waits for.
        let id = match found[ID] {
            Some(_) if twice == Some(ID) => Err(()),
            Some(raw) => RequestId::read(raw),
            None => Ok(None),
        };
        let name = found[TYPE].filter(|_| twice != Some(TYPE)).and_then(fields::string);
        let name = name.as_deref();
        let error = match (twice, &id, name) {
            (Some(at), _, _) => {
                WireError::validation(NAMES[at], format!("`{}` must occur only once.", NAMES[at]))
            }
            (None, Err(()), _) => WireError::validation(
                NAMES[ID],
                "`id` must be a string of 1 to 64 bytes or an integer within ±(2^53−1).",
            ),
            (None, Ok(_), None) => {
                WireError::validation(NAMES[TYPE], "`type` must be there and be a string.")
            }
            (None, Ok(_), Some(name)) => match Kind::from_name(name) {
                Some(kind) => return Ok(Self::with(kind, id.unwrap_or_default(), &found)),
                None => {
                    let shown: String = name.chars().take(MAX_TYPE_BYTES).collect();
                    unknown_type(&shown)
                }
            },
        };
        let kind = name.filter(|name| name.len() <= MAX_TYPE_BYTES).map(ToOwned::to_owned);
        Err(EnvelopeError { error, id: id.unwrap_or_default(), kind })
    }

    fn with(kind: Kind, id: Option<RequestId>, found: &[Option<&'a str>; NAMES.len()]) -> Self {
        let present = |at: usize| found[at].filter(|raw| *raw != "null");
        let (payload, room_id) = (present(PAYLOAD), present(ROOM_ID));
        Self {
            kind,
            id,
            flat: payload.is_none() && room_id.is_some(),
            payload,
            room_id,
            token: present(TOKEN),
            from_seq: present(FROM_SEQ),
        }
    }

    /// How this message is admitted. A join or leave without `id` is still answered, and
    /// so counts as a request.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self.kind {
            Kind::LocationUpdate if self.id.is_none() => Class::Notification,
            Kind::LocationUpdate
            | Kind::LeaveRoom
            | Kind::Positions
            | Kind::History
            | Kind::TokenRefresh => Class::Rpc,
            Kind::BackfillBegin | Kind::BackfillChunk | Kind::BackfillEnd => Class::Upload,
            Kind::JoinRoom => Class::Subscription,
            Kind::Ping => Class::Control,
            Kind::Ack | Kind::Nack | Kind::Reconnect => Class::Legacy,
        }
    }

    /// The room that an error about this message names: the `roomId`, if it is the name of
    /// one room. Reads the payload, so it is for refusals only.
    #[must_use]
    pub fn room_hint(&self) -> Option<Cow<'a, str>> {
        let inside = self.payload.and_then(|payload| {
            fields::members(payload, "payload", &["roomId"]).ok().and_then(|[room]| room)
        });
        let room = fields::string(inside.or(self.room_id)?)?;
        RoomId::parse(&room).is_ok().then_some(room)
    }
}
