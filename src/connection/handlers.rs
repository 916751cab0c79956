//! What each message does. Handlers are synchronous: they judge, change the session, and
//! hand work to the rooms or the log; answers come back through the outgoing queue.

use std::sync::atomic::Ordering;

use super::session::{Membership, Session};
use crate::admission::{Admitted, NotAdmitted};
use crate::ids::{RoomId, VehicleId};
use crate::outgoing::SnapshotWalk;
use crate::protocol::client::{LocationUpdate, Mode};
use crate::protocol::envelope::{Class, Envelope, EnvelopeError};
use crate::protocol::error::{ErrorCode, HandlerError, WireError};
use crate::protocol::{Kind, PageBuilder, server};
use crate::room_log::{Append, Receipt};
use crate::rooms::{Join, JoinProgress, JoinRefused, LeaveReason};
use crate::telemetry::metrics::{MessageResult, MessageType, RefusalCode};
use crate::time::UnixMillis;

impl Session {
    /// A notification that arrives after the shutdown's close frame went out; requests are
    /// ignored then, for the client knows that they never started.
    pub(super) fn receive_after_close(&mut self, text: &str) {
        self.messages_in += 1;
        if let Ok(envelope) = Envelope::parse(text)
            && envelope.class() == Class::Notification
        {
            if self.services.plane.is_open() {
                self.dispatch(&envelope, Rate::Due);
            } else {
                // Nobody waits for the plane to open any more.
                self.lost_notifications += 1;
            }
        }
    }

    pub(super) fn malformed(&mut self, error: &EnvelopeError) {
        let kind = error.kind.as_deref();
        self.count_refused(MessageType::of(kind.unwrap_or_default()), error.error.code());
        match self.limited(Rate::Due) {
            Ok(()) => self.complain_to(error.id.as_ref(), kind, &error.error),
            Err((limited, _)) => self.complain_to(error.id.as_ref(), kind, limited.wire()),
        }
    }

    pub(super) fn count(&self, kind: MessageType, result: MessageResult) {
        self.services.metrics.messages_in.get(kind, result).inc();
    }

    pub(super) fn count_refused(&self, kind: MessageType, code: ErrorCode) {
        self.count(kind, MessageResult::Refused);
        self.services.metrics.refusals.get(RefusalCode::of(code.name())).inc();
    }

    pub(super) fn dispatch(&mut self, envelope: &Envelope<'_>, rate: Rate) {
        let kind = MessageType::of(envelope.kind.name());
        match envelope.class() {
            Class::Control => {
                self.count(kind, MessageResult::Accepted);
                self.say(&server::pong(envelope.id.as_ref(), UnixMillis::now()));
            }
            Class::Legacy => self.legacy(envelope),
            Class::Notification => {
                let result = self.limited(rate).and_then(|()| self.publish(envelope, None));
                match result {
                    Ok(()) => self.count(kind, MessageResult::Accepted),
                    Err((error, _)) => {
                        self.count_refused(kind, error.code());
                        let error = match envelope.room_hint() {
                            Some(room) => WireError::from(error).with_room(room),
                            None => error.into(),
                        };
                        self.complain(Some(envelope.kind.name()), &error);
                    }
                }
            }
            Class::Rpc | Class::Upload | Class::Subscription => self.request(envelope, kind, rate),
        }
    }

    fn request(&mut self, envelope: &Envelope<'_>, kind: MessageType, rate: Rate) {
        let further = matches!(envelope.kind, Kind::BackfillChunk | Kind::BackfillEnd);
        if further && self.upload_frame(envelope) {
            self.count(kind, MessageResult::Accepted);
            return;
        }
        let admitted = match self.handle.requests.admit(envelope) {
            Ok(admitted) => admitted,
            Err(NotAdmitted::Draining) => {
                self.count_refused(kind, ErrorCode::ServerDraining);
                let room = envelope.room_hint();
                let id = envelope.id.as_ref();
                self.handle.requests.refuse(id, envelope.kind, room.as_deref());
                self.bury_upload(envelope);
                return;
            }
            Err(NotAdmitted::IdInUse) => return self.id_in_use(envelope),
        };
        let result = match self.limited(rate) {
            Err((error, _)) => Err((error, Some(admitted))),
            Ok(()) => self.run(envelope, admitted),
        };
        match result {
            Ok(()) => self.count(kind, MessageResult::Accepted),
            Err((error, admitted)) => {
                self.count_refused(kind, error.code());
                if let Some(admitted) = admitted {
                    admitted.fail(error, envelope.room_hint().as_deref());
                }
                self.bury_upload(envelope);
            }
        }
    }

    pub(super) fn id_in_use(&mut self, envelope: &Envelope<'_>) {
        self.count_refused(MessageType::of(envelope.kind.name()), ErrorCode::ValidationError);
        let error = WireError::validation(
            "id",
            "`id` must not be that of a request that is still unanswered.",
        );
        self.complain(Some(envelope.kind.name()), &error);
    }

    /// A refused upload was answered once; what its client sends after it is swallowed.
    pub(super) fn bury_upload(&mut self, envelope: &Envelope<'_>) {
        if envelope.class() == Class::Upload
            && envelope.kind != Kind::BackfillEnd
            && let Some(id) = &envelope.id
            && self.upload.as_ref().is_none_or(|upload| upload.id != *id)
        {
            self.bury(id.clone());
        }
    }

    pub(super) fn limited(&mut self, rate: Rate) -> Outcome {
        if rate == Rate::Spent {
            return Ok(());
        }
        self.spend_rate().map_err(|after| {
            let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1);
            let text = "This connection sends more messages than limits.message_rate allows.";
            (HandlerError::rate_limited(text, after_ms), None)
        })
    }

    fn run(&mut self, envelope: &Envelope<'_>, admitted: Admitted) -> Outcome {
        match envelope.kind {
            Kind::JoinRoom => self.join(envelope, admitted),
            Kind::LeaveRoom => self.leave(envelope, admitted),
            Kind::LocationUpdate => self.publish(envelope, Some(admitted)),
            Kind::Positions => self.positions(envelope, admitted),
            Kind::TokenRefresh => self.refresh(envelope, admitted),
            Kind::History => self.history(envelope, admitted),
            Kind::BackfillBegin => self.begin_upload(envelope, admitted),
            Kind::BackfillChunk | Kind::BackfillEnd => {
                let text = "`id` must be that of an open upload.";
                Err((HandlerError::validation("id", text), Some(admitted)))
            }
            other => Err((HandlerError::unknown_type(other.name()), Some(admitted))),
        }
    }

    fn legacy(&mut self, envelope: &Envelope<'_>) {
        let kind = envelope.kind;
        if kind == Kind::Reconnect {
            let asked = envelope.reconnect();
            let current = self.services.hub.head();
            let room = asked.room_id.as_deref();
            self.say(&server::replay_gap(envelope.id.as_ref(), room, asked.from_seq, current));
        } else if envelope.id.is_some() {
            // Only their form without an id is the old gateway's.
            let error = HandlerError::unknown_type(kind.name()).into();
            self.complain_to(envelope.id.as_ref(), Some(kind.name()), &error);
        }
        self.count(MessageType::of(kind.name()), MessageResult::Accepted);
    }

    fn join(&mut self, envelope: &Envelope<'_>, admitted: Admitted) -> Outcome {
        let asked = match envelope.join_room() {
            Ok(asked) => asked,
            Err(error) => return Err((error, Some(admitted))),
        };
        let room = asked.room;
        let may_subscribe = self.identity.access.may_subscribe(room.as_str());
        let may_publish = self.identity.access.may_publish(room.as_str());
        let granted = match asked.mode {
            Mode::Both if may_subscribe && may_publish => Mode::Both,
            Mode::Both | Mode::Subscribe if may_subscribe => Mode::Subscribe,
            Mode::Both | Mode::Publish if may_publish => Mode::Publish,
            _ => {
                let text = "The token does not allow this room in this mode.";
                return Err((HandlerError::forbidden(text), Some(admitted)));
            }
        };
        let limit = self.services.settings.rooms_per_connection;
        let again = self.rooms.contains_key(&room);
        if !again && limit > 0 && self.rooms.len() >= limit {
            let text = format!("A connection may be in at most {limit} rooms.");
            return Err((HandlerError::room_limit_exceeded(text), Some(admitted)));
        }
        if again {
            // The new join replaces the old one; presence does not notice.
            if let Some(active) = self.services.hub.get(&room) {
                active.feed().unsubscribe(self.handle.conn);
            }
        }
        let admitted = admitted.keep();
        let id = admitted.id().cloned();
        // Known before the hub can answer it from another thread.
        self.joining.lock().insert(room.clone(), admitted);
        let (joining, joined_room, queue) =
            (self.joining.clone(), room.clone(), self.queue().clone());
        let membership = Membership { mode: granted, flat: asked.flat };
        let join = Join {
            queue: self.queue().clone(),
            client: self.identity.client_id.clone(),
            hidden: self.identity.hidden,
            again,
            mode: granted,
            flat: asked.flat,
            since: asked.since,
            id,
            done: Box::new(move || {
                let admitted = joining.lock().remove(&joined_room);
                if let Some(admitted) = admitted {
                    admitted.answered_elsewhere();
                }
                queue.wake();
            }),
        };
        match self.services.hub.join(&room, join) {
            Ok(JoinProgress::Answered) => {
                self.rooms.insert(room, membership);
                Ok(())
            }
            Ok(JoinProgress::Waiting { load }) => {
                self.rooms.insert(room.clone(), membership);
                if let Some(log) = self.services.log.get().filter(|_| load) {
                    log.load_room(room);
                }
                Ok(())
            }
            Err(refused) => {
                let admitted = self.joining.lock().remove(&room);
                let error = match refused {
                    JoinRefused::RoomFull(limit) => HandlerError::room_full(room.as_str(), limit),
                    JoinRefused::TooManyRooms(limit) => HandlerError::room_limit_exceeded(format!(
                        "The server has its limit of {limit} rooms in use."
                    )),
                };
                Err((error, admitted))
            }
        }
    }

    fn leave(&mut self, envelope: &Envelope<'_>, admitted: Admitted) -> Outcome {
        let room = match envelope.leave_room() {
            Ok(room) => room,
            Err(error) => return Err((error, Some(admitted))),
        };
        if self.rooms.remove(&room).is_none() {
            return Err((HandlerError::not_joined(room.as_str()), Some(admitted)));
        }
        self.leave_now(&room, LeaveReason::Left);
        let text = server::room_left(admitted.id(), &room, None);
        admitted.answer(&text);
        Ok(())
    }

    fn leave_now(&self, room: &RoomId, reason: LeaveReason) {
        let identity = &self.identity;
        let hub = &self.services.hub;
        hub.leave(room, self.handle.conn, &identity.client_id, identity.hidden, reason);
    }

    fn publish(&mut self, envelope: &Envelope<'_>, admitted: Option<Admitted>) -> Outcome {
        let now = UnixMillis::now();
        let rules = &self.services.settings.position;
        let update = match envelope.location_update(rules, now) {
            Ok(update) => update,
            Err(error) => return Err((error, admitted)),
        };
        let (rooms, vehicle) = match self.may_publish(&update) {
            Ok(allowed) => allowed,
            Err(error) => return Err((error, admitted)),
        };
        let Some(log) = self.services.log.get() else {
            return Err((HandlerError::internal(), admitted));
        };
        let admitted = admitted.map(Admitted::keep);
        let in_flight = self.in_flight.clone();
        in_flight.fetch_add(1, Ordering::AcqRel);
        let queue = self.queue().clone();
        log.append(Append {
            rooms,
            vehicle,
            client: self.identity.client_id.clone(),
            sender: self.handle.conn,
            key: update.key.map(|key| key.as_str().into()),
            fix: update.position.timestamp,
            latitude: update.position.latitude,
            longitude: update.position.longitude,
            body: update.position.body,
            received_at: now,
            quiet: false,
            reply: Some(Box::new(move |receipt: Receipt| {
                let before = in_flight.fetch_sub(1, Ordering::AcqRel);
                if let Some(admitted) = admitted {
                    let text = ack(&admitted, &receipt);
                    admitted.answer(&text);
                } else if before >= super::session::MAX_IN_FLIGHT {
                    // The connection stopped reading because of this.
                    queue.wake();
                }
            })),
        });
        Ok(())
    }

    fn may_publish(
        &self,
        update: &LocationUpdate,
    ) -> Result<(Vec<RoomId>, VehicleId), HandlerError> {
        let vehicle = self.vehicle(update.vehicle.as_ref())?;
        Ok((self.publishing_rooms(update.rooms.as_deref())?, vehicle))
    }

    fn positions(&mut self, envelope: &Envelope<'_>, admitted: Admitted) -> Outcome {
        let room = match envelope.positions() {
            Ok(room) => room,
            Err(error) => return Err((error, Some(admitted))),
        };
        if !self.rooms.contains_key(&room) {
            return Err((HandlerError::not_joined(room.as_str()), Some(admitted)));
        }
        if !self.identity.access.may_subscribe(room.as_str()) {
            let text = "The token does not allow reading this room.";
            return Err((HandlerError::forbidden(text), Some(admitted)));
        }
        let hub = &self.services.hub;
        let Some(active) = hub.get(&room) else {
            return Err((HandlerError::not_joined(room.as_str()), Some(admitted)));
        };
        let oldest = hub.settings().oldest_fix(UnixMillis::now());
        let limit = hub.settings().max_frame_out;
        active.feed().with(|state| {
            let mut walk =
                SnapshotWalk::new(std::iter::empty().collect(), state.head().index, oldest);
            let (epoch, seq) = (hub.epoch(), state.last_seq());
            let mut page = PageBuilder::positions(admitted.id(), &room, &epoch, seq, limit);
            let finished = walk.fill(&mut page, state.newest());
            admitted.answer(&page.finish_more(!finished));
            if !finished {
                active.feed().show(state, self.queue(), walk);
            }
        });
        Ok(())
    }

    fn refresh(&mut self, envelope: &Envelope<'_>, admitted: Admitted) -> Outcome {
        let token = match envelope.token_refresh() {
            Ok(token) => token,
            Err(error) => return Err((error, Some(admitted))),
        };
        let identity = match self.services.auth.verify(Some(&token), UnixMillis::now()) {
            Ok(identity) if identity.client_id == self.identity.client_id => identity,
            Ok(_) => {
                let text = "The token is that of another client.";
                return Err((HandlerError::auth_failed(text), Some(admitted)));
            }
            Err(denied) => {
                return Err((HandlerError::auth_failed(denied.to_string()), Some(admitted)));
            }
        };
        let text =
            server::token_refresh_ok(admitted.id(), &identity.client_id, identity.expires_at);
        self.set_identity(identity);
        admitted.answer(&text);
        let access = &self.identity.access;
        let forbidden: Vec<RoomId> = self
            .rooms
            .iter()
            .filter(|(room, member)| {
                let mode = member.mode;
                let subscribes = !mode.subscribes() || access.may_subscribe(room.as_str());
                let publishes = !mode.publishes() || access.may_publish(room.as_str());
                !(subscribes && publishes)
            })
            .map(|(room, _)| room.clone())
            .collect();
        for room in forbidden {
            self.rooms.remove(&room);
            self.leave_now(&room, LeaveReason::Left);
            self.say(&server::room_left(None, &room, Some("forbidden")));
        }
        Ok(())
    }
}

/// Whether a message has still to be counted against the rate: what was held was counted
/// when it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rate {
    Due,
    Spent,
}

/// An error comes back with the request it belongs to, so that it is answered once.
pub(super) type Outcome = Result<(), (HandlerError, Option<Admitted>)>;

fn ack(admitted: &Admitted, receipt: &Receipt) -> String {
    let rooms = receipt.outcomes.iter().map(|outcome| (&outcome.room, outcome.seq));
    let late: Vec<RoomId> = receipt.late().cloned().collect();
    server::ack(admitted.id(), rooms, receipt.duplicate(), &late)
}
