//! Every way a connection is closed: code, reason text, advice to the client and
//! metric label in one table (protocol.md, "Close codes").
//!
//! Clients match the reason texts, so they are fixed strings.

/// When a client may come back after a close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComeBack {
    /// After the `reconnectIn` of the notice.
    AfterNotice,
    /// After 60 s with jitter, and not with the same message.
    AfterAMinute,
    /// Exponential backoff of 1 to 60 s with full jitter.
    Backoff,
    /// Only with another token.
    WithNewToken,
    /// At once, with `since`; then backoff.
    AtOnce,
}

/// A reason for the server to close a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Close {
    /// The five-phase shutdown or the admin drain: what is unanswered never started.
    ShuttingDown,
    /// RFC 6455 was violated.
    ProtocolError,
    /// A text message that is no UTF-8.
    InvalidText,
    /// A peer that abuses the protocol (unread pongs, endless bad frames).
    PolicyViolation,
    /// A frame or message over `limits.max_frame`.
    FrameTooLarge,
    /// A bug or a failed task on our side.
    Internal,
    /// The server cannot take this client now.
    Overloaded,
    /// No token where one is needed.
    TokenMissing,
    /// A token that does not verify.
    TokenInvalid,
    /// `nbf` lies ahead.
    TokenNotYetValid,
    /// `exp` has passed.
    TokenExpired,
    /// The outgoing queue was over its hard limit, or nothing was read for too long.
    SlowConsumer,
    /// Too many connects a minute from one address.
    ConnectRate,
    /// Too many connections from one address.
    ConnectionsPerAddress,
}

impl Close {
    /// All of them, for metrics and tests.
    pub const ALL: [Self; 14] = [
        Self::ShuttingDown,
        Self::ProtocolError,
        Self::InvalidText,
        Self::PolicyViolation,
        Self::FrameTooLarge,
        Self::Internal,
        Self::Overloaded,
        Self::TokenMissing,
        Self::TokenInvalid,
        Self::TokenNotYetValid,
        Self::TokenExpired,
        Self::SlowConsumer,
        Self::ConnectRate,
        Self::ConnectionsPerAddress,
    ];

    const fn row(self) -> (u16, &'static str, ComeBack) {
        match self {
            Self::ShuttingDown => (1001, "server shutting down", ComeBack::AfterNotice),
            Self::ProtocolError => (1002, "protocol error", ComeBack::AfterAMinute),
            Self::InvalidText => (1007, "invalid text", ComeBack::AfterAMinute),
            Self::PolicyViolation => (1008, "protocol abuse", ComeBack::AfterAMinute),
            Self::FrameTooLarge => (1009, "frame too large", ComeBack::AfterAMinute),
            Self::Internal => (1011, "internal", ComeBack::Backoff),
            Self::Overloaded => (1013, "overloaded", ComeBack::Backoff),
            Self::TokenMissing => (4001, "Authentication token is missing", ComeBack::WithNewToken),
            Self::TokenInvalid => (4001, "Invalid token", ComeBack::WithNewToken),
            Self::TokenNotYetValid => (4001, "Token not yet valid", ComeBack::WithNewToken),
            Self::TokenExpired => (4001, "Token has expired", ComeBack::WithNewToken),
            Self::SlowConsumer => (4008, "slow consumer", ComeBack::AtOnce),
            Self::ConnectRate => (4029, "Connection rate limit exceeded", ComeBack::AfterAMinute),
            Self::ConnectionsPerAddress => {
                (4029, "Too many connections from this IP", ComeBack::AfterAMinute)
            }
        }
    }

    /// The code on the wire (RFC 6455, 7.4).
    #[must_use]
    pub const fn code(self) -> u16 {
        self.row().0
    }

    /// The reason text on the wire, fixed.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        self.row().1
    }

    /// When the client may come back.
    #[must_use]
    pub const fn come_back(self) -> ComeBack {
        self.row().2
    }
}

/// The advice for a code that came from a server, for client libraries.
/// Unknown codes and 1006 (no close frame) mean backoff.
#[must_use]
pub fn come_back(code: u16, reason: &str) -> ComeBack {
    Close::ALL
        .into_iter()
        .find(|close| close.code() == code && close.reason() == reason)
        .or_else(|| Close::ALL.into_iter().find(|close| close.code() == code && code != 1001))
        .map_or(ComeBack::Backoff, Close::come_back)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_fits_a_close_frame() {
        for close in Close::ALL {
            assert!(close.reason().len() <= 123, "{close:?}");
        }
    }

    #[test]
    fn only_our_own_1001_promises_a_notice() {
        assert_eq!(come_back(1001, "server shutting down"), ComeBack::AfterNotice);
        assert_eq!(come_back(1001, "Going Away"), ComeBack::Backoff);
        assert_eq!(come_back(1006, ""), ComeBack::Backoff);
        assert_eq!(come_back(4001, "anything"), ComeBack::WithNewToken);
    }
}
