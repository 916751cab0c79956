//! The disk is full: the plane pauses, says so, loses nothing, and goes on when there is
//! room again.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::Seen;
use crate::harness::server::Builder;
use crate::harness::{Client, Server, Tmpfs, admin};

fn on(path: &Path) -> Builder {
    Server::builder()
        .set("room_log.path", path.join("room.db").display())
        .set("room_log.min_free", 0)
        .set("limits.message_rate", 0)
}

fn fix(n: u64) -> Value {
    json!({ "roomId": "r", "latitude": 1, "longitude": n as f64 / 1e6, "n": n, "pad": "x".repeat(300) })
}

/// Publishes one request after the other until the store fails: the numbers of those that
/// were acknowledged, and the id and number of the one that was not.
async fn publish_until_full(client: &mut Client, server: &Server) -> (Vec<u64>, (u64, u64)) {
    let mut acked = Vec::new();
    for n in 0.. {
        let id = client.ask("location_update", fix(n)).await;
        // Either it is acknowledged or the plane pauses; a ping passes in both cases.
        let answered = loop {
            let ping = client.ask("ping", json!({})).await;
            let answer =
                client.recv_where(|message| message["id"] == id || message["id"] == ping).await;
            if answer["id"] == id {
                assert_eq!(answer["type"], "ack", "{answer}");
                client.recv_where(|message| message["id"] == ping).await;
                break true;
            }
            if server
                .lines()
                .iter()
                .any(|line| line["event"] == "plane.paused" && line["hold"] == "store")
            {
                break false;
            }
        };
        if !answered {
            return (acked, (id, n));
        }
        acked.push(n);
    }
    unreachable!()
}

async fn history(client: &mut Client) -> BTreeSet<u64> {
    let (mut all, mut cursor) = (BTreeSet::new(), Value::Null);
    loop {
        let asked = json!({ "roomId": "r", "limit": 10000, "cursor": cursor });
        let page = client.request("history", asked).await;
        let positions = page["payload"]["positions"].as_array().unwrap_or_else(|| panic!("{page}"));
        all.extend(positions.iter().map(|position| position["n"].as_u64().unwrap()));
        cursor = page["payload"]["cursor"].clone();
        if cursor.is_null() {
            return all;
        }
    }
}

#[tokio::test]
async fn a_full_disk_holds_everything_until_there_is_room() {
    let disk = Tmpfs::mount(4 << 20);
    let server = on(disk.path()).start();
    let mut publisher = Client::connect(&server, "publisher").await;
    let mut watcher = Client::connect(&server, "watcher").await;
    publisher.join("r").await;
    watcher.join("r").await;
    let filler = disk.fill();
    let (mut acked, (waiting_id, waiting)) = publish_until_full(&mut publisher, &server).await;

    // It is said everywhere.
    let file = disk.path().join("room.db").display().to_string();
    let line = server.wait_for("room_log.failing");
    let error = line["error"].as_str().unwrap();
    assert!(error.contains(&file) && error.contains("free space"), "{error}");
    for address in [server.admin, server.public] {
        let (status, body) = admin::json(address, "GET", "/readyz");
        assert_eq!((status, &body["reason"]), (503, &json!("store")), "{body}");
    }
    assert_eq!(admin::call(server.admin, "GET", "/livez").0, 200);
    assert_eq!(admin::metric(&server, "milepost_plane_paused{hold=\"store\"}"), 1.0);
    let status = admin::status(&server);
    assert_eq!(status["holds"][0]["hold"], "store", "{status}");

    // What comes now is held: a new client's join, requests and notifications.
    let mut late = Client::connect(&server, "late").await;
    let join = late.ask("join_room", json!({ "roomId": "r" })).await;
    let mut ids = vec![waiting_id];
    let mut numbers = vec![waiting];
    for n in waiting + 1..waiting + 9 {
        numbers.push(n);
        if n % 2 == 0 {
            publisher.send(json!({ "type": "location_update", "payload": fix(n) })).await;
        } else {
            ids.push(publisher.ask("location_update", fix(n)).await);
        }
    }
    for client in [&mut late, &mut publisher] {
        let pong = client.request("ping", json!({})).await;
        assert_eq!(pong["type"], "pong");
    }
    let held = admin::status(&server)["held"].clone();
    assert_eq!((&held["requests"], &held["notifications"]), (&json!(5), &json!(4)), "{held}");

    // Room again: no restart.
    std::fs::remove_file(filler).unwrap();
    server.wait_for("room_log.recovered");
    let mut seqs = Vec::new();
    for id in &ids {
        let ack = publisher.recv_where(|message| !message["id"].is_null()).await;
        assert_eq!((&ack["type"], &ack["id"]), (&json!("ack"), &json!(id)), "in order: {ack}");
        seqs.push(ack["payload"]["rooms"]["r"].as_u64().unwrap());
    }
    assert!(seqs.is_sorted(), "{seqs:?}");
    assert_eq!(late.recv_where(|message| message["id"] == join).await["type"], "room_joined");
    acked.extend(&numbers);
    let mut got = Vec::new();
    while got.len() < acked.len() {
        let event = watcher.recv_type("location_update").await;
        got.push(event["payload"]["n"].as_u64().unwrap());
    }
    assert_eq!(got, acked, "all, in order and once");
    server.wait_for_line(|line| line["event"] == "plane.resumed" && line["hold"] == "store");
    for address in [server.admin, server.public] {
        admin::until(|| admin::json(address, "GET", "/readyz").0, |status| *status == 200);
    }
    assert_eq!(history(&mut publisher).await, acked.iter().copied().collect());

    // Full again, and killed: what was acknowledged is there.
    disk.fill();
    drop(server);
    std::fs::remove_file(disk.path().join("filler")).unwrap();
    let server = on(disk.path()).start();
    let mut publisher = Client::connect(&server, "publisher").await;
    publisher.join("r").await;
    assert_eq!(history(&mut publisher).await, acked.into_iter().collect());
}

#[tokio::test]
async fn a_stop_while_the_store_fails_is_in_time_and_says_what_is_lost() {
    let disk = Tmpfs::mount(4 << 20);
    let mut server = on(disk.path()).start();
    let mut publisher = Client::connect(&server, "publisher").await;
    let mut other = Client::connect(&server, "other").await;
    publisher.join("r").await;
    other.join("r").await;
    disk.fill();
    let (acked, (_, waiting)) = publish_until_full(&mut publisher, &server).await;
    let held = other.ask("location_update", fix(waiting + 1)).await;
    assert_eq!(other.request("ping", json!({})).await["type"], "pong");

    let signalled = server.terminate();
    // It never started.
    let refused = other.recv_where(|message| message["id"] == held).await;
    assert_eq!(refused["payload"]["code"], "SERVER_DRAINING", "{refused}");
    let (_, end) = other.see_to_end().await;
    assert_eq!(end, Seen::Close(1001, "server shutting down".to_owned()));
    // This one's outcome is unknown: no close frame.
    let (rest, end) = publisher.see_to_end().await;
    assert_eq!(end, Seen::End, "{rest:?}");
    assert!(!rest.iter().any(|message| message["payload"]["code"] == "SERVER_DRAINING"));
    let exit = server.wait();
    assert_eq!(exit.code, Some(1));
    assert!(exit.at - signalled <= Duration::from_millis(5250), "{:?}", exit.at - signalled);
    let lines = server.shutdown_lines();
    let last = lines.last().unwrap();
    assert_eq!(last["message"], "shutdown: force exit", "{last}");
    assert_eq!((&last["log_flushed"], &last["exit_code"]), (&json!(false), &json!(1)), "{last}");

    std::fs::remove_file(disk.path().join("filler")).unwrap();
    let server = on(disk.path()).start();
    let mut reader = Client::connect(&server, "reader").await;
    reader.join("r").await;
    let there = history(&mut reader).await;
    assert!(acked.iter().all(|n| there.contains(n)), "an acknowledged position is lost");
    assert!(!there.contains(&(waiting + 1)), "a refused request was carried out");
}
