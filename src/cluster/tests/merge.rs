//! Joins, leaves and moves across instances, and what they cost in messages.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::sleep;

use super::Mesh;
use super::site::{Site, client, room, settings};
use crate::rooms::LeaveReason;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn told(kind: &str, names: &[&str]) -> (String, Vec<String>) {
    (kind.to_owned(), names.iter().map(|name| (*name).to_owned()).collect())
}

pub(super) async fn three(mesh: &Mesh) -> [Site; 3] {
    let sites = ["a", "b", "c"].map(|name| Site::start(mesh, settings(name)));
    sleep(ms(1500)).await;
    for site in &sites {
        assert_eq!(site.cluster.others(), 2);
    }
    sites
}

#[tokio::test(start_paused = true)]
async fn members_of_all_instances_are_one_list() {
    let mesh = Mesh::default();
    let [mut a, mut b, c] = three(&mesh).await;
    let x = a.join("x", "r");
    sleep(ms(500)).await;
    let y = b.join("y", "r");
    sleep(ms(500)).await;
    assert_eq!(a.view(x), set(&["x", "y"]));
    assert_eq!(b.view(y), set(&["x", "y"]));
    assert_eq!(a.told(x).last().unwrap(), &told("member_joined", &["y"]));
    // Somebody who comes later is shown both, in what it is told first.
    let z = b.join("z", "r");
    assert_eq!(b.view(z), set(&["x", "y", "z"]));
    // A second connection of the same identity, elsewhere, is no event, nor is its end.
    sleep(ms(500)).await;
    a.told(x);
    let again = b.join("x", "r");
    sleep(ms(500)).await;
    b.leave(again, LeaveReason::Disconnected);
    sleep(ms(500)).await;
    assert_eq!(a.told(x), []);
    b.leave(y, LeaveReason::Timeout);
    sleep(ms(1000)).await;
    assert_eq!(a.told(x), [told("member_left timeout", &["y"])]);
    // An instance without members of the room heard none of it.
    assert_eq!(c.hub.counts(), (0, 0));
    let rooms = mesh.0.lock().nodes["c"].rooms.len();
    assert_eq!(rooms, 0);
}

#[tokio::test(start_paused = true)]
async fn the_hidden_are_announced_nowhere_and_see_everybody() {
    let mesh = Mesh::default();
    let [mut a, mut b, _c] = three(&mesh).await;
    let viewer = a.join_as("viewer", "r", true);
    let y = b.join("y", "r");
    sleep(ms(500)).await;
    assert_eq!(a.view(viewer), set(&["y"]));
    assert_eq!(b.view(y), set(&["y"]));
    assert_eq!(mesh.published("delta"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_move_is_no_event_in_either_order() {
    let mesh = Mesh::default();
    let [mut a, mut b, mut c] = three(&mesh).await;
    let watchers = [a.join("wa", "r"), b.join("wb", "r"), c.join("wc", "r")];
    let makes_first = [0, 30, 60, 99, 101, 150, 240].map(|millis| (millis, true));
    let breaks_first = [0, 50, 120, 200, 230].map(|millis| (millis, false));
    for (millis, make_first) in makes_first.into_iter().chain(breaks_first) {
        let old = a.join("x", "r");
        sleep(ms(1000)).await;
        for (site, watcher) in [&mut a, &mut b, &mut c].into_iter().zip(watchers) {
            site.told(watcher);
        }
        let new = if make_first {
            let new = b.join("x", "r");
            sleep(ms(millis)).await;
            a.leave(old, LeaveReason::Disconnected);
            new
        } else {
            a.leave(old, LeaveReason::Disconnected);
            sleep(ms(millis)).await;
            b.join("x", "r")
        };
        sleep(ms(1000)).await;
        for (site, watcher) in [&mut a, &mut b, &mut c].into_iter().zip(watchers) {
            assert_eq!(site.told(watcher), [], "{} {millis} ms {make_first}", site.name);
        }
        b.leave(new, LeaveReason::Left);
        sleep(ms(1000)).await;
        for (site, watcher) in [&mut a, &mut b, &mut c].into_iter().zip(watchers) {
            assert_eq!(site.told(watcher), [told("member_left left", &["x"])]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_change_is_found_by_the_next_one_or_by_the_digest() {
    let mesh = Mesh::default();
    let [mut a, mut b, _c] = three(&mesh).await;
    let x = a.join("x", "r");
    b.join("y1", "r");
    sleep(ms(1000)).await;
    assert_eq!(a.view(x), set(&["x", "y1"]));
    mesh.lose(1);
    b.join("y2", "r");
    sleep(ms(500)).await;
    assert_eq!(a.view(x), set(&["x", "y1"]), "the change was lost");
    b.join("y3", "r");
    sleep(ms(500)).await;
    assert_eq!(a.view(x), set(&["x", "y1", "y2", "y3"]));
    mesh.lose(1);
    let y4 = b.join("y4", "r");
    sleep(ms(500)).await;
    assert_eq!(a.view(x).len(), 4);
    sleep(ms(10_500)).await;
    assert_eq!(a.view(x).len(), 5);
    // The last of a room, too, and its answer on the first try.
    for id in b.conns.keys().copied().collect::<Vec<_>>() {
        if id != y4 {
            b.leave(id, LeaveReason::Left);
        }
    }
    sleep(ms(500)).await;
    mesh.lose(1);
    b.leave(y4, LeaveReason::Left);
    sleep(ms(500)).await;
    assert_eq!(a.view(x), set(&["x", "y4"]));
    mesh.lose(1);
    sleep(ms(13_000)).await;
    assert_eq!(a.view(x), set(&["x"]));
    // Quiet again: nothing is repeated for ever.
    sleep(ms(30_000)).await;
    mesh.forget_counts();
    sleep(ms(60_000)).await;
    let kinds: Vec<_> = mesh.0.lock().published.keys().copied().collect();
    assert_eq!(kinds, ["beat"]);
}

/// Three instances, 10,000 members of one room, a deploy of one of them: what goes over
/// the broker, and what the members are told, grows with the time it takes, not with the
/// square of the members.
#[tokio::test(start_paused = true)]
async fn a_room_of_ten_thousand_costs_lists() {
    const MEMBERS: usize = 10_000;
    let mesh = Mesh::default();
    let start = |name| Site::start_listing(&mesh, settings(name), 50);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(start);
    sleep(ms(1500)).await;
    mesh.forget_counts();
    for n in 0..MEMBERS {
        let site = [&mut a, &mut b, &mut c].into_iter().nth(n % 3).unwrap();
        site.join(&format!("member-{n:0>20}"), "r");
        // All of them within two seconds.
        if n % 500 == 499 {
            sleep(ms(100)).await;
        }
    }
    sleep(ms(2000)).await;
    for site in [&mut a, &mut b, &mut c] {
        let first = *site.conns.keys().next().unwrap();
        assert_eq!(site.member_count(first), MEMBERS as u64);
    }
    let deltas = mesh.published("delta");
    assert!((3..=3 * 24).contains(&deltas), "{deltas} changes for {MEMBERS} joins");
    let others: usize = ["ask", "list", "same"].iter().map(|kind| mesh.published(kind)).sum();
    assert!(others <= 24, "{others}");
    assert!(mesh.0.lock().longest < 512 << 10);

    mesh.forget_counts();
    let watcher = *b.conns.keys().next().unwrap();
    b.told(watcher);
    // `a` is stopped: within three seconds its clients join elsewhere, then leave it.
    a.hub.stop_announcing();
    let moving: Vec<(u64, String)> =
        a.conns.iter().map(|(id, conn)| (*id, conn.client.clone())).collect();
    for (n, (id, name)) in moving.iter().enumerate() {
        let to = if n % 2 == 0 { &mut b } else { &mut c };
        to.join(name, "r");
        a.leave(*id, LeaveReason::ServerShuttingDown);
        if n % 112 == 111 {
            sleep(ms(100)).await;
        }
    }
    a.end(&mesh).await;
    sleep(ms(20_000)).await;
    let deltas = mesh.published("delta");
    assert!((2..=2 * 34).contains(&deltas), "{deltas} changes for a third of {MEMBERS}");
    assert_eq!(mesh.published("list"), 0);
    assert_eq!(b.told(watcher), [], "nobody came and nobody went");
    let newcomer = c.join("newcomer", "r");
    assert_eq!(c.member_count(newcomer), MEMBERS as u64 + 1);
}

#[tokio::test(start_paused = true)]
async fn long_lists_come_in_parts_and_are_replaced_as_a_whole() {
    let mesh = Mesh::default();
    let small = |name| {
        let mut settings = settings(name);
        settings.max_message = 1000;
        settings
    };
    let mut a = Site::start(&mesh, small("a"));
    let mut b = Site::start(&mesh, small("b"));
    sleep(ms(1500)).await;
    for n in 0..300 {
        a.join(&format!("m{n:0>40}"), "r");
    }
    sleep(ms(1000)).await;
    mesh.forget_counts();
    let x = b.join("x", "r");
    sleep(ms(1000)).await;
    assert!(mesh.published("list") > 20);
    assert!(mesh.0.lock().longest < 1300);
    assert_eq!(b.view(x).len(), 301);
    // The link is gone while everybody leaves and others come: what is shown stays until
    // the new list is complete, and then changes once.
    b.told(x);
    mesh.set_up("b", false);
    for id in a.conns.keys().copied().collect::<Vec<_>>() {
        a.leave(id, LeaveReason::Left);
    }
    for n in 0..200 {
        a.join(&format!("n{n:0>40}"), "r");
    }
    sleep(ms(2000)).await;
    assert_eq!(b.told(x), []);
    mesh.set_up("b", true);
    sleep(ms(1000)).await;
    let told = b.told(x);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!((told[0].1.len(), told[1].1.len()), (200, 300));
    assert_eq!(b.view(x).len(), 201);
    assert!(b.hub.get(&room("r")).is_some());
    drop(client("x"));
}
