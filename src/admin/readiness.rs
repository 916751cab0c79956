//! Whether this instance is to get traffic, and if not why (operation.md, "Ports").

use hyper::http::StatusCode;
use parking_lot::Mutex;

use crate::phase::{Phase, PhaseWatch};
use crate::room_log::StoreFailure;
use crate::rooms::LogWatcher;

/// The reasons not to be ready.
#[derive(Debug)]
pub struct Readiness {
    phase: PhaseWatch,
    startup: Mutex<Option<String>>,
    store: Mutex<Option<String>>,
}

impl Readiness {
    /// Not ready: the room log is still to be opened.
    #[must_use]
    pub fn new(phase: PhaseWatch) -> Self {
        Self {
            phase,
            startup: Mutex::new(Some("opening the room log".to_owned())),
            store: Mutex::default(),
        }
    }

    /// What start-up waits for; `None` once it is done.
    pub fn set_startup(&self, waiting_for: Option<String>) {
        *self.startup.lock() = waiting_for;
    }

    /// The phase now.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// What keeps traffic away: the name of the hold or of the phase, and more about it.
    #[must_use]
    pub fn obstacle(&self) -> Option<(&'static str, Option<String>)> {
        let phase = self.phase.get();
        if phase != Phase::Running {
            return Some((phase.name(), None));
        }
        if let Some(waiting) = self.startup.lock().clone() {
            return Some(("startup", Some(waiting)));
        }
        self.store.lock().clone().map(|failure| ("store", Some(failure)))
    }

    /// The answer of a readiness probe.
    #[must_use]
    pub fn answer(&self, clients: usize) -> (StatusCode, serde_json::Value) {
        let obstacle = self.obstacle();
        let status = match obstacle {
            None => StatusCode::OK,
            Some(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let (reason, detail) = obstacle.map_or((None, None), |(name, detail)| (Some(name), detail));
        let body = serde_json::json!({
            "status": if reason.is_none() { "ready" } else { "not_ready" },
            "phase": self.phase.get().name(),
            "reason": reason,
            "detail": detail,
            "clients": clients,
        });
        (status, body)
    }
}

impl LogWatcher for Readiness {
    fn failing(&self, failure: &StoreFailure) {
        let text = failure.to_string();
        tracing::error!(event = "room_log.failing", error = text, "room log: cannot write");
        *self.store.lock() = Some(text);
    }

    fn recovered(&self) {
        *self.store.lock() = None;
        tracing::info!(event = "room_log.recovered", "room log: writes again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase;

    #[test]
    fn the_reason_is_the_first_obstacle() {
        let (setter, watch) = phase::channel();
        let readiness = Readiness::new(watch);
        readiness.set_startup(Some("waiting for the lock on x".to_owned()));
        let (status, body) = readiness.answer(3);
        assert_eq!((status.as_u16(), &body["reason"]), (503, &"startup".into()));
        assert_eq!(body["detail"], "waiting for the lock on x");
        readiness.set_startup(None);
        assert_eq!(readiness.answer(3).0, StatusCode::OK);
        readiness.failing(&StoreFailure("disk full".into()));
        assert_eq!(readiness.answer(3).1["reason"], "store");
        readiness.recovered();
        setter.advance(Phase::LameDuck);
        let (status, body) = readiness.answer(7);
        assert_eq!((status.as_u16(), &body["reason"]), (503, &"lame_duck".into()));
        assert_eq!(body["clients"], 7);
    }
}
