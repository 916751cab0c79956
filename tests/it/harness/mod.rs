//! What the tests share: the real binary as a child process, WebSocket clients over real
//! sockets, and raw sockets for peers that misbehave.

pub mod admin;
pub mod client;
#[path = "../../support/nats.rs"]
pub mod nats;
pub mod raw;
pub mod server;

pub use client::Client;
pub use server::Server;

use std::time::Duration;

/// How long anything may take that is expected to happen at once. Generous: it only has to
/// tell "late" from "never" on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);
