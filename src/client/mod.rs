//! The client library: a session with a milepost server that survives deploys, lost
//! networks and slow readers (delivery.md, "A client's duty").
//!
//! A [`Client`] keeps its rooms joined and its place in each room's log. When the server
//! announces its end it connects elsewhere first and lets the old socket go after, when a
//! connection dies it comes back with jitter, and the events of a room arrive once and in
//! order through all of it, or an [`Event::Gap`] says that they did not. Uses only the
//! ground floor and the wire protocol.
//!
//! ```no_run
//! use milepost::client::{Client, Event, Fix};
//! use milepost::protocol::Mode;
//!
//! # async fn run() -> Result<(), milepost::client::Error> {
//! let (client, mut events) = Client::builder()
//!     .endpoint("ws://127.0.0.1:8080/ws")
//!     .client_id("bus-7")
//!     .connect()
//!     .await?;
//! client.join("north", Mode::Both).await?;
//!
//! let acked = client.publish_keyed(["north"], "trip-1/17", &Fix::new(60.17, 24.94)).await?;
//! println!("stored as {:?}, a repetition: {}", acked.rooms, acked.duplicate);
//!
//! while let Some(event) = events.next().await {
//!     if let Event::Location(location) = event {
//!         println!("{} is at {}, {}", location.vehicle_id, location.latitude, location.longitude);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod backoff;
mod builder;
mod connector;
mod error;
mod event;
mod fix;
mod handle;
mod inbound;
mod link;
mod outbound;
mod reconnect;
mod requests;
mod resend;
mod rooms;
mod task;
#[cfg(test)]
mod tests;

pub use backoff::BackoffTimes;
pub use builder::Builder;
pub use connector::{Connector, Endpoint, Tcp};
pub use error::{Error, Refused};
pub use event::{Event, Events, GapCause, Phase, State};
pub use fix::Fix;
pub use handle::Client;
pub use resend::ResendRefused;

/// `ack`: where a position stands in the log of each room, whether every room had it
/// already, and the rooms where a newer fix of the vehicle was there before.
pub use crate::protocol::decode::Ack as Acked;

/// How many events wait for their reader before the socket is read no more.
const EVENTS: usize = 512;
/// How many messages may be without an answer before further callers wait: as many as a
/// paused server holds for one connection (plane.md).
const MAX_UNANSWERED: usize = 10_000;
