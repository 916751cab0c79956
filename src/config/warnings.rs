//! Combinations of values that work but are probably not meant.

use super::units::format_duration;
use super::{Config, Engine};

/// Keys that only the engine `nats` looks at.
const NATS_ONLY: [&str; 5] =
    ["nats.url", "nats.credentials_file", "nats.stream", "nats.replicas", "shutdown.handover"];
/// Keys that only the engine `embedded` looks at.
const EMBEDDED_ONLY: [&str; 3] = ["room_log.path", "room_log.min_free", "room_log.lock_wait"];
/// What the container image sets for every engine: no choice of whoever runs it.
const SET_BY_THE_IMAGE: &str = "MILEPOST_ROOM_LOG__PATH";

impl Config {
    /// What works but is probably not meant, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let Self { server, admin, auth, limits, shutdown, .. } = self;
        let mut warnings = Vec::new();
        let wanted = shutdown.reconnect_rate.saturating_mul(2);
        if limits.handshake_rate != 0 && limits.handshake_rate < wanted {
            warnings.push(format!(
                "limits.handshake_rate ({}) is under twice shutdown.reconnect_rate ({}): after a \
                 shutdown the successor refuses clients that come back on time; set it to {wanted} \
                 or more",
                limits.handshake_rate, shutdown.reconnect_rate
            ));
        }
        let times = match self.room_log.engine {
            Engine::Embedded => shutdown.alone(),
            Engine::Nats => shutdown.with_others(),
        };
        let window = times.max.saturating_sub(times.min).as_secs_f64();
        let fits = window * f64::from(shutdown.reconnect_rate);
        if u32::try_from(server.max_connections).map_or(f64::INFINITY, f64::from) > fits {
            warnings.push(format!(
                "server.max_connections ({}) is more than come back between \
                 shutdown.reconnect_min ({}) and shutdown.reconnect_max ({}) at \
                 shutdown.reconnect_rate ({} a second): a full server's clients come back faster",
                server.max_connections,
                format_duration(times.min),
                format_duration(times.max),
                shutdown.reconnect_rate
            ));
        }
        let by_address = limits.connects_per_minute != 0 || limits.connections_per_address != 0;
        if by_address && !server.listen.ip().is_loopback() && limits.trusted_proxies.is_empty() {
            warnings.push(format!(
                "server.listen ({}) is reached from other machines and limits.trusted_proxies is \
                 empty: behind a proxy or load balancer all clients count as one address",
                server.listen
            ));
        }
        if !admin.listen.ip().is_loopback() && admin.token.is_none() && admin.token_file.is_none() {
            warnings.push(format!(
                "admin.listen ({}) is reached from other machines and there is no admin.token: \
                 they can read everything there and change nothing",
                admin.listen
            ));
        }
        if auth.secret.as_ref().is_some_and(|secret| secret.expose().len() < 32) {
            warnings.push(
                "auth.secret is shorter than 32 bytes: it can be guessed from one token".to_owned(),
            );
        }
        self.unused(&mut warnings);
        if self.room_log.engine == Engine::Nats {
            self.late_slots(&mut warnings);
        }
        warnings
    }

    /// Keys that were set for the other engine.
    fn unused(&self, warnings: &mut Vec<String>) {
        let engine = self.room_log.engine;
        let keys = match engine {
            Engine::Embedded => &NATS_ONLY[..],
            Engine::Nats => &EMBEDDED_ONLY[..],
        };
        for key in keys {
            if let Some(place) = self.sources.of(key).filter(|place| *place != SET_BY_THE_IMAGE) {
                warnings.push(format!("{place}: {key} is not used: room_log.engine is {engine}"));
            }
        }
    }

    /// Clients that are told to go later than they are served.
    fn late_slots(&self, warnings: &mut Vec<String>) {
        let shutdown = &self.shutdown;
        let last = shutdown.with_others().max.saturating_add(shutdown.handover);
        let served = shutdown.drain.saturating_sub(shutdown.notify);
        if last > served {
            warnings.push(format!(
                "shutdown.reconnect_max ({}) and shutdown.handover ({}) are longer than the drain \
                 (shutdown.drain less shutdown.notify, {}): the last clients are closed before \
                 their time to go to another instance",
                format_duration(shutdown.with_others().max),
                format_duration(shutdown.handover),
                format_duration(served)
            ));
        }
    }
}
