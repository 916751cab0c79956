//! An event as it stands in the stream: subject, headers and payload (README, "The log
//! in a stream").
//!
//! `STREAM.log.live.ROOM.VEHICLE` holds what was newest when it was stored, ascending by the
//! time of the fix; `STREAM.log.late.ROOM.VEHICLE` what was late or came with an upload. The
//! server copies every stored event to `STREAM.feed.…`, where the instances listen.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use async_nats::{HeaderMap, Message};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::broker::subject;
use crate::ids::{ClientId, RoomId, VehicleId};
use crate::room_log::{Append, StoredPosition};
use crate::time::UnixMillis;

/// The instance that published an event.
const BY: &str = "Milepost-By";

/// Which of a vehicle's two subjects an event stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Newest when it was stored.
    Live,
    /// Late, or from an upload.
    Late,
}

impl Kind {
    fn token(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Late => "late",
        }
    }
}

/// The subjects of one stream.
#[derive(Debug, Clone)]
pub(super) struct Subjects {
    stream: Arc<str>,
}

impl Subjects {
    pub(super) fn new(stream: &str) -> Self {
        Self { stream: stream.into() }
    }

    /// The stream's name.
    pub(super) fn stream(&self) -> &str {
        &self.stream
    }

    /// What the stream takes.
    pub(super) fn all(&self) -> [String; 1] {
        [format!("{}.log.*.*.*", self.stream)]
    }

    /// What is republished, and where to.
    pub(super) fn republish(&self) -> (String, String) {
        (format!("{}.log.>", self.stream), format!("{}.feed.>", self.stream))
    }

    /// Where one vehicle's events go.
    pub(super) fn of(&self, kind: Kind, room: &str, vehicle: &str) -> String {
        format!("{}.log.{}.{room}.{vehicle}", self.stream, kind.token())
    }

    /// All events of a room, as stored. The room is a token.
    pub(super) fn room(&self, room: &str) -> String {
        format!("{}.log.*.{room}.*", self.stream)
    }

    /// The live events of a room, as stored.
    pub(super) fn live(&self, room: &str) -> String {
        self.of(Kind::Live, room, "*")
    }

    /// All events of one vehicle, as stored.
    pub(super) fn vehicle(&self, room: &str, vehicle: &str) -> String {
        format!("{}.log.*.{room}.{vehicle}", self.stream)
    }

    /// All events of a room, as republished.
    pub(super) fn feed(&self, room: &str) -> String {
        format!("{}.feed.*.{room}.*", self.stream)
    }

    /// Kind, room's token and vehicle of a subject, stored or republished.
    fn parse(&self, subject: &str) -> Option<(Kind, VehicleId)> {
        let rest = subject.strip_prefix(&*self.stream)?.strip_prefix('.')?;
        let rest = rest.strip_prefix("feed.").or_else(|| rest.strip_prefix("log."))?;
        let mut tokens = rest.split('.');
        let kind = match tokens.next()? {
            "live" => Kind::Live,
            "late" => Kind::Late,
            _ => return None,
        };
        let _room = tokens.next()?;
        let vehicle = VehicleId::parse(&subject::decode(tokens.next()?)?).ok()?;
        tokens.next().is_none().then_some((kind, vehicle))
    }
}

/// What deduplicates an append in one room: the stream's `Nats-Msg-Id`.
pub(super) fn message_id(
    room: &RoomId,
    append: &Append,
    unique: impl FnOnce() -> String,
) -> String {
    let (room, vehicle) =
        (subject::encode(room.as_str()), subject::encode(append.vehicle.as_str()));
    match (&append.key, append.fix) {
        (Some(key), _) => format!("{room}.{vehicle}.key.{}", subject::encode(key)),
        // Adding 0.0 turns −0.0 into 0.0: the same place.
        (None, Some(fix)) => format!(
            "{room}.{vehicle}.fix.{},{},{}",
            fix.get(),
            append.latitude + 0.0,
            append.longitude + 0.0
        ),
        (None, None) => format!("{room}.{vehicle}.one.{}", unique()),
    }
}

/// Stands in the id of a position that has moved, before the `seq` that it had.
const RELEASE: &str = ".release.";

/// What deduplicates the move of an upload's position to the end of the log.
pub(super) fn release_id(room: &str, vehicle: &VehicleId, seq: u64) -> String {
    format!("{room}.{}{RELEASE}{seq}", subject::encode(vehicle.as_str()))
}

/// The headers of a publish: stored only if `after` is the last event on its subject.
pub(super) fn headers(id: &str, by: &str, after: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", id);
    headers.insert("Nats-Expected-Last-Subject-Sequence", after.to_string());
    headers.insert(BY, by);
    headers
}

/// The payload of an append.
pub(super) fn payload(append: &Append, quiet: bool) -> Bytes {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let mut out = String::with_capacity(append.body.len() + 200);
    let _ = write!(
        out,
        r#"{{"client":{},"fix":{},"timed":{},"receivedAt":{},"latitude":{},"longitude":{}"#,
        text(append.client.as_str()),
        append.fix_time().get(),
        append.fix.is_some(),
        append.received_at.get(),
        append.latitude,
        append.longitude,
    );
    if let Some(key) = &append.key {
        let _ = write!(out, r#","key":{}"#, text(key));
    }
    if quiet {
        out.push_str(r#","quiet":true"#);
    }
    let _ = write!(out, r#","position":{{{}}}}}"#, append.body);
    out.into()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Payload<'a> {
    #[serde(borrow)]
    client: Cow<'a, str>,
    fix: i64,
    timed: bool,
    received_at: i64,
    /// As text: the JSON reader may be off by the last bit, which would be another place.
    #[serde(borrow)]
    latitude: &'a RawValue,
    #[serde(borrow)]
    longitude: &'a RawValue,
    #[serde(borrow, default)]
    key: Option<Cow<'a, str>>,
    #[serde(default)]
    quiet: bool,
    #[serde(borrow)]
    position: &'a RawValue,
}

/// What an event says.
#[derive(Debug, Clone)]
pub(super) struct Fix {
    pub(super) client: ClientId,
    pub(super) fix: UnixMillis,
    pub(super) timed: bool,
    pub(super) received_at: UnixMillis,
    pub(super) latitude: f64,
    pub(super) longitude: f64,
    pub(super) key: Option<Box<str>>,
    pub(super) quiet: bool,
    pub(super) body: Box<str>,
}

impl Fix {
    /// `None`: milepost did not write it.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let read: Payload<'_> = serde_json::from_slice(payload).ok()?;
        let body = read.position.get().strip_prefix('{')?.strip_suffix('}')?;
        Some(Self {
            client: ClientId::parse(&read.client).ok()?,
            fix: UnixMillis::new(read.fix)?,
            timed: read.timed,
            received_at: UnixMillis::new(read.received_at)?,
            latitude: read.latitude.get().parse().ok()?,
            longitude: read.longitude.get().parse().ok()?,
            key: read.key.map(|key| key.as_ref().into()),
            quiet: read.quiet,
            body: body.into(),
        })
    }
}

/// An event out of the stream or its feed.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) kind: Kind,
    pub(super) vehicle: VehicleId,
    pub(super) seq: u64,
    /// The event before it on the same subject; 0: none, or not told.
    pub(super) after: u64,
    pub(super) id: Box<str>,
    /// The instance that published it.
    pub(super) by: Box<str>,
    /// When it was stored, milliseconds since 1970, if that is known.
    pub(super) stored_at: Option<i64>,
    /// `None`: written by something else.
    pub(super) fix: Option<Fix>,
}

/// An event that a consumer delivered.
pub(super) struct Delivered {
    pub(super) event: Option<Event>,
    pub(super) seq: u64,
}

impl Event {
    /// Reads a republished event.
    pub(super) fn of_feed(subjects: &Subjects, message: &Message) -> Option<Self> {
        let number = |name: &str| message.headers.as_ref()?.get(name)?.as_str().parse().ok();
        let seq = number("Nats-Sequence")?;
        let after = number("Nats-Last-Sequence").unwrap_or(0);
        Self::new(subjects, message, seq, after, None)
    }

    fn new(
        subjects: &Subjects,
        message: &Message,
        seq: u64,
        after: u64,
        stored_at: Option<i64>,
    ) -> Option<Self> {
        let (kind, vehicle) = subjects.parse(&message.subject)?;
        let header = |name: &str| -> Box<str> {
            let value = message.headers.as_ref().and_then(|headers| headers.get(name));
            value.map_or("", |value| value.as_str()).into()
        };
        Some(Self {
            kind,
            vehicle,
            seq,
            after,
            id: header("Nats-Msg-Id"),
            by: header(BY),
            stored_at,
            fix: Fix::parse(&message.payload),
        })
    }

    /// The `seq` of the upload's position that went live with this one.
    pub(super) fn moved_from(&self) -> Option<u64> {
        let (_, seq) = self.id.rsplit_once(RELEASE).filter(|_| self.kind == Kind::Live)?;
        seq.parse().ok()
    }

    /// The event as the trait's readers want it.
    pub(super) fn into_stored(self) -> Option<StoredPosition> {
        let fix = self.fix?;
        Some(StoredPosition {
            seq: self.seq,
            vehicle: self.vehicle,
            client: fix.client,
            fix: fix.fix,
            received_at: fix.received_at,
            body: fix.body,
            late: self.kind == Kind::Late,
        })
    }
}

impl Delivered {
    /// Reads what a consumer delivered; its reply subject says where it stands:
    /// `$JS.ACK.[DOMAIN.ACCOUNT.]STREAM.CONSUMER.n.SEQ.n.TIME.PENDING[.TOKEN]`.
    pub(super) fn parse(subjects: &Subjects, message: &Message) -> Option<Self> {
        let reply = message.reply.as_ref()?;
        let tokens: Vec<&str> = reply.split('.').collect();
        let from = if tokens.len() >= 11 { 2 } else { 0 };
        if tokens.first() != Some(&"$JS") {
            return None;
        }
        let number = |at: usize| tokens.get(from + at)?.parse::<u64>().ok();
        let (seq, time) = (number(5)?, number(7)?);
        let stored_at = i64::try_from(time / 1_000_000).ok();
        Some(Self { event: Event::new(subjects, message, seq, 0, stored_at), seq })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ConnId;
    use proptest::prelude::*;

    fn append(key: Option<&str>, latitude: f64, longitude: f64, fix: Option<i64>) -> Append {
        Append {
            rooms: vec![RoomId::parse("r").unwrap()],
            vehicle: VehicleId::parse("v.1 *").unwrap(),
            client: ClientId::parse("\"c\\ä").unwrap(),
            sender: ConnId(1),
            key: key.map(Into::into),
            fix: fix.and_then(UnixMillis::new),
            latitude,
            longitude,
            body: r#""latitude":1,"x":{"y":["}"]}"#.into(),
            received_at: UnixMillis::new(1_700_000_000_000).unwrap(),
            quiet: false,
            reply: None,
        }
    }

    proptest! {
        #[test]
        fn a_payload_is_read_back_to_the_last_bit(
            key in prop::option::of("\\PC{0,20}"),
            latitude in -90.0..=90.0_f64,
            longitude in -180.0..=180.0_f64,
            fix in prop::option::of(0_i64..2_000_000_000_000),
            quiet: bool,
        ) {
            let written = append(key.as_deref(), latitude, longitude, fix);
            let read = Fix::parse(&payload(&written, quiet)).unwrap();
            prop_assert_eq!(read.latitude.to_bits(), latitude.to_bits());
            prop_assert_eq!(read.longitude.to_bits(), longitude.to_bits());
            prop_assert_eq!(&read.key, &written.key);
            prop_assert_eq!(read.fix, written.fix_time());
            prop_assert_eq!((read.timed, read.quiet), (fix.is_some(), quiet));
            prop_assert_eq!((read.body, read.client), (written.body, written.client));
        }
    }

    #[test]
    fn ids_tell_positions_apart() {
        let room = RoomId::parse("a.b").unwrap();
        let id = |append: &Append| message_id(&room, append, || "7".to_owned());
        let zero = append(None, 0.0, 1.0, Some(5));
        assert_eq!(id(&zero), id(&append(None, -0.0, 1.0, Some(5))), "one place");
        assert_ne!(id(&zero), id(&append(None, 0.0, 1.0, Some(6))));
        assert_eq!(id(&append(Some("k"), 0.0, 1.0, Some(5))), "a=2eb.v=2e1=20=2a.key.k");
        assert_eq!(id(&append(None, 0.0, 1.0, None)), "a=2eb.v=2e1=20=2a.one.7");
    }

    #[test]
    fn foreign_payloads_are_none() {
        for text in ["", "1", "{}", r#"{"client":"c","fix":1,"position":3}"#] {
            assert!(Fix::parse(text.as_bytes()).is_none(), "{text}");
        }
    }
}
