//! Rooms: membership, presence, and each room's event stream.
//!
//! Rooms know outgoing queues, never sockets or sessions.

mod bus;
mod distributor;
mod encode;
mod hub;
mod presence;
mod replay;
mod room;
#[cfg(test)]
mod tests;

pub use bus::{Claims, PresenceBus};
pub use distributor::{Distributor, LogWatcher};
pub use hub::{Announcer, Hub, JoinProgress, JoinRefused, PRESENCE_COLLECTED_FOR, Settings};
pub use presence::{LeaveReason, LocalChanges, Presence};
pub use replay::Replayer;
pub use room::{Join, JoinDone, Room};
