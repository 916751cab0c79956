//! Handlers for the past: `history` and uploads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::handlers::Outcome;
use super::session::{MAX_IN_FLIGHT, Session};
use super::upload::{IDLE, Upload};
use crate::admission::Admitted;
use crate::ids::{RoomId, VehicleId};
use crate::protocol::client::ChunkPosition;
use crate::protocol::envelope::Envelope;
use crate::protocol::error::{HandlerError, WireError};
use crate::protocol::{Kind, PageBuilder, Push, RequestId, event};
use crate::room_log::{Append, HistoryError, HistoryQuery, MAX_ROOMS, Receipt, RoomLog};
use crate::time::UnixMillis;

/// One history query counts like this many positions on their way: four at once fill up
/// what a connection may have in flight.
const HISTORY_WEIGHT: usize = MAX_IN_FLIGHT / 4;
/// What of a history frame is kept for its envelope and for names that need escapes.
const HISTORY_RESERVE: usize = 4 * 1024;
/// Refused uploads whose further frames are swallowed (plane.md, "Admission" 2).
const MAX_TOMBSTONES: usize = 200;

impl Session {
    pub(super) fn history(&mut self, envelope: &Envelope<'_>, admitted: Admitted) -> Outcome {
        let asked = match envelope.history() {
            Ok(asked) => asked,
            Err(error) => return Err((error, Some(admitted))),
        };
        let room = asked.room;
        if !self.rooms.contains_key(&room) {
            return Err((HandlerError::not_joined(room.as_str()), Some(admitted)));
        }
        if !self.identity.access.may_history(room.as_str()) {
            let text = "The token does not allow the history of this room.";
            return Err((HandlerError::forbidden(text), Some(admitted)));
        }
        let max_frame_out = self.services.settings.max_frame_out;
        let query = HistoryQuery {
            room,
            vehicle: asked.vehicle,
            from: asked.from,
            to: asked.to,
            limit: asked.limit,
            max_bytes: max_frame_out.saturating_sub(HISTORY_RESERVE),
            cursor: asked.cursor.map(Into::into),
        };
        let Some(log) = self.services.log.get().cloned() else {
            return Err((HandlerError::internal(), Some(admitted)));
        };
        let reading = Reading::begin(&self.in_flight);
        tokio::spawn(answer_history(log, query, admitted.keep(), max_frame_out, reading));
        Ok(())
    }

    /// Handles a frame of an upload that is open or was refused; `false` if there is none
    /// with its id.
    pub(super) fn upload_frame(&mut self, envelope: &Envelope<'_>) -> bool {
        let Some(id) = &envelope.id else { return false };
        if self.tombstones.contains(id) {
            if envelope.kind == Kind::BackfillEnd {
                self.tombstones.retain(|refused| refused != id);
            }
            return true;
        }
        let Some(mut upload) = self.upload.take_if(|upload| upload.id == *id) else { return false };
        match envelope.kind {
            Kind::BackfillEnd => upload.end(None),
            _ => {
                upload.last_frame = tokio::time::Instant::now();
                match self.chunk(&mut upload, envelope) {
                    Ok(()) => self.upload = Some(upload),
                    Err(error) => {
                        self.bury(upload.id.clone());
                        if let Some(admitted) = upload.abandon() {
                            admitted.of(envelope.kind).fail(error, None);
                        }
                    }
                }
            }
        }
        true
    }

    /// From now on further frames of the refused upload `id` are swallowed.
    pub(super) fn bury(&mut self, id: RequestId) {
        if self.tombstones.len() >= MAX_TOMBSTONES {
            self.tombstones.pop_front();
        }
        self.tombstones.push_back(id);
    }

    pub(super) fn begin_upload(&mut self, envelope: &Envelope<'_>, admitted: Admitted) -> Outcome {
        let refuse = |error, admitted| Err((error, Some(admitted)));
        let Some(id) = envelope.id.clone() else {
            let text = "An upload needs an `id`.";
            return refuse(HandlerError::validation("id", text), admitted);
        };
        if self.upload.is_some() {
            let text = "This connection has an upload open; end it first.";
            return refuse(HandlerError::validation("id", text), admitted);
        }
        let (rooms, vehicle) = match self.may_upload(envelope) {
            Ok(allowed) => allowed,
            Err(error) => return refuse(error, admitted),
        };
        let Some(log) = self.services.log.get().cloned() else {
            return refuse(HandlerError::internal(), admitted);
        };
        self.upload = Some(Upload::new(
            id,
            rooms,
            vehicle,
            admitted.keep(),
            self.queue().clone(),
            log,
            self.services.settings.max_frame_out,
        ));
        // The task plans its next tick anew: silence has to be noticed.
        self.handle.order(super::handle::Order::Tick);
        Ok(())
    }

    fn may_upload(
        &self,
        envelope: &Envelope<'_>,
    ) -> Result<(Vec<RoomId>, VehicleId), HandlerError> {
        let asked = envelope.backfill_begin()?;
        let vehicle = self.vehicle(asked.vehicle.as_ref())?;
        let rooms = self.publishing_rooms(asked.room.as_ref().map(std::slice::from_ref))?;
        Ok((rooms, vehicle))
    }

    fn chunk(&self, upload: &mut Upload, envelope: &Envelope<'_>) -> Result<(), HandlerError> {
        let now = UnixMillis::now();
        let positions = envelope.backfill_chunk(&self.services.settings.position, now)?;
        let mut taken = Vec::with_capacity(positions.len());
        for position in positions {
            let index = upload.next_index();
            match position.and_then(|position| self.vehicle_of(upload, position)) {
                Ok(position) => taken.push(position),
                Err(error) => upload.reject(index, WireError::from(error).message().to_owned()),
            }
        }
        let Some(log) = self.services.log.get() else { return Err(HandlerError::internal()) };
        let chunk = upload.chunk(taken.len());
        self.in_flight.fetch_add(taken.len(), Ordering::AcqRel);
        for (vehicle, sent) in taken {
            let (chunk, in_flight) = (chunk.clone(), self.in_flight.clone());
            let queue = self.queue().clone();
            let fix = sent.position.timestamp.unwrap_or(now);
            let of = vehicle.clone();
            log.append(Append {
                rooms: upload.rooms.clone(),
                vehicle,
                client: self.identity.client_id.clone(),
                sender: self.handle.conn,
                key: sent.key.map(|key| key.as_str().into()),
                fix: sent.position.timestamp,
                latitude: sent.position.latitude,
                longitude: sent.position.longitude,
                body: sent.position.body,
                received_at: now,
                quiet: true,
                reply: Some(Box::new(move |receipt: Receipt| {
                    chunk.committed(fix, &of, &receipt);
                    if in_flight.fetch_sub(1, Ordering::AcqRel) >= MAX_IN_FLIGHT {
                        queue.wake();
                    }
                })),
            });
        }
        Ok(())
    }

    fn vehicle_of(
        &self,
        upload: &Upload,
        sent: ChunkPosition,
    ) -> Result<(VehicleId, ChunkPosition), HandlerError> {
        match &sent.vehicle {
            None => Ok((upload.vehicle.clone(), sent)),
            Some(vehicle) => Ok((self.vehicle(Some(vehicle))?, sent)),
        }
    }

    /// Ends an upload that has been silent for too long; returns when to look again.
    pub(super) fn check_upload(&mut self) -> Option<Duration> {
        let idle = self.services.settings.upload_idle;
        let silent = self.upload.as_ref()?.last_frame.elapsed();
        if silent < idle {
            return Some(idle - silent);
        }
        if let Some(upload) = self.upload.take() {
            self.bury(upload.id.clone());
            upload.end(Some(IDLE));
        }
        None
    }

    /// The rooms that a position goes to: those named, or all joined for publishing.
    pub(super) fn publishing_rooms(
        &self,
        named: Option<&[RoomId]>,
    ) -> Result<Vec<RoomId>, HandlerError> {
        let rooms = match named {
            Some(rooms) => {
                for room in rooms {
                    match self.rooms.get(room) {
                        Some(member) if member.mode.publishes() => {}
                        // Joined, but not for publishing, is not joined for this.
                        _ => return Err(HandlerError::not_joined(room.as_str())),
                    }
                }
                rooms.to_vec()
            }
            None => self
                .rooms
                .iter()
                .filter(|(_, member)| member.mode.publishes())
                .map(|(room, _)| room.clone())
                .collect(),
        };
        if rooms.is_empty() {
            return Err(HandlerError::not_joined_any());
        }
        if rooms.len() > MAX_ROOMS {
            let text = format!("Name at most {MAX_ROOMS} rooms: this connection is in more.");
            return Err(HandlerError::validation("roomId", text));
        }
        Ok(rooms)
    }

    /// The vehicle that a position is for: the one named if the token allows it, or the
    /// client itself.
    pub(super) fn vehicle(&self, named: Option<&VehicleId>) -> Result<VehicleId, HandlerError> {
        let own = &self.identity.client_id;
        match named {
            None => Ok(VehicleId::from(own)),
            Some(vehicle) if self.identity.access.may_publish_for(own, vehicle.as_str()) => {
                Ok(vehicle.clone())
            }
            Some(vehicle) => {
                let name = vehicle.as_str();
                let text = format!("The token does not allow publishing for vehicle {name:?}.");
                Err(HandlerError::forbidden(text))
            }
        }
    }
}

/// A history query that is being read; it counts towards what is in flight.
struct Reading(Arc<AtomicUsize>);

impl Reading {
    fn begin(in_flight: &Arc<AtomicUsize>) -> Self {
        in_flight.fetch_add(HISTORY_WEIGHT, Ordering::AcqRel);
        Self(in_flight.clone())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.fetch_sub(HISTORY_WEIGHT, Ordering::AcqRel);
    }
}

async fn answer_history(
    log: Arc<dyn RoomLog>,
    mut query: HistoryQuery,
    admitted: Admitted,
    limit: usize,
    reading: Reading,
) {
    loop {
        let page = match log.history(query.clone()).await {
            Ok(page) => page,
            Err(HistoryError::BadCursor) => {
                let text = "`cursor` must be that of the page before.";
                return admitted.fail(HandlerError::validation("cursor", text), None);
            }
            Err(HistoryError::Store(failure)) => {
                let error = failure.to_string();
                tracing::error!(event = "history.failed", error, "history cannot be read");
                return admitted.fail(HandlerError::internal(), None);
            }
        };
        let mut frame = PageBuilder::history(admitted.id(), limit);
        let fits = page.events.iter().take_while(|stored| {
            let item = event::item(
                stored.seq,
                &stored.client,
                &stored.vehicle,
                &stored.body,
                stored.fix,
                stored.received_at,
            );
            frame.push_item(&item) != Push::Full
        });
        let fits = fits.count();
        if fits < page.events.len() {
            // Names full of escapes: take a shorter page, whose cursor is the right one.
            query.limit = fits.max(1);
            continue;
        }
        drop(reading);
        return admitted.answer(&frame.finish_cursor(page.cursor.as_deref()));
    }
}
