//! Events as frames: written once, here, for everybody who gets them.

use crate::ids::{ClientId, ConnId, RoomId, VehicleId};
use crate::outgoing::PositionEvent;
use crate::protocol::{event, frame};
use crate::room_log::StoredPosition;
use crate::time::UnixMillis;

/// A position that is to be encoded.
pub(super) struct Fix<'a> {
    pub(super) client: &'a ClientId,
    pub(super) vehicle: &'a VehicleId,
    pub(super) body: &'a str,
    pub(super) fix: UnixMillis,
    pub(super) received_at: UnixMillis,
    pub(super) sender: Option<ConnId>,
}

pub(super) fn encode(room: &RoomId, seq: u64, fix: &Fix<'_>) -> PositionEvent {
    let event = event::location_update(
        room,
        seq,
        fix.client,
        fix.vehicle,
        fix.body,
        fix.fix,
        fix.received_at,
    );
    let header = frame::header_len(event.text.len());
    PositionEvent {
        vehicle: fix.vehicle.clone(),
        seq,
        fix: fix.fix,
        item: event.item.start + header..event.item.end + header,
        frame: frame::text_frame(&event.text),
        sender: fix.sender,
    }
}

pub(super) fn encode_stored(room: &RoomId, stored: &StoredPosition) -> PositionEvent {
    encode(
        room,
        stored.seq,
        &Fix {
            client: &stored.client,
            vehicle: &stored.vehicle,
            body: &stored.body,
            fix: stored.fix,
            received_at: stored.received_at,
            sender: None,
        },
    )
}
