//! What clients ask for: the payloads of [`Envelope`], decoded after admission.
//!
//! Each method judges its fields with their names; none of them knows what the token
//! allows or which rooms are joined.

use serde_json::value::RawValue;

use super::envelope::Envelope;
use super::error::HandlerError;
use super::fields;
use super::position::{self, Key, Position, PositionRules};
use crate::ids::{RoomId, VehicleId};
use crate::time::UnixMillis;

/// The most rooms that one position names.
pub const MAX_ROOMS: usize = 16;
/// The most positions in one `backfill_chunk`.
pub const MAX_CHUNK: usize = 500;
/// The positions on a page of `history` where `limit` is absent.
pub const DEFAULT_HISTORY: usize = 500;
/// The largest `limit` of `history`.
pub const MAX_HISTORY: usize = 10_000;
/// The longest `epoch`, in bytes.
pub const MAX_EPOCH_BYTES: usize = 64;
/// The longest `cursor` of `history`, in bytes.
pub const MAX_CURSOR_BYTES: usize = 256;

/// What a connection does in a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Publishes and receives.
    #[default]
    Both,
    /// Receives only.
    Subscribe,
    /// Publishes only.
    Publish,
}

impl Mode {
    /// The word on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Subscribe => "subscribe",
            Self::Publish => "publish",
        }
    }

    /// Reads the word on the wire.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Both, Self::Subscribe, Self::Publish].into_iter().find(|mode| mode.name() == name)
    }

    /// Whether the room's events are received.
    #[must_use]
    pub const fn subscribes(self) -> bool {
        matches!(self, Self::Both | Self::Subscribe)
    }

    /// Whether positions may be published.
    #[must_use]
    pub const fn publishes(self) -> bool {
        matches!(self, Self::Both | Self::Publish)
    }
}

/// Where a subscriber stood in a room's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Since {
    /// The log's epoch, opaque, at most 64 bytes.
    pub epoch: String,
    /// The last sequence number received.
    pub seq: u64,
}

/// `join_room`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRoom {
    /// The room.
    pub room: RoomId,
    /// What for.
    pub mode: Mode,
    /// Where to resume.
    pub since: Option<Since>,
    /// The old gateway's form, answered in kind.
    pub flat: bool,
}

/// `history`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The room.
    pub room: RoomId,
    /// One vehicle, or all.
    pub vehicle: Option<VehicleId>,
    /// The earliest time of a fix.
    pub from: Option<UnixMillis>,
    /// The latest time of a fix.
    pub to: Option<UnixMillis>,
    /// The most positions on the page, 1 to 10,000.
    pub limit: usize,
    /// Where the page before ended, opaque here, at most 256 bytes.
    pub cursor: Option<String>,
}

/// `location_update`
#[derive(Debug, Clone, PartialEq)]
pub struct LocationUpdate {
    /// The rooms named, without duplicates; `None` is every room joined for publishing.
    pub rooms: Option<Vec<RoomId>>,
    /// The vehicle named; `None` is the client itself.
    pub vehicle: Option<VehicleId>,
    /// The idempotency key.
    pub key: Option<Key>,
    /// The position.
    pub position: Position,
}

/// `backfill_begin`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackfillBegin {
    /// The room; `None` is every room joined for publishing.
    pub room: Option<RoomId>,
    /// The vehicle of positions that name none.
    pub vehicle: Option<VehicleId>,
}

/// One position of a `backfill_chunk`.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkPosition {
    /// The vehicle named.
    pub vehicle: Option<VehicleId>,
    /// The idempotency key.
    pub key: Option<Key>,
    /// The position.
    pub position: Position,
}

/// `reconnect` of the old gateway's clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconnect {
    /// The room, if a valid one was named.
    pub room_id: Option<String>,
    /// The sequence number that was asked for, 0 if none.
    pub from_seq: u64,
}

fn wrong_room() -> HandlerError {
    HandlerError::validation("roomId", format!("`roomId` must be {}.", crate::ids::BadName))
}

fn room(raw: &str) -> Result<RoomId, HandlerError> {
    fields::string(raw).and_then(|text| RoomId::parse(&text).ok()).ok_or_else(wrong_room)
}

fn present(raw: Option<&str>) -> Option<&str> {
    raw.filter(|raw| *raw != "null")
}

fn since(raw: &str) -> Result<Since, HandlerError> {
    let [epoch, seq] =
        fields::members(raw, "since", &["epoch", "seq"]).map_err(|error| {
            match error.wire().field() {
                Some("since") => error,
                _ => error.inside("since"),
            }
        })?;
    let epoch = epoch
        .and_then(fields::string)
        .filter(|epoch| epoch.len() <= MAX_EPOCH_BYTES)
        .ok_or_else(|| {
            HandlerError::validation(
                "since.epoch",
                "`since.epoch` must be a string of at most 64 bytes.",
            )
        })?;
    let seq =
        seq.and_then(fields::integer).and_then(|seq| u64::try_from(seq).ok()).ok_or_else(|| {
            HandlerError::validation("since.seq", "`since.seq` must be an integer, 0 or more.")
        })?;
    Ok(Since { epoch: epoch.into_owned(), seq })
}

impl<'a> Envelope<'a> {
    fn payload_text(&self) -> &'a str {
        self.payload.unwrap_or("{}")
    }

    fn room_of(&self, inside: Option<&str>) -> Result<RoomId, HandlerError> {
        room(present(inside).or(self.room_id).ok_or_else(wrong_room)?)
    }

    fn members<const N: usize>(
        &self,
        names: &[&'static str; N],
    ) -> Result<[Option<&'a str>; N], HandlerError> {
        fields::members(self.payload_text(), "payload", names)
    }

    /// Decodes `join_room`.
    ///
    /// # Errors
    /// `VALIDATION_ERROR` with the field.
    pub fn join_room(&self) -> Result<JoinRoom, HandlerError> {
        let [room, mode, resume] = self.members(&["roomId", "mode", "since"])?;
        let room = self.room_of(room)?;
        let mode = match present(mode) {
            None => Mode::default(),
            Some(raw) => {
                fields::string(raw).and_then(|name| Mode::from_name(&name)).ok_or_else(|| {
                    HandlerError::validation(
                        "mode",
                        "`mode` must be `both`, `subscribe` or `publish`.",
                    )
                })?
            }
        };
        let since = present(resume).map(since).transpose()?;
        Ok(JoinRoom { room, mode, since, flat: self.flat })
    }

    /// Decodes `leave_room`.
    ///
    /// # Errors
    /// `VALIDATION_ERROR` with the field.
    pub fn leave_room(&self) -> Result<RoomId, HandlerError> {
        let [room] = self.members(&["roomId"])?;
        self.room_of(room)
    }

    /// Decodes `positions`.
    ///
    /// # Errors
    /// `VALIDATION_ERROR` with the field.
    pub fn positions(&self) -> Result<RoomId, HandlerError> {
        self.leave_room()
    }

    /// Decodes `history`.
    ///
    /// # Errors
    /// `VALIDATION_ERROR` with the field.
    pub fn history(&self) -> Result<History, HandlerError> {
        let [room, vehicle, from, to, limit, cursor] =
            self.members(&["roomId", "vehicleId", "from", "to", "limit", "cursor"])?;
        let time = |name: &str, raw: Option<&str>| match present(raw) {
            None => Ok(None),
            Some(raw) => position::time(raw).map(Some).ok_or_else(|| position::wrong_time(name)),
        };
        let limit = match present(limit) {
            None => DEFAULT_HISTORY,
            Some(raw) => fields::integer(raw)
                .and_then(|limit| usize::try_from(limit).ok())
                .filter(|limit| (1..=MAX_HISTORY).contains(limit))
                .ok_or_else(|| {
                    HandlerError::validation(
                        "limit",
                        format!("`limit` must be an integer from 1 to {MAX_HISTORY}."),
                    )
                })?,
        };
        let cursor = present(cursor)
            .map(|raw| {
                fields::string(raw)
                    .filter(|cursor| cursor.len() <= MAX_CURSOR_BYTES)
                    .map(std::borrow::Cow::into_owned)
                    .ok_or_else(|| {
                        HandlerError::validation(
                            "cursor",
                            "`cursor` must be the one of an earlier `history` answer.",
                        )
                    })
            })
            .transpose()?;
        Ok(History {
            room: self.room_of(room)?,
            vehicle: present(vehicle).map(position::vehicle).transpose()?,
            from: time("from", from)?,
            to: time("to", to)?,
            limit,
            cursor,
        })
    }

    /// Decodes `token_refresh`: the token, unchecked.
    ///
    /// # Errors
    /// `VALIDATION_ERROR` with the field.
    pub fn token_refresh(&self) -> Result<String, HandlerError> {
        let [token] = self.members(&["token"])?;
        present(token)
            .or(self.token)
            .and_then(fields::string)
            .filter(|token| !token.is_empty())
            .map(std::borrow::Cow::into_owned)
            .ok_or_else(|| {
                HandlerError::validation("token", "`token` must be a string that is not empty.")
            })
    }

    /// Decodes `location_update`; `now` is the server's clock.
    ///
    /// # Errors
    /// `VALIDATION_ERROR` with the field, or `MESSAGE_TOO_LARGE`.
    pub fn location_update(
        &self,
        rules: &PositionRules,
        now: UnixMillis,
    ) -> Result<LocationUpdate, HandlerError> {
        let sent = position::read(self.payload_text(), rules, now)?;
        let rooms = sent.room_id.map(rooms).transpose()?;
        Ok(LocationUpdate { rooms, vehicle: sent.vehicle, key: sent.key, position: sent.position })
    }

    /// Decodes `backfill_begin`.
    ///
    /// # Errors
    /// `VALIDATION_ERROR` with the field.
    pub fn backfill_begin(&self) -> Result<BackfillBegin, HandlerError> {
        let [in_room, vehicle] = self.members(&["roomId", "vehicleId"])?;
        Ok(BackfillBegin {
            room: present(in_room).map(room).transpose()?,
            vehicle: present(vehicle).map(position::vehicle).transpose()?,
        })
    }

    /// Decodes `backfill_chunk`: every position judged by itself, in order; an error's
    /// field counts within this chunk. `now` is the server's clock.
    ///
    /// # Errors
    /// `VALIDATION_ERROR` if `positions` is no array of at most 500.
    pub fn backfill_chunk(
        &self,
        rules: &PositionRules,
        now: UnixMillis,
    ) -> Result<Vec<Result<ChunkPosition, HandlerError>>, HandlerError> {
        let [positions] = self.members(&["positions"])?;
        let items = positions
            .and_then(|raw| serde_json::from_str::<Vec<&'a RawValue>>(raw).ok())
            .filter(|items| items.len() <= MAX_CHUNK)
            .ok_or_else(|| {
                HandlerError::validation(
                    "positions",
                    format!("`positions` must be an array of at most {MAX_CHUNK} positions."),
                )
            })?;
        let judge = |(index, item): (usize, &&'a RawValue)| {
            position::read(item.get(), rules, now)
                .map(|sent| ChunkPosition {
                    vehicle: sent.vehicle,
                    key: sent.key,
                    position: sent.position,
                })
                .map_err(|error| error.in_item(index))
        };
        Ok(items.iter().enumerate().map(judge).collect())
    }

    /// Decodes the old gateway's `reconnect`, which has its fields at the top level. It is
    /// only ever answered with a gap, so what is wrong in it is left out.
    #[must_use]
    pub fn reconnect(&self) -> Reconnect {
        let from_seq = self.from_seq.and_then(fields::integer);
        Reconnect {
            room_id: self.room_hint().map(std::borrow::Cow::into_owned),
            from_seq: from_seq.and_then(|seq| u64::try_from(seq).ok()).unwrap_or(0),
        }
    }
}

/// One room or several, without duplicates, in their order.
fn rooms(raw: &str) -> Result<Vec<RoomId>, HandlerError> {
    if !raw.starts_with('[') {
        return Ok(vec![room(raw)?]);
    }
    let wrong = || {
        HandlerError::validation(
            "roomId",
            format!("`roomId` must be one room or an array of 1 to {MAX_ROOMS}."),
        )
    };
    let items: Vec<&RawValue> = serde_json::from_str(raw).map_err(|_| wrong())?;
    if items.is_empty() || items.len() > MAX_ROOMS {
        return Err(wrong());
    }
    let mut rooms = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let room = room(item.get()).map_err(|_| {
            HandlerError::validation(
                format!("roomId[{index}]"),
                format!("`roomId[{index}]` must be {}.", crate::ids::BadName),
            )
        })?;
        if !rooms.contains(&room) {
            rooms.push(room);
        }
    }
    Ok(rooms)
}
