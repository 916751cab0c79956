//! The other instances: who of a room's members is where, which instances live, and which
//! generations are about during a deploy (delivery.md, "Presence" and "Engines").
//!
//! An identity is present in a room while it has a connection here or any live instance
//! announces it. Each instance tells the others about its own members in coalesced
//! changes; nothing is stored, and what a message loss leaves behind is found by versions.
//! A single process has a [`Cluster::alone`], of which nothing runs.

mod core;
mod driver;
mod lists;
mod message;
mod peers;
mod sync;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::core::{Core, Input};
pub use self::core::{KEPT_AFTER, Settings};
use self::driver::{Bus, Driver};
use self::wire::{Nats, Wire};
use crate::broker::Link;
use crate::protocol::server::MAX_NEWER;
use crate::rooms::Hub;
use crate::time::UnixMillis;

/// What is known of another instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its public name.
    pub instance: Arc<str>,
    /// Its `server.generation`.
    pub generation: String,
    /// When it started, in milliseconds of the Unix epoch.
    pub started: i64,
    /// Its connections.
    pub clients: u64,
    /// It is being stopped, or takes no new clients.
    pub draining: bool,
}

/// The other instances, as this one knows them. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    generation: Arc<str>,
    with: Option<With>,
}

#[derive(Clone)]
struct With {
    core: Arc<Mutex<Core>>,
    inputs: mpsc::UnboundedSender<Input>,
    link: Option<Link>,
    left: CancellationToken,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("generation", &self.generation)
            .field("others", &self.others())
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// A process without others.
    #[must_use]
    pub fn alone(generation: Arc<str>) -> Self {
        Self { generation, with: None }
    }

    /// Joins the instances on `link` with the rooms of `hub`, before anybody joins one.
    /// `clients` counts the connections. Runs until the hub is gone.
    #[must_use]
    pub fn start(
        link: Link,
        hub: &Arc<Hub>,
        settings: Settings,
        clients: impl Fn() -> u64 + Send + 'static,
    ) -> Self {
        let wire = Nats::new(link.clone(), &settings.instance);
        Self::over(wire, Some(link), hub, settings, clients)
    }

    fn over(
        wire: impl Wire,
        link: Option<Link>,
        hub: &Arc<Hub>,
        settings: Settings,
        clients: impl Fn() -> u64 + Send + 'static,
    ) -> Self {
        let generation = settings.generation.clone();
        let core = Core::new(settings, UnixMillis::now().get(), Instant::now());
        let core = Arc::new(Mutex::new(core));
        let left = CancellationToken::new();
        let (inputs, taken) = mpsc::unbounded_channel();
        hub.set_bus(Arc::new(Bus { inputs: inputs.clone(), core: core.clone() }));
        let driver = Driver {
            core: core.clone(),
            hub: Arc::downgrade(hub),
            wire,
            inputs: taken,
            clients: Box::new(clients),
            left: left.clone(),
        };
        tokio::spawn(driver.run());
        Self { generation, with: Some(With { core, inputs, link, left }) }
    }

    /// The own generation.
    #[must_use]
    pub fn generation(&self) -> &Arc<str> {
        &self.generation
    }

    /// How many other instances live to which clients can go: not those that drain.
    #[must_use]
    pub fn others(&self) -> usize {
        self.with.as_ref().map_or(0, |with| with.core.lock().others())
    }

    /// The generations of those others that differ from the own one, at most eight.
    #[must_use]
    pub fn newer(&self) -> Vec<String> {
        self.with.as_ref().map(|with| with.core.lock().newer(MAX_NEWER)).unwrap_or_default()
    }

    /// All instances that are heard of, by name.
    #[must_use]
    pub fn instances(&self) -> Vec<Instance> {
        let Some(with) = &self.with else { return Vec::new() };
        let core = with.core.lock();
        let instance = |(node, peer): (&Arc<str>, &peers::Peer)| Instance {
            instance: node.clone(),
            generation: peer.generation.clone(),
            started: peer.started,
            clients: peer.clients,
            draining: !peer.is_open(),
        };
        core.peers.iter().map(instance).collect()
    }

    /// Tells the others that this process takes no new clients, or that it takes them
    /// again: before a stop, for an evacuation. That it is being stopped they hear by
    /// [`Hub::stop_announcing`]: from then on they keep its members until each is back, or
    /// `reconnect_max` and [`KEPT_AFTER`] have passed.
    pub fn set_away(&self, away: bool) {
        self.tell(Input::Away(away));
    }

    /// Tells the others that this process ends, once its clients are gone. Returns whether
    /// the broker has heard of it within `limit`.
    pub async fn leave(&self, limit: Duration) -> bool {
        self.tell(Input::Leave);
        let Some(with) = &self.with else { return true };
        let deadline = Instant::now() + limit;
        // The driver hands it to the link first.
        if tokio::time::timeout_at(deadline, with.left.cancelled()).await.is_err() {
            return false;
        }
        match &with.link {
            Some(link) => link.round_trip(deadline - Instant::now()).await,
            None => true,
        }
    }

    fn tell(&self, input: Input) {
        if let Some(with) = &self.with {
            // The driver ends with the hub, and nobody is told any more then.
            let _ = with.inputs.send(input);
        }
    }
}
