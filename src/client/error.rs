//! What a call of the client library can end with.
//!
//! The variants separate what a caller must tell apart: refused for good, refused for now,
//! never started, and started with an unknown end.

use std::sync::Arc;
use std::time::Duration;

use crate::budget::MAX_BUDGET;
use crate::protocol::decode::ErrorMessage;
use crate::protocol::{ErrorCode, Retry};

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered with an error; whether the same request may succeed later
    /// stands in [`Refused::retry`].
    #[error("{0}")]
    Refused(Box<Refused>),
    /// `SERVER_BUSY`: the server is paused and its budget is full. Nothing ran; send it
    /// again in the same session after the time given.
    #[error("the server is busy; again in {} ms", retry_after.as_millis())]
    Busy {
        /// How long to wait.
        retry_after: Duration,
    },
    /// `SERVER_DRAINING`, or a close with 1001 `server shutting down` before the answer:
    /// the request never started and may be sent again on a new session.
    #[error("the server is shutting down and did not start the request")]
    Draining,
    /// The connection died with the request in flight: it may have been handled or not.
    #[error("the connection was lost before the answer; whether the request ran is unknown")]
    UnknownOutcome,
    /// The client was closed before the request was sent.
    #[error("the client is closed")]
    Closed,
    /// The server does not accept the token, and there is no other.
    #[error("unauthorized: {reason}")]
    Unauthorized {
        /// The server's words.
        reason: Arc<str>,
    },
    /// No endpoint could be reached at the first attempt.
    #[error("cannot connect: {reason}")]
    Connect {
        /// What the last endpoint said.
        reason: Arc<str>,
    },
    /// The call itself is wrong: a bad URL, a bad name, a position that is no object.
    #[error("{0}")]
    Invalid(String),
    /// The server's answer is none that the protocol knows for this request.
    #[error("not this protocol: {0}")]
    Protocol(String),
}

/// An `error` message of the server (protocol.md, "Error codes").
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Refused {
    /// The code's name, also one that this version does not know.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// Whether to send it again.
    pub retry: Retry,
    /// How long to wait before that.
    pub retry_after: Option<Duration>,
    /// The path of the offending field.
    pub field: Option<String>,
    /// The offending message's type.
    pub kind: Option<String>,
    /// The offending message's room.
    pub room: Option<String>,
    /// How many more errors to notifications were not sent.
    pub suppressed: u64,
}

impl Refused {
    /// Whether this is `code`.
    #[must_use]
    pub fn is(&self, code: ErrorCode) -> bool {
        self.code == code.name()
    }
}

impl From<ErrorMessage> for Refused {
    fn from(error: ErrorMessage) -> Self {
        Self {
            // A word that this version does not know is no invitation to send again.
            retry: Retry::from_name(&error.retry).unwrap_or(Retry::Never),
            code: error.code,
            message: error.message,
            retry_after: error
                .retry_after_ms
                .map(|millis| Duration::from_millis(millis).min(MAX_BUDGET)),
            field: error.field,
            kind: error.kind,
            room: error.room_id,
            suppressed: error.suppressed.unwrap_or(0),
        }
    }
}

impl From<ErrorMessage> for Error {
    fn from(error: ErrorMessage) -> Self {
        let refused = Refused::from(error);
        if refused.is(ErrorCode::ServerDraining) {
            Self::Draining
        } else if refused.is(ErrorCode::ServerBusy) {
            Self::Busy { retry_after: refused.retry_after.unwrap_or(Duration::from_secs(1)) }
        } else {
            Self::Refused(Box::new(refused))
        }
    }
}

impl Error {
    /// Whether the server may take the same request later, and after how long.
    #[must_use]
    pub fn retry_later(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after } => Some(*retry_after),
            Self::Refused(refused) if refused.retry == Retry::Later => {
                Some(refused.retry_after.unwrap_or(Duration::from_secs(1)))
            }
            _ => None,
        }
    }
}
