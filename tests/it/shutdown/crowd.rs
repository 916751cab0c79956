//! Five thousand clients at once.

use std::collections::HashSet;
use std::sync::mpsc;
use std::thread;

use super::peer::{Got, Peer, going_away, notices};
use super::{EARLY_MS, assert_figures, clean_end, usual_lines};
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
    let mut peers: Vec<Peer> =
        (0..CLIENTS).map(|n| Peer::connect(&server, &format!("c{n}"))).collect();
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
