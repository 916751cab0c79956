//! The hook for whoever brings the presence of several instances together.
//!
//! The hub tells what happens to its rooms here; what comes back goes through
//! [`Hub::claim`](super::Hub::claim). A single process has no bus.

use super::presence::LocalChanges;
use crate::ids::{ClientId, RoomId};

/// Is told about the rooms of this process, in the order of what happens to each room.
///
/// All of it is called with locks held: implementations take note and return.
pub trait PresenceBus: Send + Sync {
    /// Somebody is about to be in the room, nobody was before. The room waits for one
    /// [`Hub::presence_known`](super::Hub::presence_known).
    fn opened(&self, room: &RoomId);

    /// Whose first connection came or whose last one went, collected for a while.
    fn changed(&self, room: &RoomId, changes: LocalChanges);

    /// Nobody is in the room any more.
    fn closed(&self, room: &RoomId);

    /// This process is being stopped: its members are not told of who leaves any more.
    fn stopping(&self);

    /// Who is known to be in the room by whatever instance.
    fn claimed(&self, room: &RoomId) -> Vec<ClientId>;
}

/// A change of what the bus claims in one room.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    /// Identities that it claims from now on.
    pub joined: Vec<ClientId>,
    /// Identities that it does not claim any more.
    pub left: Vec<(ClientId, super::LeaveReason)>,
}
