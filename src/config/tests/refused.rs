//! What is refused, and in which words: place, key, what was found, what is expected.

use super::{load, problems};

/// File, environment, `--set` arguments, and a part of the error.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str], &'a str);

#[test]
fn what_cannot_be_read_is_refused_with_place_key_and_expectation() {
    let table: &[Case<'_>] = &[
        // Unknown names, from every source.
        (
            "\n[limits]\nmesage_rate = 5\n",
            &[],
            &[],
            "milepost.toml:3: limits.mesage_rate: no such key in [limits] (did you mean `message_rate`?); allowed: message_rate, message_burst, connects_per_minute",
        ),
        (
            "",
            &[("MILEPOST_LIMITS__MESAGE_RATE", "5")],
            &[],
            "MILEPOST_LIMITS__MESAGE_RATE: limits.mesage_rate: no such key in [limits] (did you mean `message_rate`?); allowed: message_rate",
        ),
        (
            "",
            &[],
            &["limits.mesage_rate=5"],
            "--set limits.mesage_rate: limits.mesage_rate: no such key in [limits] (did you mean `message_rate`?); allowed: message_rate",
        ),
        (
            "# one\n# two\n[sever]\nlisten = \"127.0.0.1:1\"\n",
            &[],
            &[],
            "milepost.toml:3: sever: no such section (did you mean `server`?); allowed: server, \
             admin, auth, limits, heartbeat, outgoing, plane, room_log, nats, shutdown, log",
        ),
        (
            "",
            &[("MILEPOST_SEVER__LISTEN", "x")],
            &[],
            "MILEPOST_SEVER__LISTEN: sever: no such section",
        ),
        ("", &[], &["sever.listen=1"], "--set sever.listen: sever: no such section"),
        ("sources = {}", &[], &[], "milepost.toml:1: sources: no such section; allowed: server"),
        ("server.listen.port = 1", &[], &[], "milepost.toml:1: server.listen: found map, expected"),
        // Names of no form.
        (
            "",
            &[("MILEPOST_LISTEN", "x")],
            &[],
            "MILEPOST_LISTEN: names no key, expected MILEPOST_SECTION__KEY",
        ),
        ("", &[("MILEPOST_LOG__", "x")], &[], "MILEPOST_LOG__: names no key, expected section.key"),
        ("", &[], &["log.level"], "--set log.level: expected section.key=value"),
        ("", &[], &["level=info"], "--set level: names no key, expected section.key"),
        // No TOML.
        ("[server]\nlisten = \n", &[], &[], "milepost.toml:2: not TOML: "),
        ("[log]\n[log]\n", &[], &[], "milepost.toml:2: not TOML: duplicate key"),
        // Wrong types and values.
        ("server = 5", &[], &[], "milepost.toml:1: server: found integer `5`, expected a section"),
        (
            "server = 5",
            &[],
            &["server.map=true"],
            "milepost.toml:1: server: found integer, expected a section",
        ),
        (
            "[server]\nlisten = \"localhost:8080\"",
            &[],
            &[],
            "milepost.toml:2: server.listen: found string \"localhost:8080\", expected an IP \
             address and port such as \"127.0.0.1:8080\"",
        ),
        (
            "[server]\nmap = \"yes\"",
            &[],
            &[],
            "milepost.toml:2: server.map: found string \"yes\", expected true or false",
        ),
        (
            "[server]\nmax_connections = -1",
            &[],
            &[],
            "milepost.toml:2: server.max_connections: found integer `-1`, expected a whole number, \
             0 or more",
        ),
        (
            "[server]\nallowed_origins = \"https://a\"",
            &[],
            &[],
            "milepost.toml:2: server.allowed_origins: found string \"https://a\", expected a list \
             such as [\"one\", \"two\"]",
        ),
        (
            "[limits]\nmessage_rate = 4294967296",
            &[],
            &[],
            "milepost.toml:2: limits.message_rate: found integer `4294967296`, expected a whole \
             number from 0 to 4294967295",
        ),
        (
            "[limits]\nmax_frame = \"64kb\"",
            &[],
            &[],
            "milepost.toml:2: limits.max_frame: found string \"64kb\", expected a size such as \
             \"512B\", \"64KiB\"",
        ),
        (
            "[limits]\ntrusted_proxies = [\"10.0.0.0/8\", \"10.0.0/8\"]",
            &[],
            &[],
            "milepost.toml:2: limits.trusted_proxies[1]: found string \"10.0.0/8\", expected an \
             address or network such as",
        ),
        (
            "[limits]\nextra_fields = \"dorp\"",
            &[],
            &[],
            "milepost.toml:2: limits.extra_fields: found \"dorp\", expected one of \"pass\", \
             \"drop\"",
        ),
        (
            "[heartbeat]\ninterval = 20",
            &[],
            &[],
            "milepost.toml:2: heartbeat.interval: found integer `20`, expected a duration such as \
             \"250ms\", \"30s\"",
        ),
        (
            "",
            &[("MILEPOST_SHUTDOWN__DRAIN", "4")],
            &[],
            "MILEPOST_SHUTDOWN__DRAIN: shutdown.drain: found integer `4`, expected a duration",
        ),
        (
            "",
            &[],
            &["limits.rooms=1.5"],
            "--set limits.rooms: limits.rooms: found floating point `1.5`, expected a whole number",
        ),
        (
            "[room_log]\nengine = \"sqlite\"",
            &[],
            &[],
            "milepost.toml:2: room_log.engine: found \"sqlite\", expected one of \"embedded\", \
             \"nats\"",
        ),
        (
            "[nats]\nurls = \"nats://localhost\"",
            &[],
            &[],
            "milepost.toml:2: nats.urls: no such key in [nats] (did you mean `url`?); allowed: \
             url, credentials_file, stream, replicas",
        ),
        (
            "[nats]\nurl = \"http://localhost\"",
            &[],
            &[],
            "milepost.toml:2: nats.url: found something else, expected the URL of a NATS server \
             such as \"nats://127.0.0.1:4222\", or a list of them",
        ),
        (
            "[nats]\nurl = 4222",
            &[],
            &[],
            "milepost.toml:2: nats.url: found integer `4222`, expected the URL of a NATS server",
        ),
        (
            "",
            &[],
            &["nats.replicas=-1"],
            "--set nats.replicas: nats.replicas: found integer `-1`, expected a whole number",
        ),
        (
            "",
            &[("MILEPOST_LOG__LEVEL", "inof")],
            &[],
            "MILEPOST_LOG__LEVEL: log.level: found \"inof\", expected one of \"error\", \"warn\", \
             \"info\", \"debug\", \"trace\"",
        ),
        (
            "[log]\nformat = 3",
            &[],
            &[],
            "milepost.toml:2: log.format: found a value that is no string, expected a name in quotes",
        ),
        (
            "",
            &[("MILEPOST_LOG__FORMAT", "3")],
            &[],
            "MILEPOST_LOG__FORMAT: log.format: found \"3\", expected one of \"json\", \"text\"",
        ),
        (
            "[auth]\nmode = \"token\"",
            &[],
            &[],
            "milepost.toml:2: auth.mode: found \"token\", expected one of \"jwt\", \"none\"",
        ),
        (
            "[auth]\nsecret = 1234567",
            &[],
            &[],
            "milepost.toml:2: auth.secret: found a value that is no string, expected a string",
        ),
    ];
    for (text, env, sets, expected) in table {
        let error = load(text, env, sets).expect_err(expected);
        assert!(error.contains(expected), "\nwanted: {expected}\nfound:  {error}");
    }
}

#[test]
fn impossible_combinations_are_refused_with_the_place() {
    let with_key = "[auth]\nsecret_file = \"key\"\n";
    let table = [
        (
            "[heartbeat]\ninterval = \"30s\"\n",
            "milepost.toml:4: heartbeat.timeout: found 50s, expected at least 2 × heartbeat.interval + 5s = 65s",
        ),
        (
            "[heartbeat]\ntimeout = \"44999ms\"\n",
            "milepost.toml:4: heartbeat.timeout: found 44999ms",
        ),
        (
            "[heartbeat]\ninterval = \"0s\"\n",
            "milepost.toml:4: heartbeat.interval: found 0s, expected more",
        ),
        (
            "[shutdown]\nnotify = \"50ms\"\n",
            "milepost.toml:4: shutdown.notify: found 50ms, expected at least shutdown.stop_accepting (100ms)",
        ),
        (
            "[shutdown]\n\nclose = \"3s\"\n",
            "milepost.toml:5: shutdown.close: found 3s, expected at least shutdown.drain (4s)",
        ),
        (
            "[shutdown]\ndrain = \"6s\"\n",
            "milepost.toml:4: shutdown.close: found 5s, expected at least shutdown.drain (6s)",
        ),
        (
            "[shutdown]\nclose = \"25d\"\n",
            "milepost.toml:4: shutdown.close: found 25d, expected a time of 0 to 2147483647 ms",
        ),
        (
            "[shutdown]\ngrace_period = \"5999ms\"\n",
            "milepost.toml:4: shutdown.grace_period: found 5999ms, expected at least shutdown.lame_duck + shutdown.close + 1s = 6s",
        ),
        (
            "[shutdown]\nlame_duck = \"10s\"\ngrace_period = \"15s\"\n",
            "milepost.toml:5: shutdown.grace_period: found 15s, expected at least shutdown.lame_duck + shutdown.close + 1s = 16s",
        ),
        (
            "[shutdown]\nreconnect_min = \"11s\"\n",
            "milepost.toml:4: shutdown.reconnect_max: found 10s, expected at least shutdown.reconnect_min (11s)",
        ),
        (
            "[shutdown]\nreconnect_rate = 0\n",
            "milepost.toml:4: shutdown.reconnect_rate: must be at least 1",
        ),
        (
            "[outgoing]\nhigh_water = \"1MiB\"\n",
            "milepost.toml:4: outgoing.high_water: found 1MiB, expected more than 0 and less than outgoing.max_bytes (1MiB)",
        ),
        (
            "[outgoing]\nmax_messages = 0\n",
            "milepost.toml:4: outgoing.max_messages: must be at least 1",
        ),
        (
            "[outgoing]\nkernel_buffer = 100\n",
            "milepost.toml:4: outgoing.kernel_buffer: found 100B, expected at least 4KiB",
        ),
        (
            "[plane]\nmax_held_bytes = \"1MiB\"\n",
            "milepost.toml:4: plane.max_held_bytes_per_connection: found 16MiB, expected at most plane.max_held_bytes (1MiB)",
        ),
        (
            "[limits]\nmax_frame = \"1KiB\"\n",
            "milepost.toml:4: limits.max_frame: found 1KiB, expected 4KiB to 16MiB",
        ),
        (
            "[limits]\nmax_frame_out = \"17MiB\"\n",
            "milepost.toml:4: limits.max_frame_out: found 17MiB, expected 4KiB to 16MiB",
        ),
        (
            "[limits]\nmax_position = \"62KiB\"\n",
            "milepost.toml:4: limits.max_position: found 62KiB, expected 64B to 61KiB",
        ),
        (
            "[limits]\nmessage_burst = 0\n",
            "milepost.toml:4: limits.message_burst: found 0, expected at least 1",
        ),
        (
            "[limits]\nhandshake_timeout = \"0ms\"\n",
            "milepost.toml:4: limits.handshake_timeout: found 0s, expected more",
        ),
        (
            "[room_log]\ndedup_window = \"8d\"\n",
            "milepost.toml:4: room_log.dedup_window: found 8d, expected at most room_log.retention_age (7d)",
        ),
        (
            "[room_log]\nretention_bytes = 0\n",
            "milepost.toml:4: room_log.retention_bytes: found 0B, expected at least 1MiB",
        ),
        ("[room_log]\npath = \"\"\n", "milepost.toml:4: room_log.path: found an empty string"),
        ("[nats]\nurl = []\n", "milepost.toml:4: nats.url: found an empty list"),
        (
            "[nats]\nstream = \"mile.post\"\n",
            "milepost.toml:4: nats.stream: found \"mile.post\", expected 1 to 64 letters",
        ),
        ("[nats]\nreplicas = 2\n", "milepost.toml:4: nats.replicas: found 2, expected 1, 3 or 5"),
        (
            "[nats]\ncredentials_file = \"\"\n",
            "milepost.toml:4: nats.credentials_file: found an empty string",
        ),
        (
            "[shutdown]\nhandover = \"25d\"\n",
            "milepost.toml:4: shutdown.handover: found 25d, expected a time of 0 to 2147483647 ms",
        ),
        (
            "[room_log]\nengine = \"nats\"\n[shutdown]\nreconnect_min = \"4s\"\n",
            "milepost.toml:6: shutdown.reconnect_max: found 3s (with other instances about), expected at least shutdown.reconnect_min (4s)",
        ),
        (
            "[server]\nmax_connections = 0\n",
            "milepost.toml:4: server.max_connections: must be at least 1",
        ),
        (
            "[admin]\nlisten = \"127.0.0.1:8080\"\n",
            "milepost.toml:4: admin.listen: found 127.0.0.1:8080, which is the port of server.listen (127.0.0.1:8080)",
        ),
        (
            "[admin]\nmetrics_listen = \"0.0.0.0:9090\"\n",
            "milepost.toml:4: admin.metrics_listen: found 0.0.0.0:9090, which is the port of admin.listen (127.0.0.1:9090)",
        ),
        (
            "[admin]\ntoken = \"a\"\ntoken_file = \"b\"\n",
            "milepost.toml:5: admin.token and admin.token_file are both set",
        ),
        ("[admin]\ntoken = \" \"\n", "milepost.toml:4: admin.token: found an empty string"),
    ];
    for (text, expected) in table {
        let found = problems(&format!("{with_key}{text}"));
        assert!(found.contains(expected), "\nwanted: {expected}\nfound:  {found}");
        // One mistake is one problem.
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}

#[test]
fn authentication_is_complete_or_refused() {
    for (text, expected) in [
        (
            "",
            "auth.mode: \"jwt\" (the default) needs a key to verify tokens with: set one of auth.secret_file",
        ),
        ("", "milepost demo"),
        ("[auth]\nsecret = \"\"\n", "milepost.toml:2: auth.secret: found an empty string"),
        (
            "[auth]\nsecret = \"a\"\njwks_file = \"b\"\n",
            "milepost.toml:3: auth.secret, auth.jwks_file are all set, expected exactly one",
        ),
        (
            "[auth]\nsecret = \"a\"\nalgorithms = [\"none\"]\n",
            "milepost.toml:3: auth.algorithms: found \"none\", with this kind of key expected some of HS256, HS384, HS512",
        ),
        (
            "[auth]\npublic_key_file = \"a\"\nalgorithms = [\"HS256\"]\n",
            "milepost.toml:3: auth.algorithms: found \"HS256\", with this kind of key expected some of RS256",
        ),
        (
            "[auth]\nmode = \"none\"\n[server]\nlisten = \"0.0.0.0:8080\"\n",
            "milepost.toml:2: auth.mode: \"none\" lets anyone in, and server.listen 0.0.0.0:8080 is reached from other machines",
        ),
    ] {
        let found = problems(text);
        assert!(found.contains(expected), "\nwanted: {expected}\nfound:  {found}");
    }
    for text in [
        "[auth]\nmode = \"none\"\n",
        "[auth]\nmode = \"none\"\n[server]\nlisten = \"[::1]:0\"\n",
        "[auth]\nmode = \"none\"\nallow_insecure = true\n[server]\nlisten = \"0.0.0.0:8080\"\n",
        "[auth]\nsecret_file = \"key\"\n[server]\nlisten = \"0.0.0.0:8080\"\n",
        "[auth]\njwks_file = \"keys\"\nalgorithms = [\"HS256\", \"EdDSA\"]\n",
        "[auth]\npublic_key_file = \"key\"\nalgorithms = [\"ES256\"]\n",
    ] {
        assert_eq!(load(text, &[], &[]).unwrap().validate(), Ok(()), "{text}");
    }
}
