//! What the server says: answers find their requests, events their rooms.

use tokio::time::Instant;

use super::connector::Connector;
use super::error::{Error, Refused};
use super::event::{Event, GapCause};
use super::link::Asked;
use super::rooms::{Room, Verdict};
use super::task::Task;
use crate::ids::RoomId;
use crate::protocol::decode::{ErrorMessage, RoomJoined};
use crate::protocol::server::message;
use crate::protocol::{RequestId, ServerFrame, ServerMessage};

impl<C: Connector> Task<C> {
    /// A message came on link `id`.
    pub(super) fn text(&mut self, id: u64, text: &str, now: Instant) {
        // What cannot be read is a newer server's business, not a reason to fall.
        let Ok(frame) = ServerFrame::parse(text) else { return };
        let asked = match frame.id {
            Some(RequestId::Number(wire)) => {
                self.link(id).and_then(|link| link.asked.remove(&wire))
            }
            _ => None,
        };
        match asked {
            Some(asked) => self.answer(id, asked, frame.message, now),
            None if frame.id.is_none() => self.event(id, frame.message, now),
            None => {}
        }
    }

    fn answer(&mut self, id: u64, asked: Asked, answer: ServerMessage, now: Instant) {
        match (asked, answer) {
            (Asked::Request(key), ServerMessage::Error(error)) => match Error::from(*error) {
                Error::Draining => {
                    let Some(session) = self.link(id).map(|link| link.session.clone()) else {
                        return;
                    };
                    self.requests.refused(key, &session, now);
                }
                other => self.requests.finish(key, Err(other)),
            },
            (Asked::Request(key), answer) => self.requests.finish(key, Ok(Some(answer))),
            (Asked::Join(room), ServerMessage::RoomJoined(joined)) => {
                self.room_joined(id, &room, joined, true);
            }
            (Asked::Join(room), ServerMessage::Error(error)) => {
                self.join_refused(id, &room, *error, now);
            }
            (Asked::Join(_), _) => {}
            (Asked::Refresh(token), ServerMessage::TokenRefreshOk(_)) => {
                if let Some(link) = self.link(id) {
                    link.token = Some(token);
                }
            }
            (Asked::Refresh(_), ServerMessage::Error(error)) => {
                let error = Refused::from(*error);
                self.emit(Event::TokenRefused(error.to_string().into()));
            }
            (Asked::Refresh(_) | Asked::Abandoned(_), _) => {}
        }
        // An older link may have answered its last request.
        self.dirty |= self.links.len() > 1;
    }

    fn room_joined(&mut self, id: u64, name: &RoomId, joined: Box<RoomJoined>, answer: bool) {
        // A caller that gave up just now may be known by its ear alone: what takes its join
        // back can come after the answer.
        let unheard = |room: &mut Room| {
            answer
                && !room.established
                && !room.waiters.is_empty()
                && room.waiters.iter().all(|waiter| waiter.reply.is_closed())
        };
        if self.rooms.get_mut(name).is_some_and(unheard) {
            self.rooms.remove(name);
        }
        let Some(room) = self.rooms.get_mut(name) else {
            // Its caller gave up while the join was on its way.
            let payload = serde_json::json!({ "roomId": name.as_str() });
            if let Some(link) = self.link(id).filter(|link| answer && link.takes_requests()) {
                link.tell(message("leave_room", None, &payload), None);
            }
            return;
        };
        if room.link != Some(id) && !(answer && room.joining == Some(id)) {
            return;
        }
        let reset = room.joined(id, &joined);
        for waiter in room.waiters.drain(..) {
            let _ = waiter.reply.send(Ok(joined.clone()));
        }
        self.dirty = true;
        if reset {
            self.emit(Event::Gap { room: name.clone(), cause: GapCause::Reset });
        }
        self.emit(Event::Joined(joined));
    }

    fn join_refused(&mut self, id: u64, name: &RoomId, error: ErrorMessage, now: Instant) {
        let error = Error::from(error);
        let Some(room) = self.rooms.get_mut(name).filter(|room| room.joining == Some(id)) else {
            return;
        };
        room.joining = None;
        if matches!(error, Error::Draining) {
            // Joined again on the next session, which this makes necessary.
            if let Some(link) = self.link(id) {
                link.refuses = true;
            }
            self.dirty = true;
            return;
        }
        self.requests.join_failed(name);
        let later = error.retry_later();
        let established = room.established;
        for waiter in room.waiters.drain(..) {
            let _ = waiter.reply.send(Err(error.clone()));
        }
        match later {
            Some(wait) if established => {
                room.retry_at = Some(now + wait + self.backoff.spread());
                self.emit(Event::join_failed(name.clone(), &error, true));
            }
            _ => {
                self.rooms.remove(name);
                if established {
                    self.emit(Event::join_failed(name.clone(), &error, false));
                }
            }
        }
    }

    fn event(&mut self, id: u64, event: ServerMessage, now: Instant) {
        match event {
            ServerMessage::LocationUpdate(location) => {
                let Some(name) = location.room_id.as_deref() else { return };
                let Some(room) = self.rooms.get_mut(name) else { return };
                match room.event(id, location.seq) {
                    Verdict::Deliver => self.emit(Event::Location(location)),
                    Verdict::Skip => {}
                    Verdict::OutOfOrder => {
                        let Ok(room) = RoomId::parse(name) else { return };
                        self.emit(Event::Gap { room, cause: GapCause::Order });
                    }
                }
            }
            ServerMessage::RoomJoined(joined) => {
                let Ok(name) = RoomId::parse(&joined.room_id) else { return };
                self.room_joined(id, &name, joined, false);
            }
            ServerMessage::Snapshot(page) => {
                let Some(room) = self.rooms.get_mut(page.room_id.as_str()) else { return };
                if room.snapshot(id, page.more) == Verdict::Deliver {
                    self.emit(Event::Snapshot(Box::new(page)));
                }
            }
            ServerMessage::RoomLeft(left) => {
                let Ok(name) = RoomId::parse(&left.room_id) else { return };
                if self.speaks(id, &left.room_id) {
                    self.rooms.remove(&name);
                    self.dirty = true;
                    self.emit(Event::Left { room: name, reason: left.reason });
                }
            }
            ServerMessage::MemberJoined(members) if self.speaks(id, &members.room_id) => {
                self.emit(Event::MembersJoined(Box::new(members)));
            }
            ServerMessage::MemberLeft(members) if self.speaks(id, &members.room_id) => {
                self.emit(Event::MembersLeft(Box::new(members)));
            }
            ServerMessage::MembersChanged(changed) if self.speaks(id, &changed.room_id) => {
                self.emit(Event::MembersChanged(changed));
            }
            ServerMessage::Lagging(lagging) if self.speaks(id, &lagging.room_id) => {
                self.emit(Event::Lagging(lagging));
            }
            ServerMessage::CaughtUp(caught_up) => {
                let Some(room) = self.rooms.get_mut(caught_up.room_id.as_str()) else { return };
                if room.caught_up(id, &caught_up.epoch, caught_up.seq) == Verdict::Deliver {
                    self.emit(Event::CaughtUp(caught_up));
                }
            }
            ServerMessage::NotificationsDropped(dropped) => {
                self.emit(Event::NotificationsDropped(dropped));
            }
            ServerMessage::BackfillProgress(_) => {
                let upload = self.link(id).and_then(|link| link.uploading);
                if let Some(key) = upload {
                    self.requests.committed(key);
                }
            }
            ServerMessage::TokenExpiring(_) if self.current == Some(id) => self.refresh_token(),
            ServerMessage::ServerShuttingDown(notice) => {
                self.noticed(id, &notice, now);
                if self.current == Some(id) {
                    self.emit(Event::Notice(notice));
                }
            }
            ServerMessage::Error(error) => {
                self.emit(Event::Refused(Box::new(Refused::from(*error))));
            }
            _ => {}
        }
    }

    fn speaks(&self, id: u64, room: &str) -> bool {
        self.rooms.get(room).is_some_and(|room| room.link == Some(id))
    }
}
