//! Whether this instance is to get traffic, and if not why (operation.md, "Ports").

use std::sync::Arc;

use hyper::http::StatusCode;

use crate::phase::{Phase, PhaseWatch};
use crate::plane::Plane;
use crate::shutdown::Evacuation;

/// The reasons not to be ready.
#[derive(Debug)]
pub struct Readiness {
    phase: PhaseWatch,
    evacuation: Arc<Evacuation>,
    plane: Arc<Plane>,
}

impl Readiness {
    /// Ready while the process runs, nobody drains it and the plane is open.
    #[must_use]
    pub fn new(phase: PhaseWatch, evacuation: Arc<Evacuation>, plane: Arc<Plane>) -> Self {
        Self { phase, evacuation, plane }
    }

    /// Whether new upgrades are refused.
    #[must_use]
    pub fn refuses_upgrades(&self) -> bool {
        self.phase.get().refuses_upgrades() || self.evacuation.is_on()
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
        if self.evacuation.is_on() {
            return Some(("drain", Some("drained through the admin port".to_owned())));
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

    #[tokio::test]
    async fn the_reason_is_the_phase_or_the_first_hold() {
        let (setter, watch) = phase::channel();
        let budgets = Budgets { requests: 1, notifications: 1, bytes_per_connection: 1, bytes: 1 };
        let plane = Arc::new(Plane::new(budgets, Arc::new(Metrics::new(&Counter::default()))));
        let evacuation = Arc::new(Evacuation::new(
            Arc::default(),
            watch.clone(),
            std::time::Duration::from_secs(1),
        ));
        let readiness = Readiness::new(watch, evacuation.clone(), plane.clone());
        assert_eq!(readiness.answer(3).0, StatusCode::OK);
        plane.hold(Hold::Store, "disk full");
        plane.hold(Hold::Startup, "waiting for the lock on x");
        let (status, body) = readiness.answer(3);
        assert_eq!((status.as_u16(), &body["reason"]), (503, &"startup".into()));
        assert_eq!(body["detail"], "waiting for the lock on x");
        plane.release(Hold::Startup);
        assert_eq!(readiness.answer(3).1["reason"], "store");
        evacuation.begin(10).unwrap();
        assert_eq!(readiness.answer(3).1["reason"], "drain");
        assert!(readiness.refuses_upgrades());
        evacuation.stop().unwrap();
        plane.release(Hold::Store);
        setter.advance(Phase::LameDuck);
        let (status, body) = readiness.answer(7);
        assert_eq!((status.as_u16(), &body["reason"]), (503, &"lame_duck".into()));
        assert_eq!(body["clients"], 7);
        setter.advance(Phase::StopAccepting);
        assert!(evacuation.begin(10).is_err() && evacuation.stop().is_err());
    }
}
