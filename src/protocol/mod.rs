//! The wire protocol, version 1 (protocol.md): text in, types out, and back.
//!
//! Pure: no I/O, no clock, no state of a connection. [`envelope`] reads the outer object
//! of a frame before admission, [`client`] and [`position`] judge its payload after it,
//! [`error`] names what can go wrong, [`server`], [`event`] and [`page`] write what the
//! server says, [`decode`] reads that for client libraries, and [`frame`] puts text into
//! WebSocket frames.

pub mod client;
pub mod decode;
pub mod envelope;
pub mod error;
pub mod event;
mod fields;
pub mod frame;
pub mod page;
mod payloads;
pub mod position;
pub mod server;
mod write;

#[cfg(test)]
mod tests;

pub use client::{
    BackfillBegin, ChunkPosition, History, JoinRoom, LocationUpdate, Mode, Reconnect, Since,
};
pub use decode::{ServerFrame, ServerMessage};
pub use envelope::{Class, Envelope, EnvelopeError, Kind, RequestId};
pub use error::{ErrorCode, HandlerError, Refusal, Retry, WireError};
pub use event::LocationEvent;
pub use page::{PageBuilder, Push};
pub use position::{ExtraFields, Key, Position, PositionRules};

/// The version that `welcome` announces.
pub const VERSION: u32 = 1;
