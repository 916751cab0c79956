//! Half-open connections: the peer is gone and its side of TCP says nothing.

use std::net::SocketAddr;

use super::peer::{Peer, notices};
use super::{assert_figures, clean_end, closed_at, line_at};
use crate::harness::{Namespace, Server};

#[test]
fn a_peer_whose_packets_are_lost_is_not_drained_and_holds_nobody_else_up() {
    let namespace = Namespace::new();
    let mut server = Server::builder()
        .under("ip", &["netns", "exec", namespace.name()])
        .set("server.listen", "0.0.0.0:0")
        .set("auth.allow_insecure", true)
        .start();
    let port = server.public.port();
    let at = |link: u8| SocketAddr::new(namespace.address(link).into(), port);
    let mut lost = Peer::connect_to(at(0), "lost");
    lost.join("north");
    let mut healthy = Peer::connect_to(at(1), "healthy");
    healthy.join("north");

    namespace.cut(0);
    let signalled = server.terminate();
    assert_eq!(notices(&healthy.leave_well()), 1);
    let report = clean_end(&mut server, signalled);
    assert_eq!(
        server.shutdown_messages(),
        [
            "shutdown: stopping accept",
            "shutdown: notifying 2 clients",
            "shutdown: draining 2 clients",
            "shutdown: closing 1 clients",
            "shutdown: client terminated",
            "shutdown: complete",
        ]
    );
    assert!(closed_at(&server, "healthy") < line_at(&server, "shutdown.close"));
    let terminated = &server.shutdown_lines()[4];
    assert_eq!(terminated["client_id"], "lost");
    assert_eq!(terminated["reason"], "not_drained");
    // Everything was handed to the kernel, and nothing of it has arrived.
    assert_eq!(terminated["queued_messages"], 0, "{terminated:#}");
    assert!(terminated["kernel_unacked_bytes"].as_u64().unwrap() > 100, "{terminated:#}");
    assert_eq!(report["level"], "WARN");
    assert_figures(
        &report,
        &[("drained", 1), ("terminated", 1), ("acked", 1), ("unacked_close", 0), ("exit_code", 0)],
    );
}
