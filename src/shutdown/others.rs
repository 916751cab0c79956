//! The other instances as the shutdown sees them: whether there is anybody to hand clients
//! over to, and what they have to be told (shutdown.md, "Hand-over").
//!
//! Talks to neither broker nor cluster: the composition root brings both in behind
//! [`Others`], tests bring a script.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::cluster::Instance;
use crate::protocol::server::Generations;

/// What a shutdown asks of the other instances, and of the link to them. Nothing here has a
/// time of its own beside the caller's deadline.
pub trait Others: Send + Sync {
    /// Instances that clients may go to: alive, and not draining themselves.
    fn live(&self) -> usize;

    /// The generation of this instance, and those that its clients had better go to.
    fn generations(&self) -> TheirGenerations;

    /// All that is known of them, for the admin port.
    fn known(&self) -> Vec<Instance>;

    /// Tells them that this instance stops. A second time changes nothing.
    fn announce_draining(&self);

    /// Tells them whether this instance sends its clients away without stopping (the admin
    /// drain).
    fn announce_away(&self, away: bool);

    /// Whether everything said so far is with the broker by `deadline`.
    fn flush(&self, deadline: Instant) -> BoxFuture<'static, bool>;

    /// Takes leave of them, then flushes and closes the link; whether that was done by
    /// `deadline`. The room log is closed before.
    fn leave(&self, deadline: Instant) -> BoxFuture<'static, bool>;
}

/// What the notice says of generations, with other instances about.
#[derive(Debug, Clone)]
pub struct TheirGenerations {
    /// The one of this instance.
    pub own: Arc<str>,
    /// Those of others that differ from it.
    pub newer: Vec<String>,
}

impl TheirGenerations {
    /// As the notice tells it.
    #[must_use]
    pub fn told(&self) -> Generations<'_> {
        Generations { own: &self.own, newer: &self.newer }
    }
}

/// The other instances, once the link to them is up. With the embedded engine it stays
/// empty.
#[derive(Clone, Default)]
pub struct OthersSlot(Arc<OnceLock<Arc<dyn Others>>>);

impl OthersSlot {
    /// The other instances, if there can be any.
    #[must_use]
    pub fn get(&self) -> Option<&Arc<dyn Others>> {
        self.0.get()
    }

    /// Notes that the link is up; a second time changes nothing.
    pub fn set(&self, others: Arc<dyn Others>) {
        let _ = self.0.set(others);
    }

    /// What the notice says of generations; nothing where there are no others.
    #[must_use]
    pub fn generations(&self) -> Option<TheirGenerations> {
        self.get().map(|others| others.generations())
    }

    /// How many there are now.
    #[must_use]
    pub fn live(&self) -> usize {
        self.get().map_or(0, |others| others.live())
    }
}

impl std::fmt::Debug for OthersSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OthersSlot").field("live", &self.live()).finish()
    }
}
