//! What is held comes out in one order, behind what came before and ahead of what follows.

use serde_json::json;

use super::pipe::Pipe;
use super::{admin, fix, ids, logged, numbers, outcomes, pause, resume, status_where, wanted};
use crate::harness::{Server, raw};

#[test]
fn nothing_overtakes_what_is_held() {
    let server = Server::start();
    let mut watcher = Pipe::connect(&server, "watcher");
    watcher.join("r");
    pause(&server);
    let mut client = Pipe::connect(&server, "bus");
    client.ask("join_room", 1, json!({ "roomId": "r" }));
    client.queue(&json!({ "type": "location_update", "payload": fix(1) }));
    client.ask("positions", 2, json!({ "roomId": "r" }));
    client.ask("location_update", 3, json!({ "latitude": 91, "longitude": 1 }));
    client.ask("location_update", 4, fix(2));
    client.queue(&json!({ "type": "location_update", "payload": fix(3) }));
    client.ask("leave_room", 5, json!({ "roomId": "r" }));
    client.ask("positions", 6, json!({ "roomId": "r" }));
    client.ask("positions", 2, json!({ "roomId": "r" }));
    let meanwhile = client.until_pong();
    // Only what breaks the protocol is answered: an id that is in use.
    assert_eq!(meanwhile.len(), 1, "{meanwhile:?}");
    assert_eq!(meanwhile[0]["payload"]["field"], "id", "{}", meanwhile[0]);
    assert!(meanwhile[0]["id"].is_null(), "the first request is unaffected");
    let held = &admin(&server, "GET", "/status")["held"];
    assert_eq!((&held["requests"], &held["notifications"]), (&json!(6), &json!(2)));

    resume(&server);
    let mut answers: Vec<_> = (0..6).map(|_| client.recv_where(|m| !m["id"].is_null())).collect();
    // The ack comes when the log has it; all others in the order of their requests.
    let ack = answers.iter().position(|answer| answer["id"] == 4).unwrap();
    assert_eq!(answers.remove(ack)["type"], "ack");
    let expected = [
        (1, "room_joined"),
        (2, "positions"),
        (3, "VALIDATION_ERROR"),
        (5, "room_left"),
        (6, "NOT_JOINED"),
    ];
    assert_eq!(outcomes(&answers), wanted(&expected), "a failing one does not stop the next");
    let mut seen = Vec::new();
    while numbers(&seen).len() < 3 {
        seen.push(watcher.recv());
    }
    assert_eq!(numbers(&seen), [1, 2, 3]);
    // Everything is given back.
    let status = admin(&server, "GET", "/status");
    assert_eq!(status["held"], json!({ "requests": 0, "notifications": 0, "bytes": 0 }));
}

#[test]
fn a_pause_in_the_middle_of_a_flush_keeps_the_rest_in_order_and_counted() {
    const BUDGET: u64 = 2000;
    let server = Server::builder()
        .set("limits.message_rate", 0)
        .set("plane.max_held_requests", BUDGET)
        .set("outgoing.high_water", "16KiB")
        .set("outgoing.kernel_buffer", "16KiB")
        .start();
    pause(&server);
    let narrow = raw::connect_with_window(server.public, 8192);
    let mut client = Pipe::over(narrow, "/ws?clientId=c");
    for id in 0..BUDGET {
        client.ask("positions", id, json!({ "roomId": "nowhere" }));
    }
    assert!(client.until_pong().is_empty());
    // Nobody reads the answers, so the flush gets stuck at the high-water mark.
    resume(&server);
    let stuck = |status: &serde_json::Value| status["queues"]["bytes"].as_u64().unwrap() > 16_384;
    status_where(&server, stuck);
    // Another connection gets many turns meanwhile: it is not that the flush is under way.
    let mut other = Pipe::connect(&server, "other");
    let held = || admin(&server, "GET", "/status")["held"]["requests"].clone();
    let mut before = json!(BUDGET);
    while before != held() {
        before = held();
        for _ in 0..200 {
            assert!(other.until_pong().is_empty());
        }
    }
    pause(&server);
    let status = admin(&server, "GET", "/status");
    assert!(status["held"]["requests"].as_u64().unwrap() > 0, "{status:#}");

    for id in BUDGET..2 * BUDGET {
        client.ask("positions", id, json!({ "roomId": "nowhere" }));
    }
    let writing = client.write_aside();
    let mut before = Vec::new();
    while before.len() < BUDGET as usize {
        before.push(client.recv());
    }
    writing.join().unwrap();
    assert!(client.until_pong().is_empty(), "the rest waits for the second opening");
    let (busy, flushed): (Vec<_>, Vec<_>) =
        before.into_iter().partition(|answer| answer["payload"]["code"] == "SERVER_BUSY");
    let done = flushed.len() as u64;
    assert!(done > 0 && done < BUDGET, "{done}");
    assert_eq!(ids(&flushed), (0..done).collect::<Vec<_>>());
    // What was held again counts: there is room for exactly as many as were handled.
    assert_eq!(ids(&busy), (BUDGET + done..2 * BUDGET).collect::<Vec<_>>());
    assert_eq!(admin(&server, "GET", "/status")["held"]["requests"], BUDGET);

    // What comes while the rest is flushed, which is stuck once more, stays behind it.
    resume(&server);
    status_where(&server, stuck);
    for id in 2 * BUDGET..3 * BUDGET {
        client.ask("positions", id, json!({ "roomId": "nowhere" }));
    }
    let writing = client.write_aside();
    let rest = client.take(2 * BUDGET as usize);
    writing.join().unwrap();
    let expected: Vec<_> = (done..BUDGET + done).chain(2 * BUDGET..3 * BUDGET).collect();
    assert_eq!(ids(&rest), expected);
    assert!(rest.iter().all(|answer| answer["payload"]["code"] == "NOT_JOINED"));
    assert!(client.until_pong().is_empty());
}

#[test]
fn the_rate_is_spent_on_arrival_and_never_again() {
    let server =
        Server::builder().set("limits.message_rate", 1).set("limits.message_burst", 6).start();
    let mut client = Pipe::connect(&server, "c");
    client.join("r");
    pause(&server);
    for id in 1..=5 {
        client.ask("positions", id, json!({ "roomId": "r" }));
    }
    client.ask("positions", 6, json!({ "roomId": "r" }));
    client.queue(&json!({ "type": "location_update", "payload": fix(1) }));
    let refused = client.until_pong();
    assert_eq!(outcomes(&refused), wanted(&[(6, "RATE_LIMITED")]));
    assert_eq!(refused[1]["payload"]["code"], "RATE_LIMITED", "a notification spends it too");
    resume(&server);
    let answers: Vec<_> = (1..=5).map(|id| (id, "positions")).collect();
    assert_eq!(outcomes(&client.take(5)), wanted(&answers));
    assert!(client.until_pong().is_empty());
}

#[test]
fn every_pause_counts_anew() {
    let server = Server::builder()
        .set("limits.message_rate", 0)
        .set("plane.max_held_requests", 1)
        .set("plane.max_held_notifications", 1)
        .start();
    let mut client = Pipe::connect(&server, "c");
    client.join("r");
    for over in [102, 1] {
        pause(&server);
        for id in 0..=over {
            client.ask("positions", id, json!({ "roomId": "r" }));
            client.queue(&json!({ "type": "location_update", "payload": fix(id) }));
        }
        let busy = client.until_pong();
        assert_eq!(ids(&busy), (1..=over).collect::<Vec<_>>());
        resume(&server);
        let told = client.take(2);
        assert_eq!(told[0]["type"], "notifications_dropped");
        assert_eq!(told[0]["payload"], json!({ "count": over, "reason": "paused" }));
        assert_eq!(told[1]["type"], "positions");
        assert!(client.until_pong().is_empty());
    }
    server.wait_for_line(|line| line["event"] == "plane.resumed" && line["held"] == 3);
    let numbers = |event: &str, field: &str| logged(&server, event, &[field]).concat();
    assert_eq!(numbers("plane.refusing", "refused"), [1, 101, 1]);
    assert_eq!(numbers("plane.dropping", "dropped"), [1, 101, 1]);
    let sums = logged(&server, "plane.resumed", &["held", "flushed", "refused", "dropped"]);
    assert_eq!(sums[sums.len() - 2..], [[104, 2, 102, 102], [3, 2, 1, 1]]);
    let pauses = logged(&server, "plane.paused", &["hold", "reason"]);
    assert_eq!(pauses[pauses.len() - 2..], [["operator", "test"], ["operator", "test"]]);
}

#[test]
fn budgets_are_for_a_pause_only() {
    // A join of a room that has to be loaded holds what follows for a moment, too. Nothing
    // of that may be refused or dropped: nobody paused the plane.
    let server = Server::builder()
        .set("limits.message_rate", 0)
        .set("plane.max_held_requests", 3)
        .set("plane.max_held_notifications", 3)
        .start();
    let mut watcher = Pipe::connect(&server, "watcher");
    watcher.join("r");
    for round in 0..5 {
        let mut client = Pipe::connect(&server, &format!("bus{round}"));
        let room = format!("cold{round}");
        client.ask("join_room", 1, json!({ "roomId": room }));
        client.ask("join_room", 2, json!({ "roomId": "r" }));
        let first = round * 1000;
        for n in first..first + 100 {
            let mut payload = fix(n);
            payload["roomId"] = json!("r");
            client.queue(&json!({ "type": "location_update", "payload": payload }));
            client.ask("positions", 10 + n, json!({ "roomId": room }));
        }
        client.write();
        let answers: Vec<_> = (0..102).map(|_| client.recv_where(|m| !m["id"].is_null())).collect();
        let expected: Vec<_> = [1, 2].into_iter().chain(first + 10..first + 110).collect();
        assert_eq!(ids(&answers), expected);
        assert!(client.until_pong().iter().all(|m| m["type"] != "error"), "nothing is refused");
        let mut seen = Vec::new();
        while numbers(&seen).len() < 100 {
            seen.push(watcher.recv());
        }
        assert_eq!(numbers(&seen), (first..first + 100).collect::<Vec<_>>());
    }
    assert!(logged(&server, "plane.dropping", &[]).is_empty());
    assert!(logged(&server, "plane.refusing", &[]).is_empty());
}

#[test]
fn without_a_budget_every_request_is_refused_and_every_notification_dropped() {
    let server = Server::builder()
        .set("plane.max_held_requests", 0)
        .set("plane.max_held_notifications", 0)
        .start();
    let mut client = Pipe::connect(&server, "c");
    client.join("r");
    pause(&server);
    client.ask("positions", 1, json!({ "roomId": "r" }));
    client.queue(&json!({ "type": "location_update", "payload": fix(1) }));
    let busy = client.until_pong();
    assert_eq!(outcomes(&busy), wanted(&[(1, "SERVER_BUSY")]));
    let message = busy[0]["payload"]["message"].as_str().unwrap();
    assert!(message.contains(" 0 of this connection's requests wait"), "{message}");
    assert_eq!(busy[0]["payload"]["number"], -32000);
    assert_eq!(busy[0]["payload"]["retry"], "later");
    assert!(busy[0]["payload"]["retryAfterMs"].is_u64(), "stands with every retry: later");
    resume(&server);
    assert_eq!(client.recv()["payload"]["count"], 1, "told all the same");
    assert_eq!(client.request("positions", 1, json!({ "roomId": "r" }))["type"], "positions");
}

#[test]
fn what_comes_during_a_flush_stays_behind_it() {
    const COUNT: u64 = 20_000;
    let server = Server::builder()
        .set("limits.message_rate", 0)
        .set("plane.max_held_requests", COUNT)
        .start();
    pause(&server);
    let mut client = Pipe::connect(&server, "c");
    for id in 0..COUNT {
        client.ask("positions", id, json!({ "roomId": "nowhere" }));
    }
    let writing = client.write_aside();
    status_where(&server, |status| status["held"]["requests"].as_u64().unwrap() > 500);
    resume(&server);
    for id in 0..COUNT {
        assert_eq!(client.recv()["id"], id);
    }
    writing.join().unwrap();
}
