//! Five thousand clients at once.

use std::collections::HashSet;
use std::sync::mpsc;
use std::thread;

use super::peer::{Got, Peer, going_away, notices};
use super::{EARLY_MS, assert_figures, clean_end, report, usual_lines, wait_within_bound};
use crate::harness::Server;

const CLIENTS: usize = 5000;
const THREADS: usize = 8;

#[test]
fn five_thousand_clients_leave_together() {
    raise_descriptor_limit();
    let mut server = Server::builder()
        .set("limits.handshake_rate", 0)
        .set("server.max_connections", 2 * CLIENTS)
        .start();
    let mut peers: Vec<Peer> = (0..CLIENTS)
        .map(|n| {
            let mut peer = Peer::connect(&server, &format!("c{n}"));
            peer.wait_for(|message| message["type"] == "welcome");
            peer
        })
        .collect();
    let share = CLIENTS.div_ceil(THREADS);
    let (sender, waits) = mpsc::channel();
    let signalled = thread::scope(|scope| {
        for peers in peers.chunks_mut(share) {
            let sender = sender.clone();
            scope.spawn(move || {
                // All are told before the first is closed, so each can be read in turn.
                for peer in peers {
                    let (messages, end) = peer.read_to_close();
                    assert_eq!(end, going_away());
                    assert_eq!(notices(&messages), 1);
                    let notice = messages.iter().find(|m| m["type"] == "server_shutting_down");
                    let wait = notice.unwrap()["payload"]["reconnectIn"].as_f64().unwrap();
                    sender.send((wait * 10_000.0).round() as u64).unwrap();
                    peer.acknowledge();
                    assert_eq!(peer.next(), Got::End);
                }
            });
        }
        server.terminate()
    });
    drop(sender);
    let report = clean_end(&mut server, signalled);
    let clients = CLIENTS as u64;
    assert_figures(
        &report,
        &[
            ("clients_at_start", clients),
            ("notified", clients),
            ("drained", clients),
            ("acked", clients),
            ("terminated", 0),
            ("unacked_close", 0),
            ("messages_dropped", 0),
        ],
    );
    assert_eq!(server.shutdown_messages(), usual_lines(CLIENTS));
    assert!(report["drain_ms"].as_u64().unwrap() < EARLY_MS, "{report:#}");
    // A slot of its own for each: 2,000 a second from the first second on.
    let waits: HashSet<u64> = waits.into_iter().collect();
    assert_eq!(waits.len(), CLIENTS);
    assert_eq!(waits.iter().min(), Some(&10_000));
    assert_eq!(waits.iter().max(), Some(&(10_000 + 5 * (clients - 1))));
    let closes = server.all_lines().iter().filter(|l| l["event"] == "connection.closed").count();
    assert_eq!(closes, CLIENTS);
}

/// At most a hundred lines about single clients, then one for the rest.
#[test]
fn many_that_never_answer_are_summed_up() {
    const MUTE: usize = 130;
    let mut server = Server::start();
    let mut peers: Vec<Peer> =
        (0..MUTE).map(|n| Peer::connect(&server, &format!("m{n}"))).collect();
    let signalled = server.terminate();
    for peer in &mut peers {
        assert_eq!(peer.read_to_close().1, going_away());
    }
    let exit = wait_within_bound(&mut server, signalled);
    assert_eq!(exit.code, Some(1));
    let mut lines = usual_lines(MUTE);
    lines.truncate(4);
    lines.extend(vec!["shutdown: client terminated".to_owned(); 100]);
    lines.push("shutdown: 30 more clients terminated".to_owned());
    lines.push("shutdown: force exit".to_owned());
    assert_eq!(server.shutdown_messages(), lines);
    let named: HashSet<String> = server
        .shutdown_lines()
        .iter()
        .filter_map(|line| line["client_id"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(named.len(), 100, "each once");
    assert_figures(
        &report(&server),
        &[("unacked_close", MUTE as u64), ("drained", MUTE as u64), ("acked", 0)],
    );
}

/// A descriptor for each client, here and (inherited) in the server.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let needed = CLIENTS as u64 + 500;
    if limit.current.is_some_and(|current| current < needed) {
        let limit = Rlimit { current: limit.maximum, maximum: limit.maximum };
        setrlimit(Resource::Nofile, limit).unwrap();
    }
    let have = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    assert!(have >= needed, "the limit of open files is {have}; this test takes {needed}");
}
