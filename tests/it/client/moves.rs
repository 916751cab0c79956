//! From one process to the next in the middle of the day.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use milepost::client::{Event, Fix};
use milepost::protocol::Mode;
use rustix::process::Signal;
use tokio::time::Instant;

use super::{builder, call, connect, keys, live, log_of, next, open_log, until, until_held};
use crate::harness::Server;

/// So many keyed requests are in flight all through, each worker one after the other.
const WORKERS: usize = 500;

#[tokio::test]
async fn what_is_in_flight_at_a_sigterm_is_stored_once() {
    let start = || Server::builder().set("limits.message_rate", 0).start();
    let (mut first, second) = (start(), start());
    let addresses = [first.public, second.public];
    let (client, mut events) = connect("gateway", &addresses).await;
    client.join("r", Mode::Publish).await.unwrap();
    tokio::spawn(async move { while events.next().await.is_some() {} });

    let moved_to = format!("ws://{}/ws", second.public);
    let sent = Arc::new(AtomicUsize::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..WORKERS {
        let (client, moved_to, sent) = (client.clone(), moved_to.clone(), sent.clone());
        workers.spawn(async move {
            let mut results = Vec::new();
            for n in 0.. {
                let moved = client.state().borrow().endpoint.as_deref() == Some(&*moved_to);
                let key = format!("{worker}-{n}");
                sent.fetch_add(1, Ordering::Relaxed);
                let fix = Fix::new(1.0 + worker as f64 / 1000.0, 1.0 + f64::from(n) / 1000.0);
                let result = client.publish_keyed(["r"], &key, &fix).await;
                results.push((key, result));
                if moved {
                    break;
                }
            }
            results
        });
    }
    // Under way: everybody has had an answer, and asked again.
    while sent.load(Ordering::Relaxed) < 3 * WORKERS {
        tokio::task::yield_now().await;
    }
    // What is in flight at the signal has not started: it is held, and will be refused.
    call(&first, "POST", "/quiesce");
    until_held(&first, WORKERS as u64).await;
    first.terminate();
    let mut acknowledged = BTreeSet::new();
    while let Some(results) = workers.join_next().await {
        for (key, result) in results.unwrap() {
            let ack = result.unwrap_or_else(|error| panic!("{key}: {error}"));
            assert!(!ack.duplicate, "{key}");
            assert!(acknowledged.insert(key));
        }
    }
    assert_eq!(first.wait().code, Some(0));
    assert_eq!(acknowledged.len(), sent.load(Ordering::Relaxed));
    let report = first.shutdown_lines().pop().unwrap();
    let refused = report["requests_refused"].as_u64().unwrap();
    assert!(refused >= WORKERS as u64, "the client resent them: {report}");

    let (first, second) = (keys(&log_of(&first)), keys(&log_of(&second)));
    println!("{} in the first log, {} in the second, {refused} refused", first.len(), second.len());
    assert!(first.len() > WORKERS && second.len() >= WORKERS);
    let mut counts = BTreeMap::new();
    for key in first.iter().chain(&second) {
        *counts.entry(key).or_insert(0) += 1;
    }
    assert!(counts.values().all(|count| *count == 1));
    assert!(counts.into_keys().eq(&acknowledged));
}

#[tokio::test]
async fn a_successor_on_the_same_log_leaves_no_gap() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log.db");
    let builder_of = || {
        Server::builder()
            .set("limits.message_rate", 0)
            .set("room_log.path", file.display())
            .set("shutdown.reconnect_min", "0ms")
            .set("shutdown.reconnect_max", "400ms")
    };
    let mut first = builder_of().start();
    let second = builder_of().spawn();
    let addresses = [first.public, second.public];
    let (watcher, mut events) = connect("watcher", &addresses).await;
    watcher.join("r", Mode::Subscribe).await.unwrap();
    let (vehicle, mut own) = connect("bus", &addresses).await;
    tokio::spawn(async move { while own.next().await.is_some() {} });
    vehicle.join("r", Mode::Publish).await.unwrap();

    let moved_to = format!("ws://{}/ws", second.public);
    let driving = tokio::spawn(async move {
        let mut acked = Vec::new();
        let mut since_move = 0;
        let mut pace = tokio::time::interval(Duration::from_millis(5));
        for n in 0.. {
            pace.tick().await;
            let fix = Fix::new(1.0, 1.0 + f64::from(n) / 10_000.0);
            let ack = vehicle.publish_keyed(["r"], &format!("k{n}"), &fix).await.unwrap();
            acked.push(ack.rooms["r"]);
            since_move +=
                u32::from(vehicle.state().borrow().endpoint.as_deref() == Some(&*moved_to));
            if since_move == 50 {
                break;
            }
        }
        acked
    });
    let mut seen = Vec::new();
    let mut last = Instant::now();
    let mut longest = Duration::ZERO;
    let mut stopped = None;
    loop {
        tokio::select! {
            event = next(&mut events) => match event {
                Event::Location(location) => {
                    seen.push(location.seq);
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                    if seen.len() == 50 {
                        stopped = Some(first.terminate());
                    }
                }
                Event::Gap { cause, .. } => panic!("a gap: {cause:?}"),
                Event::Joined(joined) => assert_eq!(joined.recovered, stopped.is_some()),
                _ => {}
            },
            () = std::future::ready(()), if driving.is_finished() => break,
        }
    }
    let acked = driving.await.unwrap();
    while seen.len() < acked.len() {
        if let Event::Location(location) = next(&mut events).await {
            seen.push(location.seq);
        }
    }
    println!("{} positions, the longest pause {longest:?}", seen.len());
    assert_eq!(seen, acked, "every one once, in order");
    assert_eq!(seen, live(&open_log(&file), "r"));
    assert_eq!(first.wait().code, Some(0));
    until(&watcher, |state| !state.stale).await;
}

#[tokio::test]
async fn a_killed_server_leaves_keyed_positions_once_and_others_unknown() {
    let first = Server::builder().set("limits.message_rate", 0).start();
    let address = first.public;
    let (client, mut events) = connect("bus", &[address]).await;
    client.join("r", Mode::Both).await.unwrap();
    let (watcher, mut seen) = builder("watcher", &[address]).start().unwrap();
    watcher.join("r", Mode::Subscribe).await.unwrap();
    tokio::spawn(async move { while events.next().await.is_some() {} });

    // Held by the server: the kill finds them without an answer.
    call(&first, "POST", "/quiesce");
    let fixes = [Fix::new(1.0, 1.0), Fix::new(1.0, 2.0)];
    let before = client.publish_keyed(["r"], "before", &fixes[0]);
    let unkeyed = client.publish(["r"], &fixes[1]);
    let in_flight = async { tokio::join!(before, unkeyed) };
    let restart = async {
        until_held(&first, 2).await;
        first.signal(Signal::KILL);
        until(&client, |state| state.session.is_none()).await;
        let listen = address.to_string();
        let builder = Server::builder().set("server.listen", listen).dir(first.into_dir());
        builder.start()
    };
    let ((before, unkeyed), second) = tokio::join!(in_flight, restart);
    let before = before.unwrap();
    assert!(matches!(unkeyed, Err(milepost::client::Error::UnknownOutcome)), "{unkeyed:?}");
    assert_eq!(keys(&log_of(&second)), ["before"]);
    loop {
        match next(&mut seen).await {
            Event::Location(location) => break assert_eq!(location.seq, before.rooms["r"]),
            Event::Gap { cause, .. } => panic!("a gap: {cause:?}"),
            _ => {}
        }
    }
}
