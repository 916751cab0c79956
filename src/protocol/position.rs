//! A position as a sender wrote it: judged once, carried on as the bytes that came.
//!
//! The known fields are read for their limits only; what goes on to the receivers is the
//! text of the members (performance.md, item 6), without those that the server writes
//! itself. Newest, late and duplicate are not decided here: the room log does.

use std::borrow::{Borrow, Cow};
use std::sync::Arc;
use std::time::Duration;

use super::error::HandlerError;
use super::fields::{self, BadValue, Member};
use crate::ids::VehicleId;
use crate::time::UnixMillis;

/// The longest idempotency key, in bytes.
pub const MAX_KEY_BYTES: usize = 64;

/// What to do with the fields of a position that the protocol does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtraFields {
    /// They are carried through.
    Pass,
    /// They are left out, for privacy.
    Drop,
}

/// What a position may be, from the configuration's `limits`.
#[derive(Debug, Clone)]
pub struct PositionRules {
    /// The largest payload, in bytes as written.
    pub max_position: usize,
    /// How far ahead of the server's clock a fix may be.
    pub max_future_skew: Duration,
    /// Whether exactly 0, 0 is a place.
    pub accept_null_island: bool,
    /// Unknown fields.
    pub extra_fields: ExtraFields,
}

/// An idempotency key: 1 to 64 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// Checks and takes a key; `None` if it is empty or longer than 64 bytes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        (1..=MAX_KEY_BYTES).contains(&text.len()).then(|| Self(text.into()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A position that keeps the rules.
#[derive(Debug, Clone, PartialEq)]
pub struct Position {
    /// Degrees, WGS 84, −90 to 90.
    pub latitude: f64,
    /// Degrees, WGS 84, −180 to 180.
    pub longitude: f64,
    /// The time of the fix, if the sender gave one.
    pub timestamp: Option<UnixMillis>,
    /// The members as the sender wrote them, without braces, `timestamp`, `vehicleId` and
    /// the names that are the server's. Never empty, never longer than the payload.
    pub body: Box<str>,
}

/// A position and what stood beside it in its payload, not yet judged.
pub(super) struct Sent<'a> {
    pub(super) position: Position,
    pub(super) room_id: Option<&'a str>,
    pub(super) vehicle: Option<VehicleId>,
    pub(super) key: Option<Key>,
}

const ROOM_ID: usize = 0;
const VEHICLE_ID: usize = 1;
const KEY: usize = 2;
const TIMESTAMP: usize = 3;
const LATITUDE: usize = 4;
const LONGITUDE: usize = 5;
/// Known names: first those that are read and not carried, then the numbers.
const KNOWN: [&str; 11] = [
    "roomId",
    "vehicleId",
    "key",
    "timestamp",
    "latitude",
    "longitude",
    "altitude",
    "accuracy",
    "altitudeAccuracy",
    "speed",
    "heading",
];
/// Names that the server writes; a sender's are left out.
const SERVERS: [&str; 7] = ["type", "id", "clientId", "seq", "epoch", "receivedAt", "late"];

/// The largest part of an event that is not the position's body, in bytes: three names of
/// 128 characters, two times, one number and the keys.
pub const EVENT_OVERHEAD: usize = 2048;

/// Reads and judges the payload of a position; `now` is the server's clock.
pub(super) fn read<'a>(
    raw: &'a str,
    rules: &PositionRules,
    now: UnixMillis,
) -> Result<Sent<'a>, HandlerError> {
    if raw.len() > rules.max_position {
        return Err(HandlerError::message_too_large("The position", raw.len(), rules.max_position));
    }
    let mut reader = Reader {
        rules,
        known: [None; KNOWN.len()],
        others: Vec::new(),
        body: String::with_capacity(raw.len()),
        error: None,
    };
    let read = fields::each_member(raw, |member| match reader.take(member) {
        Ok(()) => true,
        Err(error) => {
            reader.error = Some(error);
            false
        }
    });
    if let Some(error) = reader.error {
        return Err(error);
    }
    if read.is_err() {
        return Err(HandlerError::validation(
            "payload",
            "`payload` must be a JSON object whose names are valid Unicode.",
        ));
    }
    reader.finish(now)
}

struct Reader<'a, 'r> {
    rules: &'r PositionRules,
    known: [Option<&'a str>; KNOWN.len()],
    others: Vec<Cow<'a, str>>,
    body: String,
    error: Option<HandlerError>,
}

impl<'a> Reader<'a, '_> {
    fn take(&mut self, member: Member<'a>) -> Result<(), HandlerError> {
        if let Some(at) = KNOWN.iter().position(|name| *name == member.key) {
            if self.known[at].replace(member.value).is_some() {
                return Err(fields::occurs_twice(KNOWN[at]));
            }
            if at >= LATITUDE {
                number(at, member.value)?;
                self.carry(&member);
            }
            return Ok(());
        }
        if !SERVERS.contains(&&*member.key) {
            fields::check_value(member.value).map_err(|bad| {
                let name = shown(&member.key);
                let expected = match bad {
                    BadValue::TooDeep => {
                        format!("`{name}` must not nest deeper than {} levels.", fields::MAX_DEPTH)
                    }
                    BadValue::Unreadable => {
                        format!("`{name}` must hold finite numbers and valid Unicode only.")
                    }
                };
                HandlerError::validation(name, expected)
            })?;
            if self.rules.extra_fields == ExtraFields::Pass {
                self.carry(&member);
            }
        }
        self.others.push(member.key);
        Ok(())
    }

    fn carry(&mut self, member: &Member<'_>) {
        if !self.body.is_empty() {
            self.body.push(',');
        }
        self.body.push_str(member.raw_key);
        self.body.push(':');
        self.body.push_str(member.value);
    }

    fn finish(mut self, now: UnixMillis) -> Result<Sent<'a>, HandlerError> {
        // Sorting, not comparing each with each: a sender chooses how many there are.
        self.others.sort_unstable();
        if let Some(pair) = self.others.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(fields::occurs_twice(&shown(&pair[0])));
        }
        let degrees = |at: usize| match self.known[at] {
            Some(raw) => number(at, raw).map(Option::unwrap_or_default),
            None => Err(HandlerError::validation(
                KNOWN[at],
                format!("`{}` is missing: {}.", KNOWN[at], expected(at)),
            )),
        };
        let (latitude, longitude) = (degrees(LATITUDE)?, degrees(LONGITUDE)?);
        if latitude == 0.0 && longitude == 0.0 && !self.rules.accept_null_island {
            return Err(HandlerError::validation(
                KNOWN[LATITUDE],
                "`latitude` and `longitude` must not both be exactly 0: \
                 that is a receiver without a fix.",
            ));
        }
        let timestamp = match self.known[TIMESTAMP] {
            Some(raw) => Some(timestamp(raw, self.rules, now)?),
            None => None,
        };
        let present = |at: usize| self.known[at].filter(|raw| *raw != "null");
        let vehicle = present(VEHICLE_ID).map(vehicle).transpose()?;
        let key = present(KEY).map(key).transpose()?;
        Ok(Sent {
            position: Position { latitude, longitude, timestamp, body: self.body.into() },
            room_id: present(ROOM_ID),
            vehicle,
            key,
        })
    }
}

/// A key as an error repeats it: never longer than a name.
fn shown(key: &str) -> String {
    key.chars().take(64).collect()
}

const fn expected(at: usize) -> &'static str {
    match at {
        4 => "it must be a number of degrees from -90 to 90",
        5 => "it must be a number of degrees from -180 to 180",
        6 => "it must be a finite number of metres",
        7 | 8 => "it must be a finite number of metres, 0 or more",
        9 => "it must be null or a finite number of metres a second, 0 or more",
        _ => "it must be null or a number of degrees, 0 or more and less than 360",
    }
}

/// Reads the number of the known field `at`; `None` for an allowed `null`.
fn number(at: usize, raw: &str) -> Result<Option<f64>, HandlerError> {
    let name = KNOWN[at];
    if raw == "null" && matches!(name, "speed" | "heading") {
        return Ok(None);
    }
    // A raw value that begins like a number is a number of JSON's grammar, and Rust's
    // contains that; other words that Rust reads (`inf`) never get here.
    let number = raw
        .starts_with(|c: char| c == '-' || c.is_ascii_digit())
        .then(|| raw.parse::<f64>().ok())
        .flatten()
        .filter(|number| {
            number.is_finite()
                && match name {
                    "latitude" => (-90.0..=90.0).contains(number),
                    "longitude" => (-180.0..=180.0).contains(number),
                    "altitude" => true,
                    "heading" => (0.0..360.0).contains(number),
                    _ => *number >= 0.0,
                }
        });
    match number {
        Some(number) => Ok(Some(number)),
        None => {
            Err(HandlerError::validation(name, format!("`{name}` is wrong: {}.", expected(at))))
        }
    }
}

fn timestamp(
    raw: &str,
    rules: &PositionRules,
    now: UnixMillis,
) -> Result<UnixMillis, HandlerError> {
    let time = time(raw).ok_or_else(|| wrong_time(KNOWN[TIMESTAMP]))?;
    let ahead = u128::try_from(time.get().saturating_sub(now.get())).unwrap_or(0);
    if ahead > rules.max_future_skew.as_millis() {
        return Err(HandlerError::validation(
            KNOWN[TIMESTAMP],
            format!(
                "`timestamp` must be at most {} ms ahead of the server's clock; it is {ahead} ms \
                 ahead.",
                rules.max_future_skew.as_millis()
            ),
        ));
    }
    Ok(time)
}

/// A time of the wire: RFC 3339 with any offset, or epoch milliseconds.
pub(super) fn time(raw: &str) -> Option<UnixMillis> {
    match fields::string(raw) {
        Some(text) => UnixMillis::parse_rfc3339(&text),
        None => fields::integer(raw).and_then(UnixMillis::new),
    }
}

pub(super) fn wrong_time(name: &str) -> HandlerError {
    HandlerError::validation(
        name,
        format!("`{name}` must be an RFC 3339 time with an offset, or epoch milliseconds."),
    )
}

pub(super) fn vehicle(raw: &str) -> Result<VehicleId, HandlerError> {
    fields::string(raw).and_then(|text| VehicleId::parse(&text).ok()).ok_or_else(|| {
        HandlerError::validation(
            "vehicleId",
            format!("`vehicleId` must be {}.", crate::ids::BadName),
        )
    })
}

fn key(raw: &str) -> Result<Key, HandlerError> {
    fields::string(raw)
        .and_then(|text| Key::parse(&text))
        .ok_or_else(|| HandlerError::validation("key", "`key` must be a string of 1 to 64 bytes."))
}
