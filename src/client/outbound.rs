//! What goes out: joins, requests that may go, the end of links that nothing needs.

use tokio::time::Instant;

use super::connector::Connector;
use super::link::Asked;
use super::task::Task;
use crate::protocol::server::message;
use crate::protocol::{RequestId, Since};

impl<C: Connector> Task<C> {
    /// Joins, on the current link, every room that is not joined there.
    pub(super) fn join_rooms(&mut self, now: Instant) {
        let Some(current) = self.current else { return };
        let Some(link) = self.links.iter_mut().find(|link| link.id == current) else { return };
        if !link.takes_requests() {
            return;
        }
        for (name, room) in &mut self.rooms {
            let due = room.retry_at.is_none_or(|at| at <= now);
            if room.link == Some(current) || room.joining == Some(current) || !due {
                continue;
            }
            let mode = room.mode.name();
            let payload = match room.join(current) {
                Some(Since { epoch, seq }) => serde_json::json!({
                    "roomId": name.as_str(), "mode": mode,
                    "since": { "epoch": epoch, "seq": seq }
                }),
                None => serde_json::json!({ "roomId": name.as_str(), "mode": mode }),
            };
            self.next_wire += 1;
            let id = RequestId::Number(self.next_wire);
            link.ask(
                self.next_wire,
                message("join_room", Some(&id), &payload),
                Asked::Join(name.clone()),
            );
        }
    }

    pub(super) fn flush_waiting(&mut self, now: Instant) {
        let waiting: Vec<u64> = self.requests.waiting().collect();
        for key in waiting {
            self.try_send(key, now);
        }
    }

    /// Sends a request that waits, if the current session may have it.
    pub(super) fn try_send(&mut self, key: u64, now: Instant) {
        let Some(current) = self.current else { return };
        let Some(link) = self.links.iter_mut().find(|link| link.id == current) else { return };
        let Some(request) = self.requests.get(key) else { return };
        let open = if request.notification { link.is_open() } else { link.takes_requests() };
        let other_session =
            request.resends.waiting.as_ref().is_none_or(|waiting| waiting.may_go_to(&link.session));
        let joined = request
            .rooms
            .iter()
            .all(|name| self.rooms.get(name).is_none_or(|room| room.link == Some(current)));
        if !(open && other_session && joined) {
            return;
        }
        let kind = request.kind.name();
        let payload = &request.payload;
        let sent_as = if request.notification {
            link.tell(format!("{{\"type\":\"{kind}\",\"payload\":{payload}}}"), Some(key));
            None
        } else {
            self.next_wire += 1;
            let wire = self.next_wire;
            let text = format!("{{\"type\":\"{kind}\",\"id\":{wire},\"payload\":{payload}}}");
            link.ask(wire, text, Asked::Request(key));
            Some((current, wire))
        };
        self.requests.sent(key, sent_as, now, link.window());
    }

    /// Lets an older link go once nothing depends on it.
    pub(super) fn retire(&mut self, now: Instant) {
        let Some(current) = self.current else { return };
        for link in self.links.iter_mut().filter(|link| link.id != current && link.is_open()) {
            let speaks = self.rooms.values().any(|room| room.link == Some(link.id));
            let unanswered = link.asked.values().any(|asked| matches!(asked, Asked::Request(_)));
            if !speaks && !unanswered {
                link.close(now);
            }
        }
    }
}
