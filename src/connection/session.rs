//! The state of one session: identity, rooms, rates, and what is still open of it.
//!
//! It reacts to decoded messages through `handlers`; it never touches the socket.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::handle::Handle;
use super::services::Services;
use super::upload::Upload;
use crate::admission::Admitted;
use crate::auth::Identity;
use crate::ids::RoomId;
use crate::limits::{MessageRate, Suppressor};
use crate::outgoing::{Queue, Weight};
use crate::plane::Held;
use crate::protocol::client::Mode;
use crate::protocol::error::WireError;
use crate::protocol::{RequestId, frame, server};
use crate::rooms::LeaveReason;
use crate::time::UnixMillis;

/// Appends of one connection that the log has not committed yet; more are not read from
/// the socket.
pub const MAX_IN_FLIGHT: usize = 1024;

/// Joins that wait for their room to be loaded, by room.
pub(super) type Joining = Arc<Mutex<FxHashMap<RoomId, Admitted>>>;

/// How a connection is in a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) mode: Mode,
    /// Joined in the old gateway's flat form.
    pub(super) flat: bool,
}

/// One session.
pub struct Session {
    pub(super) services: Arc<Services>,
    pub(super) handle: Arc<Handle>,
    pub(super) identity: Identity,
    pub(super) rooms: FxHashMap<RoomId, Membership>,
    pub(super) joining: Joining,
    pub(super) in_flight: Arc<AtomicUsize>,
    /// Messages that wait for the plane, or behind a join whose room is being loaded.
    pub(super) held: Held,
    /// Uploads whose begin is held: the arrival numbers of their frames.
    pub(super) held_uploads: FxHashMap<RequestId, Vec<u64>>,
    /// The plane was seen paused: its end has to be told.
    pub(super) paused: bool,
    /// Notifications that came or waited too late, in a pause that the shutdown outlasted.
    pub(super) lost_notifications: u64,
    pub(super) messages_in: u64,
    pub(super) upload: Option<Upload>,
    pub(super) tombstones: VecDeque<RequestId>,
    rate: MessageRate,
    errors: Suppressor,
    warned_of_expiry: bool,
}

/// What an expiry check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expiry {
    /// Look again after this time.
    In(std::time::Duration),
    /// The token's time is over.
    Over,
    /// There is nothing to expire.
    Never,
}

impl Session {
    /// A session of `identity` on `handle`'s connection; its `welcome` is in the queue.
    #[must_use]
    pub fn new(services: Arc<Services>, handle: Arc<Handle>, identity: Identity) -> Self {
        let settings = &services.settings;
        let now = Instant::now();
        let rate = MessageRate::new(settings.message_rate, settings.message_burst, now);
        let welcome = server::welcome(&server::Welcome {
            session_id: &handle.session_id,
            client_id: &identity.client_id,
            instance_id: &settings.instance_id,
            generation: &settings.generation,
            protocol: crate::protocol::VERSION,
            server_time: UnixMillis::now(),
            heartbeat_ms: millis(settings.heartbeat_interval),
            heartbeat_timeout_ms: millis(settings.heartbeat_timeout),
            max_frame_bytes: settings.max_frame,
            max_frame_out_bytes: settings.max_frame_out,
            max_position_bytes: settings.position.max_position,
            dedup_window_ms: millis(settings.dedup_window),
        });
        handle.queue.push(frame::text_frame(&welcome), Weight::Free);
        let held = Held::new(services.plane.clone());
        Self {
            rate,
            errors: Suppressor::default(),
            services,
            handle,
            identity,
            rooms: FxHashMap::default(),
            joining: Joining::default(),
            in_flight: Arc::new(AtomicUsize::new(0)),
            held,
            held_uploads: FxHashMap::default(),
            paused: false,
            lost_notifications: 0,
            messages_in: 0,
            upload: None,
            tombstones: VecDeque::new(),
            warned_of_expiry: false,
        }
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.handle.queue
    }

    pub(super) fn say(&self, text: &str) {
        self.queue().push(frame::text_frame(text), Weight::Free);
    }

    /// Spends one message of the rate.
    pub(super) fn spend_rate(&mut self) -> Result<(), std::time::Duration> {
        self.rate.take(Instant::now())
    }

    /// Tells of an error in a message that is no request, at most 50 times a second.
    pub(super) fn complain(&mut self, kind: Option<&str>, error: &WireError) {
        if let Some(suppressed) = self.errors.admit(Instant::now()) {
            let suppressed = (suppressed > 0).then_some(suppressed);
            self.say(&server::error(None, kind, error, suppressed));
        }
    }

    /// Tells of an error with the id of a request that never became one.
    pub(super) fn complain_to(
        &mut self,
        id: Option<&RequestId>,
        kind: Option<&str>,
        error: &WireError,
    ) {
        if id.is_some() {
            self.say(&server::error(id, kind, error, None));
        } else {
            self.complain(kind, error);
        }
    }

    /// Whether the log has enough to do with this connection.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) >= MAX_IN_FLIGHT
    }

    /// Warns of the token's end, once, and says when to look again.
    pub(super) fn check_expiry(&mut self, now: UnixMillis) -> Expiry {
        let settings = &self.services.settings;
        let Some(expires_at) = self.identity.expires_at.filter(|_| settings.enforce_expiry) else {
            return Expiry::Never;
        };
        let left = expires_at.get() - now.get();
        let warning = i64::try_from(settings.expiry_warning.as_millis()).unwrap_or(i64::MAX);
        let leeway = i64::try_from(self.services.auth.leeway().as_millis()).unwrap_or(i64::MAX);
        if left.saturating_add(leeway) <= 0 {
            return Expiry::Over;
        }
        if left > warning {
            return Expiry::In(duration(left - warning));
        }
        if !self.warned_of_expiry {
            self.warned_of_expiry = true;
            let in_ms = u64::try_from(left).unwrap_or(0);
            self.say(&server::token_expiring(expires_at, in_ms));
        }
        Expiry::In(duration(left.saturating_add(leeway)))
    }

    pub(super) fn set_identity(&mut self, identity: Identity) {
        self.identity = identity;
        self.warned_of_expiry = false;
    }

    /// Undoes joins that still wait: they are answered as never started.
    pub(super) fn undo_joins(&mut self) {
        let rooms: Vec<RoomId> = self.joining.lock().keys().cloned().collect();
        for room in rooms {
            if self.services.hub.cancel(&room, self.handle.conn).is_some() {
                self.rooms.remove(&room);
                if let Some(join) = self.joining.lock().remove(&room) {
                    join.undo(room.as_str());
                }
            }
        }
    }

    /// Leaves everything; the queue is over already.
    pub(super) fn end(&mut self, reason: LeaveReason) {
        for (room, _) in self.rooms.drain() {
            let (hub, conn) = (&self.services.hub, self.handle.conn);
            if hub.cancel(&room, conn).is_none() {
                hub.leave(&room, conn, &self.identity.client_id, self.identity.hidden, reason);
            }
        }
        if let Some(admitted) = self.upload.take().and_then(Upload::abandon) {
            admitted.answered_elsewhere();
        }
        for (_, join) in self.joining.lock().drain() {
            // The connection is gone; there is nobody to answer.
            join.answered_elsewhere();
        }
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn duration(millis: i64) -> std::time::Duration {
    std::time::Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
