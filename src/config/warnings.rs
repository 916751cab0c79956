//! Combinations of values that work but are probably not meant.

use super::Config;
use super::units::format_duration;

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
        let window = shutdown.reconnect_max.saturating_sub(shutdown.reconnect_min).as_secs_f64();
        let fits = window * f64::from(shutdown.reconnect_rate);
        if u32::try_from(server.max_connections).map_or(f64::INFINITY, f64::from) > fits {
            warnings.push(format!(
                "server.max_connections ({}) is more than come back between \
                 shutdown.reconnect_min ({}) and shutdown.reconnect_max ({}) at \
                 shutdown.reconnect_rate ({} a second): a full server's clients come back faster",
                server.max_connections,
                format_duration(shutdown.reconnect_min),
                format_duration(shutdown.reconnect_max),
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
        warnings
    }
}
