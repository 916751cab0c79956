//! What becomes of what is held when the connection, or the server, goes.

use serde_json::json;

use super::pipe::Pipe;
use super::{admin, fix, logged, outcomes, pause, resume, status_where, wanted};
use crate::harness::Server;
use crate::harness::client::Seen;

/// The `n` of the positions that the log holds, once the server has ended.
fn stored(server: &Server) -> Vec<u64> {
    let log = rusqlite::Connection::open(server.path().join("data/milepost.db")).unwrap();
    let mut query = log.prepare("SELECT body FROM positions ORDER BY seq").unwrap();
    let bodies = query.query_map([], |row| row.get::<_, String>(0)).unwrap();
    bodies
        .map(|body| {
            let body = body.unwrap();
            let (_, number) = body.split_once("\"n\":").unwrap();
            number.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
        })
        .collect()
}

fn going_away() -> Seen {
    Seen::Close(1001, "server shutting down".to_owned())
}

#[test]
fn what_a_connection_held_is_gone_with_it() {
    let mut server = Server::start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    pause(&server);
    client.ask("location_update", 1, fix(1));
    client.queue(&json!({ "type": "location_update", "payload": fix(2) }));
    client.until_pong();
    status_where(&server, |status| status["held"]["requests"] == 1);
    drop(client);
    let status = status_where(&server, |status| status["held"]["requests"] == 0);
    assert_eq!(status["held"], json!({ "requests": 0, "notifications": 0, "bytes": 0 }));
    resume(&server);
    server.wait_for_line(|line| line["event"] == "plane.resumed" && line["hold"] == "operator");
    let sums = logged(&server, "plane.resumed", &["held", "flushed", "refused", "dropped"]);
    assert_eq!(*sums.last().unwrap(), [2, 0, 0, 2], "counted");
    server.terminate();
    assert_eq!(server.wait().code, Some(0));
    assert!(stored(&server).is_empty());
}

#[test]
fn a_drain_refuses_the_held_requests_and_holds_on_to_the_notifications() {
    let mut server = Server::start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    pause(&server);
    client.ask("location_update", 1, fix(1));
    client.queue(&json!({ "type": "location_update", "payload": fix(2) }));
    client.ask("join_room", 2, json!({ "roomId": "s" }));
    client.ask("backfill_begin", 3, json!({ "roomId": "r" }));
    client.queue(&json!({ "type": "backfill_chunk", "id": 3, "payload": { "positions": [] } }));
    client.queue(&json!({ "type": "backfill_end", "id": 3 }));
    assert!(client.until_pong().is_empty());
    server.terminate();
    assert_eq!(client.recv()["type"], "server_shutting_down", "before the first refusal");
    let expected = [(1, "SERVER_DRAINING"), (2, "SERVER_DRAINING"), (3, "SERVER_DRAINING")];
    assert_eq!(outcomes(&client.take(3)), wanted(&expected));
    // Notifications are accepted as long as the socket is open; new requests are not.
    client.queue(&json!({ "type": "location_update", "payload": fix(3) }));
    client.ask("positions", 4, json!({ "roomId": "r" }));
    assert_eq!(outcomes(&client.until_pong()), wanted(&[(4, "SERVER_DRAINING")]));
    server.wait_for("shutdown.drain");
    resume(&server);
    assert_eq!(client.see_to_end().1, going_away());
    assert_eq!(server.wait().code, Some(0));
    let report = server.shutdown_lines().pop().unwrap();
    assert_eq!(report["message"], "shutdown: complete");
    assert_eq!(report["held_notifications_dropped"], 0);
    assert_eq!(report["requests_refused"], 4);
    assert_eq!(stored(&server), [2, 3], "no request ran");
}

#[test]
fn notifications_that_no_opening_comes_for_are_reported() {
    let mut server =
        Server::builder().set("shutdown.drain", "1s").set("shutdown.close", "2s").start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    pause(&server);
    for n in 0..3 {
        client.queue(&json!({ "type": "location_update", "payload": fix(n) }));
    }
    assert!(client.until_pong().is_empty());
    server.terminate();
    let (messages, end) = client.see_to_end();
    assert_eq!(messages.len(), 1, "the notice alone: {messages:?}");
    assert_eq!(end, going_away());
    assert_eq!(server.wait().code, Some(0));
    let report = server.shutdown_lines().pop().unwrap();
    assert_eq!(report["held_notifications_dropped"], 3);
    assert_eq!(report["level"], "WARN", "{report}");
    assert!(stored(&server).is_empty());
}

#[test]
fn an_evacuated_client_gets_its_refusals_in_a_pause() {
    let server = Server::start();
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    pause(&server);
    client.ask("positions", 1, json!({ "roomId": "r" }));
    assert!(client.until_pong().is_empty());
    admin(&server, "POST", "/drain?rate=10");
    let (messages, end) = client.see_to_end();
    assert_eq!(messages[0]["payload"]["reason"], "drain", "{messages:?}");
    assert_eq!(outcomes(&messages), wanted(&[(1, "SERVER_DRAINING")]));
    assert_eq!(end, going_away());
}
