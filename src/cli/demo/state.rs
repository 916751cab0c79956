//! What the demo is doing: `GET /demo/state`, and where new connections go.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;

use crate::cli::supervised::Hello;

/// What a deploy is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Stage {
    /// There is none.
    #[serde(rename = "idle")]
    Idle,
    /// The successor is being started.
    #[serde(rename = "starting")]
    Starting,
    /// New connections go to the successor, the old process stops.
    #[serde(rename = "handing over")]
    HandingOver,
    /// The successor is ready, the old process has not ended yet.
    #[serde(rename = "stopping old")]
    StoppingOld,
}

/// The answer of `GET /demo/state`; `phase`, `instance` and `deploys` are what the map page
/// relies on.
#[derive(Debug, Clone, Serialize)]
pub(super) struct State {
    /// What a deploy is at.
    pub(super) phase: Stage,
    /// The instance that gets new connections; null while there is none.
    pub(super) instance: Option<Arc<str>>,
    /// Deploys that are done.
    pub(super) deploys: u64,
    /// Processes that ended unasked and were replaced.
    pub(super) restarts: u64,
    /// The rooms with a fleet.
    pub(super) rooms: Arc<[&'static str]>,
    /// Its ports.
    #[serde(skip)]
    pub(super) ports: Option<Ports>,
}

/// Where the serving process listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) public: SocketAddr,
    pub(super) admin: SocketAddr,
}

/// Changes the state; clones share it.
#[derive(Debug, Clone)]
pub(super) struct StateSender(Arc<watch::Sender<State>>);

impl StateSender {
    pub(super) fn new(rooms: &[&'static str]) -> Self {
        Self(Arc::new(watch::Sender::new(State {
            phase: Stage::Idle,
            instance: None,
            deploys: 0,
            restarts: 0,
            rooms: rooms.into(),
            ports: None,
        })))
    }

    pub(super) fn now(&self) -> State {
        self.0.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<State> {
        self.0.subscribe()
    }

    pub(super) fn enter(&self, stage: Stage) {
        self.0.send_modify(|state| state.phase = stage);
    }

    /// Begins a deploy; `false` if one is running, or nobody serves.
    pub(super) fn begin(&self) -> bool {
        self.0.send_if_modified(|state| {
            let may = state.phase == Stage::Idle && state.ports.is_some();
            if may {
                state.phase = Stage::Starting;
            }
            may
        })
    }

    /// From now on new connections go to this process.
    pub(super) fn serve(&self, hello: &Hello) {
        self.0.send_modify(|state| {
            state.instance = Some(hello.instance.clone());
            state.ports = Some(Ports { public: hello.public, admin: hello.admin });
        });
    }

    /// There is no process for new connections; they wait.
    pub(super) fn serve_nobody(&self) {
        self.0.send_modify(|state| (state.instance, state.ports) = (None, None));
    }

    pub(super) fn restarted(&self) {
        self.0.send_modify(|state| state.restarts += 1);
    }

    pub(super) fn deployed(&self) {
        self.0.send_modify(|state| {
            state.phase = Stage::Idle;
            state.deploys += 1;
        });
    }
}
