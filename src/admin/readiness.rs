//! Whether this instance is to get traffic, and if not why (operation.md, "Ports").

use std::sync::Arc;

use hyper::http::StatusCode;

use crate::phase::{Phase, PhaseWatch};
use crate::plane::Plane;

/// The reasons not to be ready.
#[derive(Debug)]
pub struct Readiness {
    phase: PhaseWatch,
    plane: Arc<Plane>,
}

impl Readiness {
    /// Ready while the process runs and the plane is open.
    #[must_use]
    pub fn new(phase: PhaseWatch, plane: Arc<Plane>) -> Self {
        Self { phase, plane }
    }

    /// The phase now.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// What keeps traffic away: the name of the phase or of the hold, and more about it.
    #[must_use]
    pub fn obstacle(&self) -> Option<(&'static str, Option<String>)> {
        let phase = self.phase.get();
        if phase != Phase::Running {
            return Some((phase.name(), None));
        }
        self.plane.holds().into_iter().next().map(|(hold, reason)| (hold.name(), Some(reason)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase;
    use crate::plane::{Budgets, Hold};
    use crate::telemetry::Metrics;
    use prometheus_client::metrics::counter::Counter;

    #[test]
    fn the_reason_is_the_phase_or_the_first_hold() {
        let (setter, watch) = phase::channel();
        let budgets = Budgets { requests: 1, notifications: 1, bytes_per_connection: 1, bytes: 1 };
        let plane = Arc::new(Plane::new(budgets, Arc::new(Metrics::new(&Counter::default()))));
        let readiness = Readiness::new(watch, plane.clone());
        assert_eq!(readiness.answer(3).0, StatusCode::OK);
        plane.hold(Hold::Store, "disk full");
        plane.hold(Hold::Startup, "waiting for the lock on x");
        let (status, body) = readiness.answer(3);
        assert_eq!((status.as_u16(), &body["reason"]), (503, &"startup".into()));
        assert_eq!(body["detail"], "waiting for the lock on x");
        plane.release(Hold::Startup);
        assert_eq!(readiness.answer(3).1["reason"], "store");
        plane.release(Hold::Store);
        setter.advance(Phase::LameDuck);
        let (status, body) = readiness.answer(7);
        assert_eq!((status.as_u16(), &body["reason"]), (503, &"lame_duck".into()));
        assert_eq!(body["clients"], 7);
    }
}
