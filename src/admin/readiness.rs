//! Whether this instance is to get traffic, and if not why (operation.md, "Ports").

use std::sync::Arc;

use hyper::http::StatusCode;

use crate::phase::{Phase, PhaseWatch};
use crate::plane::Plane;
use crate::shutdown::Evacuation;

/// What is in the way of traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The name of the phase or of the hold.
    pub reason: &'static str,
    /// More about it, for people.
    pub detail: Option<String>,
    /// Whether traffic is better off elsewhere. Not with a hold that all instances share.
    pub keeps_away: bool,
}

fn word(obstacle: Option<&Obstacle>) -> &'static str {
    match obstacle {
        None => "ready",
        Some(obstacle) if obstacle.keeps_away => "not_ready",
        Some(_) => "degraded",
    }
}

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

    /// What is in the way of traffic: the phase, a drain, or the first hold; one that
    /// keeps traffic away before one that does not.
    #[must_use]
    pub fn obstacle(&self) -> Option<Obstacle> {
        let phase = self.phase.get();
        if phase != Phase::Running {
            return Some(Obstacle { reason: phase.name(), detail: None, keeps_away: true });
        }
        if self.evacuation.is_on() {
            let detail = Some("drained through the admin port".to_owned());
            return Some(Obstacle { reason: "drain", detail, keeps_away: true });
        }
        let (hold, detail) = self.plane.holds().into_iter().min_by_key(|(h, _)| h.is_shared())?;
        let detail = Some(detail);
        Some(Obstacle { reason: hold.name(), detail, keeps_away: !hold.is_shared() })
    }

    /// In one word: `ready`, `degraded` (traffic may come), `not_ready`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        word(self.obstacle().as_ref())
    }

    /// The answer of a readiness probe.
    #[must_use]
    pub fn answer(&self, clients: usize) -> (StatusCode, serde_json::Value) {
        let obstacle = self.obstacle();
        let status = match &obstacle {
            Some(obstacle) if obstacle.keeps_away => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::OK,
        };
        let body = serde_json::json!({
            "status": word(obstacle.as_ref()),
            "phase": self.phase.get().name(),
            "reason": obstacle.as_ref().map(|obstacle| obstacle.reason),
            "detail": obstacle.and_then(|obstacle| obstacle.detail),
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
    use crate::shutdown::slots::Spread;
    use crate::shutdown::{OthersSlot, Returns};
    use crate::telemetry::Metrics;
    use prometheus_client::metrics::counter::Counter;

    const SPREAD: Spread = Spread {
        min: std::time::Duration::ZERO,
        max: std::time::Duration::from_secs(1),
        rate: 1000,
    };

    #[tokio::test]
    async fn the_reason_is_the_phase_or_the_first_hold() {
        let (setter, watch) = phase::channel();
        let budgets = Budgets { requests: 1, notifications: 1, bytes_per_connection: 1, bytes: 1 };
        let plane = Arc::new(Plane::new(budgets, Arc::new(Metrics::new(&Counter::default()))));
        let evacuation = Arc::new(Evacuation::new(
            Arc::default(),
            watch.clone(),
            Returns { alone: SPREAD, with_others: SPREAD, handover: std::time::Duration::ZERO },
            OthersSlot::default(),
        ));
        let readiness = Readiness::new(watch, evacuation.clone(), plane.clone());
        assert_eq!(readiness.answer(3).0, StatusCode::OK);
        plane.hold(Hold::Store, "disk full");
        plane.hold(Hold::Startup, "waiting for the lock on x");
        let (status, body) = readiness.answer(3);
        assert_eq!((status.as_u16(), &body["reason"]), (503, &"startup".into()));
        assert_eq!(body["detail"], "waiting for the lock on x");
        plane.hold(Hold::Broker, "nats://a:4222 is not reachable");
        plane.release(Hold::Startup);
        assert_eq!(readiness.answer(3).1["reason"], "store");
        // What all instances share keeps nobody away, on its own.
        plane.release(Hold::Store);
        let (status, body) = readiness.answer(3);
        assert_eq!((status.as_u16(), &body["status"]), (200, &"degraded".into()));
        assert_eq!((&body["reason"], &body["phase"]), (&"broker".into(), &"running".into()));
        assert_eq!(body["detail"], "nats://a:4222 is not reachable");
        assert_eq!(readiness.word(), "degraded");
        for hold in [Hold::Operator, Hold::Startup, Hold::Store] {
            plane.hold(hold, "on its own account");
            let (status, body) = readiness.answer(3);
            assert_eq!((status.as_u16(), &body["status"]), (503, &"not_ready".into()));
            assert_eq!(body["reason"], hold.name());
            plane.release(hold);
        }
        plane.release(Hold::Broker);
        assert_eq!(readiness.word(), "ready");
        plane.hold(Hold::Store, "disk full");
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
