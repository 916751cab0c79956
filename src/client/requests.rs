//! The requests of one client that have no result yet: where each one stands, and what the
//! end of a session means for it.
//!
//! Every request is here exactly as long as its caller waits for it. Knows no socket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::error::Error;
use super::resend::{Policy, Resends};
use crate::ids::RoomId;
use crate::protocol::{Kind, ServerMessage};

/// What the caller gets.
pub(super) type Reply = oneshot::Sender<Result<Option<ServerMessage>, Error>>;

/// A message that a caller waits for.
pub(super) struct Request {
    pub(super) key: u64,
    pub(super) kind: Kind,
    /// Without an answer: done when the socket has taken it.
    pub(super) notification: bool,
    /// The payload, a JSON object; the same bytes at every send.
    pub(super) payload: Box<str>,
    /// The rooms that must be joined on the session, if the client wants them at all.
    pub(super) rooms: Vec<RoomId>,
    /// Carries an idempotency key: may be repeated within the server's window.
    pub(super) keyed: bool,
    pub(super) reply: Reply,
    /// A place among the unanswered, given back with the request.
    pub(super) permit: OwnedSemaphorePermit,
    /// The link that has it, and its id there.
    pub(super) sent_as: Option<(u64, i64)>,
    /// When it first went out, and the window that the server gave then.
    pub(super) first_sent: Option<(Instant, Duration)>,
    pub(super) resends: Resends,
    /// A session died with it: whatever is said later, that try may have run.
    pub(super) unknown: bool,
}

impl Request {
    /// What it ends with when no answer comes any more.
    const fn unanswered(&self) -> Error {
        if self.unknown { Error::UnknownOutcome } else { Error::Draining }
    }

    /// When waiting ends by itself, and with what.
    fn deadline(&self) -> Option<(Instant, Error)> {
        if let Some(waiting) = &self.resends.waiting {
            return Some((waiting.until, self.unanswered()));
        }
        // Sent and lost: unknown for ever once the window has passed.
        let (at, window) = self.first_sent.filter(|_| self.unknown)?;
        Some((at + window, Error::UnknownOutcome))
    }

    fn finish(self, result: Result<Option<ServerMessage>, Error>) {
        let Self { reply, permit, .. } = self;
        drop(permit);
        // A caller that gave up is gone; that is its right.
        let _ = reply.send(result);
    }
}

/// How a session ended for what it had not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// 1001 `server shutting down`: never started.
    Refused,
    /// Anything else.
    Unknown,
}

/// All requests without a result.
pub(super) struct Requests {
    policy: Option<Policy>,
    resend_keyed: bool,
    all: FxHashMap<u64, Request>,
    /// Those that no session has, oldest first.
    waiting: BTreeSet<u64>,
    deadlines: BTreeMap<(Instant, u64), Error>,
}

impl Requests {
    pub(super) fn new(policy: Option<Policy>, resend_keyed: bool) -> Self {
        Self {
            policy,
            resend_keyed,
            all: FxHashMap::default(),
            waiting: BTreeSet::new(),
            deadlines: BTreeMap::new(),
        }
    }

    pub(super) fn insert(&mut self, request: Request) {
        self.waiting.insert(request.key);
        self.all.insert(request.key, request);
    }

    pub(super) fn get(&self, key: u64) -> Option<&Request> {
        self.all.get(&key)
    }

    /// The keys of those that no session has, oldest first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u64> + '_ {
        self.waiting.iter().copied()
    }

    /// The sessions that refused what waits for another one now.
    pub(super) fn refusers(&self) -> impl Iterator<Item = &Arc<str>> {
        // Only refused and lost requests have deadlines, and few of them at a time.
        self.deadlines.keys().filter_map(|(_, key)| {
            self.all.get(key)?.resends.waiting.as_ref().map(|waiting| &waiting.session)
        })
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first_key_value().map(|((at, _), _)| *at)
    }

    /// A session has it now.
    pub(super) fn sent(
        &mut self,
        key: u64,
        sent_as: Option<(u64, i64)>,
        now: Instant,
        window: Duration,
    ) {
        self.unwait(key);
        if let Some(request) = self.all.get_mut(&key) {
            request.sent_as = sent_as;
            request.resends.sent();
            request.first_sent.get_or_insert((now, window));
        }
    }

    fn unwait(&mut self, key: u64) {
        self.waiting.remove(&key);
        if let Some((at, _)) = self.all.get(&key).and_then(Request::deadline) {
            self.deadlines.remove(&(at, key));
        }
    }

    fn wait(&mut self, key: u64) {
        let Some(request) = self.all.get_mut(&key) else { return };
        request.sent_as = None;
        self.waiting.insert(key);
        if let Some((at, error)) = request.deadline() {
            self.deadlines.insert((at, key), error);
        }
    }

    /// The result is there.
    pub(super) fn finish(&mut self, key: u64, result: Result<Option<ServerMessage>, Error>) {
        self.unwait(key);
        if let Some(request) = self.all.remove(&key) {
            request.finish(result);
        }
    }

    /// The caller gave up: nothing is sent later. Returns where the request was.
    pub(super) fn cancel(&mut self, key: u64) -> Option<(u64, i64)> {
        self.unwait(key);
        self.all.remove(&key)?.sent_as
    }

    /// `session` answered `SERVER_DRAINING`, or closed so as to mean it.
    pub(super) fn refused(&mut self, key: u64, session: &Arc<str>, now: Instant) {
        let policy = self.policy;
        let Some(request) = self.all.get_mut(&key) else { return };
        let waits = match request.first_sent {
            // An earlier try may have run, so this is no plain refusal: the key makes
            // another one harmless as long as the server knows it.
            Some((at, window)) if request.unknown => {
                request.resends.elsewhere(session, at + window);
                true
            }
            _ => {
                request.first_sent = None;
                request.resends.refused(policy, session, now)
            }
        };
        if waits { self.wait(key) } else { self.finish(key, Err(Error::Draining)) }
    }

    /// It was queued for a session that ended before it went out: as if never sent there.
    pub(super) fn unsent(&mut self, key: u64) {
        self.wait(key);
    }

    /// The session that had it ended without an answer.
    pub(super) fn lost(&mut self, key: u64, loss: Loss, session: &Arc<str>, now: Instant) {
        match loss {
            Loss::Refused => self.refused(key, session, now),
            Loss::Unknown => {
                let keyed = self.all.get_mut(&key).filter(|one| self.resend_keyed && one.keyed);
                match keyed {
                    Some(request) => {
                        request.unknown = true;
                        self.wait(key);
                    }
                    None => self.finish(key, Err(Error::UnknownOutcome)),
                }
            }
        }
    }

    /// Those whose waiting has come to its end get its result.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(entry) = self.deadlines.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let ((_, key), error) = entry.remove_entry();
            self.finish(key, Err(error));
        }
    }

    /// A join of `room` failed: refusals that waited for it are final.
    pub(super) fn join_failed(&mut self, room: &RoomId) {
        let failed: Vec<u64> = self
            .deadlines
            .keys()
            .map(|(_, key)| *key)
            .filter(|key| {
                self.all.get(key).is_some_and(|request| {
                    let refused = request.resends.waiting.is_some() && !request.unknown;
                    refused && request.rooms.contains(room)
                })
            })
            .collect();
        for key in failed {
            self.finish(key, Err(Error::Draining));
        }
    }

    /// The client ends: what never went out gets `error`, the rest is unknown.
    pub(super) fn end(&mut self, error: &Error) {
        for (_, request) in self.all.drain() {
            let waits = self.waiting.contains(&request.key);
            let result = match request.deadline() {
                Some((_, result)) => result,
                None if waits || request.notification => error.clone(),
                None => Error::UnknownOutcome,
            };
            request.finish(Err(result));
        }
        self.waiting.clear();
        self.deadlines.clear();
    }
}
