//! What the tests share: the real binary as a child process, WebSocket clients over real
//! sockets, and raw sockets for peers that misbehave.

pub mod admin;
pub mod balancer;
pub mod client;
pub mod nats;
#[path = "../../support/nats.rs"]
pub mod nats_server;
pub mod netns;
pub mod raw;
pub mod server;
pub mod tmpfs;

pub use balancer::Balancer;
pub use client::Client;
pub use nats::NatsCluster;
pub use nats_server::NatsServer;
pub use netns::Namespace;
pub use server::Server;
pub use tmpfs::Tmpfs;

use std::time::Duration;

/// How long anything may take that is expected to happen at once. Generous: it only has to
/// tell "late" from "never" on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);
