//! Requests while the server stops: answered, refused, or never started, and never
//! anything else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::peer::{Got, Peer, fix, going_away, notices, numbers};
use super::{EARLY_MS, assert_figures, clean_end, room_log, stored, usual_lines};
use crate::harness::{Server, raw};

/// Each request's answers among `messages`, by id.
fn answers(messages: &[Value]) -> BTreeMap<u64, Vec<&Value>> {
    let mut answers: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for message in messages {
        if let Some(id) = message["id"].as_u64() {
            answers.entry(id).or_default().push(message);
        }
    }
    answers
}

fn is_refusal(answer: &Value) -> bool {
    answer["type"] == "error" && answer["payload"]["code"] == "SERVER_DRAINING"
}

/// Sends requests `first..` until told to stop; returns the first id not sent.
fn ask_until(peer: &mut Peer, stop: &AtomicBool, first: u64, pause: Duration) -> u64 {
    let mut id = first;
    while !stop.load(Ordering::Acquire) {
        let mut payload = fix(id as usize, 10);
        payload["roomId"] = json!("north");
        let request = json!({ "type": "location_update", "id": id, "payload": payload });
        if peer.try_send(&request).is_err() {
            break;
        }
        id += 1;
        thread::sleep(pause);
    }
    id
}

#[test]
fn one_that_sends_requests_all_through_is_refused_and_leaves_early() {
    let mut server = Server::builder().set("limits.message_rate", 0).start();
    let mut peer = Peer::connect(&server, "asks");
    peer.join("north");
    let first = 10_000;
    let stop = AtomicBool::new(false);
    let mut writer = peer.second();
    let (messages, next, signalled) = thread::scope(|scope| {
        let asking =
            scope.spawn(|| ask_until(&mut writer, &stop, first, Duration::from_micros(200)));
        peer.wait_for(|message| message["type"] == "ack");
        let signalled = server.terminate();
        let (messages, end) = peer.read_to_close();
        assert_eq!(end, going_away());
        stop.store(true, Ordering::Release);
        let next = asking.join().unwrap();
        peer.acknowledge();
        assert_eq!(peer.next(), Got::End);
        (messages, next, signalled)
    });
    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(1));
    assert!(report["drain_ms"].as_u64().unwrap() < EARLY_MS, "{report:#}");
    assert_figures(&report, &[("drained", 1), ("acked", 1), ("terminated", 0)]);

    let notice = messages.iter().position(|m| m["type"] == "server_shutting_down").unwrap();
    let refused: Vec<usize> = (0..messages.len()).filter(|at| is_refusal(&messages[*at])).collect();
    assert!(refused.len() > 10, "{}", refused.len());
    assert!(refused.iter().all(|at| *at > notice), "nobody is refused before the notice");
    assert_eq!(report["requests_refused"], refused.len());
    let error = &messages[refused[0]];
    assert_eq!(error["payload"]["number"], -32001);
    assert_eq!(error["payload"]["retry"], "elsewhere");
    assert_eq!(error["payload"]["type"], "location_update");
    assert_eq!(error["payload"]["roomId"], "north");

    // One answer each; those without one are the last, sent after the close frame.
    let answers = answers(&messages);
    assert!(answers.values().all(|answers| answers.len() == 1));
    let answered = *answers.keys().max().unwrap();
    let missing = (first + 1..answered).find(|id| !answers.contains_key(id));
    assert_eq!(missing, None, "an unanswered request in front of an answered one");
    assert!(answered < next);
    let accepted = answers.values().filter(|answers| answers[0]["type"] == "ack").count();
    // The ack that was waited for in front of the signal stands for the first.
    assert!(stored(&server, "asks") >= accepted);
    assert_eq!(stored(&server, "asks") as u64, {
        let first_refused = answers.iter().find(|(_, a)| is_refusal(a[0])).unwrap().0;
        first_refused - first
    });
}

/// Its refusals never leave an empty queue behind, and the drain does not wait for that.
#[test]
fn refusals_do_not_move_the_mark() {
    let mut server = Server::builder()
        .set("limits.message_rate", 0)
        .set("outgoing.kernel_buffer", "16KiB")
        .start();
    let mut peer = Peer::connect_with_window(&server, "asks", 8192);
    peer.join("north");
    let stop = AtomicBool::new(false);
    let mut writer = peer.second();
    // Blocked writes end when the server reads on or the socket is shut.
    thread::scope(|scope| {
        let asking = scope.spawn(|| ask_until(&mut writer, &stop, 10_000, Duration::ZERO));
        let signalled = server.terminate();
        // At this rate it would take ten times the drain's time to read all refusals.
        let (messages, end) = peer.read_slowly(8 * 1024, Duration::from_millis(20));
        assert_eq!(end, going_away(), "after {}", messages.len());
        assert_eq!(notices(&messages), 1);
        assert!(messages.iter().filter(|message| is_refusal(message)).count() > 100);
        stop.store(true, Ordering::Release);
        asking.join().unwrap();
        peer.acknowledge();
        assert_eq!(peer.next(), Got::End);
        let report = clean_end(&mut server, signalled);
        assert_figures(&report, &[("drained", 1), ("acked", 1), ("terminated", 0)]);
        assert!(report["drain_ms"].as_u64().unwrap() < 3400, "{report:#}");
    });
    assert_eq!(server.shutdown_messages(), usual_lines(1));
}

#[test]
fn a_ping_is_answered_to_the_last() {
    let mut server = Server::start();
    let mut peer = Peer::connect(&server, "pings");
    let signalled = server.terminate();
    peer.wait_for(|message| message["type"] == "server_shutting_down");
    let pong = peer.request("ping", json!({}));
    assert_eq!(pong["type"], "pong", "{pong}");
    let refused = peer.request("token_refresh", json!({ "token": "x" }));
    assert!(is_refusal(&refused), "{refused}");
    let refused = peer.request("join_room", json!({ "roomId": "north" }));
    assert!(is_refusal(&refused), "{refused}");
    // Refused before it is validated: this one is not even well-formed.
    let refused = peer.request("location_update", json!({ "latitude": "north" }));
    assert!(is_refusal(&refused), "{refused}");
    peer.leave_well();
    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(1));
    assert_figures(&report, &[("requests_refused", 3), ("requests_completed", 0)]);
}

#[test]
fn a_request_behind_the_close_frame_never_starts() {
    let mut server = Server::start();
    let mut peer = Peer::connect(&server, "late");
    peer.join("north");
    let signalled = server.terminate();
    let (_, end) = peer.read_to_close();
    assert_eq!(end, going_away());
    let mut payload = fix(1, 10);
    payload["roomId"] = json!("north");
    payload["key"] = json!("k1");
    peer.ask("location_update", payload.clone());
    peer.ask("join_room", json!({ "roomId": "south" }));
    peer.ask("ping", json!({}));
    // A notification behind it shows that they were read.
    let mut accepted = fix(2, 10);
    accepted["roomId"] = json!("north");
    peer.send(&json!({ "type": "location_update", "payload": accepted }));
    peer.acknowledge();
    assert_eq!(peer.next(), Got::End, "no answer follows the close frame");
    clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(1));
    assert_eq!(stored(&server, "late"), 1);
    let keys: i64 = room_log(&server)
        .query_row("SELECT count(*) FROM positions WHERE key IS NOT NULL", [], |row| row.get(0))
        .unwrap();
    assert_eq!(keys, 0, "the request never started: its key is free");

    // So it may be sent again to the successor, where it is no duplicate.
    let mut successor = Server::builder().dir(server.into_dir()).start();
    let mut peer = Peer::connect(&successor, "late");
    peer.join("north");
    let ack = peer.request("location_update", payload);
    assert_eq!(ack["payload"]["duplicate"], false, "{ack}");
    let signalled = successor.terminate();
    peer.leave_well();
    clean_end(&mut successor, signalled);
}

/// Vehicles at 10 Hz (and one at 200) with ids, and a dispatcher that reads: every request
/// is accounted for, and every acknowledged position is with the dispatcher before its
/// close frame.
#[test]
fn every_request_of_a_vehicle_is_accounted_for() {
    let mut server = Server::builder().set("limits.message_rate", 0).start();
    let mut dispatcher = Peer::connect(&server, "dispatcher");
    dispatcher.join("north");
    let mut vehicles: Vec<(Peer, Duration)> = [100, 100, 5]
        .into_iter()
        .enumerate()
        .map(|(n, pause)| {
            let mut peer = Peer::connect(&server, &format!("bus-{n}"));
            peer.join("north");
            (peer, Duration::from_millis(pause))
        })
        .collect();
    let (seen, outcomes, signalled) = thread::scope(|scope| {
        let driving: Vec<_> = vehicles
            .iter_mut()
            .enumerate()
            .map(|(at, (peer, pause))| {
                scope.spawn(move || {
                    let stop = AtomicBool::new(false);
                    let mut writer = peer.second();
                    thread::scope(|scope| {
                        // Its numbers are its own, so that the dispatcher tells them apart.
                        let first = (at as u64 + 1) * 1_000_000;
                        let (stop, pause) = (&stop, *pause);
                        let asking =
                            scope.spawn(move || ask_until(&mut writer, stop, first, pause));
                        let (messages, end) = peer.read_to_close();
                        assert_eq!(end, going_away());
                        // It goes on a little: these are behind the close frame.
                        thread::sleep(pause * 3);
                        stop.store(true, Ordering::Release);
                        let next = asking.join().unwrap();
                        peer.acknowledge();
                        assert_eq!(peer.next(), Got::End);
                        (first..next, messages)
                    })
                })
            })
            .collect();
        // The signal comes when all are on the road.
        let mut before = Vec::new();
        let started = Instant::now();
        while before.len() < 20 || started.elapsed() < Duration::from_millis(350) {
            let message = dispatcher.wait_for(|message| message["type"] == "location_update");
            before.push(message["payload"]["n"].as_u64().unwrap());
        }
        let signalled = server.terminate();
        let messages = dispatcher.leave_well();
        assert_eq!(notices(&messages), 1);
        before.extend(numbers(&messages));
        let outcomes: Vec<_> = driving.into_iter().map(|one| one.join().unwrap()).collect();
        (before, outcomes, signalled)
    });
    clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(4));
    let log = room_log(&server);
    let in_log = |n: u64| -> i64 {
        // A body is the members of an object.
        let sql =
            "SELECT count(*) FROM positions WHERE json_extract('{' || body || '}', '$.n') = ?1";
        log.query_row(sql, [n as i64], |row| row.get(0)).unwrap()
    };
    let (mut acks, mut refusals, mut unanswered) = (0, 0, 0);
    for (sent, messages) in outcomes {
        assert_eq!(notices(&messages), 1);
        let answers = answers(&messages);
        let last_answered = *answers.keys().max().unwrap();
        for id in sent {
            match answers.get(&id).map(Vec::as_slice) {
                Some([ack]) if ack["type"] == "ack" => {
                    acks += 1;
                    assert_eq!(in_log(id), 1, "acknowledged and not in the log: {id}");
                    assert!(seen.contains(&id), "acknowledged, the dispatcher left without: {id}");
                }
                Some([refusal]) if is_refusal(refusal) => {
                    refusals += 1;
                    assert_eq!(in_log(id), 0, "refused and in the log: {id}");
                }
                None => {
                    unanswered += 1;
                    assert!(id > last_answered, "unanswered before the close frame: {id}");
                    assert_eq!(in_log(id), 0, "never started and in the log: {id}");
                }
                other => panic!("{id} has {other:#?}"),
            }
        }
    }
    assert!(acks > 20 && refusals > 2 && unanswered > 0, "{acks}, {refusals}, {unanswered}");
}

#[test]
fn an_upload_that_was_begun_is_finished_and_no_other_begins() {
    let mut server = Server::start();
    let mut peer = Peer::connect(&server, "bus");
    peer.join("north");
    let first = json!({ "roomId": "north" });
    let open = peer.ask("backfill_begin", first.clone());
    let chunk = |id: u64, n: usize| {
        let mut position = fix(n, 10);
        position["timestamp"] = json!(1_700_000_000_000u64 + n as u64 * 1000);
        json!({ "type": "backfill_chunk", "id": id, "payload": { "positions": [position] } })
    };
    peer.send(&chunk(open, 1));
    let progress = peer.wait_for(|message| message["type"] == "backfill_progress");
    assert_eq!(progress["payload"]["accepted"], 1, "{progress}");

    let signalled = server.terminate();
    peer.wait_for(|message| message["type"] == "server_shutting_down");
    let refused = peer.ask("backfill_begin", first);
    peer.send(&chunk(refused, 5));
    peer.send(&json!({ "type": "backfill_end", "id": refused, "payload": {} }));
    // The drain waits for the open one, and takes what comes of it.
    server.wait_for("shutdown.drain");
    peer.send(&chunk(open, 2));
    peer.wait_for(|message| message["type"] == "backfill_progress");
    peer.send(&json!({ "type": "backfill_end", "id": open, "payload": {} }));
    let messages = peer.leave_well();
    let result = messages.iter().find(|message| message["type"] == "backfill_result");
    let result = result.expect("closed before the result");
    assert_eq!((&result["id"], &result["payload"]["accepted"]), (&json!(open), &json!(2)));
    let report = clean_end(&mut server, signalled);
    assert_figures(&report, &[("requests_completed", 1), ("requests_refused", 1), ("drained", 1)]);
    assert_eq!(server.shutdown_messages(), usual_lines(1));
    assert_eq!(stored(&server, "bus"), 2);
}

#[test]
fn pings_of_the_protocol_are_answered_while_draining() {
    let mut server = Server::start();
    let mut stream = raw::connect(server.public);
    raw::upgrade(&mut stream, "/ws?clientId=pings");
    let signalled = server.terminate();
    server.wait_for("shutdown.notify");
    std::io::Write::write_all(&mut stream, &raw::frame(9, true, b"still there")).unwrap();
    let pong = loop {
        match raw::read_frame(&mut stream).unwrap() {
            (10, payload) => break payload,
            (1, _) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(pong, b"still there");
    drop(stream);
    clean_end(&mut server, signalled);
}
