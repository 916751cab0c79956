//! What can go wrong on the wire: codes, their numbers and the advice to resend, in one
//! table (protocol.md, "Error codes").
//!
//! A handler's failure ([`HandlerError`]) and the server's refusal to start a request
//! ([`Refusal`]) are different types, so that no handler can claim that a request never
//! started. Both become a [`WireError`], which only this floor can make.

use std::fmt;

/// Whether the sender of a refused message may send it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same message fails again.
    Never,
    /// After `retryAfterMs`, in the same session.
    Later,
    /// Now, on a new session.
    Elsewhere,
}

impl Retry {
    /// The word on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Later => "later",
            Self::Elsewhere => "elsewhere",
        }
    }

    /// Reads the word on the wire.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Never, Self::Later, Self::Elsewhere].into_iter().find(|retry| retry.name() == name)
    }
}

/// The code of an `error` message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The frame does not hold a JSON object.
    InvalidJson,
    /// The `type` is none that this server knows.
    UnknownType,
    /// A field is wrong or missing.
    ValidationError,
    /// Over the type's size limit.
    MessageTooLarge,
    /// Publishes to, or asks about, a room it has not joined.
    NotJoined,
    /// The token does not allow it.
    Forbidden,
    /// `token_refresh` with a bad token.
    AuthFailed,
    /// The room has no place left.
    RoomFull,
    /// The connection or the server has no room left to give.
    RoomLimitExceeded,
    /// Over the message rate.
    RateLimited,
    /// The plane is paused and a budget is full.
    ServerBusy,
    /// The server drains; the request did not start.
    ServerDraining,
    /// A handler failed.
    Internal,
}

impl ErrorCode {
    /// All of them, for metrics and tests.
    pub const ALL: [Self; 13] = [
        Self::InvalidJson,
        Self::UnknownType,
        Self::ValidationError,
        Self::MessageTooLarge,
        Self::NotJoined,
        Self::Forbidden,
        Self::AuthFailed,
        Self::RoomFull,
        Self::RoomLimitExceeded,
        Self::RateLimited,
        Self::ServerBusy,
        Self::ServerDraining,
        Self::Internal,
    ];

    const fn row(self) -> (&'static str, i32, Retry) {
        match self {
            Self::InvalidJson => ("INVALID_JSON", -32_700, Retry::Never),
            Self::UnknownType => ("UNKNOWN_TYPE", -32_601, Retry::Never),
            Self::ValidationError => ("VALIDATION_ERROR", -32_602, Retry::Never),
            Self::MessageTooLarge => ("MESSAGE_TOO_LARGE", -32_602, Retry::Never),
            Self::NotJoined => ("NOT_JOINED", -32_010, Retry::Never),
            Self::Forbidden => ("FORBIDDEN", -32_011, Retry::Never),
            Self::AuthFailed => ("AUTH_FAILED", -32_012, Retry::Never),
            Self::RoomFull => ("ROOM_FULL", -32_013, Retry::Later),
            Self::RoomLimitExceeded => ("ROOM_LIMIT_EXCEEDED", -32_013, Retry::Later),
            Self::RateLimited => ("RATE_LIMITED", -32_014, Retry::Later),
            Self::ServerBusy => ("SERVER_BUSY", -32_000, Retry::Later),
            Self::ServerDraining => ("SERVER_DRAINING", -32_001, Retry::Elsewhere),
            Self::Internal => ("INTERNAL", -32_603, Retry::Never),
        }
    }

    /// The name on the wire, `code`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The number on the wire, in the range of JSON-RPC 2.0.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.row().1
    }

    /// Whether the sender may send it again.
    #[must_use]
    pub const fn retry(self) -> Retry {
        self.row().2
    }

    /// Reads the name on the wire.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How long to wait before sending again where nothing better is known, in milliseconds.
pub const DEFAULT_RETRY_AFTER_MS: u64 = 1000;

/// An error as it goes out. Made from an [`EnvelopeError`](super::EnvelopeError), a
/// [`HandlerError`] or a [`Refusal`], by nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireError(Box<Parts>);

/// Behind a pointer: results are passed through every layer, errors are rare.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parts {
    code: ErrorCode,
    message: String,
    field: Option<String>,
    room_id: Option<String>,
    retry_after_ms: Option<u64>,
}

impl WireError {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(Parts { code, message, field: None, room_id: None, retry_after_ms: None }))
    }

    pub(crate) fn validation(field: impl Into<String>, message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorCode::ValidationError, message);
        error.0.field = Some(field.into());
        error
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// A sentence for people that names the field and what was expected.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The path of the offending field, as in `positions[3].latitude`.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    /// The room that was meant.
    #[must_use]
    pub fn room_id(&self) -> Option<&str> {
        self.0.room_id.as_deref()
    }

    /// Milliseconds to wait; always there for a code whose advice is [`Retry::Later`].
    #[must_use]
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self.code().retry() {
            Retry::Later => Some(self.0.retry_after_ms.unwrap_or(DEFAULT_RETRY_AFTER_MS)),
            Retry::Never | Retry::Elsewhere => self.0.retry_after_ms,
        }
    }

    /// Names the room, unless one is named already.
    #[must_use]
    pub fn with_room(mut self, room: impl Into<String>) -> Self {
        self.0.room_id.get_or_insert_with(|| room.into());
        self
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code, self.0.message)
    }
}

impl std::error::Error for WireError {}

/// Why a handler could not do what a message asked for.
///
/// It has no constructor for `SERVER_BUSY` and `SERVER_DRAINING`: those say that a request
/// never started, which a handler cannot know (plane.md, "Admission", 9).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HandlerError(WireError);

impl HandlerError {
    /// A field is wrong or missing; `message` names it and what was expected.
    #[must_use]
    pub fn validation(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self(WireError::validation(field, message))
    }

    /// `size` bytes where at most `limit` are allowed; `what` begins the sentence.
    #[must_use]
    pub fn message_too_large(what: &str, size: usize, limit: usize) -> Self {
        Self(WireError::new(
            ErrorCode::MessageTooLarge,
            format!("{what} has {size} bytes; at most {limit} are allowed."),
        ))
    }

    /// This connection has not joined the room.
    #[must_use]
    pub fn not_joined(room: &str) -> Self {
        Self(
            WireError::new(
                ErrorCode::NotJoined,
                format!("This connection has not joined the room {room:?}; join it first."),
            )
            .with_room(room),
        )
    }

    /// A position without `roomId` on a connection that publishes to no room.
    #[must_use]
    pub fn not_joined_any() -> Self {
        Self(WireError::new(
            ErrorCode::NotJoined,
            "This connection has joined no room for publishing; join one first.",
        ))
    }

    /// The token does not allow it; `message` says what.
    #[must_use]
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self(WireError::new(ErrorCode::Forbidden, message))
    }

    /// The token of a `token_refresh` is not accepted.
    #[must_use]
    pub fn auth_failed(message: impl Into<String>) -> Self {
        Self(WireError::new(ErrorCode::AuthFailed, message))
    }

    /// The room has `limit` members already.
    #[must_use]
    pub fn room_full(room: &str, limit: usize) -> Self {
        Self(
            WireError::new(
                ErrorCode::RoomFull,
                format!("The room {room:?} is full: it has {limit} members."),
            )
            .with_room(room),
        )
    }

    /// A limit on the number of rooms is reached; `message` says which.
    #[must_use]
    pub fn room_limit_exceeded(message: impl Into<String>) -> Self {
        Self(WireError::new(ErrorCode::RoomLimitExceeded, message))
    }

    /// Over the message rate; `retry_after_ms` milliseconds until the next message passes.
    #[must_use]
    pub fn rate_limited(message: impl Into<String>, retry_after_ms: u64) -> Self {
        let mut error = WireError::new(ErrorCode::RateLimited, message);
        error.0.retry_after_ms = Some(retry_after_ms);
        Self(error)
    }

    /// A type that this handler does not serve.
    #[must_use]
    pub fn unknown_type(kind: &str) -> Self {
        Self(unknown_type(kind))
    }

    /// A failure that is ours. The text tells the client nothing: the log does.
    #[must_use]
    pub fn internal() -> Self {
        Self(WireError::new(
            ErrorCode::Internal,
            "The server failed to handle this message; it has been logged.",
        ))
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.0.code()
    }

    /// The error as it would go out.
    #[must_use]
    pub const fn wire(&self) -> &WireError {
        &self.0
    }

    /// Names the room, unless one is named already.
    #[must_use]
    pub fn with_room(self, room: impl Into<String>) -> Self {
        Self(self.0.with_room(room))
    }

    /// Milliseconds to wait before sending again.
    #[must_use]
    pub fn with_retry_after_ms(mut self, millis: u64) -> Self {
        self.0.0.retry_after_ms = Some(millis);
        self
    }

    /// Puts `prefix` and a dot before the field: `seq` in `since` becomes `since.seq`. An
    /// error without a field is about `prefix` itself.
    #[must_use]
    pub fn inside(mut self, prefix: &str) -> Self {
        self.0.0.field = Some(match self.0.0.field.take() {
            Some(field) => format!("{prefix}.{field}"),
            None => prefix.to_owned(),
        });
        self
    }

    /// The same error about item `index` of `positions`. The payload as a whole is then
    /// the item itself.
    #[must_use]
    pub(super) fn in_item(mut self, index: usize) -> Self {
        if self.0.0.field.as_deref() == Some("payload") {
            self.0.0.field = None;
            self.0.0.message = format!(
                "`positions[{index}]` must be a JSON object whose names are valid Unicode."
            );
        }
        self.inside(&format!("positions[{index}]"))
    }
}

impl From<HandlerError> for WireError {
    fn from(error: HandlerError) -> Self {
        error.0
    }
}

/// Why the server did not start a request. Only admission makes these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The plane is paused and this connection's budget is full.
    ServerBusy {
        /// How many of this connection's requests wait.
        waiting: usize,
    },
    /// The server drains.
    ServerDraining,
}

impl Refusal {
    /// The code.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::ServerBusy { .. } => ErrorCode::ServerBusy,
            Self::ServerDraining => ErrorCode::ServerDraining,
        }
    }
}

impl From<Refusal> for WireError {
    fn from(refusal: Refusal) -> Self {
        let message = match refusal {
            Refusal::ServerBusy { waiting } => format!(
                "The server is paused and {waiting} of this connection's requests wait; \
                 this one was not taken: send it again later."
            ),
            Refusal::ServerDraining => "The server is shutting down and did not start this \
                 request; it is safe to send it again on a new session."
                .to_owned(),
        };
        Self::new(refusal.code(), message)
    }
}

pub(super) fn unknown_type(kind: &str) -> WireError {
    WireError::new(ErrorCode::UnknownType, format!("The type {kind:?} is unknown."))
}
