//! Several instances over a real broker.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::site::{Site, client, room, settings};
use crate::broker::{self, Link};
use crate::cluster::Cluster;
use crate::rooms::LeaveReason;
use crate::test_nats::NatsServer;

/// After this long something is taken to be broken.
const PATIENCE: Duration = Duration::from_secs(60);
const HEARTBEAT: Duration = Duration::from_millis(500);

struct Over {
    site: Site,
    link: Link,
}

async fn start(server: &NatsServer, name: &str) -> Over {
    let broker = broker::Settings {
        urls: vec![server.url()],
        instance: name.to_owned(),
        ..broker::Settings::default()
    };
    let link = Link::connect(broker).await.unwrap();
    let mut settings = settings(name);
    settings.heartbeat = HEARTBEAT;
    settings.reconnect_max = Duration::ZERO;
    let site = Site::over(name, 1000, |hub| Cluster::start(link.clone(), hub, settings, || 7));
    Over { site, link }
}

async fn three(server: &NatsServer) -> [Over; 3] {
    let all = [start(server, "a").await, start(server, "b").await, start(server, "c").await];
    for over in &all {
        until("all are found", || over.site.cluster.others() == 2).await;
    }
    all
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the connection was told of these members.
async fn sees(over: &mut Over, id: u64, names: &[&str]) {
    let names: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let deadline = Instant::now() + PATIENCE;
    while over.site.view(id) != names {
        let view = over.site.view(id);
        assert!(Instant::now() < deadline, "{} sees {view:?}, not {names:?}", over.site.name);
        sleep(Duration::from_millis(10)).await;
    }
}

fn reasons(over: &mut Over, id: u64) -> Vec<(String, Vec<String>)> {
    let told = over.site.told(id);
    told.into_iter().filter(|(kind, _)| kind.starts_with("member_left")).collect()
}

/// Whether the instance knows that `from` has `name` in the room.
fn has_heard(over: &Over, from: &str, name: &str, at: &str) -> bool {
    let core = over.site.cluster.with.as_ref().unwrap().core.lock();
    core.rooms
        .get(&room(at))
        .and_then(|lists| lists.theirs.get(from))
        .is_some_and(|list| list.members.contains(&client(name)))
}

fn left(reason: &str, name: &str) -> (String, Vec<String>) {
    (format!("member_left {reason}"), vec![name.to_owned()])
}

#[tokio::test]
async fn members_come_go_move_and_die() {
    let server = NatsServer::start();
    let [mut a, mut b, mut c] = three(&server).await;
    // A name that no subject may hold as it is.
    let at = "north.> * \u{1F68C}";
    let x = a.site.join("x", at);
    let y = b.site.join("y", at);
    let z = c.site.join("z", at);
    for (over, id) in [(&mut a, x), (&mut b, y), (&mut c, z)] {
        sees(over, id, &["x", "y", "z"]).await;
    }
    assert_eq!(a.site.cluster.newer(), ["gen-b", "gen-c"]);
    let known = a.site.cluster.instances();
    assert!(known.iter().all(|instance| instance.clients == 7 && !instance.draining));

    // A move is no event; a leave is one.
    let new = b.site.join("z", at);
    for over in [&a, &c] {
        until("b has told", || has_heard(over, "b", "z", at)).await;
    }
    c.site.leave(z, LeaveReason::Disconnected);
    b.site.leave(y, LeaveReason::Left);
    sees(&mut a, x, &["x", "z"]).await;
    assert_eq!(reasons(&mut a, x), [left("left", "y")]);
    b.site.leave(new, LeaveReason::Timeout);
    sees(&mut a, x, &["x"]).await;
    assert_eq!(reasons(&mut a, x), [left("timeout", "z")]);

    // One dies.
    let watcher = b.site.join("watcher", at);
    c.site.join("c1", at);
    sees(&mut a, x, &["x", "watcher", "c1"]).await;
    sees(&mut b, watcher, &["x", "watcher", "c1"]).await;
    c.link.close(Instant::now() + PATIENCE).await;
    sees(&mut a, x, &["x", "watcher"]).await;
    sees(&mut b, watcher, &["x", "watcher"]).await;
    assert_eq!(reasons(&mut a, x), [left("instance_lost", "c1")]);
    assert_eq!(reasons(&mut b, watcher), [left("instance_lost", "c1")]);
    assert_eq!(a.site.cluster.others(), 1);

    // One is stopped, in good order.
    b.site.hub.stop_announcing();
    until("b is going", || a.site.cluster.others() == 0).await;
    let stopped = Instant::now();
    b.site.leave(watcher, LeaveReason::ServerShuttingDown);
    assert!(b.site.cluster.leave(PATIENCE).await);
    sees(&mut a, x, &["x"]).await;
    assert!(stopped.elapsed() > Duration::from_secs(4), "kept for five seconds");
    assert_eq!(reasons(&mut a, x), [left("server_shutting_down", "watcher")]);
    until("b is forgotten", || a.site.cluster.instances().is_empty()).await;
    [a, b, c].iter().for_each(|over| over.site.abort());
}

#[tokio::test]
async fn a_broker_that_is_killed_and_comes_back_costs_nobody() {
    let mut server = NatsServer::start();
    let [mut a, mut b, mut c] = three(&server).await;
    let [x, y, z] = [a.site.join("x", "r"), b.site.join("y", "r"), c.site.join("z", "r")];
    let gone = b.site.join("gone", "r");
    for (over, id) in [(&mut a, x), (&mut b, y), (&mut c, z)] {
        sees(over, id, &["x", "y", "z", "gone"]).await;
    }
    server.kill();
    for over in [&a, &b, &c] {
        until("the link is down", || !over.link.state().borrow().is_up()).await;
    }
    // Longer than three heartbeats.
    let outage = Instant::now();
    let late = c.site.join("late", "r");
    b.site.leave(gone, LeaveReason::Left);
    until("long enough", || outage.elapsed() > HEARTBEAT * 5).await;
    assert_eq!((reasons(&mut a, x), reasons(&mut c, z)), (vec![], vec![]));
    server.restart();
    for (over, id) in [(&mut a, x), (&mut b, y), (&mut c, z)] {
        sees(over, id, &["x", "y", "z", "late"]).await;
    }
    sees(&mut c, late, &["x", "y", "z", "late"]).await;
    let told = reasons(&mut a, x);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].1, ["gone"]);
    for over in [&a, &b, &c] {
        assert_eq!(over.site.cluster.others(), 2);
    }
    [a, b, c].iter().for_each(|over| over.site.abort());
}
