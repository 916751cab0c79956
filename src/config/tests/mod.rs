//! The configuration as a whole: what is refused and in which words, which source
//! wins, and that the reference file says what the code does.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

mod deploy;
mod refused;

const REFERENCE: &str = include_str!("../../../config/milepost.toml");

/// Loads `text` as `milepost.toml`; the folder's name is cut out of an error.
fn load(text: &str, env: &[(&str, &str)], sets: &[&str]) -> Result<Config, String> {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("milepost.toml");
    std::fs::write(&file, text).unwrap();
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Config::load(Some(&file), env, &sets)
        .map_err(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
}

/// Loads and validates, with a key so that the default mode is complete.
fn problems(text: &str) -> String {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("milepost.toml");
    std::fs::write(&file, text).unwrap();
    let error = Config::load(Some(&file), std::iter::empty(), &[]).unwrap().validate().unwrap_err();
    error.to_string().replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn all_problems_are_told_at_once() {
    let found = problems("[shutdown]\nreconnect_rate = 0\n[heartbeat]\ntimeout = \"1s\"\n");
    assert_eq!(found.lines().count(), 3, "{found}");
}

#[test]
fn the_later_source_wins_key_by_key() {
    let file = "[limits]\nmessage_rate = 1\nmessage_burst = 2\nrooms = 3\n";
    let env = [("MILEPOST_LIMITS__MESSAGE_BURST", "20"), ("MILEPOST_LIMITS__ROOMS", "30")];
    let config = load(file, &env, &["limits.rooms=300", "limits.rooms=301"]).unwrap();
    let limits = &config.limits;
    assert_eq!((limits.message_rate, limits.message_burst, limits.rooms), (1, 20, 301));
    assert_eq!(limits.members_per_room, Limits::default().members_per_room);
    assert_eq!(config.sources.of("limits.message_burst"), Some("MILEPOST_LIMITS__MESSAGE_BURST"));
    assert_eq!(config.sources.of("limits.rooms"), Some("--set limits.rooms"));
    assert_eq!(config.sources.of("limits.members_per_room"), None);
    assert!(config.sources.of("limits.message_rate").unwrap().ends_with("milepost.toml:2"));
}

#[test]
fn overrides_take_toml_or_else_text() {
    let env = [
        ("MILEPOST_SERVER__LISTEN", "0.0.0.0:80"),
        ("MILEPOST_SERVER__ALLOWED_ORIGINS", r#"["https://a", "https://b"]"#),
        ("MILEPOST_AUTH__SECRET", "0123456789"),
        ("MILEPOST_AUTH__ISSUER", "true"),
        ("MILEPOST_ROOM_LOG__PATH", ":memory:"),
    ];
    let sets = [
        "shutdown.grace_period=10s",
        "limits.max_frame=\"32KiB\"",
        "limits.max_frame_out=32768",
        "auth.audience=a=b",
        "log.level = debug",
        "limits.trusted_proxies=[\"10.0.0.0/8\", \"::1\"]",
    ];
    let config = load("", &env, &sets).unwrap();
    assert_eq!(config.server.listen, "0.0.0.0:80".parse().unwrap());
    assert_eq!(config.server.allowed_origins.unwrap(), ["https://a", "https://b"]);
    assert_eq!(config.auth.secret, Some(Secret::new("0123456789")));
    assert_eq!(config.auth.issuer.as_deref(), Some("true"));
    assert_eq!(config.auth.audience.as_deref(), Some("a=b"));
    assert!(config.room_log.in_memory());
    assert_eq!(config.shutdown.grace_period, Some(Duration::from_secs(10)));
    assert_eq!((config.limits.max_frame, config.limits.max_frame_out), (32768, 32768));
    assert_eq!(config.log.level, LogLevel::Debug);
    assert_eq!(config.limits.trusted_proxies.len(), 2);
    assert!(config.limits.trusted_proxies[1].contains(&"::1".parse::<std::net::IpAddr>().unwrap()));
}

#[test]
fn variables_of_others_are_ignored() {
    let env = [
        ("PATH", "/bin"),
        ("MILEPOSTS", "x"),
        // What Kubernetes sets in every pod beside services `milepost` and `milepost-admin`.
        ("MILEPOST_SERVICE_HOST", "10.96.0.7"),
        ("MILEPOST_SERVICE_PORT", "80"),
        ("MILEPOST_SERVICE_PORT_HTTP", "80"),
        ("MILEPOST_PORT", "tcp://10.96.0.7:80"),
        ("MILEPOST_PORT_80_TCP", "tcp://10.96.0.7:80"),
        ("MILEPOST_PORT_80_TCP_ADDR", "10.96.0.7"),
        ("MILEPOST_PORT_80_TCP_PORT", "80"),
        ("MILEPOST_PORT_80_TCP_PROTO", "tcp"),
        ("MILEPOST_ADMIN_SERVICE_HOST", "10.96.0.8"),
        ("MILEPOST_ADMIN_PORT_9090_TCP", "tcp://10.96.0.8:9090"),
    ];
    assert_eq!(load("", &env, &[]).unwrap(), Config::default());
    for (name, value) in [("MILEPOST_PORT", "8080"), ("MILEPOST_SERVER_PORT", "8080")] {
        assert!(load("", &[(name, value)], &[]).unwrap_err().contains("names no key"), "{name}");
    }
}

#[test]
fn a_secret_stands_in_no_error() {
    for (text, env, sets) in [
        ("[auth]\nsecret = hunter2\n", None, None),
        ("[auth]\nsecret = \"hunter2\nx = 1\n", None, None),
        ("[auth]\nsecret = [\"hunter2\"]\n", None, None),
        ("[auth]\nsecret = { hunter = \"hunter2\" }\n", None, None),
        ("[auth]\nsecret = \"hunter2\"\nsecrets = 1\n", None, None),
        ("", Some(("MILEPOST_AUTH__SECRET", "[\"hunter2\"]")), Some("auth.secret.x=1")),
        ("", Some(("MILEPOST_AUTH__SECRETS", "hunter2")), None),
        ("", Some(("MILEPOST_SECRET", "hunter2")), None),
        ("", None, Some("auth.secrets=hunter2")),
        ("[nats]\nurl = \"http://me:hunter2@a\"\n", None, None),
        ("[nats]\nurl = [\"nats://a\", \"nats://me:hunter2@\"]\n", None, None),
        ("[nats]\nurl = { hunter = \"hunter2\" }\n", None, None),
        ("", Some(("MILEPOST_NATS__URL", "nats://me:hunter2@a b")), None),
        ("", None, Some("nats.url=nats://me:hunter2@a:x")),
    ] {
        let env: Vec<_> = env.into_iter().collect();
        let sets: Vec<_> = sets.into_iter().collect();
        let error = load(text, &env, &sets).expect_err(text);
        assert!(!error.contains("hunter2"), "{error}");
    }
    let text = "[auth]\nsecret = \"hunter2\"\n[admin]\ntoken = \"hunter2\"\n\
                [nats]\nurl = \"nats://me:hunter2@a\"";
    let config = load(text, &[], &[]).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Some(&PathBuf::from("/nowhere/m.toml")), std::iter::empty(), &[]);
    assert!(error.unwrap_err().to_string().starts_with("/nowhere/m.toml: No such file"));
}

#[test]
fn the_generation_is_the_version_unless_it_is_set() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(load("", &[], &[]).unwrap().server.generation, version);
    let env = [("MILEPOST_SERVER__GENERATION", "7c9f8d6b5")];
    assert_eq!(load("", &env, &[]).unwrap().server.generation, "7c9f8d6b5");
    // A hash of digits alone is no number.
    let env = [("MILEPOST_SERVER__GENERATION", "7598465234")];
    assert_eq!(load("", &env, &[]).unwrap().server.generation, "7598465234");
    for wrong in ["", "a\\u0001"] {
        let found = problems(&format!("[server]\ngeneration = \"{wrong}\"\n"));
        assert!(found.contains("server.generation: found"), "{found}");
    }
    let longest = "x".repeat(129);
    let found = problems(&format!("[server]\ngeneration = \"{longest}\"\n"));
    assert!(found.contains("expected 1 to 128 characters"), "{found}");
}

#[test]
fn the_defaults_warn_of_nothing() {
    assert_eq!(Config::default().warnings(), [""; 0]);
}

#[test]
fn warnings_name_the_keys() {
    for (set, expected) in [
        (
            "limits.handshake_rate=3999",
            "limits.handshake_rate (3999) is under twice shutdown.reconnect_rate (2000)",
        ),
        (
            "server.max_connections=18001",
            "server.max_connections (18001) is more than come back between",
        ),
        ("server.listen=0.0.0.0:8080", "limits.trusted_proxies is empty"),
        ("admin.listen=0.0.0.0:9090", "there is no admin.token"),
        ("auth.secret=short", "auth.secret is shorter than 32 bytes"),
        (
            "nats.url=nats://me:hunter2@a",
            "--set nats.url: nats.url is not used: room_log.engine is embedded",
        ),
        (
            "shutdown.handover=1s",
            "--set shutdown.handover: shutdown.handover is not used: room_log.engine is embedded",
        ),
    ] {
        let warnings = load("", &[], &[set]).unwrap().warnings();
        assert_eq!(warnings.len(), 1, "{set}: {warnings:?}");
        assert!(warnings[0].contains(expected), "{warnings:?}");
    }
    for sets in [
        &["limits.handshake_rate=0"][..],
        &["server.max_connections=18000"],
        &["server.listen=0.0.0.0:8080", "limits.trusted_proxies=[\"10.0.0.0/8\"]"],
        &[
            "server.listen=0.0.0.0:8080",
            "limits.connects_per_minute=0",
            "limits.connections_per_address=0",
        ],
        &["admin.listen=0.0.0.0:9090", "admin.token_file=token"],
    ] {
        assert_eq!(load("", &[], sets).unwrap().warnings(), [""; 0], "{sets:?}");
    }
}

#[test]
fn warnings_of_several_instances() {
    let nats = |sets: &[&str]| {
        let base = ["room_log.engine=nats", "server.max_connections=6000"];
        load("", &[], &[&base[..], sets].concat()).unwrap().warnings()
    };
    // Every instance's clients are to be back within the three seconds.
    assert_eq!(nats(&[]), [""; 0]);
    assert_eq!(nats(&["nats.url=nats://a", "nats.stream=x", "nats.replicas=3"]), [""; 0]);
    for (set, expected) in [
        ("room_log.path=a.db", "room_log.path is not used: room_log.engine is nats"),
        ("room_log.min_free=1GiB", "room_log.min_free is not used: room_log.engine is nats"),
        ("room_log.lock_wait=1s", "room_log.lock_wait is not used: room_log.engine is nats"),
        ("server.max_connections=6001", "(6001) is more than come back between"),
        (
            "shutdown.handover=501ms",
            "shutdown.reconnect_max (3s) and shutdown.handover (501ms) are longer than the drain \
             (shutdown.drain less shutdown.notify, 3500ms)",
        ),
        ("shutdown.reconnect_max=4s", "shutdown.reconnect_max (4s) and shutdown.handover (250ms)"),
    ] {
        let warnings = nats(&[set]);
        assert_eq!(warnings.len(), 1, "{set}: {warnings:?}");
        assert!(warnings[0].contains(expected), "{warnings:?}");
    }
    // The image sets the path for whichever engine runs.
    let env = [("MILEPOST_ROOM_LOG__PATH", "/var/lib/milepost/milepost.db")];
    let sets = ["room_log.engine=nats", "server.max_connections=6000"];
    assert_eq!(load("", &env, &sets).unwrap().warnings(), [""; 0]);
}

#[test]
fn the_times_to_come_back_depend_on_who_is_there() {
    let times = |sets: &[&str]| {
        let shutdown = load("", &[], sets).unwrap().shutdown;
        let millis = |times: ReturnTimes| (times.min.as_millis(), times.max.as_millis());
        (millis(shutdown.alone()), millis(shutdown.with_others()))
    };
    assert_eq!(times(&[]), ((1000, 10_000), (0, 3000)));
    assert_eq!(times(&["shutdown.reconnect_min=2s"]), ((2000, 10_000), (2000, 3000)));
    assert_eq!(times(&["shutdown.reconnect_max=2s"]), ((1000, 2000), (0, 2000)));
    let both = ["shutdown.reconnect_min=100ms", "shutdown.reconnect_max=200ms"];
    assert_eq!(times(&both), ((100, 200), (100, 200)));
}

#[test]
fn brokers_are_one_or_several() {
    let urls = |text: &str| load(text, &[], &[]).unwrap().nats.servers();
    assert_eq!(urls("[nats]\nurl = \"nats://a:1, b\""), "nats://a:1, nats://b:4222");
    assert_eq!(urls("[nats]\nurl = [\"nats://a:1\", \"tls://b\"]"), "nats://a:1, tls://b:4222");
    let env = [("MILEPOST_NATS__URL", "nats://a,nats://b:2")];
    let nats = load("", &env, &[]).unwrap().nats;
    assert_eq!(nats.servers(), "nats://a:4222, nats://b:2");
    assert_eq!(nats.url[1].expose(), "nats://b:2");
}

/// The names that an error lists as allowed.
fn allowed(error: &str) -> Vec<String> {
    error.split_once("allowed: ").unwrap().1.split(", ").map(str::to_owned).collect()
}

#[test]
fn the_reference_file_holds_every_key_at_its_default() {
    let mut config = load(REFERENCE, &[], &[]).unwrap();
    config.sources = Sources::default();
    assert_eq!(config, Config::default());

    // Optional keys stand there commented out, and are right as well.
    let key =
        |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains(" = ");
    let uncommented: String = REFERENCE
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| key(rest)).unwrap_or(line))
        .flat_map(|line| [line, "\n"])
        .collect();
    let table: toml::Table = toml::from_str(&uncommented).unwrap();
    load(&uncommented, &[], &[]).unwrap();

    // The keys that exist are those that the loader says are allowed.
    let mut expected = BTreeSet::new();
    for section in allowed(&load("", &[], &["?.?=1"]).unwrap_err()) {
        for key in allowed(&load("", &[], &[&format!("{section}.?=1")]).unwrap_err()) {
            expected.insert(format!("{section}.{key}"));
        }
    }
    let found: BTreeSet<String> = table
        .iter()
        .flat_map(|(section, keys)| {
            keys.as_table().unwrap().keys().map(move |key| format!("{section}.{key}"))
        })
        .collect();
    assert!(expected.len() > 60, "{expected:?}");
    assert_eq!(found, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn loading_never_panics(text in "\\PC{0,60}", name in "[A-Z_]{0,20}", set in "[a-z.=\\[\\]\"0-9]{0,30}") {
        let _ = load(&text, &[(&format!("MILEPOST_{name}"), &text)], &[&set]);
        let _ = load(&format!("[server]\n{text}"), &[], &[&format!("server.listen={text}")]);
    }
}
