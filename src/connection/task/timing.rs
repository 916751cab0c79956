//! Time: heartbeats, slow peers, deadlines and token expiry, on the ticks that the registry
//! gives.

use std::time::Duration;

use super::end::End;
use super::{Connection, Stage};
use crate::close::Close;
use crate::connection::session::{Expiry, Session};
use crate::outgoing::Weight;
use crate::protocol::frame;
use crate::rooms::LeaveReason;
use crate::telemetry::events::Initiator;
use crate::time::UnixMillis;

/// How often a connection that the kernel takes nothing from is looked at, in ms.
pub(super) const BLOCKED_CHECK: u64 = 250;
/// Bytes that may be nothing but pings.
const PINGS: u64 = 64;

impl Connection {
    /// Does what the time asks for and plans the next tick.
    pub(super) fn plan(&mut self, now: u64) {
        let settings = &self.services.settings;
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (timeout, slow_timeout) = (ms(settings.heartbeat_timeout), ms(settings.slow_timeout));
        let (max_bytes, max_messages) = (settings.max_bytes as u64, settings.max_messages as u64);
        let high_water = settings.high_water as u64;
        let mut next = u64::MAX;

        if let Some(deadline) = self.close_deadline {
            if now >= deadline {
                let end = match self.stage {
                    Stage::Closing(close) => End::closed(close),
                    _ => self.later.take().unwrap_or_else(|| End::lost("close timeout")),
                };
                return self.give_up(end);
            }
            next = next.min(deadline);
        }

        let socket = &self.handle().socket;
        let acknowledged = socket.acknowledged();
        // A peer that takes more than pings is alive, also one that reads slowly. That its
        // kernel takes a ping says nothing.
        let reads = self.batch.bytes() > 0 || socket.unacknowledged() > PINGS;
        let before = std::mem::replace(&mut self.last_acknowledged, acknowledged);
        let taken = acknowledged.saturating_sub(before);
        if taken > PINGS || (taken > 0 && reads) {
            self.last_progress = now;
        }
        let alive = self.last_received.max(self.last_progress);
        if now >= alive.saturating_add(timeout) {
            return self.give_up(End {
                code: 1006,
                reason: "heartbeat timeout".into(),
                initiator: Initiator::Server,
                leave: LeaveReason::Timeout,
            });
        }
        next = next.min(alive.saturating_add(timeout));

        if self.stage == Stage::Open {
            if now >= self.last_sent.saturating_add(self.ping_after) {
                self.handle().queue.push(frame::ping_frame(b""), Weight::Free);
                self.last_sent = now;
            }
            next = next.min(self.last_sent.saturating_add(self.ping_after));
            if let Some(since) = self.blocked_since {
                let queue = &self.handle().queue;
                if queue.backlog().bytes > high_water {
                    queue.squeeze();
                }
                let backlog = queue.hard_backlog();
                if now >= since.saturating_add(slow_timeout)
                    || backlog.bytes > max_bytes
                    || backlog.messages > max_messages
                {
                    self.slow(now);
                } else {
                    next = next.min(now + BLOCKED_CHECK);
                }
            }
        }
        if let Some(look_again) = self.session.as_mut().and_then(Session::check_upload) {
            next = next.min(now.saturating_add(ms(look_again).max(1)));
        }
        if self.stage == Stage::Open
            && !self.handle().requests.is_draining()
            && let Some(session) = &mut self.session
        {
            match session.check_expiry(UnixMillis::now()) {
                Expiry::In(time) => next = next.min(now.saturating_add(ms(time).max(1))),
                Expiry::Over => {
                    session.forbid_held();
                    self.close(Close::TokenExpired, now);
                }
                Expiry::Never => {}
            }
        }
        self.handle().wake_at(next);
    }
}
