//! Rooms: membership, presence, and each room's event stream.
//!
//! Rooms know outgoing queues, never sockets or sessions.

mod distributor;
mod hub;
mod presence;
mod room;

pub use distributor::{Distributor, LogWatcher};
pub use hub::{Announcer, Hub, JoinProgress, JoinRefused, PRESENCE_COLLECTED_FOR, Settings};
pub use presence::{LeaveReason, Presence};
pub use room::{Join, JoinDone, Room};
