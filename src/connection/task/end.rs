//! How a connection ended: for the log, for presence.

use crate::close::Close;
use crate::rooms::LeaveReason;
use crate::telemetry::events::Initiator;

/// How a connection ended, for the log.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) code: u16,
    pub(super) reason: std::borrow::Cow<'static, str>,
    pub(super) initiator: Initiator,
    pub(super) leave: LeaveReason,
}

impl End {
    pub(super) fn lost(reason: &'static str) -> Self {
        Self {
            code: 1006,
            reason: reason.into(),
            initiator: Initiator::Peer,
            leave: LeaveReason::Disconnected,
        }
    }

    pub(super) fn closed(close: Close) -> Self {
        let leave = match close {
            Close::ShuttingDown => LeaveReason::ServerShuttingDown,
            _ => LeaveReason::Disconnected,
        };
        Self {
            code: close.code(),
            reason: close.reason().into(),
            initiator: Initiator::Server,
            leave,
        }
    }
}
