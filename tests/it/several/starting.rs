//! What an instance does at its start: it waits for a broker that is not there, and says
//! what is wrong with one that is.

use std::process::Command;

use serde_json::json;

use super::on;
use crate::harness::NatsServer;
use crate::harness::{Client, Server, admin};

/// Runs the binary to its end, which has to be a failure; its stderr.
fn fails(sets: &[String]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_milepost"));
    command.arg("serve").current_dir(dir.path());
    let base = ["server.listen=127.0.0.1:0", "admin.listen=127.0.0.1:0", "auth.mode=none"];
    for set in base.into_iter().chain(["room_log.engine=nats"]) {
        command.args(["--set", set]);
    }
    for set in sets {
        command.args(["--set", set]);
    }
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(!stderr.contains("hunter2") && !stdout.contains("hunter2"), "{stderr}\n{stdout}");
    stderr
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_waited_for() {
    let mut nats = NatsServer::start();
    nats.kill();
    let url = nats.url().replace("nats://", "nats://me:hunter2@");
    let server = Server::builder().set("room_log.engine", "nats").set("nats.url", &url).spawn();
    let line = server.wait_for("room_log.waiting");
    assert_eq!((&line["level"], &line["engine"]), (&json!("WARN"), &json!("nats")), "{line}");
    let detail = admin::until(
        || admin::json(server.admin, "GET", "/readyz"),
        |(_, body)| body["detail"].to_string().contains("waiting for the broker"),
    );
    assert_eq!((detail.0, &detail.1["reason"]), (503, &json!("startup")), "{detail:?}");
    assert!(detail.1["detail"].as_str().unwrap().contains(&nats.url()), "{detail:?}");
    // Who comes meanwhile is held.
    let mut client = Client::connect(&server, "van").await;
    let join = client.ask("join_room", json!({ "roomId": "r" })).await;
    nats.restart();
    let joined = client.recv_where(|message| message["id"] == join).await;
    assert_eq!(joined["type"], "room_joined", "{joined}");
    let open = server.wait_for("room_log.open");
    assert_eq!(open["engine"], "nats", "{open}");
    assert_eq!((&open["stream"], &open["replicas"]), (&json!("milepost"), &json!(1)), "{open}");
    assert_eq!(open["url"], nats.url());
    assert_eq!(admin::json(server.admin, "GET", "/readyz").0, 200);
    let text = format!("{:?}", server.lines());
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_broker_that_refuses_ends_the_start() {
    let nats = NatsServer::start_with("authorization { user: me, password: secret }");
    let url = nats.url().replace("nats://", "nats://me:hunter2@");
    let error = fails(&[format!("nats.url={url}")]);
    assert!(error.contains(&nats.url()) && error.contains("refused"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("milepost.creds");
    std::fs::write(&file, "these are none").unwrap();
    let file = format!("nats.credentials_file={}", file.display());
    let error = fails(&[format!("nats.url={}", nats.url()), file]);
    assert!(error.contains("nats.credentials_file") && error.contains("milepost.creds"), "{error}");
}

#[test]
fn a_broker_that_cannot_do_it_ends_the_start() {
    let nats = NatsServer::start();
    let error = fails(&[format!("nats.url={}", nats.url()), "nats.replicas=3".to_owned()]);
    assert!(error.contains("nats.replicas") && error.contains(&nats.url()), "{error}");
}

#[tokio::test]
async fn a_stream_that_is_set_up_otherwise_ends_the_start() {
    let nats = NatsServer::start();
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let config = async_nats::jetstream::stream::Config {
        name: "milepost".to_owned(),
        subjects: vec!["something.else".to_owned()],
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    let url = format!("nats.url={}", nats.url());
    let error = tokio::task::spawn_blocking(move || fails(&[url])).await.unwrap();
    assert!(error.contains("milepost") && error.contains("nats.stream"), "{error}");
}

#[test]
fn a_start_that_waits_can_be_stopped() {
    let mut nats = NatsServer::start();
    nats.kill();
    let mut server = on(&nats).spawn();
    server.wait_for("room_log.waiting");
    server.terminate();
    assert_eq!(server.wait().code, Some(0), "{:#?}", server.shutdown_lines());
    assert_eq!(server.shutdown_messages().last().unwrap(), "shutdown: complete");
}

#[test]
fn the_example_is_checked() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("jwt.secret"), "a secret in a file, long enough for it")
        .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_milepost"))
        .args(["check", "--config"])
        .arg(root.join("config/nats.toml"))
        .args(["--set", "nats.url=nats://me:hunter2@127.0.0.1:4222"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let line = "room log   nats, stream milepost with replicas 1 at nats://127.0.0.1:4222, kept 7d";
    assert!(text.contains(line), "{text}");
    assert!(!text.contains("warning") && !text.contains("hunter2"), "{text}");

    // The server's own check of its example.
    let output = Command::new(crate::harness::nats_server::program())
        .arg("-t")
        .arg("-c")
        .arg(root.join("config/nats-server.conf"))
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
