//! What a session does with messages while the plane is paused, or while a join ahead of
//! them waits for its room: hold them in order, and handle them when the gate opens.

use super::handlers::Rate;
use super::session::Session;
use crate::plane::{Item, Kept};
use crate::protocol::Kind;
use crate::protocol::envelope::{Class, Envelope};
use crate::protocol::error::{ErrorCode, HandlerError, WireError};
use crate::protocol::server;
use crate::telemetry::metrics::{MessageResult, MessageType};

/// How many held messages are handled before the socket gets its turn.
const FLUSHED_AT_ONCE: usize = 64;

impl Session {
    /// Handles one text message, or holds it.
    pub(super) fn receive(&mut self, text: &str) {
        self.messages_in += 1;
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(error) => return self.malformed(&error),
        };
        let passes = matches!(envelope.class(), Class::Control | Class::Legacy)
            || envelope.kind == Kind::TokenRefresh;
        if passes || (self.held.is_empty() && self.gate_is_open()) {
            self.dispatch(&envelope, Rate::Due);
        } else {
            self.hold(&envelope, text);
        }
    }

    fn gate_is_open(&self) -> bool {
        self.services.plane.is_open() && self.joining.lock().is_empty()
    }

    fn hold(&mut self, envelope: &Envelope<'_>, text: &str) {
        let is_request = envelope.class() != Class::Notification;
        let of_upload = self.is_of_upload(envelope);
        if is_request && !of_upload && self.handle.requests.is_draining() {
            // Refused at once; nothing is spent on it.
            return self.dispatch(envelope, Rate::Spent);
        }
        if !of_upload && let Err((error, _)) = self.limited(Rate::Due) {
            self.count_refused(MessageType::of(envelope.kind.name()), error.code());
            let error = match envelope.room_hint() {
                Some(room) => WireError::from(error).with_room(room),
                None => error.into(),
            };
            return self.complain_to(envelope.id.as_ref(), Some(envelope.kind.name()), &error);
        }
        if is_request
            && !of_upload
            && let Some(id) = &envelope.id
            && !self.handle.requests.reserve(id)
        {
            return self.id_in_use(envelope);
        }
        self.paused |= !self.services.plane.is_open();
        let session_id = self.handle.session_id.clone();
        let kept = if is_request {
            self.held.request(text, &session_id)
        } else {
            self.held.notification(text, &session_id)
        };
        match kept {
            Kept::Held => {}
            Kept::Dropped => {
                self.count(MessageType::of(envelope.kind.name()), MessageResult::Dropped);
            }
            Kept::Refused { waiting } => self.busy(envelope, waiting),
        }
        let queue = self.queue().clone();
        if self.paused {
            self.held.wait(&queue);
        }
    }

    fn busy(&mut self, envelope: &Envelope<'_>, waiting: usize) {
        self.count_refused(MessageType::of(envelope.kind.name()), ErrorCode::ServerBusy);
        let room = envelope.room_hint();
        if self.is_of_upload(envelope) {
            // Its one answer: the upload is over, what is committed stays.
            if let Some(upload) = self.upload.take() {
                self.bury(upload.id.clone());
                if let Some(admitted) = upload.abandon() {
                    admitted.answered_elsewhere();
                }
            }
        } else if let Some(id) = &envelope.id {
            self.handle.requests.release_id(id);
        }
        let id = envelope.id.as_ref();
        self.handle.requests.busy(waiting, id, envelope.kind, room.as_deref());
        self.bury_upload(envelope);
    }

    fn is_of_upload(&self, envelope: &Envelope<'_>) -> bool {
        matches!(envelope.kind, Kind::BackfillChunk | Kind::BackfillEnd)
            && self.upload.as_ref().is_some_and(|upload| envelope.id.as_ref() == Some(&upload.id))
    }

    /// Handles what is held, as far as the gate, the log and the connection's own answers
    /// allow. Returns whether anything was done.
    pub(super) fn release_held(&mut self) -> bool {
        if self.paused && self.services.plane.is_open() {
            self.paused = false;
            let dropped = self.held.resumed();
            if dropped > 0 {
                self.say(&server::notifications_dropped(dropped, "paused"));
            }
        }
        let mut done = 0;
        while done < FLUSHED_AT_ONCE
            && self.gate_is_open()
            && !self.is_busy()
            && self.queue().lane_bytes() <= self.services.settings.high_water
        {
            let Some(item) = self.held.pop() else { break };
            self.handle_held(item);
            done += 1;
        }
        if !self.held.is_empty() && !self.services.plane.is_open() {
            self.paused = true;
            let queue = self.queue().clone();
            self.held.wait(&queue);
        }
        done > 0
    }

    fn handle_held(&mut self, item: Item) {
        let (Item::Request(text) | Item::Notification(text)) = item;
        // It was parsed when it arrived.
        let Ok(envelope) = Envelope::parse(&text) else { return };
        if let Some(id) = &envelope.id
            && !self.is_of_upload(&envelope)
        {
            self.handle.requests.release_id(id);
        }
        self.dispatch(&envelope, Rate::Spent);
    }

    /// Refuses the held requests: they never started, and the connection drains. Frames of an
    /// upload that was admitted stay, and so do notifications.
    pub(super) fn refuse_held(&mut self) {
        let mut kept = Vec::new();
        while let Some(Item::Request(text)) = self.held.pop_request() {
            let of_upload =
                Envelope::parse(&text).is_ok_and(|envelope| self.is_of_upload(&envelope));
            if of_upload {
                kept.push(text);
            } else {
                self.handle_held(Item::Request(text));
            }
        }
        self.held.put_back(kept);
    }

    /// Answers the held requests of a client whose token has expired.
    pub(super) fn forbid_held(&mut self) {
        while let Some(Item::Request(text)) = self.held.pop_request() {
            let Ok(envelope) = Envelope::parse(&text) else { continue };
            let error = HandlerError::forbidden("The token has expired.").into();
            self.complain_to(envelope.id.as_ref(), Some(envelope.kind.name()), &error);
        }
    }

    /// The close frame is next: handles what may still be handled, gives up the rest.
    pub(super) fn settle_held(&mut self) {
        self.refuse_held();
        while self.gate_is_open() {
            let Some(item) = self.held.pop() else { break };
            self.handle_held(item);
        }
        self.lost_notifications += self.held.give_up() as u64;
    }
}
