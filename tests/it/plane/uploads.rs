//! Uploads across a pause: the begin is held and its chunks follow it.

use serde_json::{Value, json};

use super::pipe::Pipe;
use super::{admin, fix, outcomes, pause, resume, wanted};
use crate::harness::Server;

fn chunk(id: u64, numbers: std::ops::Range<u64>) -> Value {
    let time = jiff::Timestamp::now().as_millisecond() - 600_000;
    let positions: Vec<Value> = numbers
        .map(|n| {
            let mut position = fix(n);
            position["timestamp"] = json!(time + n as i64 * 1000);
            position
        })
        .collect();
    json!({ "type": "backfill_chunk", "id": id, "payload": { "positions": positions } })
}

fn end(id: u64) -> Value {
    json!({ "type": "backfill_end", "id": id })
}

#[test]
fn a_whole_upload_is_held_and_handled() {
    let server = Server::start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    pause(&server);
    for id in [1, 2] {
        client.ask("backfill_begin", id, json!({ "roomId": "r" }));
        client.queue(&chunk(id, id * 10..id * 10 + 3)).queue(&chunk(id, id * 10 + 3..id * 10 + 5));
        client.queue(&end(id));
    }
    client.ask("positions", 3, json!({ "roomId": "r" }));
    let meanwhile = client.until_pong();
    assert!(meanwhile.is_empty(), "{meanwhile:?}");
    resume(&server);
    for id in [1, 2] {
        let result = client.recv_where(|message| message["id"] == id);
        assert_eq!(result["type"], "backfill_result", "{result}");
        assert_eq!(result["payload"]["accepted"], 5, "{result}");
    }
    let rest = client.until_pong();
    assert!(rest.iter().all(|message| message["type"] != "error"), "{rest:?}");
}

#[test]
fn an_upload_that_is_open_goes_on_after_the_pause_however_long_it_was() {
    let server = Server::builder().set("limits.upload_idle", "1s").start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    client.ask("backfill_begin", 1, json!({ "roomId": "r" })).queue(&chunk(1, 0..2)).write();
    client.recv_type("backfill_progress");
    pause(&server);
    client.queue(&chunk(1, 2..4));
    assert!(client.until_pong().is_empty());
    // Longer than an upload may be silent, told by the server's own clock.
    let since = admin(&server, "GET", "/status")["uptimeSeconds"].as_u64().unwrap();
    super::status_where(&server, |s| s["uptimeSeconds"].as_u64().unwrap() >= since + 3);
    assert!(client.until_pong().is_empty(), "it is not the client that is silent");
    resume(&server);
    assert_eq!(client.recv()["type"], "backfill_progress");
    client.queue(&end(1)).write();
    let result = client.recv();
    assert_eq!(result["payload"]["accepted"], 4, "{result}");
    assert!(result["payload"]["reason"].is_null(), "{result}");
}

#[test]
fn frames_of_an_upload_that_was_refused_busy_are_swallowed() {
    let server = Server::builder().set("plane.max_held_requests", 2).start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    pause(&server);
    client.ask("positions", 1, json!({ "roomId": "r" }));
    client.ask("positions", 2, json!({ "roomId": "r" }));
    client.ask("backfill_begin", 3, json!({ "roomId": "r" }));
    client.queue(&chunk(3, 0..2)).queue(&chunk(3, 2..4)).queue(&end(3));
    assert_eq!(outcomes(&client.until_pong()), wanted(&[(3, "SERVER_BUSY")]));
    resume(&server);
    assert_eq!(outcomes(&client.take(2)), wanted(&[(1, "positions"), (2, "positions")]));
    // The same id again is a new upload.
    client.ask("backfill_begin", 3, json!({ "roomId": "r" })).queue(&chunk(3, 0..2)).queue(&end(3));
    client.write();
    let result = client.recv_where(|message| message["id"] == 3);
    assert_eq!(result["payload"]["accepted"], 2, "{result}");
}

#[test]
fn a_chunk_without_room_refuses_the_whole_upload_once() {
    let server = Server::builder().set("plane.max_held_requests", 3).start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    pause(&server);
    client.ask("positions", 1, json!({ "roomId": "r" }));
    client.ask("backfill_begin", 2, json!({ "roomId": "r" }));
    client.queue(&chunk(2, 0..2)).queue(&chunk(2, 2..4)).queue(&chunk(2, 4..6)).queue(&end(2));
    assert_eq!(outcomes(&client.until_pong()), wanted(&[(2, "SERVER_BUSY")]));
    // It gave its place back, and its id: tried again at once, in a smaller piece.
    client.ask("backfill_begin", 2, json!({ "roomId": "r" })).queue(&chunk(2, 0..3));
    assert!(client.until_pong().is_empty());
    resume(&server);
    client.queue(&end(2)).write();
    let result = client.recv_where(|message| message["id"] == 2);
    assert_eq!(result["type"], "backfill_result", "{result}");
    assert_eq!(result["payload"]["accepted"], 3, "{result}");
    assert!(client.until_pong().is_empty());
}

#[test]
fn an_open_upload_ends_busy_when_its_chunk_has_no_room() {
    let server = Server::builder().set("plane.max_held_requests", 1).start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    client.ask("backfill_begin", 2, json!({ "roomId": "r" })).queue(&chunk(2, 0..2)).write();
    client.recv_type("backfill_progress");
    pause(&server);
    client.queue(&chunk(2, 2..4)).queue(&chunk(2, 4..6)).queue(&end(2));
    assert_eq!(outcomes(&client.until_pong()), wanted(&[(2, "SERVER_BUSY")]));
    resume(&server);
    assert!(client.until_pong().is_empty(), "answered once");
    client.ask("backfill_begin", 3, json!({ "roomId": "r" })).queue(&end(3)).write();
    assert_eq!(client.recv()["type"], "backfill_result", "there is none open any more");
}
