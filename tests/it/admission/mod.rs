//! Which requests start while the server drains, and what the others cost: nothing.

use serde_json::{Value, json};

use crate::harness::Server;
use crate::harness::client::Seen;
use crate::plane::pipe::Pipe;
use crate::plane::{fix, outcomes, wanted};

fn going_away() -> Seen {
    Seen::Close(1001, "server shutting down".to_owned())
}

/// Keeps the server from writing its room log until it is dropped, so that requests hang.
fn lock(server: &Server) -> rusqlite::Connection {
    let path = server.path().join("data/milepost.db");
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
    connection
}

/// A client whose publish hangs, so that the drain goes on until the log is let go.
fn hanging(server: &Server) -> (Pipe, rusqlite::Connection) {
    let mut pipe = Pipe::connect(server, "hanging");
    pipe.join("r");
    let log = lock(server);
    pipe.ask("location_update", 1, fix(1));
    assert!(pipe.until_pong().is_empty());
    (pipe, log)
}

fn chunk(id: u64, n: u64) -> Value {
    json!({ "type": "backfill_chunk", "id": id, "payload": { "positions": [fix(n)] } })
}

#[test]
fn a_refused_request_spends_nothing() {
    let mut server =
        Server::builder().set("limits.message_rate", 1).set("limits.message_burst", 4).start();
    let (mut hanging, log) = hanging(&server);
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    // Another room, which is not loaded while the log hangs: a subscription that is open.
    client.ask("join_room", 50, json!({ "roomId": "cold" })).until_pong();
    server.terminate();
    client.recv_type("server_shutting_down");
    let mut keyed = fix(2);
    keyed["key"] = json!("once");
    keyed["roomId"] = json!("r");
    let kinds = [
        ("location_update", keyed.clone()),
        ("join_room", json!({ "roomId": "r" })),
        ("leave_room", json!({ "roomId": "r" })),
        ("positions", json!({ "roomId": 7, "nonsense": true })),
        ("history", json!({})),
        ("token_refresh", json!({ "token": "x" })),
        ("backfill_begin", json!({ "roomId": "r" })),
    ];
    // More of them than the rate allows, and wrong ones: neither is looked at.
    let mut expected = Vec::new();
    for round in 0..3 {
        for (at, (kind, payload)) in kinds.iter().enumerate() {
            let id = 100 + round * 10 + at as u64;
            client.ask(kind, id, payload.clone());
            expected.push((id, "SERVER_DRAINING"));
        }
        let id = 100 + round * 10 + 6;
        client.queue(&chunk(id, 1)).queue(&chunk(id, 2));
        client.queue(&json!({ "type": "backfill_end", "id": id }));
    }
    let refused = client.until_pong();
    assert_eq!(outcomes(&refused), wanted(&expected), "once each, an upload's frames silently");
    let error = &refused[0]["payload"];
    assert_eq!((&error["number"], &error["retry"]), (&json!(-32001), &json!("elsewhere")));
    // The open subscription does not hold the client up; it is undone before the close.
    let (last, end) = client.see_to_end();
    assert_eq!(end, going_away());
    assert_eq!(outcomes(&last), wanted(&[(50, "SERVER_DRAINING")]));
    // It left while the other one still hung.
    let drained = server.wait_for_line(|line| line["client_id"] == "bus" && line["code"] == 1001);
    assert_eq!(drained["reason"], "server shutting down");
    drop(log);
    assert_eq!(hanging.recv_type("ack")["id"], 1, "a request that had started is answered");
    assert_eq!(hanging.see_to_end().1, going_away());
    assert_eq!(server.wait().code, Some(0));
    let report = server.shutdown_lines().pop().unwrap();
    assert_eq!(report["requests_completed"], 1);
    assert_eq!(report["requests_refused"], 22);

    // No deduplication key was stored and no sequence number taken.
    let server = Server::builder().dir(server.into_dir()).start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    let ack = client.request("location_update", 1, keyed);
    assert_eq!(ack["payload"], json!({ "rooms": { "r": 2 }, "duplicate": false, "late": [] }));
}

#[test]
fn a_refused_request_leaves_the_rate_to_notifications() {
    let mut server =
        Server::builder().set("limits.message_rate", 1).set("limits.message_burst", 3).start();
    let (mut hanging, log) = hanging(&server);
    server.terminate();
    hanging.recv_type("server_shutting_down");
    for id in 10..30 {
        hanging.ask("positions", id, json!({ "roomId": "r" }));
    }
    hanging.queue(&json!({ "type": "location_update", "payload": fix(9) }));
    let answers = hanging.until_pong();
    assert_eq!(answers.len(), 20, "the notification was accepted: {answers:?}");
    assert!(answers.iter().all(|answer| answer["payload"]["code"] == "SERVER_DRAINING"));
    drop(log);
    assert_eq!(hanging.see_to_end().1, going_away());
    assert_eq!(server.wait().code, Some(0));
}

#[test]
fn an_upload_that_was_admitted_goes_on_to_its_result() {
    let mut server = Server::start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    client.ask("backfill_begin", 1, json!({ "roomId": "r" })).queue(&chunk(1, 1)).write();
    client.recv_type("backfill_progress");
    server.terminate();
    client.recv_type("server_shutting_down");
    server.wait_for("shutdown.drain");
    client.queue(&chunk(1, 2)).queue(&chunk(1, 3)).ask("positions", 2, json!({ "roomId": "r" }));
    client.queue(&json!({ "type": "backfill_end", "id": 1 })).write();
    let (messages, end) = client.see_to_end();
    assert_eq!(outcomes(&messages), wanted(&[(2, "SERVER_DRAINING"), (1, "backfill_result")]));
    let result = messages.iter().find(|message| message["id"] == 1).unwrap();
    assert_eq!(result["payload"]["accepted"], 3);
    assert_eq!(end, going_away());
    assert_eq!(server.wait().code, Some(0));
    assert_eq!(server.shutdown_lines().pop().unwrap()["requests_completed"], 1);
}

#[test]
fn an_admitted_upload_goes_on_through_a_pause_that_the_drain_meets() {
    let mut server = Server::start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    client.ask("backfill_begin", 1, json!({ "roomId": "r" })).queue(&chunk(1, 1)).write();
    client.recv_type("backfill_progress");
    crate::plane::pause(&server);
    client.queue(&chunk(1, 2)).ask("positions", 2, json!({ "roomId": "r" }));
    client.until_pong();
    server.terminate();
    client.recv_type("server_shutting_down");
    client.queue(&chunk(1, 3)).queue(&json!({ "type": "backfill_end", "id": 1 }));
    assert_eq!(outcomes(&client.until_pong()), wanted(&[(2, "SERVER_DRAINING")]));
    server.wait_for("shutdown.drain");
    crate::plane::resume(&server);
    let (messages, end) = client.see_to_end();
    assert_eq!(outcomes(&messages), wanted(&[(1, "backfill_result")]));
    assert_eq!(messages.last().unwrap()["payload"]["accepted"], 3);
    assert_eq!(end, going_away());
    assert_eq!(server.wait().code, Some(0));
}

#[test]
fn tombstones_are_bounded_for_each_connection_alone() {
    let mut server = Server::builder().set("limits.message_rate", 0).start();
    let (mut holding, log) = hanging(&server);
    let mut first = Pipe::connect(&server, "first");
    let mut second = Pipe::connect(&server, "second");
    // Both wait with an upload of their own, so that they stay as long as the log hangs.
    server.terminate();
    for pipe in [&mut holding, &mut first, &mut second] {
        pipe.recv_type("server_shutting_down");
    }
    let begin = |pipe: &mut Pipe, ids: std::ops::Range<u64>| {
        for id in ids.clone() {
            pipe.ask("backfill_begin", id, json!({ "roomId": "r" }));
        }
        assert_eq!(pipe.until_pong().len() as u64, ids.end - ids.start);
    };
    begin(&mut first, 1000..1001);
    begin(&mut holding, 2000..2200);
    // Another connection's two hundred have not evicted the first's one.
    first.queue(&chunk(1000, 1));
    assert!(first.until_pong().is_empty());
    // Of its own 200 all are remembered; one more pushes the oldest out.
    holding.queue(&chunk(2000, 1)).queue(&chunk(2199, 1));
    assert!(holding.until_pong().is_empty());
    begin(&mut holding, 3000..3001);
    holding.queue(&chunk(2001, 1)).queue(&chunk(2000, 1));
    assert_eq!(outcomes(&holding.until_pong()), wanted(&[(2000, "SERVER_DRAINING")]));
    drop(log);
    assert_eq!(holding.see_to_end().1, going_away());
    drop((first, second));
    server.wait();
}

#[test]
fn an_expiry_is_ignored_while_draining() {
    let mut server = Server::builder()
        .set("auth.mode", "jwt")
        .set("auth.secret", "a secret of the tests, long enough for HS256")
        .set("auth.leeway", "0s")
        .start();
    let token = crate::plane::token(2, &json!({}));
    let mut client = Pipe::with_token(&server, &token);
    client.join("r");
    let log = lock(&server);
    client.ask("location_update", 1, fix(1));
    client.until_pong();
    server.terminate();
    client.recv_type("server_shutting_down");
    client.ask("token_refresh", 2, json!({ "token": token }));
    assert_eq!(outcomes(&client.until_pong()), wanted(&[(2, "SERVER_DRAINING")]));
    // The token ends while the request hangs: what comes is the end of the drain.
    let (messages, end) = client.see_to_end();
    assert_eq!(end, Seen::End, "terminated, the outcome is unknown: {messages:?}");
    assert_eq!(outcomes(&messages), []);
    drop(log);
    server.wait();
    let closed = server.wait_for("connection.closed");
    assert_ne!(closed["code"], 4001, "{closed}");
    let lost = server.wait_for_line(|line| line["message"] == "shutdown: client terminated");
    assert_eq!(lost["reason"], "request_unanswered");
}

#[test]
fn an_old_session_is_gone_for_good() {
    let server = Server::start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    let old = client.session().to_owned();
    crate::plane::admin(&server, "POST", "/drain?rate=10");
    let (_, end) = client.see_to_end();
    assert_eq!(end, going_away());
    crate::plane::admin(&server, "DELETE", "/drain");
    let stream = crate::harness::raw::connect(server.public);
    let path = format!("/ws?clientId=bus&sessionId={old}");
    let mut again = Pipe::over(stream, &path);
    assert_ne!(again.session(), old);
    let answer = again.request("positions", 1, json!({ "roomId": "r" }));
    assert_eq!(answer["payload"]["code"], "NOT_JOINED", "nothing of it is left");
}

#[test]
fn a_second_drain_shares_the_first_ones_budget() {
    let server = Server::start();
    let (mut client, log) = hanging(&server);
    crate::plane::admin(&server, "POST", "/drain?rate=10");
    let notice = client.recv_type("server_shutting_down");
    assert_eq!(notice["payload"]["closesInMs"], 3500);
    let noticed = tokio::time::Instant::now();
    // Another one in the middle, at another rate, moves nothing.
    server.wait_for("drain.started");
    crate::plane::admin(&server, "POST", "/drain?rate=1000");
    let (messages, end) = client.see_to_end();
    assert_eq!((messages.len(), end), (0, Seen::End), "no second notice");
    let took = noticed.elapsed().as_millis();
    assert!((3000..5000).contains(&took), "{took} ms from its own notice");
    drop(log);
    // And after the end: there is nobody left to notice.
    let status = crate::plane::admin(&server, "POST", "/drain?rate=10");
    assert_eq!(status["draining"], true);
    assert_eq!(status["notified"], 1, "{status}");
}

#[test]
fn only_admission_refuses() {
    // A handler has no way to say SERVER_DRAINING: its errors are of another type, and that
    // type is made from a refusal nowhere but in admission.
    let src = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut users = Vec::new();
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && std::fs::read_to_string(&path).unwrap().contains("Refusal::Server")
            {
                users.push(path.strip_prefix(&src).unwrap().display().to_string());
            }
        }
    }
    users.retain(|file| !file.starts_with("protocol/tests"));
    users.sort();
    assert_eq!(users, ["admission.rs", "protocol/error.rs"]);
}
