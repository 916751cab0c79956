//! The `location_update` event: written once per position, shared by every receiver.
//!
//! Its members, without `roomId`, are also what stands in the lists of `room_joined`,
//! `snapshot`, `positions` and `history`, so the text is written in that order.

use std::ops::Range;

use super::position::EVENT_OVERHEAD;
use super::write::{push_head, push_plain, push_string};
use crate::ids::{ClientId, RoomId, VehicleId};
use crate::time::UnixMillis;

/// An event and the part of it that serves as an item of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocationEvent {
    /// The whole message.
    pub text: String,
    /// Where in `text` the members without `roomId` stand; with braces around them they
    /// are an item of a `positions` list.
    pub item: Range<usize>,
}

impl LocationEvent {
    /// The members of the item, without braces.
    #[must_use]
    pub fn item(&self) -> &str {
        self.text.get(self.item.clone()).unwrap_or_default()
    }
}

/// Writes the event of an accepted position. `timestamp` is that of the fix, or
/// `received_at` where the sender gave none.
#[must_use]
pub fn location_update(
    room: &RoomId,
    seq: u64,
    client: &ClientId,
    vehicle: &VehicleId,
    body: &str,
    timestamp: UnixMillis,
    received_at: UnixMillis,
) -> LocationEvent {
    let mut text = String::with_capacity(
        body.len() + room.as_str().len() + client.as_str().len() + vehicle.as_str().len() + 256,
    );
    push_head(&mut text, "location_update", None);
    text.push_str(",\"payload\":{\"roomId\":");
    push_string(&mut text, room.as_str());
    text.push(',');
    let start = text.len();
    push_item(&mut text, seq, client, vehicle, body, timestamp, received_at);
    let item = start..text.len();
    text.push_str("}}");
    debug_assert!(text.len() <= body.len() + EVENT_OVERHEAD);
    LocationEvent { text, item }
}

/// The members of one item of a `positions` list, without braces.
#[must_use]
pub fn item(
    seq: u64,
    client: &ClientId,
    vehicle: &VehicleId,
    body: &str,
    timestamp: UnixMillis,
    received_at: UnixMillis,
) -> String {
    let mut text = String::with_capacity(body.len() + 256);
    push_item(&mut text, seq, client, vehicle, body, timestamp, received_at);
    text
}

fn push_item(
    out: &mut String,
    seq: u64,
    client: &ClientId,
    vehicle: &VehicleId,
    body: &str,
    timestamp: UnixMillis,
    received_at: UnixMillis,
) {
    out.push_str("\"seq\":");
    push_plain(out, seq);
    out.push_str(",\"clientId\":");
    push_string(out, client.as_str());
    out.push_str(",\"vehicleId\":");
    push_string(out, vehicle.as_str());
    out.push(',');
    out.push_str(body);
    out.push_str(",\"timestamp\":\"");
    push_plain(out, timestamp);
    out.push_str("\",\"receivedAt\":\"");
    push_plain(out, received_at);
    out.push('"');
}
