//! The commands of the binary: exit codes, and messages that say what to do.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::harness::{Client, Server, client::position};

/// Runs the binary in `dir` to its end.
fn milepost(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_milepost"))
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that has to fail, and returns its stderr.
fn fails(dir: &Path, code: i32, args: &[&str]) -> String {
    let output = milepost(dir, args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert!(!stderr.is_empty(), "{args:?} says nothing");
    stderr
}

fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn help_and_bad_usage() {
    let dir = tempfile::tempdir().unwrap();
    for args in
        [&["--help"][..], &["--version"], &["help"], &["serve", "--help"], &["token", "--help"]]
    {
        let output = milepost(dir.path(), args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty() && !output.stdout.is_empty(), "{args:?}");
    }
    for args in [
        &[][..],
        &["fly"],
        &["serve", "--port", "80"],
        &["serve", "--set"],
        &["serve", "--set", "no-equals-sign"],
        &["token"],
        &["token", "--sub", "a", "--ttl", "soon"],
        &["check", "extra"],
    ] {
        fails(dir.path(), 2, args);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was started");
}

#[test]
fn bad_configuration_is_named_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("milepost.toml");
    let none = "[auth]\nmode = \"none\"\n";
    // The file, what stderr names.
    for (config, parts) in [
        ("[serve]\n", &["milepost.toml:1", "serve", "server"][..]),
        (
            "\n[server]\nlisten = \"127.0.0.1:0\"\nmax_conections = 5\n",
            &["milepost.toml:4", "server.max_conections", "max_connections", "allowed"],
        ),
        ("[server]\nlisten = 8080\n", &["milepost.toml:2", "server.listen"]),
        ("[server]\nlisten = \"nowhere\"\n", &["milepost.toml:2", "server.listen", "nowhere"]),
        (
            "[limits]\nmax_frame = \"64 parsecs\"\n",
            &["milepost.toml:2", "limits.max_frame", "64 parsecs"],
        ),
        ("[limits]\nmessage_rate = -1\n", &["milepost.toml:2", "limits.message_rate"]),
        (
            "[limits]\nhandshake_timeout = \"soon\"\n",
            &["milepost.toml:2", "limits.handshake_timeout", "soon"],
        ),
        (
            "[limits]\nextra_fields = \"keep\"\n",
            &["milepost.toml:2", "limits.extra_fields", "keep", "pass", "drop"],
        ),
        ("[log]\nformat = \"xml\"\n", &["milepost.toml:2", "log.format", "xml", "json"]),
        ("[auth]\nmode = \"open\"\n", &["milepost.toml:2", "auth.mode", "open", "jwt", "none"]),
        ("[auth\n", &["milepost.toml:1"]),
        ("[auth]\nmode = \"none\"\nmode = \"jwt\"\n", &["milepost.toml:3", "duplicate key"]),
    ] {
        std::fs::write(&file, config).unwrap();
        for command in ["serve", "check"] {
            let error = fails(dir.path(), 2, &[command, "--config", "milepost.toml"]);
            contains(&error, parts);
        }
    }
    // Combinations.
    for (sets, parts) in [
        (
            &["heartbeat.interval=30s"][..],
            &["--set heartbeat.interval", "heartbeat.timeout", "65s"][..],
        ),
        (&["shutdown.drain=100ms"], &["shutdown.drain", "shutdown.notify"]),
        (&["outgoing.high_water=2MiB"], &["outgoing.high_water", "outgoing.max_bytes"]),
        (&["shutdown.grace_period=3s"], &["shutdown.grace_period", "6s"]),
        (&["server.listen=0.0.0.0:0"], &["auth.mode", "server.listen", "auth.allow_insecure"]),
        (
            &["server.listen=127.0.0.1:7001", "admin.listen=127.0.0.1:7001"],
            &["admin.listen", "server.listen"],
        ),
        (&["limits.max_frame=1KiB"], &["limits.max_frame", "4KiB"]),
    ] {
        std::fs::write(&file, none).unwrap();
        let mut args = vec!["serve", "--config", "milepost.toml"];
        for set in sets {
            args.extend(["--set", *set]);
        }
        contains(&fails(dir.path(), 2, &args), parts);
    }
    let error = fails(dir.path(), 2, &["serve", "--config", "absent.toml"]);
    contains(&error, &["absent.toml", "No such file"]);
    // The default mode has no key yet, and says how to get going.
    contains(
        &fails(dir.path(), 2, &["serve"]),
        &["auth.mode", "auth.secret_file", "milepost demo", "--set auth.mode=none"],
    );
    // Several mistakes are told at once.
    let error = fails(
        dir.path(),
        2,
        &["serve", "--set", "limits.max_frame=1", "--set", "outgoing.max_messages=0"],
    );
    contains(&error, &["limits.max_frame", "outgoing.max_messages", "auth.mode"]);
    // The environment is a place too.
    let output = Command::new(env!("CARGO_BIN_EXE_milepost"))
        .args(["check"])
        .current_dir(dir.path())
        .env("MILEPOST_LIMITS__MAX_FRAM", "1MiB")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    contains(&text(&output.stderr), &["MILEPOST_LIMITS__MAX_FRAM", "max_frame"]);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let serve = |key: &str, value: &str| {
        let set = format!("{key}={value}");
        milepost(
            dir.path(),
            &[
                "serve",
                "--set",
                "server.listen=127.0.0.1:0",
                "--set",
                "admin.listen=127.0.0.1:0",
                "--set",
                &set,
            ],
        )
    };
    for key in ["auth.secret_file", "auth.public_key_file", "auth.jwks_file"] {
        let output = serve(key, "absent/key");
        assert_eq!(output.status.code(), Some(2), "{key}");
        contains(&text(&output.stderr), &[key, "absent/key", "No such file"]);
        let error = fails(dir.path(), 2, &["check", "--set", &format!("{key}=absent/key")]);
        contains(&error, &[key, "absent/key"]);
    }
    std::fs::write(dir.path().join("garbage"), "not a key").unwrap();
    for key in ["auth.public_key_file", "auth.jwks_file"] {
        let output = serve(key, "garbage");
        assert!(matches!(output.status.code(), Some(1 | 2)), "{key}");
        contains(&text(&output.stderr), &[key, "garbage"]);
    }
    let args = [
        "serve",
        "--set",
        "auth.mode=none",
        "--set",
        "server.listen=127.0.0.1:0",
        "--set",
        "admin.listen=127.0.0.1:0",
    ];
    let error = fails(dir.path(), 2, &[&args[..], &["--set", "admin.token_file=absent"]].concat());
    contains(&error, &["admin.token_file", "absent"]);
    // A place where no room log can be: a file where a directory should be (also root's
    // way is barred there).
    std::fs::write(dir.path().join("file"), "").unwrap();
    let error =
        fails(dir.path(), 1, &[&args[..], &["--set", "room_log.path=file/milepost.db"]].concat());
    contains(&error, &["room_log.path", "file/milepost.db"]);
    let error = fails(
        dir.path(),
        1,
        &[&args[..], &["--set", "room_log.path=/proc/milepost/milepost.db"]].concat(),
    );
    contains(&error, &["room_log.path", "/proc/milepost"]);
    // What is no room log is not overwritten.
    std::fs::write(dir.path().join("other.db"), "this is somebody's file, no database").unwrap();
    let error = fails(dir.path(), 1, &[&args[..], &["--set", "room_log.path=other.db"]].concat());
    contains(&error, &["room_log.path", "other.db"]);
    let kept = std::fs::read_to_string(dir.path().join("other.db")).unwrap();
    assert_eq!(kept, "this is somebody's file, no database");
}

#[test]
fn a_port_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for key in ["server.listen", "admin.listen", "admin.metrics_listen"] {
        let mut args = vec!["serve".to_owned(), "--set".to_owned(), "auth.mode=none".to_owned()];
        for name in ["server.listen", "admin.listen", "admin.metrics_listen"] {
            let address = if name == key { &address } else { "127.0.0.1:0" };
            args.extend(["--set".to_owned(), format!("{name}={address}")]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        contains(&fails(dir.path(), 1, &args), &[key, &address, "in use"]);
    }
}

#[tokio::test]
async fn a_second_process_waits_for_the_room_log_and_takes_over() {
    let mut first = Server::start();
    let mut vehicle = Client::connect(&first, "bus").await;
    vehicle.join("r").await;
    let ack = vehicle.publish(position(1.0, 2.0)).await;
    let path = first.path().join("data/milepost.db");
    let second = Server::builder()
        .set("room_log.path", path.display())
        .set("room_log.lock_wait", "60s")
        .spawn();
    let waiting = second.wait_for("room_log.waiting");
    assert!(waiting["message"].as_str().unwrap().contains("milepost.db"), "{waiting}");
    // Its ports are there, and say what it waits for.
    let (status, ready) = readyz(&second);
    assert_eq!(status, 503, "{ready}");
    assert!(ready.to_string().contains("waiting for the lock on"), "{ready}");
    assert!(ready.to_string().contains("milepost.db"), "{ready}");
    vehicle.close().await;
    first.terminate();
    assert_eq!(first.wait().code, Some(0));
    second.wait_for("server.ready");
    assert_eq!(readyz(&second).0, 200);
    let mut dispatcher = Client::connect(&second, "dispatcher").await;
    let joined = dispatcher.join("r").await;
    assert_eq!(joined["positions"][0]["seq"], ack["rooms"]["r"], "{joined}");
}

#[test]
fn a_room_log_that_stays_taken_ends_the_second_process() {
    let first = Server::start();
    let path = first.path().join("data/milepost.db");
    let dir = tempfile::tempdir().unwrap();
    let set = format!("room_log.path={}", path.display());
    let error = fails(
        dir.path(),
        1,
        &[
            "serve",
            "--set",
            "auth.mode=none",
            "--set",
            "server.listen=127.0.0.1:0",
            "--set",
            "admin.listen=127.0.0.1:0",
            "--set",
            "room_log.lock_wait=300ms",
            "--set",
            &set,
        ],
    );
    let pid = first.pid().as_raw_nonzero().to_string();
    contains(&error, &["room_log.path", "milepost.db", &pid]);
    assert_eq!(readyz(&first).0, 200);
}

fn readyz(server: &Server) -> (u16, Value) {
    use std::io::{Read, Write};
    let mut stream = crate::harness::raw::connect(server.admin);
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn check_says_what_would_run() {
    let dir = tempfile::tempdir().unwrap();
    let output = milepost(
        dir.path(),
        &[
            "check",
            "--set",
            "auth.secret=hunter2hunter2",
            "--set",
            "admin.token=hunter2hunter2",
            "--set",
            "server.listen=0.0.0.0:8080",
            "--set",
            "shutdown.grace_period=30s",
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = text(&output.stdout);
    contains(&said, &["0.0.0.0:8080", "data/milepost.db", "jwt", "30s", "limits.trusted_proxies"]);
    assert!(!said.contains("hunter2"), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was started");
}

#[test]
fn health_and_status_ask_the_admin_port() {
    let server = Server::start();
    let url = format!("http://{}", server.admin);
    for args in [&["healthcheck", "--url", &url][..], &["healthcheck", "--ready", "--url", &url]] {
        assert_eq!(milepost(server.path(), args).status.code(), Some(0), "{args:?}");
    }
    let set = format!("admin.listen={}", server.admin);
    let output = milepost(server.path(), &["healthcheck", "--set", &set]);
    assert_eq!(output.status.code(), Some(0), "the address comes from the configuration too");
    let output = milepost(server.path(), &["status", "--url", &url]);
    assert_eq!(output.status.code(), Some(0));
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["phase"], "running");
    // Not ready while it is paused, but alive.
    assert_eq!(milepost(server.path(), &["quiesce", "--url", &url]).status.code(), Some(0));
    assert_eq!(milepost(server.path(), &["healthcheck", "--url", &url]).status.code(), Some(0));
    contains(&fails(server.path(), 1, &["healthcheck", "--ready", "--url", &url]), &["operator"]);
    let path = server.into_dir();
    for command in ["healthcheck", "status"] {
        contains(&fails(path.path(), 1, &[command, "--url", &url]), &[&url]);
    }
    fails(path.path(), 1, &["healthcheck", "--url", "https://localhost:1"]);
    fails(path.path(), 2, &["healthcheck", "--set", "admin.listn=1"]);
}

#[tokio::test]
async fn a_minted_token_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "a secret in a file, long enough for HS256\n").unwrap();
    let set = format!("auth.secret_file={}", secret.display());
    let output = milepost(
        dir.path(),
        &[
            "token",
            "--sub",
            "bus-1",
            "--publish",
            "fleet-*",
            "--vehicles",
            "van-*",
            "--ttl",
            "10m",
            "--set",
            &set,
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let token = text(&output.stdout).trim().to_owned();
    let server =
        Server::builder().set("auth.mode", "jwt").set("auth.secret_file", secret.display()).start();
    let url = format!("ws://{}/ws?token={token}", server.public);
    let mut client = Client::connect_to(url).await;
    assert_eq!(client.welcome["clientId"], "bus-1");
    let joined = client.join("fleet-1").await;
    assert_eq!(joined["mode"], "publish");
    // Without a secret there is nothing to sign with.
    let error = fails(dir.path(), 2, &["token", "--sub", "a"]);
    contains(&error, &["auth.secret"]);
    let error = fails(dir.path(), 2, &["token", "--sub", "", "--set", &set]);
    contains(&error, &["sub"]);
}
