//! What a session does with messages while the plane is paused, or while a join ahead of
//! them waits for its room: hold them in order, and handle them when the gate opens.

use super::handlers::Rate;
use super::session::Session;
use super::upload::Upload;
use crate::plane::{Item, Kept};
use crate::protocol::Kind;
use crate::protocol::envelope::{Class, Envelope};
use crate::protocol::error::{ErrorCode, HandlerError, WireError};
use crate::protocol::server;
use crate::telemetry::metrics::{MessageResult, MessageType};
use tokio::time::Instant;

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
        if envelope.kind == Kind::BackfillBegin
            && let Some(id) = &envelope.id
        {
            // A refused upload that is tried again: its frames count once more.
            self.exhume(id);
        }
        if passes || (self.held.is_empty() && self.gate_is_open()) {
            self.dispatch(&envelope, Rate::Due);
        } else {
            self.hold(&envelope, text);
        }
    }

    fn gate_is_open(&self) -> bool {
        self.services.plane.is_open() && self.joining.lock().is_empty()
    }

    /// Whether messages would be held though nobody paused the plane: then the budgets of a
    /// pause do not apply, and the socket waits instead.
    pub(super) fn is_flooded(&self) -> bool {
        self.services.plane.is_open()
            && !(self.held.is_empty() && self.joining.lock().is_empty())
            && self.held.is_full(self.services.settings.max_frame)
    }

    fn hold(&mut self, envelope: &Envelope<'_>, text: &str) {
        let is_request = envelope.class() != Class::Notification;
        let further = is_further(envelope);
        let of_upload = self.is_of_upload(envelope) || self.is_of_held_upload(envelope);
        if further && !of_upload && self.swallows(envelope) {
            return;
        }
        if is_request && !of_upload && self.handle.requests.is_draining() {
            // Refused at once; nothing is spent on it.
            return self.dispatch(envelope, Rate::Spent);
        }
        if !of_upload && let Err((error, _)) = self.limited(Rate::Due) {
            self.refuse_unheard(envelope, error);
            return self.bury_upload(envelope);
        }
        if is_request
            && !of_upload
            && let Some(id) = &envelope.id
        {
            let requests = &self.handle.requests;
            // A further frame of an upload has no answer of its own to keep the id for.
            let free = if further { !requests.is_in_use(id) } else { requests.reserve(id) };
            if !free {
                return self.id_in_use(envelope);
            }
        }
        self.paused |= !self.services.plane.is_open();
        let session_id = self.handle.session_id.clone();
        let kept = if is_request {
            self.held.request(text, &session_id)
        } else {
            self.held.notification(text, &session_id)
        };
        match kept {
            Kept::Held => self.note_held_upload(envelope),
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
            self.held.take_requests(|text| {
                Envelope::parse(text)
                    .is_ok_and(|held| !(is_further(&held) && held.id == envelope.id))
            });
            if let Some(admitted) = self.upload.take().and_then(Upload::abandon) {
                admitted.answered_elsewhere();
            }
        } else if let Some(id) = &envelope.id {
            if let Some(frames) = self.held_uploads.remove(id) {
                // The whole upload is refused with the frame that has no room.
                self.held.discard(&frames);
                self.handle.requests.release_id(id);
            } else if !is_further(envelope) {
                self.handle.requests.release_id(id);
            }
        }
        let id = envelope.id.as_ref();
        self.handle.requests.busy(waiting, id, envelope.kind, room.as_deref());
        self.bury_upload(envelope);
    }

    /// An error for a request that never became one.
    fn refuse_unheard(&mut self, envelope: &Envelope<'_>, error: HandlerError) {
        self.count_refused(MessageType::of(envelope.kind.name()), error.code());
        let error = match envelope.room_hint() {
            Some(room) => WireError::from(error).with_room(room),
            None => error.into(),
        };
        self.complain_to(envelope.id.as_ref(), Some(envelope.kind.name()), &error);
    }

    /// Notes which held frames make up an upload whose begin is held too.
    fn note_held_upload(&mut self, envelope: &Envelope<'_>) {
        let Some(id) = &envelope.id else { return };
        if envelope.kind == Kind::BackfillBegin {
            self.held_uploads.insert(id.clone(), vec![self.held.last_arrival()]);
        } else if is_further(envelope)
            && let Some(frames) = self.held_uploads.get_mut(id)
        {
            frames.push(self.held.last_arrival());
        } else if self.is_of_upload(envelope)
            && let Some(upload) = &mut self.upload
        {
            upload.last_frame = Instant::now();
        }
    }

    /// Whether it belongs to an upload whose begin is held.
    fn is_of_held_upload(&self, envelope: &Envelope<'_>) -> bool {
        is_further(envelope)
            && envelope.id.as_ref().is_some_and(|id| self.held_uploads.contains_key(id))
    }

    /// Whether it belongs to the upload that is open.
    fn is_of_upload(&self, envelope: &Envelope<'_>) -> bool {
        is_further(envelope)
            && self.upload.as_ref().is_some_and(|upload| envelope.id.as_ref() == Some(&upload.id))
    }

    /// Handles what is held, as far as the gate, the log and the connection's own answers
    /// allow. Returns whether anything was done.
    pub(super) fn release_held(&mut self) -> bool {
        if self.paused && self.held.has_reopened() {
            self.paused = false;
            let dropped = self.held.resumed();
            if dropped > 0 {
                self.say(&server::notifications_dropped(dropped, "paused"));
            }
            if let Some(upload) = &mut self.upload {
                // Its client may have waited for progress all through the pause.
                upload.last_frame = Instant::now();
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
            && !is_further(&envelope)
        {
            self.handle.requests.release_id(id);
            self.held_uploads.remove(id);
        }
        self.dispatch(&envelope, Rate::Spent);
    }

    /// Refuses the held requests: they never started, and the connection drains. Frames of an
    /// upload that was admitted stay, and so do notifications.
    pub(super) fn refuse_held(&mut self) {
        let open = self.upload.as_ref().map(|upload| upload.id.clone());
        let of_upload = |text: &str| {
            open.is_some()
                && Envelope::parse(text)
                    .is_ok_and(|envelope| is_further(&envelope) && envelope.id == open)
        };
        for text in self.held.take_requests(of_upload) {
            self.handle_held(Item::Request(text));
        }
    }

    /// Answers the held requests of a client whose token has expired.
    pub(super) fn forbid_held(&mut self) {
        let error = || HandlerError::forbidden("The token has expired.");
        for text in self.held.take_requests(|_| false) {
            let Ok(envelope) = Envelope::parse(&text) else { continue };
            if self.is_of_upload(&envelope) {
                if let Some(admitted) = self.upload.take().and_then(Upload::abandon) {
                    admitted.fail(error(), None);
                }
                self.bury_upload(&envelope);
            } else if !(self.is_of_held_upload(&envelope) || self.swallows(&envelope)) {
                self.refuse_unheard(&envelope, error());
            }
        }
        self.held_uploads.clear();
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

/// Whether it is a frame of an upload after its first.
fn is_further(envelope: &Envelope<'_>) -> bool {
    matches!(envelope.kind, Kind::BackfillChunk | Kind::BackfillEnd)
}
