//! Clients that go on as if nothing happened.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::peer::{Got, Peer, going_away, notices, notification, numbers};
use super::{EARLY_MS, assert_figures, clean_end, stored, usual_lines};
use crate::harness::server::Builder;
use crate::harness::{Server, raw};

fn unlimited() -> Builder {
    // What is looked at here is the drain, not the ladder for slow consumers.
    Server::builder()
        .set("limits.message_rate", 0)
        .set("outgoing.high_water", "32MiB")
        .set("outgoing.max_bytes", "64MiB")
        .set("outgoing.max_messages", 1_000_000)
}

/// Publishes `rate` positions a second (0: without a pause) until it is told to stop or
/// the server is gone; returns how many were sent.
fn publish_until(peer: &mut Peer, stop: &AtomicBool, rate: usize, bytes: usize) -> usize {
    let started = Instant::now();
    let mut sent = 0;
    while !stop.load(Ordering::Acquire) {
        if peer.send_bytes(&notification("north", sent, bytes)).is_err() {
            break;
        }
        sent += 1;
        if rate > 0 {
            let due = Duration::from_secs_f64(sent as f64 / rate as f64);
            thread::sleep(due.saturating_sub(started.elapsed()));
        }
    }
    sent
}

#[test]
fn one_that_floods_positions_all_through_leaves_early_and_loses_none() {
    let mut server = unlimited().start();
    let mut flooder = Peer::connect(&server, "flooder");
    flooder.join("north");
    let mut writer = flooder.second();
    let stop = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let writing = scope.spawn(|| publish_until(&mut writer, &stop, 5000, 20));
        let signalled = server.terminate();
        let (messages, end) = flooder.read_to_close();
        assert_eq!(end, going_away());
        assert_eq!(notices(&messages), 1);
        let errors = messages.iter().filter(|message| message["type"] == "error").count();
        assert_eq!(errors, 0, "a notification is not refused: {messages:#?}");
        // It floods on for as long again, and only then answers.
        while signalled.elapsed() < Duration::from_millis(1500) {
            thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Release);
        let sent = writing.join().unwrap();
        flooder.acknowledge();
        assert_eq!(flooder.next(), Got::End);
        let report = clean_end(&mut server, signalled);
        assert!(report["drain_ms"].as_u64().unwrap() < EARLY_MS, "{report:#}");
        assert_figures(&report, &[("drained", 1), ("acked", 1), ("terminated", 0)]);
        sent
    });
    assert_eq!(server.shutdown_messages(), usual_lines(1));
    assert!(sent > 500, "{sent} is no flood");
    assert_eq!(stored(&server, "flooder"), sent);
}

#[test]
fn publishers_that_go_on_until_their_close_lose_nothing() {
    const PUBLISHERS: usize = 4;
    const AFTER_CLOSE: usize = 100;
    let mut server = unlimited().start();
    let mut peers: Vec<Peer> = (0..PUBLISHERS)
        .map(|n| {
            let mut peer = Peer::connect(&server, &format!("bus-{n}"));
            peer.join("north");
            peer
        })
        .collect();
    let (signalled, sent) = thread::scope(|scope| {
        let publishing: Vec<_> = peers
            .iter_mut()
            .map(|peer| {
                scope.spawn(move || {
                    let stop = AtomicBool::new(false);
                    let mut writer = peer.second();
                    thread::scope(|scope| {
                        let writing = scope.spawn(|| publish_until(&mut writer, &stop, 1000, 20));
                        let (messages, end) = peer.read_to_close();
                        assert_eq!(end, going_away());
                        assert_eq!(notices(&messages), 1);
                        stop.store(true, Ordering::Release);
                        let before = writing.join().unwrap();
                        // What was on its way when the close frame came is accepted too.
                        for n in before..before + AFTER_CLOSE {
                            peer.send_bytes(&notification("north", n, 20)).unwrap();
                        }
                        peer.acknowledge();
                        assert_eq!(peer.next(), Got::End);
                        before + AFTER_CLOSE
                    })
                })
            })
            .collect();
        let signalled = server.terminate();
        let sent: Vec<_> = publishing.into_iter().map(|one| one.join().unwrap()).collect();
        (signalled, sent)
    });
    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(PUBLISHERS));
    assert_figures(&report, &[("acked", PUBLISHERS as u64), ("terminated", 0)]);
    assert_eq!(report["log_flushed"], true);
    for (n, sent) in sent.into_iter().enumerate() {
        assert!(sent > 2 * AFTER_CLOSE, "{sent}");
        assert_eq!(stored(&server, &format!("bus-{n}")), sent, "bus-{n}");
    }
    // The successor has them as well.
    let mut successor = Server::builder().dir(server.into_dir()).start();
    let mut peer = Peer::connect(&successor, "dispatcher");
    peer.join("north");
    let answer = peer.request("positions", json!({ "roomId": "north" }));
    let positions = answer["payload"]["positions"].as_array().unwrap();
    assert_eq!(positions.len(), PUBLISHERS, "{answer:#}");
    let signalled = successor.terminate();
    peer.leave_well();
    clean_end(&mut successor, signalled);
}

#[test]
fn a_subscriber_of_a_busy_room_drains_all_the_same() {
    let mut server = unlimited().start();
    let mut subscriber = Peer::connect(&server, "subscriber");
    subscriber.join("north");
    busy_room(&mut server, 2000, 20, |signalled| {
        let (messages, end) = subscriber.read_to_close();
        assert_eq!(end, going_away());
        assert!(signalled.elapsed() < Duration::from_millis(500 + EARLY_MS));
        assert_eq!(notices(&messages), 1);
        let seen = numbers(&messages);
        assert!(seen.len() > 100, "{} is no busy room", seen.len());
        assert!(seen.iter().enumerate().all(|(at, n)| at as u64 == *n), "a gap");
        subscriber.acknowledge();
        assert_eq!(subscriber.next(), Got::End);
    });
}

/// The queue of this one is never empty: it reads less than the room gives. It drains by
/// its mark.
#[test]
fn a_subscriber_that_falls_behind_a_busy_room_drains_all_the_same() {
    let mut server = unlimited().start();
    let mut subscriber = Peer::connect_with_window(&server, "subscriber", 16 * 1024);
    subscriber.join("north");
    busy_room(&mut server, 2000, 200, |_| {
        let (messages, end) = subscriber.read_slowly(8000, Duration::from_millis(10));
        assert_eq!(end, going_away());
        assert_eq!(notices(&messages), 1);
        let seen = numbers(&messages);
        assert!(seen.iter().enumerate().all(|(at, n)| at as u64 == *n), "a gap");
        subscriber.acknowledge();
        assert_eq!(subscriber.next(), Got::End);
    });
}

/// A room with `rate` positions a second from before the signal until `subscriber`, which
/// gets the time of the signal, is done; then a clean end.
fn busy_room(
    server: &mut Server,
    rate: usize,
    bytes: usize,
    subscriber: impl FnOnce(Instant) + Send,
) {
    let mut vehicle = Peer::connect(server, "vehicle");
    vehicle.join("north");
    let mut writer = vehicle.second();
    let stop = AtomicBool::new(false);
    let (signalled, sent) = thread::scope(|scope| {
        let writing = scope.spawn(|| publish_until(&mut writer, &stop, rate, bytes));
        let lines_before = stored_at_least(server, 100);
        let signalled = server.terminate();
        let subscribing = scope.spawn(move || subscriber(signalled));
        // The vehicle gets its close frame and does not care until the subscriber has left.
        let (messages, end) = vehicle.read_to_close();
        assert_eq!(end, going_away());
        assert_eq!(notices(&messages), 1);
        subscribing.join().unwrap();
        stop.store(true, Ordering::Release);
        let sent = writing.join().unwrap();
        vehicle.acknowledge();
        assert_eq!(vehicle.next(), Got::End);
        assert!(sent > lines_before);
        (signalled, sent)
    });
    let report = clean_end(server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(2));
    assert_figures(
        &report,
        &[("drained", 2), ("acked", 2), ("terminated", 0), ("messages_dropped", 0)],
    );
    assert!(report["drain_ms"].as_u64().unwrap() < EARLY_MS, "{report:#}");
    assert_eq!(stored(server, "vehicle"), sent);
}

/// Waits until the log holds `count` positions: the room is busy.
fn stored_at_least(server: &Server, count: usize) -> usize {
    let deadline = Instant::now() + crate::harness::PATIENCE;
    loop {
        let stored = stored(server, "vehicle");
        if stored >= count {
            return stored;
        }
        assert!(Instant::now() < deadline, "the room does not become busy");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_megabyte_is_read_slowly_but_in_time() {
    const POSITIONS: usize = 2000;
    let mut server = unlimited().start();
    let mut slow = Peer::connect_with_window(&server, "slow", 16 * 1024);
    slow.join("north");
    let mut vehicle = Peer::connect(&server, "vehicle");
    vehicle.join("north");
    for n in 0..POSITIONS {
        vehicle.send_bytes(&notification("north", n, 430)).unwrap();
    }
    let signalled = {
        stored_at_least(&server, POSITIONS);
        server.terminate()
    };
    let leaving = thread::spawn(move || vehicle.leave_well());
    server.wait_for("shutdown.drain");
    let read = AtomicUsize::new(0);
    let (messages, end) = slow.read_slowly(16 * 1024, Duration::from_millis(15));
    read.fetch_add(messages.len(), Ordering::Relaxed);
    assert_eq!(end, going_away());
    slow.acknowledge();
    assert_eq!(slow.next(), Got::End);
    leaving.join().unwrap();
    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(2));
    let seen = numbers(&messages);
    assert_eq!(seen.len(), POSITIONS);
    assert!(seen.iter().enumerate().all(|(at, n)| at as u64 == *n), "out of order");
    assert_eq!(notices(&messages), 1);
    // The notice went ahead of most of it.
    let notice = messages.iter().position(|m| m["type"] == "server_shutting_down").unwrap();
    assert!(notice < POSITIONS / 2, "{notice}");
    assert_figures(
        &report,
        &[("drained", 2), ("acked", 2), ("messages_dropped", 0), ("kernel_unacked_bytes", 0)],
    );
    let bytes = report["bytes_flushed"].as_u64().unwrap();
    assert!(bytes > 500_000, "the most of it went out after the signal: {bytes}");
}

#[test]
fn one_in_the_middle_of_a_fragmented_message() {
    let mut server = Server::start();
    let mut finishes = Peer::connect(&server, "finishes");
    let mut stays = Peer::connect(&server, "stays");
    let mut partial = Peer::connect(&server, "partial");
    for peer in [&mut finishes, &mut stays] {
        peer.join("north");
    }
    let whole = notification("north", 7, 10);
    let text = &whole[whole.iter().position(|byte| *byte == b'{').unwrap()..];
    let (first, rest) = text.split_at(20);
    for peer in [&mut finishes, &mut stays] {
        peer.send_bytes(&raw::frame(1, false, first)).unwrap();
    }
    // Half a frame, not only half a message.
    partial.send_bytes(&raw::text_frame("{\"type\":\"ping\"}")[..9]).unwrap();
    // The server has the fragments: what was sent behind them is answered.
    for peer in [&mut finishes, &mut stays] {
        peer.send_bytes(&raw::frame(9, true, b"")).unwrap();
    }
    let signalled = server.terminate();
    finishes.wait_for(|message| message["type"] == "server_shutting_down");
    finishes.send_bytes(&raw::frame(0, true, rest)).unwrap();
    let stay = stays.leave_well();
    assert_eq!(notices(&stay), 1);
    let (_, end) = partial.read_to_close();
    assert_eq!(end, going_away());
    // It can finish its frame, and its close is understood.
    partial.send_bytes(&raw::text_frame("{\"type\":\"ping\"}")[9..]).unwrap();
    partial.acknowledge();
    assert_eq!(partial.next(), Got::End);
    finishes.leave_well();
    let report = clean_end(&mut server, signalled);
    assert_eq!(server.shutdown_messages(), usual_lines(3));
    assert_figures(&report, &[("drained", 3), ("acked", 3), ("terminated", 0)]);
    assert!(report["drain_ms"].as_u64().unwrap() < EARLY_MS, "{report:#}");
    assert_eq!(stored(&server, "finishes"), 1);
    assert_eq!(stored(&server, "stays"), 0);
}
