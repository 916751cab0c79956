//! Configuration: plain data and its defaults, how it is loaded and what it may not be.
//!
//! A TOML file, then environment variables `MILEPOST_SECTION__KEY`, then
//! `--set section.key=value` are folded into one tree, so that a typo fails alike
//! everywhere. `config/milepost.toml` is the commented reference. No other file than
//! the configuration's is read here: keys and tokens in files are read by their users.

use serde::Deserialize;

mod auth;
mod error;
mod limits;
mod listen;
mod load;
mod nats;
mod room_log;
mod secret;
mod shutdown;
mod sources;
pub mod units;
mod validate;
mod warnings;

#[cfg(test)]
mod tests;

pub use auth::{Auth, AuthMode, DefaultAccess, Expiry};
pub use error::ConfigError;
pub use limits::{ExtraFields, Heartbeat, Limits, Outgoing, Plane};
pub use listen::{Admin, Log, LogFormat, LogLevel, Server, UnknownLevel};
pub use nats::{Nats, NatsUrl};
pub use room_log::{Engine, RoomLog};
pub use secret::Secret;
pub use shutdown::{ReturnTimes, Shutdown};
pub use sources::Sources;

/// The whole configuration, one field a section.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The public port.
    pub server: Server,
    /// The admin port.
    pub admin: Admin,
    /// Who may connect.
    pub auth: Auth,
    /// How much a client may do.
    pub limits: Limits,
    /// How a dead connection is noticed.
    pub heartbeat: Heartbeat,
    /// The queue of a connection.
    pub outgoing: Outgoing,
    /// What is held during a pause.
    pub plane: Plane,
    /// Where positions are kept.
    pub room_log: RoomLog,
    /// The broker of several instances.
    pub nats: Nats,
    /// How the server stops.
    pub shutdown: Shutdown,
    /// What goes to stdout.
    pub log: Log,
    /// Where the keys were set, for error texts.
    #[serde(skip)]
    pub sources: Sources,
}
