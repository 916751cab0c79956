//! The past: resume from the log, history, uploads, and what survives a restart.

use serde_json::{Value, json};

use crate::harness::client::{Seen, position};
use crate::harness::{Client, Server};

/// Base of the test's fixes: ten minutes ago, so that nothing is in the future.
fn fix_time(second: i64) -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_millis() as i64 - 600_000 + second * 1000
}

async fn publish(client: &mut Client, count: i64) -> Vec<u64> {
    let mut seqs = Vec::new();
    for n in 0..count {
        let mut payload = position(10.0 + n as f64 / 1000.0, 20.0);
        payload["n"] = json!(n);
        let ack = client.request("location_update", payload).await;
        assert_eq!(ack["type"], "ack", "{ack}");
        seqs.push(ack["payload"]["rooms"]["r"].as_u64().unwrap());
    }
    seqs
}

fn seqs(events: &[Value]) -> Vec<u64> {
    events
        .iter()
        .filter(|event| event["type"] == "location_update")
        .map(|event| event["payload"]["seq"].as_u64().unwrap())
        .collect()
}

async fn read_until(client: &mut Client, last: u64) -> Vec<u64> {
    let mut seen = Vec::new();
    while seen.last() != Some(&last) {
        let event = client.recv().await;
        seen.extend(seqs(&[event]));
    }
    seen
}

#[tokio::test]
async fn a_resume_after_a_restart_replays_from_the_log() {
    let mut server = Server::builder().set("limits.message_rate", 0).start();
    let mut vehicle = Client::connect(&server, "bus").await;
    let mut watcher = Client::connect(&server, "watcher").await;
    vehicle.join("r").await;
    let joined = watcher.join("r").await;
    let first = publish(&mut vehicle, 10).await;
    assert_eq!(read_until(&mut watcher, *first.last().unwrap()).await, first);
    drop(watcher);
    let missed = publish(&mut vehicle, 300).await;
    server.terminate();
    let (_, end) = vehicle.see_to_end().await;
    assert_eq!(end, Seen::Close(1001, "server shutting down".to_owned()));
    assert_eq!(server.wait().code, Some(0));

    let server = Server::builder().dir(server.into_dir()).start();
    let mut watcher = Client::connect(&server, "watcher").await;
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    let since = json!({ "epoch": joined["epoch"], "seq": first.last().unwrap() });
    let again = watcher.request("join_room", json!({ "roomId": "r", "since": since })).await;
    assert_eq!(again["payload"]["recovered"], true, "{again}");
    assert_eq!(again["payload"]["epoch"], joined["epoch"], "a clean stop keeps the epoch");
    let live = publish(&mut vehicle, 20).await;
    let seen = read_until(&mut watcher, *live.last().unwrap()).await;
    assert_eq!(seen, [missed, live].concat(), "all that was missed, then live, nothing twice");
}

#[tokio::test]
async fn the_snapshot_and_deduplication_survive_a_kill() {
    let server = Server::start();
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    let keyed = json!({ "latitude": 1.5, "longitude": 2.5, "key": "k1", "timestamp": fix_time(0) });
    let ack = vehicle.request("location_update", keyed.clone()).await;
    let server = Server::builder().dir(server.into_dir()).start();
    let mut vehicle = Client::connect(&server, "bus").await;
    let joined = vehicle.join("r").await;
    assert_eq!(joined["positions"][0]["seq"], ack["payload"]["rooms"]["r"]);
    assert_eq!(joined["positions"][0]["vehicleId"], "bus");
    let again = vehicle.request("location_update", keyed).await;
    assert_eq!(again["payload"]["duplicate"], true, "{again}");
    assert_eq!(again["payload"]["rooms"], ack["payload"]["rooms"]);
}

#[tokio::test]
async fn history_is_paged_by_the_time_of_the_fix() {
    let server = Server::builder().set("limits.message_rate", 0).start();
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    // Out of order: late fixes are in the history too.
    for second in [5, 1, 3, 2, 4] {
        let payload = json!({ "latitude": second, "longitude": 1, "timestamp": fix_time(second) });
        assert_eq!(vehicle.request("location_update", payload).await["type"], "ack");
    }
    let mut latitudes = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let asked = json!({ "roomId": "r", "limit": 2, "cursor": cursor });
        let page = vehicle.request("history", asked).await;
        assert_eq!(page["type"], "history", "{page}");
        let positions = page["payload"]["positions"].as_array().unwrap();
        assert!(positions.len() <= 2);
        latitudes.extend(positions.iter().map(|p| p["latitude"].as_i64().unwrap()));
        cursor = page["payload"]["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(latitudes, [1, 2, 3, 4, 5]);
    let wrong = vehicle.request("history", json!({ "roomId": "r", "cursor": "nonsense" })).await;
    assert_eq!(wrong["payload"]["field"], "cursor", "{wrong}");
    let foreign = vehicle.request("history", json!({ "roomId": "elsewhere" })).await;
    assert_eq!(foreign["payload"]["code"], "NOT_JOINED");
}

#[tokio::test]
async fn a_history_page_never_passes_the_frame_limit() {
    let server = Server::builder().set("limits.message_rate", 0).start();
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    let id = vehicle.ask("backfill_begin", json!({ "roomId": "r" })).await;
    for chunk in 0..2 {
        let positions: Vec<Value> = (0..400)
            .map(|n| {
                json!({ "latitude": 1.0, "longitude": f64::from(n) / 100.0, "note": "x".repeat(300),
                        "timestamp": fix_time(i64::from(chunk * 100) + i64::from(n % 100)) + i64::from(n) })
            })
            .take(120)
            .collect();
        vehicle
            .send(json!({ "type": "backfill_chunk", "id": id, "payload": { "positions": positions } }))
            .await;
    }
    vehicle.send(json!({ "type": "backfill_end", "id": id })).await;
    let result = vehicle.recv_type("backfill_result").await;
    assert_eq!(result["payload"]["accepted"], 240, "{result}");
    let mut total = 0;
    let mut cursor = Value::Null;
    let mut pages = 0;
    loop {
        let page = vehicle
            .request("history", json!({ "roomId": "r", "limit": 10000, "cursor": cursor }))
            .await;
        assert!(page.to_string().len() <= 65_536);
        total += page["payload"]["positions"].as_array().unwrap().len();
        pages += 1;
        cursor = page["payload"]["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(total, 240);
    assert!(pages > 1, "240 positions of over 400 bytes need more than one frame");
}

#[tokio::test]
async fn an_upload_is_stored_and_only_its_newest_fix_goes_live() {
    let server = Server::builder().set("limits.message_rate", 0).start();
    let mut vehicle = Client::connect(&server, "bus").await;
    let mut watcher = Client::connect(&server, "watcher").await;
    vehicle.join("r").await;
    watcher.join("r").await;
    let live = json!({ "latitude": 50, "longitude": 1, "timestamp": fix_time(10) });
    vehicle.request("location_update", live).await;
    assert_eq!(watcher.recv_type("location_update").await["payload"]["latitude"], 50);

    let id = vehicle.ask("backfill_begin", json!({ "roomId": "r" })).await;
    let good: Vec<Value> = (0..30)
        .map(|n| json!({ "latitude": n, "longitude": 2, "timestamp": fix_time(n) }))
        .collect();
    let mut mixed = good.clone();
    mixed.insert(3, json!({ "latitude": 91, "longitude": 2 }));
    let chunk = |positions: &[Value]| json!({ "type": "backfill_chunk", "id": id, "payload": { "positions": positions } });
    vehicle.send(chunk(&mixed)).await;
    let progress = vehicle.recv_type("backfill_progress").await;
    assert_eq!(progress["payload"], json!({ "accepted": 30, "duplicates": 0, "rejected": 1 }));
    vehicle.send(chunk(&good[..5])).await;
    let progress = vehicle.recv_type("backfill_progress").await;
    assert_eq!(progress["payload"]["duplicates"], 5);
    vehicle.send(json!({ "type": "backfill_end", "id": id })).await;
    let result = vehicle.recv_type("backfill_result").await;
    assert_eq!(result["id"], id);
    assert_eq!(result["payload"]["accepted"], 30);
    assert_eq!(result["payload"]["rejectedTotal"], 1);
    assert_eq!(result["payload"]["rejected"][0]["index"], 3);
    let reason = result["payload"]["rejected"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("latitude"), "{reason}");
    // Of thirty fixes up to 29 s, the newest; the others are history only.
    let event = watcher.recv_type("location_update").await;
    assert_eq!(event["payload"]["latitude"], 29, "{event}");
    let positions = watcher.request("positions", json!({ "roomId": "r" })).await;
    assert_eq!(positions["payload"]["positions"][0]["latitude"], 29);
    let history = watcher.request("history", json!({ "roomId": "r" })).await;
    assert_eq!(history["payload"]["positions"].as_array().unwrap().len(), 31);
}

#[tokio::test]
async fn uploads_are_refused_once_and_their_rest_is_swallowed() {
    let server = Server::builder().set("limits.upload_idle", "300ms").start();
    let mut vehicle = Client::connect(&server, "bus").await;
    let id = vehicle.ask("backfill_begin", json!({ "roomId": "r" })).await;
    for kind in ["backfill_chunk", "backfill_end"] {
        vehicle.send(json!({ "type": kind, "id": id, "payload": { "positions": [] } })).await;
    }
    let refused = vehicle.recv().await;
    assert_eq!((&refused["id"], &refused["payload"]["code"]), (&json!(id), &json!("NOT_JOINED")));
    // Nothing more came for it: the next answer is the ping's.
    let pong = vehicle.request("ping", json!({})).await;
    assert_eq!(pong["type"], "pong");

    let orphan = vehicle.request("backfill_end", json!({})).await;
    assert_eq!(orphan["payload"]["field"], "id", "{orphan}");

    vehicle.join("r").await;
    let id = vehicle.ask("backfill_begin", json!({})).await;
    let idle = vehicle.recv_type("backfill_result").await;
    assert_eq!((&idle["id"], &idle["payload"]["reason"]), (&json!(id), &json!("idle")));
}

#[tokio::test]
async fn an_upload_without_room_in_a_pause_is_refused_once_and_as_a_whole() {
    let server = Server::builder().set("plane.max_held_requests", 2).start();
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    pause(&server, "POST");
    let chunk = |id: u64, second: i64| {
        let position = json!({ "latitude": 1, "longitude": 2, "timestamp": fix_time(second) });
        let payload = json!({ "positions": [position] });
        json!({ "type": "backfill_chunk", "id": id, "payload": payload })
    };
    let id = vehicle.ask("backfill_begin", json!({ "roomId": "r" })).await;
    for second in 0..4 {
        vehicle.send(chunk(id, second)).await;
    }
    vehicle.send(json!({ "type": "backfill_end", "id": id })).await;
    let busy = vehicle.recv().await;
    assert_eq!((&busy["id"], &busy["payload"]["code"]), (&json!(id), &json!("SERVER_BUSY")));
    let pong = vehicle.request("ping", json!({})).await;
    assert_eq!(pong["type"], "pong", "one answer, and no more");
    pause(&server, "DELETE");
    let history = vehicle.request("history", json!({ "roomId": "r" })).await;
    assert_eq!(history["payload"]["positions"], json!([]), "nothing of it ran: {history}");
    // The same id may begin again, and what comes under it is of the new upload.
    vehicle.send(json!({ "type": "backfill_begin", "id": id, "payload": { "roomId": "r" } })).await;
    vehicle.send(chunk(id, 1)).await;
    assert_eq!(vehicle.recv().await["type"], "backfill_progress");
    vehicle.send(json!({ "type": "backfill_end", "id": id })).await;
    let result = vehicle.recv_type("backfill_result").await;
    assert_eq!(result["payload"]["accepted"], 1, "{result}");
}

#[tokio::test]
async fn an_upload_that_waits_for_the_log_is_not_idle() {
    let server = Server::builder().set("limits.upload_idle", "500ms").start();
    let mut vehicle = Client::connect(&server, "bus").await;
    vehicle.join("r").await;
    let id = vehicle.ask("backfill_begin", json!({ "roomId": "r" })).await;
    let position = json!({ "latitude": 1, "longitude": 2, "timestamp": fix_time(0) });
    pause(&server, "POST");
    vehicle
        .send(json!({ "type": "backfill_chunk", "id": id, "payload": { "positions": [position] } }))
        .await;
    assert!(vehicle.is_quiet_for(std::time::Duration::from_millis(1200)).await);
    vehicle.send(json!({ "type": "backfill_end", "id": id })).await;
    pause(&server, "DELETE");
    let result = vehicle.recv_type("backfill_result").await;
    assert_eq!(result["payload"]["accepted"], 1, "{result}");
    assert!(result["payload"].get("reason").is_none(), "{result}");
}

/// Pauses the plane with `POST`, opens it with `DELETE`.
fn pause(server: &Server, method: &str) {
    use std::io::{Read, Write};
    let mut stream = crate::harness::raw::connect(server.admin);
    let head = format!("{method} /quiesce HTTP/1.1\r\nHost: localhost\r\nConnection: close");
    stream.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
