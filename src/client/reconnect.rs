//! Sessions coming and going: when to connect, where, and what a lost one leaves behind
//! (protocol.md, "Close codes"; delivery.md, "A client's duty").

use std::time::Duration;

use tokio::time::Instant;

use super::connector::{Attempt, Connector, Failure, open};
use super::error::Error;
use super::event::Event;
use super::link::{Asked, Link, LinkEvent};
use super::requests::Loss;
use super::task::{Avoid, Refreshing, Task};
use crate::close::{Close, ComeBack, come_back};
use crate::protocol::RequestId;
use crate::protocol::decode::ServerShuttingDown;
use crate::protocol::server::message;

/// How often a client that landed on the generation that it is to leave tries again, with
/// the session that it has in hand.
const BETTER_TRIES: u32 = 2;

impl<C: Connector> Task<C> {
    /// Sees to it that a session is on its way where one is needed.
    pub(super) fn schedule(&mut self, now: Instant) {
        let refused_here = match self.current_link() {
            Some(link) => self.requests.refusers().any(|session| **session == *link.session),
            None => false,
        };
        let needed = match self.current_link() {
            None => true,
            Some(link) => link.noticed || refused_here || link.refuses,
        };
        if !needed && self.prefers_another() {
            if self.connecting.is_none() {
                let at = *self.reconnect_at.get_or_insert_with(|| now + self.backoff.spread());
                if at.max(self.not_before[self.next_endpoint]) <= now {
                    self.reconnect_at = None;
                    self.start_connecting();
                }
            }
            return;
        }
        if !needed {
            // The reason for the move is gone, so nothing of it stays.
            self.reconnect_at = None;
            self.connecting = None;
            self.for_resend = false;
            return;
        }
        if self.connecting.is_some() {
            return;
        }
        let several = self.settings.endpoints.len() > 1;
        if refused_here && !self.for_resend {
            self.for_resend = true;
            let refuser = self.current_link().map(|link| link.endpoint);
            if refuser == Some(self.next_endpoint) {
                self.turn_from(self.next_endpoint);
            }
            // Somebody waits: another endpoint can be had before the notice's time.
            if several || self.reconnect_at.is_none() {
                let soon = now + self.backoff.next();
                self.reconnect_at = Some(self.reconnect_at.map_or(soon, |at| at.min(soon)));
            }
        }
        let at = *self.reconnect_at.get_or_insert_with(|| now + self.backoff.next());
        if at.max(self.not_before[self.next_endpoint]) <= now {
            self.reconnect_at = None;
            self.start_connecting();
        }
    }

    fn start_connecting(&mut self) {
        let index = self.next_endpoint;
        self.connecting_to = index;
        self.next_link += 1;
        self.connecting = Some(Box::pin(open(
            self.connector.clone(),
            Attempt {
                link: self.next_link,
                index,
                endpoint: self.settings.endpoints[index].clone(),
                token: self.settings.token.clone(),
                client_id: self.settings.client_id.clone(),
                refused_token: self.refused_token.clone(),
                timeout: self.settings.connect_timeout,
            },
        )));
    }

    /// Moves on to the endpoint after `index`, past those that showed a generation which
    /// is to be left, if there are others.
    fn turn_from(&mut self, index: usize) {
        let count = self.settings.endpoints.len();
        let after = |steps: usize| (index + steps) % count;
        let leaves = |index: usize| match (&self.avoid, &self.generations[index]) {
            (Some(avoid), Some(seen)) => *seen == avoid.generation,
            _ => false,
        };
        let next = (1..count).map(after).find(|next| !leaves(*next));
        self.next_endpoint = next.unwrap_or_else(|| after(1));
    }

    /// Whether there is a session to stay with, but one that had better be another.
    fn prefers_another(&self) -> bool {
        let (Some(avoid), Some(link)) = (&self.avoid, self.current_link()) else { return false };
        link.takes_requests() && link.welcome.generation == avoid.generation && avoid.tries > 0
    }

    /// An attempt to find a better session than the present one has failed.
    fn not_better(&mut self, now: Instant) {
        let stays = self.current_link().map(|link| link.endpoint);
        self.reconnect_at = None;
        if let Some(avoid) = &mut self.avoid {
            avoid.tries -= 1;
            if avoid.tries > 0 {
                self.turn_from(self.connecting_to);
                self.reconnect_at = Some(now + self.backoff.spread());
                return;
            }
        }
        self.avoid = None;
        if let Some(endpoint) = stays {
            self.next_endpoint = endpoint;
        }
    }

    /// An attempt is over.
    pub(super) fn connected(&mut self, result: Result<Box<Link<C::Io>>, Failure>) {
        let now = Instant::now();
        let mut link = match result {
            Ok(link) => link,
            Err(failure) => return self.connect_failed(failure, now),
        };
        let generation = &link.welcome.generation;
        self.generations[link.endpoint] = Some(generation.clone());
        if self.avoid.as_ref().is_some_and(|avoid| avoid.generation != *generation) {
            self.avoid = None;
        } else if self.prefers_another() {
            // No better: the rooms stay where they are.
            link.close(now);
            self.links.push(link);
            return self.not_better(now);
        }
        self.unauthorized = false;
        self.refused_token = None;
        self.refresh_at = None;
        self.refreshing = None;
        self.reconnect_at = None;
        self.for_resend = false;
        self.next_endpoint = link.endpoint;
        self.current = Some(link.id);
        self.links.push(link);
        self.dirty = true;
        if let Some(first) = self.first.take() {
            let _ = first.reply.send(Ok(()));
        }
    }

    fn connect_failed(&mut self, failure: Failure, now: Instant) {
        let index = self.connecting_to;
        if self.prefers_another() {
            if let Failure::Http { status: 503, retry_after } = failure {
                self.refused_until(index, retry_after, now);
            }
            return self.not_better(now);
        }
        if let Some(first) = &mut self.first {
            first.tried += 1;
            let refused = matches!(&failure, Failure::Closed { code: 4001, .. });
            if first.tried < self.settings.endpoints.len() && !refused {
                self.turn_from(index);
                self.reconnect_at = Some(now);
                return;
            }
            self.ended = Some(match failure {
                Failure::Closed { code: 4001, reason, .. } => Error::Unauthorized { reason },
                other => Error::Connect { reason: other.to_string().into() },
            });
            return;
        }
        let (wait, elsewhere) = match failure {
            Failure::Closed { code, reason, token } => {
                let advice = come_back(code, &reason);
                if advice == ComeBack::WithNewToken {
                    return self.token_refused(token, &reason, now);
                }
                (self.wait_for(advice), true)
            }
            Failure::Token(error) => {
                self.unauthorized = true;
                self.emit(Event::TokenRefused(error));
                (self.backoff.next(), false)
            }
            Failure::Http { status: 503, retry_after } => {
                // It alone has said when; the others may be tried before.
                self.refused_until(index, retry_after, now);
                (self.backoff.next(), true)
            }
            Failure::Http { status, .. } if (400..500).contains(&status) => {
                (self.wait_for(ComeBack::AfterAMinute), true)
            }
            Failure::Io(_) | Failure::Timeout | Failure::Protocol(_) | Failure::Http { .. } => {
                (self.backoff.next(), true)
            }
        };
        if elsewhere {
            self.turn_from(index);
        }
        self.reconnect_at = Some(now + wait);
    }

    fn refused_until(&mut self, index: usize, retry_after: Option<Duration>, now: Instant) {
        let after = retry_after.unwrap_or_default().min(crate::budget::MAX_BUDGET);
        self.not_before[index] = now + after + self.backoff.spread();
    }

    fn wait_for(&mut self, advice: ComeBack) -> Duration {
        match advice {
            ComeBack::AtOnce => self.backoff.at_once(),
            ComeBack::AfterAMinute => self.backoff.a_minute(),
            ComeBack::AfterNotice | ComeBack::Backoff | ComeBack::WithNewToken => {
                self.backoff.next()
            }
        }
    }

    fn token_refused(&mut self, token: Option<std::sync::Arc<str>>, reason: &str, now: Instant) {
        if !self.settings.token.can_change() {
            self.ended = Some(Error::Unauthorized { reason: reason.into() });
            return;
        }
        self.unauthorized = true;
        self.refused_token = token;
        self.emit(Event::TokenRefused(reason.into()));
        self.reconnect_at = Some(now + self.backoff.at_once());
    }

    /// A link has something to say.
    pub(super) fn link_event(&mut self, id: u64, event: LinkEvent) {
        let now = Instant::now();
        match event {
            LinkEvent::Written(key) => {
                let Some(link) = self.link(id) else { return };
                let max_frame = link.welcome.max_frame_bytes;
                self.requests.written(key, max_frame);
            }
            LinkEvent::Text(text) => self.text(id, &text, now),
            LinkEvent::Closed { code, reason } => {
                self.link_closed(id, code, &reason, now);
                if code == 1006 {
                    self.links.retain(|link| link.id != id);
                }
            }
            LinkEvent::Ended => {
                self.lose(id, Loss::Unknown, now);
                self.links.retain(|link| link.id != id);
            }
        }
    }

    /// A session is over: its rooms and requests are homeless, and another one is needed if
    /// it was the current one.
    fn link_closed(&mut self, id: u64, code: u16, reason: &str, now: Instant) {
        let ours = code == Close::ShuttingDown.code() && reason == Close::ShuttingDown.reason();
        self.lose(id, if ours { Loss::Refused } else { Loss::Unknown }, now);
        if self.current != Some(id) {
            return;
        }
        self.current = None;
        self.refreshing = None;
        self.refresh_at = None;
        let Some(link) = self.link(id) else { return };
        let (endpoint, lasted, noticed) = (link.endpoint, now - link.born, link.noticed);
        let token = link.token.clone();
        self.backoff.session_lasted(lasted);
        let advice = come_back(code, reason);
        if self.connecting.is_some() {
            return;
        }
        if advice == ComeBack::WithNewToken {
            return self.token_refused(token, reason, now);
        }
        if noticed && self.reconnect_at.is_some() {
            // The notice has set the time, and the endpoint, already.
            return;
        }
        let wait = self.wait_for(advice);
        self.reconnect_at = Some(now + wait);
        if advice != ComeBack::AtOnce {
            self.turn_from(endpoint);
        }
    }

    /// What a link had in hand goes back, or gets its result.
    fn lose(&mut self, id: u64, loss: Loss, now: Instant) {
        for room in self.rooms.values_mut() {
            room.link_gone(id);
        }
        self.dirty = true;
        let Some(link) = self.link(id) else { return };
        let (unsent, notifications) = link.unsent();
        let asked = std::mem::take(&mut link.asked);
        let session = link.session.clone();
        for (wire, asked) in asked {
            match asked {
                Asked::Request(key) if unsent.contains(&wire) => self.requests.unsent(key),
                Asked::Request(key) => self.requests.lost(key, loss, &session, now),
                Asked::Join(_) | Asked::Refresh(_) | Asked::Abandoned(_) => {}
            }
        }
        for key in notifications {
            self.requests.unsent(key);
        }
    }

    /// The server announced its end.
    pub(super) fn noticed(&mut self, id: u64, notice: &ServerShuttingDown, now: Instant) {
        let reconnect_in = notice.reconnect_in.max(0.0);
        let wait = Duration::try_from_secs_f64(reconnect_in).unwrap_or_default();
        let at = now + wait.min(crate::budget::MAX_BUDGET);
        let Some(link) = self.link(id) else { return };
        if std::mem::replace(&mut link.noticed, true) {
            return;
        }
        let endpoint = link.endpoint;
        self.not_before[endpoint] = at;
        if !notice.generation.is_empty() {
            self.generations[endpoint] = Some(notice.generation.clone());
        }
        if self.current == Some(id) {
            let generation = notice.generation.clone();
            self.avoid = (!notice.newer.is_empty() && !generation.is_empty())
                .then_some(Avoid { generation, tries: BETTER_TRIES });
            self.turn_from(endpoint);
            self.reconnect_at = Some(at);
            self.dirty = true;
        }
    }

    /// A fresh token is wanted, if there can be one.
    pub(super) fn refresh_token(&mut self) {
        if self.settings.token.can_change() && self.refreshing.is_none() {
            let token = self.settings.token.clone();
            let refreshing: Refreshing = Box::pin(async move { token.get().await });
            self.refreshing = Some(refreshing);
        }
    }

    pub(super) fn token_ready(
        &mut self,
        result: Result<Option<std::sync::Arc<str>>, std::sync::Arc<str>>,
    ) {
        let token = match result {
            Ok(Some(token)) => token,
            Ok(None) => return,
            Err(error) => {
                self.emit(Event::TokenRefused(error));
                self.refresh_at = Some(Instant::now() + self.backoff.spread());
                return;
            }
        };
        self.next_wire += 1;
        let wire = self.next_wire;
        let Some(id) = self.current else { return };
        let Some(link) = self.link(id).filter(|link| link.takes_requests()) else { return };
        let payload = serde_json::json!({ "token": &*token });
        let text = message("token_refresh", Some(&RequestId::Number(wire)), &payload);
        link.ask(wire, text, Asked::Refresh(token));
    }

    /// The next time at which something is to be done.
    pub(super) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let reading = self.pending.is_empty();
        let reconnect = self
            .reconnect_at
            .filter(|_| self.connecting.is_none())
            .map(|at| at.max(self.not_before[self.next_endpoint]));
        let links = self.links.iter().filter_map(|link| match link.close_by {
            Some(at) => Some(at),
            None => {
                let heartbeat = link.heartbeat();
                let ping = link.heard_message.max(link.pinged) + heartbeat;
                // What is not read cannot be missed: then only the pings go on.
                let dead = Some(link.heard + link.heartbeat_timeout()).filter(|_| reading);
                // Staleness is a state, published when its moment passes.
                let stale = Some(link.heard_message + heartbeat * 2).filter(|at| *at > now);
                [Some(ping), dead, stale].into_iter().flatten().min()
            }
        });
        let joins = self.current_link().is_some_and(Link::takes_requests);
        let rooms = self.rooms.values().filter(|_| joins).filter_map(|room| room.retry_at);
        [reconnect, self.refresh_at, self.requests.next_deadline()]
            .into_iter()
            .flatten()
            .chain(links)
            .chain(rooms)
            .min()
    }

    /// Something is due.
    pub(super) fn timers(&mut self, now: Instant) {
        self.requests.expire(now);
        if self.refresh_at.is_some_and(|at| at <= now) {
            self.refresh_at = None;
            self.refresh_token();
        }
        if self.rooms.values().any(|room| room.retry_at.is_some_and(|at| at <= now)) {
            self.dirty = true;
        }
        let mut dead = Vec::new();
        let reading = self.pending.is_empty();
        for link in &mut self.links {
            if let Some(at) = link.close_by {
                if at <= now {
                    link.abandon();
                }
            } else if reading && link.heard + link.heartbeat_timeout() <= now {
                dead.push(link.id);
            } else if link.heard_message.max(link.pinged) + link.heartbeat() <= now {
                link.pinged = now;
                link.tell("{\"type\":\"ping\"}".to_owned(), None);
            }
        }
        for id in dead {
            self.link_closed(id, 1006, "", now);
            self.links.retain(|link| link.id != id);
        }
    }
}
