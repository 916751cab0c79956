//! Combinations of values that cannot work. All are found at once, each at the place
//! that set one of its keys. No file that a key names is looked at.

use std::net::SocketAddr;
use std::time::Duration;

use super::units::{format_duration, format_size};
use super::{AuthMode, Config, ConfigError, Engine, Nats};
use crate::budget::Budget;

/// Algorithms by the kind of key that they need.
const HMAC: [&str; 3] = ["HS256", "HS384", "HS512"];
const PUBLIC: [&str; 9] =
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];

const FRAME: std::ops::RangeInclusive<usize> = (4 << 10)..=(16 << 20);
/// Room for the envelope of an event around its position: room, client and vehicle id.
const ENVELOPE: usize = 3 << 10;

impl Config {
    /// Checks what no single key shows. Reads no file.
    ///
    /// # Errors
    /// All impossible combinations found, each with the place that set a key of it.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut check = Check { config: self, problems: Vec::new() };
        check.listen();
        check.auth();
        check.limits();
        check.queues();
        check.room_log();
        check.nats();
        check.times();
        check.shutdown();
        ConfigError::from_problems(check.problems)
    }
}

struct Check<'a> {
    config: &'a Config,
    problems: Vec<String>,
}

impl Check<'_> {
    /// Notes a problem at the place that set the first of `keys` that was set at all.
    fn problem(&mut self, keys: &[&str], text: &str) {
        let place = keys.iter().find_map(|key| self.config.sources.of(key));
        self.problems.push(match place {
            Some(place) => format!("{place}: {text}"),
            None => text.to_owned(),
        });
    }

    fn listen(&mut self) {
        let Config { server, admin, .. } = self.config;
        if server.max_connections == 0 {
            self.problem(&["server.max_connections"], "server.max_connections: must be at least 1");
        }
        let chars = server.generation.chars().count();
        if !(1..=128).contains(&chars) || server.generation.chars().any(char::is_control) {
            self.problem(
                &["server.generation"],
                &format!(
                    "server.generation: found {:?}, expected 1 to 128 characters without \
                     control characters",
                    server.generation
                ),
            );
        }
        let same = |a: SocketAddr, b: SocketAddr| {
            let overlap = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
            a.port() != 0 && a.port() == b.port() && overlap
        };
        let mut pairs = vec![("server.listen", server.listen, "admin.listen", admin.listen)];
        if let Some(metrics) = admin.metrics_listen {
            pairs.push(("server.listen", server.listen, "admin.metrics_listen", metrics));
            pairs.push(("admin.listen", admin.listen, "admin.metrics_listen", metrics));
        }
        for (first, a, second, b) in pairs {
            if same(a, b) {
                self.problem(
                    &[second, first],
                    &format!(
                        "{second}: found {b}, which is the port of {first} ({a}), expected another"
                    ),
                );
            }
        }
        if admin.token.is_some() && admin.token_file.is_some() {
            self.problem(
                &["admin.token_file", "admin.token"],
                "admin.token and admin.token_file are both set, expected one of them",
            );
        }
        if admin.token.as_ref().is_some_and(|token| token.expose().trim().is_empty()) {
            self.problem(&["admin.token"], "admin.token: found an empty string, expected a token");
        }
    }

    fn auth(&mut self) {
        let auth = &self.config.auth;
        let keys: Vec<&str> = [
            ("auth.secret", auth.secret.is_some()),
            ("auth.secret_file", auth.secret_file.is_some()),
            ("auth.public_key_file", auth.public_key_file.is_some()),
            ("auth.jwks_file", auth.jwks_file.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, set)| set.then_some(key))
        .collect();
        match (auth.mode, keys.as_slice()) {
            (AuthMode::Jwt, []) => self.problem(
                &["auth.mode"],
                "auth.mode: \"jwt\" (the default) needs a key to verify tokens with: set one of \
                 auth.secret_file, auth.secret, auth.public_key_file, auth.jwks_file. To look \
                 around first, run `milepost demo`; on loopback `--set auth.mode=none` does \
                 without tokens",
            ),
            (AuthMode::Jwt, [_]) => self.algorithms(),
            (AuthMode::Jwt, [.., last]) => self.problem(
                &[last],
                &format!("{} are all set, expected exactly one source of keys", keys.join(", ")),
            ),
            (AuthMode::None, _) => {
                let listen = self.config.server.listen;
                if !listen.ip().is_loopback() && !auth.allow_insecure {
                    self.problem(
                        &["auth.mode", "server.listen"],
                        &format!(
                            "auth.mode: \"none\" lets anyone in, and server.listen {listen} is \
                             reached from other machines: use \"jwt\", listen on 127.0.0.1, or \
                             set auth.allow_insecure = true"
                        ),
                    );
                }
            }
        }
        if auth.secret.as_ref().is_some_and(|secret| secret.expose().is_empty()) {
            self.problem(&["auth.secret"], "auth.secret: found an empty string, expected a secret");
        }
    }

    fn algorithms(&mut self) {
        let auth = &self.config.auth;
        let hmac = auth.secret.is_some() || auth.secret_file.is_some();
        let suited = |name: &str| auth.jwks_file.is_some() || HMAC.contains(&name) == hmac;
        for name in &auth.algorithms {
            let known = HMAC.contains(&name.as_str()) || PUBLIC.contains(&name.as_str());
            if !known || !suited(name) {
                let allowed: Vec<_> =
                    HMAC.iter().chain(&PUBLIC).filter(|name| suited(name)).copied().collect();
                self.problem(
                    &["auth.algorithms"],
                    &format!(
                        "auth.algorithms: found \"{name}\", with this kind of key expected some \
                         of {}",
                        allowed.join(", ")
                    ),
                );
            }
        }
    }

    fn limits(&mut self) {
        let limits = &self.config.limits;
        for (key, size) in
            [("limits.max_frame", limits.max_frame), ("limits.max_frame_out", limits.max_frame_out)]
        {
            if !FRAME.contains(&size) {
                self.problem(
                    &[key],
                    &format!("{key}: found {}, expected 4KiB to 16MiB", bytes(size)),
                );
            }
        }
        let frame = limits.max_frame.min(limits.max_frame_out);
        let most = frame.saturating_sub(ENVELOPE);
        if frame >= *FRAME.start() && !(64..=most).contains(&limits.max_position) {
            self.problem(
                &["limits.max_position", "limits.max_frame", "limits.max_frame_out"],
                &format!(
                    "limits.max_position: found {}, expected 64B to {} (limits.max_frame and \
                     limits.max_frame_out less 3KiB for what stands around a position)",
                    bytes(limits.max_position),
                    bytes(most)
                ),
            );
        }
        if limits.message_rate != 0 && limits.message_burst == 0 {
            self.problem(
                &["limits.message_burst", "limits.message_rate"],
                "limits.message_burst: found 0, expected at least 1 while limits.message_rate is \
                 on",
            );
        }
        for (key, time) in [
            ("limits.handshake_timeout", limits.handshake_timeout),
            ("limits.upload_idle", limits.upload_idle),
        ] {
            self.not_zero(key, time);
        }
    }

    fn queues(&mut self) {
        let Config { outgoing, plane, .. } = self.config;
        if outgoing.high_water == 0 || outgoing.high_water >= outgoing.max_bytes {
            self.problem(
                &["outgoing.high_water", "outgoing.max_bytes"],
                &format!(
                    "outgoing.high_water: found {}, expected more than 0 and less than \
                     outgoing.max_bytes ({})",
                    bytes(outgoing.high_water),
                    bytes(outgoing.max_bytes)
                ),
            );
        }
        if outgoing.max_messages == 0 {
            self.problem(&["outgoing.max_messages"], "outgoing.max_messages: must be at least 1");
        }
        if outgoing.kernel_buffer < 4 << 10 {
            self.problem(
                &["outgoing.kernel_buffer"],
                &format!(
                    "outgoing.kernel_buffer: found {}, expected at least 4KiB",
                    bytes(outgoing.kernel_buffer)
                ),
            );
        }
        self.not_zero("outgoing.slow_timeout", outgoing.slow_timeout);
        if plane.max_held_bytes_per_connection > plane.max_held_bytes {
            self.problem(
                &["plane.max_held_bytes_per_connection", "plane.max_held_bytes"],
                &format!(
                    "plane.max_held_bytes_per_connection: found {}, expected at most \
                     plane.max_held_bytes ({})",
                    bytes(plane.max_held_bytes_per_connection),
                    bytes(plane.max_held_bytes)
                ),
            );
        }
    }

    fn room_log(&mut self) {
        let log = &self.config.room_log;
        if log.path.as_os_str().is_empty() {
            self.problem(
                &["room_log.path"],
                "room_log.path: found an empty string, expected a file or \":memory:\"",
            );
        }
        self.not_zero("room_log.retention_age", log.retention_age);
        self.not_zero("room_log.newest_age", log.newest_age);
        self.not_zero("room_log.dedup_window", log.dedup_window);
        if log.dedup_window > log.retention_age {
            self.problem(
                &["room_log.dedup_window", "room_log.retention_age"],
                &format!(
                    "room_log.dedup_window: found {}, expected at most room_log.retention_age ({})",
                    format_duration(log.dedup_window),
                    format_duration(log.retention_age)
                ),
            );
        }
        if log.retention_bytes < 1 << 20 {
            self.problem(
                &["room_log.retention_bytes"],
                &format!(
                    "room_log.retention_bytes: found {}, expected at least 1MiB",
                    format_size(log.retention_bytes)
                ),
            );
        }
    }

    fn nats(&mut self) {
        let nats = &self.config.nats;
        if nats.url.is_empty() {
            self.problem(&["nats.url"], "nats.url: found an empty list, expected a NATS server");
        }
        if !Nats::is_stream_name(&nats.stream) {
            self.problem(
                &["nats.stream"],
                &format!(
                    "nats.stream: found {:?}, expected 1 to 64 letters, digits, `-` and `_`",
                    nats.stream
                ),
            );
        }
        if ![1, 3, 5].contains(&nats.replicas) {
            self.problem(
                &["nats.replicas"],
                &format!("nats.replicas: found {}, expected 1, 3 or 5", nats.replicas),
            );
        }
        if nats.credentials_file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
            self.problem(
                &["nats.credentials_file"],
                "nats.credentials_file: found an empty string, expected a file",
            );
        }
    }

    /// Everything that ends up in a timer passes the one check for budgets.
    fn times(&mut self) {
        let Config { auth, limits, heartbeat, outgoing, room_log, shutdown, .. } = self.config;
        for (key, time) in [
            ("auth.leeway", auth.leeway),
            ("auth.expiry_warning", auth.expiry_warning),
            ("limits.handshake_timeout", limits.handshake_timeout),
            ("limits.upload_idle", limits.upload_idle),
            ("limits.max_future_skew", limits.max_future_skew),
            ("heartbeat.interval", heartbeat.interval),
            ("heartbeat.timeout", heartbeat.timeout),
            ("outgoing.slow_timeout", outgoing.slow_timeout),
            ("room_log.lock_wait", room_log.lock_wait),
            ("shutdown.lame_duck", shutdown.lame_duck),
            ("shutdown.stop_accepting", shutdown.stop_accepting),
            ("shutdown.notify", shutdown.notify),
            ("shutdown.drain", shutdown.drain),
            ("shutdown.close", shutdown.close),
            ("shutdown.reconnect_min", shutdown.reconnect_min.unwrap_or_default()),
            ("shutdown.reconnect_max", shutdown.reconnect_max.unwrap_or_default()),
            ("shutdown.handover", shutdown.handover),
            ("shutdown.grace_period", shutdown.grace_period.unwrap_or_default()),
        ] {
            if let Err(error) = Budget::new(time) {
                let found = format_duration(time);
                self.problem(&[key], &format!("{key}: found {found}, expected {error}"));
            }
        }
        self.not_zero("heartbeat.interval", heartbeat.interval);
        let least = heartbeat.interval.saturating_mul(2).saturating_add(Duration::from_secs(5));
        if heartbeat.timeout < least {
            self.problem(
                &["heartbeat.timeout", "heartbeat.interval"],
                &format!(
                    "heartbeat.timeout: found {}, expected at least 2 × heartbeat.interval + 5s = \
                     {}",
                    format_duration(heartbeat.timeout),
                    format_duration(least)
                ),
            );
        }
    }

    fn shutdown(&mut self) {
        let shutdown = &self.config.shutdown;
        let ends = [
            ("shutdown.stop_accepting", shutdown.stop_accepting),
            ("shutdown.notify", shutdown.notify),
            ("shutdown.drain", shutdown.drain),
            ("shutdown.close", shutdown.close),
        ];
        for pair in ends.windows(2) {
            let [(before, earlier), (key, later)] = [pair[0], pair[1]];
            if later < earlier {
                self.problem(
                    &[key, before],
                    &format!(
                        "{key}: found {}, expected at least {before} ({}): each is the end of its \
                         phase, counted from the signal",
                        format_duration(later),
                        format_duration(earlier)
                    ),
                );
            }
        }
        let mut return_times = vec![(shutdown.alone(), "")];
        if self.config.room_log.engine == Engine::Nats {
            return_times.push((shutdown.with_others(), " (with other instances about)"));
        }
        if let Some((times, when)) = return_times.into_iter().find(|(t, _)| t.max < t.min) {
            self.problem(
                &["shutdown.reconnect_max", "shutdown.reconnect_min"],
                &format!(
                    "shutdown.reconnect_max: found {}{when}, expected at least \
                     shutdown.reconnect_min ({})",
                    format_duration(times.max),
                    format_duration(times.min)
                ),
            );
        }
        if shutdown.reconnect_rate == 0 {
            self.problem(
                &["shutdown.reconnect_rate"],
                "shutdown.reconnect_rate: must be at least 1",
            );
        }
        let need = shutdown.needed_grace();
        if let Some(grace) = shutdown.grace_period
            && grace < need
        {
            self.problem(
                &["shutdown.grace_period", "shutdown.close", "shutdown.lame_duck"],
                &format!(
                    "shutdown.grace_period: found {}, expected at least shutdown.lame_duck + \
                     shutdown.close + 1s = {}",
                    format_duration(grace),
                    format_duration(need)
                ),
            );
        }
    }

    fn not_zero(&mut self, key: &str, time: Duration) {
        if time.is_zero() {
            self.problem(&[key], &format!("{key}: found 0s, expected more"));
        }
    }
}

fn bytes(size: usize) -> String {
    format_size(size.try_into().unwrap_or(u64::MAX))
}
