//! Two processes on one file: the second waits and takes over, or gives up and says who
//! has it.

use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::harness::client::{Seen, position};
use crate::harness::{Client, PATIENCE, Server, admin};

#[tokio::test]
async fn the_second_process_waits_and_takes_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("room.db");
    let start =
        || Server::builder().set("room_log.path", path.display()).set("room_log.lock_wait", "60s");
    let mut old = start().start();
    let mut vehicle = Client::connect(&old, "bus").await;
    let joined = vehicle.join("r").await;
    let ack = vehicle.request("location_update", position(1.0, 2.0)).await;

    let new = start().spawn();
    new.wait_for("room_log.waiting");
    for address in [new.admin, new.public] {
        let text = format!("waiting for the lock on {}", path.display());
        let (status, body) = admin::until(
            || admin::json(address, "GET", "/readyz"),
            |(_, body)| body["detail"] == text,
        );
        assert_eq!((status, &body["reason"]), (503, &json!("startup")), "{body}");
    }
    assert_eq!(admin::call(new.admin, "GET", "/livez").0, 200);
    // Clients come already; their joins are held.
    let mut watcher = Client::connect(&new, "watcher").await;
    let since = json!({ "epoch": joined["epoch"], "seq": joined["seq"] });
    let join = watcher.ask("join_room", json!({ "roomId": "r", "since": since })).await;
    assert_eq!(watcher.request("ping", json!({})).await["type"], "pong");
    assert_eq!(admin::status(&new)["held"]["requests"], 1);

    old.terminate();
    let (_, end) = vehicle.see_to_end().await;
    assert_eq!(end, Seen::Close(1001, "server shutting down".to_owned()));
    assert_eq!(old.wait().code, Some(0));
    new.wait_for("server.ready");
    let answer = watcher.recv_where(|message| message["id"] == join).await;
    assert_eq!(answer["payload"]["recovered"], true, "{answer}");
    assert_eq!(answer["payload"]["epoch"], joined["epoch"]);
    let event = watcher.recv_type("location_update").await;
    assert_eq!(event["payload"]["seq"], ack["payload"]["rooms"]["r"]);
    admin::until(|| admin::json(new.admin, "GET", "/readyz").0, |status| *status == 200);
}

#[test]
fn the_second_process_gives_up_after_lock_wait() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("room.db");
    let first = Server::builder().set("room_log.path", path.display()).start();
    let began = std::time::Instant::now();
    let output = Server::builder()
        .set("room_log.path", path.display())
        .set("room_log.lock_wait", "1s")
        .command(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(began.elapsed() >= Duration::from_secs(1) && began.elapsed() < PATIENCE);
    let text = String::from_utf8(output.stderr).unwrap();
    let pid = first.pid().as_raw_nonzero().to_string();
    assert!(text.contains(&path.display().to_string()) && text.contains(&pid), "{text}");
    assert_eq!(admin::json(first.admin, "GET", "/readyz").0, 200, "the first does not notice");
}
