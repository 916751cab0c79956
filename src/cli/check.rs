//! `milepost check`: what would run with a configuration, in words.
//!
//! Starts nothing and shows no secret. Whether the values fit together is
//! `Config::validate`; here the files that they name are looked at as well.

use std::fmt::Write as _;
use std::path::Path;

use crate::config::units::{format_duration, format_size};
use crate::config::{AuthMode, Config, DefaultAccess, Engine, Expiry, LogFormat, ReturnTimes};

/// What would run: addresses, log, authentication, shutdown, and what to look at.
#[must_use]
pub fn report(config: &Config) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<10} {value}");
    };
    for (name, value) in [
        ("public", public(config)),
        ("admin", admin(config)),
        ("auth", auth(config)),
        ("room log", room_log(config)),
        ("shutdown", shutdown(config)),
        ("reconnect", reconnect(config)),
        ("logs", logs(config)),
    ] {
        line(name, &value);
    }
    for problem in missing_files(config) {
        line("error", &problem);
    }
    for warning in config.warnings() {
        line("warning", &warning);
    }
    text
}

/// The files named by the configuration that cannot be read, one sentence each. With
/// any of them the server does not start.
#[must_use]
pub fn missing_files(config: &Config) -> Vec<String> {
    let Config { admin, auth, nats, .. } = config;
    let mut files = vec![("admin.token_file", &admin.token_file)];
    if auth.mode == AuthMode::Jwt {
        files.extend([
            ("auth.secret_file", &auth.secret_file),
            ("auth.public_key_file", &auth.public_key_file),
            ("auth.jwks_file", &auth.jwks_file),
        ]);
    }
    if config.room_log.engine == Engine::Nats {
        files.push(("nats.credentials_file", &nats.credentials_file));
    }
    files
        .into_iter()
        .filter_map(|(key, file)| {
            let file = file.as_ref()?;
            let error = readable(file).err()?;
            let place =
                config.sources.of(key).map(|place| format!("{place}: ")).unwrap_or_default();
            Some(format!("{place}{key}: {}: {error}", file.display()))
        })
        .collect()
}

fn readable(file: &Path) -> std::io::Result<()> {
    // Opening a folder succeeds; reading from it does not.
    std::io::Read::read(&mut std::fs::File::open(file)?, &mut [0]).map(drop)
}

fn public(config: &Config) -> String {
    let server = &config.server;
    let origins = match (&server.allowed_origins, config.auth.mode) {
        (Some(origins), _) if origins.is_empty() => "no browser origin".to_owned(),
        (Some(origins), _) => format!("origins {}", origins.join(", ")),
        (None, AuthMode::Jwt) => "any origin".to_owned(),
        (None, AuthMode::None) => "the same origin only".to_owned(),
    };
    let map = if server.map { "live map at /" } else { "no map" };
    format!("{}, at most {} connections, {origins}, {map}", server.listen, server.max_connections)
}

fn admin(config: &Config) -> String {
    let admin = &config.admin;
    let token = match (&admin.token, &admin.token_file) {
        (Some(_), _) => "changes need the bearer token of admin.token".to_owned(),
        (None, Some(file)) => format!("changes need the bearer token in {}", file.display()),
        (None, None) => "changes from loopback only".to_owned(),
    };
    let metrics = admin.metrics_listen.map(|listen| format!(", metrics also on {listen}"));
    format!("{}, {token}{}", admin.listen, metrics.unwrap_or_default())
}

fn auth(config: &Config) -> String {
    let auth = &config.auth;
    if auth.mode == AuthMode::None {
        return "none: anyone may connect as anyone".to_owned();
    }
    let key = if let Some(file) = &auth.secret_file {
        format!("shared secret in {}", file.display())
    } else if let Some(file) = &auth.public_key_file {
        format!("public key in {}", file.display())
    } else if let Some(file) = &auth.jwks_file {
        format!("key set in {}", file.display())
    } else if auth.secret.is_some() {
        let place = config.sources.of("auth.secret").unwrap_or("the configuration");
        format!("shared secret in {place}")
    } else {
        "no key".to_owned()
    };
    let algorithms = match auth.algorithms.as_slice() {
        [] => String::new(),
        names => format!(" ({})", names.join(", ")),
    };
    let mut text = format!("jwt, {key}{algorithms}");
    for (name, wanted) in [("issuer", &auth.issuer), ("audience", &auth.audience)] {
        if let Some(wanted) = wanted {
            let _ = write!(text, ", {name} {wanted}");
        }
    }
    text.push_str(match auth.expiry {
        Expiry::Enforce => ", expiry enforced",
        Expiry::AtConnect => ", expiry checked at connect only",
    });
    text.push_str(match auth.default_access {
        DefaultAccess::All => ", tokens without access lists may do everything",
        DefaultAccess::None => ", tokens without access lists may do nothing",
    });
    text
}

fn room_log(config: &Config) -> String {
    let Config { room_log: log, nats, .. } = config;
    let place = match log.engine {
        Engine::Embedded if log.in_memory() => "in memory, forgotten at the end".to_owned(),
        Engine::Embedded => log.path.display().to_string(),
        Engine::Nats => {
            let credentials = match &nats.credentials_file {
                Some(file) => format!(", credentials in {}", file.display()),
                None => String::new(),
            };
            format!(
                "stream {} with replicas {} at {}{credentials}",
                nats.stream,
                nats.replicas,
                nats.servers()
            )
        }
    };
    format!(
        "{}, {place}, kept {} and up to {}",
        log.engine,
        format_duration(log.retention_age),
        format_size(log.retention_bytes)
    )
}

fn shutdown(config: &Config) -> String {
    let shutdown = &config.shutdown;
    let mut text = String::new();
    if !shutdown.lame_duck.is_zero() {
        let _ = write!(text, "lame duck {}, then ", format_duration(shutdown.lame_duck));
    }
    let _ = write!(
        text,
        "stop accepting until {}, notify until {}, drain until {}, close until {}; ",
        format_duration(shutdown.stop_accepting),
        format_duration(shutdown.notify),
        format_duration(shutdown.drain),
        format_duration(shutdown.close)
    );
    let need = shutdown.needed_grace();
    let _ = match shutdown.grace_period {
        None => write!(
            text,
            "the container must allow {} (shutdown.grace_period is not set)",
            format_duration(need)
        ),
        Some(grace) if grace >= need => {
            write!(text, "{} fit the {}", format_duration(need), format_duration(grace))
                .and_then(|()| text.write_str(" of shutdown.grace_period"))
        }
        Some(grace) => write!(
            text,
            "{} do not fit the {} of shutdown.grace_period",
            format_duration(need),
            format_duration(grace)
        ),
    };
    text
}

fn reconnect(config: &Config) -> String {
    let shutdown = &config.shutdown;
    let between = |times: ReturnTimes| {
        format!("{} to {}", format_duration(times.min), format_duration(times.max))
    };
    let alone = between(shutdown.alone());
    let rate = shutdown.reconnect_rate;
    match config.room_log.engine {
        Engine::Embedded => {
            format!("clients come back {alone} after the notice, {rate} a second")
        }
        Engine::Nats => format!(
            "clients go to other instances {} after the notice and are served {} longer, or come \
             back {alone} after it if there are none, {rate} a second",
            between(shutdown.with_others()),
            format_duration(shutdown.handover)
        ),
    }
}

fn logs(config: &Config) -> String {
    let format = match config.log.format {
        LogFormat::Json => "json",
        LogFormat::Text => "text",
        LogFormat::Ecs => "ecs",
        LogFormat::Gcp => "gcp",
        LogFormat::Datadog => "datadog",
    };
    format!("{format} on stdout, from level {} up", config.log.level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    fn load(sets: &[&str]) -> Config {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Config::load(None, std::iter::empty(), &sets).unwrap()
    }

    #[test]
    fn the_defaults_in_words() {
        assert_eq!(
            report(&Config::default()),
            "\
public     127.0.0.1:8080, at most 16000 connections, any origin, live map at /
admin      127.0.0.1:9090, changes from loopback only
auth       jwt, no key, expiry enforced, tokens without access lists may do everything
room log   embedded, data/milepost.db, kept 7d and up to 4GiB
shutdown   stop accepting until 100ms, notify until 500ms, drain until 4s, close until 5s; \
the container must allow 6s (shutdown.grace_period is not set)
reconnect  clients come back 1s to 10s after the notice, 2000 a second
logs       json on stdout, from level info up
"
        );
    }

    #[test]
    fn what_differs_is_said() {
        let text = report(&load(&[
            "server.listen=0.0.0.0:8080",
            "server.map=false",
            "server.allowed_origins=[\"https://a\"]",
            "admin.metrics_listen=0.0.0.0:9091",
            "auth.algorithms=[\"HS256\"]",
            "auth.issuer=us",
            "auth.audience=fleet",
            "auth.expiry=at_connect",
            "auth.default_access=none",
            "auth.secret=hunter2",
            "admin.token=hunter2",
            "room_log.path=:memory:",
            "shutdown.lame_duck=5s",
            "shutdown.grace_period=30s",
            "log.format=text",
        ]));
        for part in [
            "0.0.0.0:8080, at most 16000 connections, origins https://a, no map",
            "bearer token of admin.token, metrics also on 0.0.0.0:9091",
            "jwt, shared secret in --set auth.secret (HS256), issuer us, audience fleet, expiry \
             checked at connect only, tokens without access lists may do nothing",
            "embedded, in memory",
            "lame duck 5s, then stop accepting",
            "11s fit the 30s of shutdown.grace_period",
            "text on stdout",
            "warning    server.listen (0.0.0.0:8080)",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("hunter2"), "{text}");
    }

    #[test]
    fn several_instances_in_words() {
        let text = report(&load(&[
            "room_log.engine=nats",
            "nats.url=nats://me:hunter2@n1:4222,tls://hunter2@n2",
            "nats.credentials_file=/nowhere/milepost.creds",
            "nats.stream=fleet",
            "nats.replicas=3",
            "server.max_connections=6000",
        ]));
        for part in [
            "room log   nats, stream fleet with replicas 3 at nats://n1:4222, tls://n2:4222, \
             credentials in /nowhere/milepost.creds, kept 7d and up to 4GiB\n",
            "reconnect  clients go to other instances 0s to 3s after the notice and are served \
             250ms longer, or come back 1s to 10s after it if there are none, 2000 a second\n",
            "error      --set nats.credentials_file: nats.credentials_file: /nowhere/milepost.creds: \
             No such file",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("hunter2") && !text.contains("warning"), "{text}");
    }

    #[test]
    fn a_budget_that_does_not_fit_is_said() {
        let text = report(&load(&["shutdown.grace_period=5s"]));
        assert!(text.contains("6s do not fit the 5s of shutdown.grace_period"), "{text}");
    }

    #[test]
    fn missing_files_are_named() {
        let folder = tempfile::TempDir::new().unwrap();
        let there = folder.path().join("key");
        std::fs::write(&there, "secret").unwrap();
        let mut config = Config::default();
        config.auth.secret_file = Some(there);
        assert_eq!(missing_files(&config), [""; 0]);

        config.auth.jwks_file = Some(folder.path().join("none.json"));
        config.admin.token_file = Some(folder.path().to_owned());
        config.auth.secret = Some(Secret::new("x"));
        let found = missing_files(&config);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("admin.token_file: "), "{found:?}");
        assert!(found[1].contains("none.json: No such file"), "{found:?}");
        assert!(report(&config).contains("error      auth.jwks_file: "));

        let config = load(&["auth.jwks_file=/nowhere/keys.json"]);
        assert!(missing_files(&config)[0].starts_with("--set auth.jwks_file: auth.jwks_file: /no"));
    }
}
