//! Which instances live: deaths, outages of the broker, stalls, planned stops.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::Mesh;
use super::merge::three;
use super::site::{RECONNECT_MAX, Site, settings};
use crate::cluster::core::{Core, Input, Output};
use crate::cluster::message::{Beat, Message, Target};
use crate::cluster::{Cluster, KEPT_AFTER};
use crate::rooms::LeaveReason;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn left(reason: &str, names: &[&str]) -> (String, Vec<String>) {
    (format!("member_left {reason}"), names.iter().map(|name| (*name).to_owned()).collect())
}

#[tokio::test(start_paused = true)]
async fn the_dead_are_noticed_within_three_heartbeats_and_told_once() {
    let mesh = Mesh::default();
    let [mut a, mut b, mut c] = three(&mesh).await;
    let (xa, xb) = (a.join("xa", "r"), b.join("xb", "r"));
    let other = b.join("xb", "s");
    for name in ["c1", "c2", "xa"] {
        c.join(name, "r");
        c.join(name, "s");
    }
    sleep(ms(1000)).await;
    a.told(xa);
    b.told(xb);
    b.told(other);
    let killed = Instant::now();
    c.kill(&mesh);
    sleep_until(killed + ms(1900)).await;
    assert_eq!(a.told(xa), []);
    // Its last heartbeat may be a second old; told 100 ms after it is noticed.
    sleep_until(killed + ms(3300)).await;
    assert_eq!(a.told(xa), [left("instance_lost", &["c1", "c2"])], "xa is here as well");
    assert_eq!(b.told(xb), [left("instance_lost", &["c1", "c2"])]);
    assert_eq!(b.told(other), [left("instance_lost", &["c1", "c2", "xa"])]);
    assert_eq!((a.cluster.others(), b.cluster.others()), (1, 1));
    sleep(ms(60_000)).await;
    assert_eq!((a.told(xa), b.told(xb)), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_broker_makes_nobody_lost() {
    let mesh = Mesh::default();
    let [mut a, mut b, mut c] = three(&mesh).await;
    let (xa, _xb, xc) = (a.join("xa", "r"), b.join("xb", "r"), c.join("xc", "r"));
    sleep(ms(1000)).await;
    a.told(xa);
    c.told(xc);
    for name in ["a", "b", "c"] {
        mesh.set_up(name, false);
    }
    sleep(ms(20_000)).await;
    assert_eq!((a.told(xa), a.cluster.others()), (vec![], 2));
    // Meanwhile one dies; and one comes back before the other.
    b.kill(&mesh);
    mesh.set_up("a", true);
    sleep(ms(2500)).await;
    assert_eq!(a.told(xa), [], "the others get a fresh three heartbeats");
    mesh.set_up("c", true);
    let up = Instant::now();
    sleep(ms(400)).await;
    assert_eq!(a.told(xa), []);
    sleep_until(up + ms(4500)).await;
    assert_eq!(a.told(xa), [left("instance_lost", &["xb"])]);
    assert_eq!(c.told(xc), [left("instance_lost", &["xb"])]);
}

#[tokio::test(start_paused = true)]
async fn who_is_cut_off_declares_nobody_lost_and_comes_back() {
    let mesh = Mesh::default();
    let [mut a, mut b, mut c] = three(&mesh).await;
    let (xa, _xb, xc) = (a.join("xa", "r"), b.join("xb", "r"), c.join("xc", "r"));
    sleep(ms(1000)).await;
    a.told(xa);
    c.told(xc);
    mesh.set_up("c", false);
    sleep(ms(1000)).await;
    let late = a.join("late", "r");
    sleep(ms(9000)).await;
    assert_eq!(
        a.told(xa)[..],
        [("member_joined".to_owned(), vec!["late".to_owned()]), left("instance_lost", &["xc"])]
    );
    assert_eq!(c.told(xc), []);
    a.leave(late, LeaveReason::Left);
    let more = a.join("more", "r");
    sleep(ms(1000)).await;
    a.told(xa);
    mesh.set_up("c", true);
    sleep(ms(1500)).await;
    assert_eq!(a.told(xa), [("member_joined".to_owned(), vec!["xc".to_owned()])]);
    assert_eq!(c.told(xc), [("member_joined".to_owned(), vec!["more".to_owned()])]);
    assert_eq!(a.view(more), c.view(xc));
}

/// A process that stood still finds the heartbeats of the others behind its own.
#[test]
fn a_stalled_process_declares_nobody_lost() {
    let start = Instant::now();
    let mut core = Core::new(settings("me"), 0, start);
    let beat = |from: &str| {
        Input::Message(Message::Beat(Beat {
            from: from.to_owned(),
            generation: "g".to_owned(),
            started: 0,
            draining: None,
            away: false,
            clients: 0,
            rooms: 0,
            hello: false,
        }))
    };
    for second in 0..5 {
        for from in ["me", "you"] {
            core.input(beat(from), start + Duration::from_secs(second));
        }
        core.input(Input::Tick, start + Duration::from_secs(second));
    }
    let lost = |core: &mut Core| {
        core.finish(Instant::now()).iter().any(|output| matches!(output, Output::Lost(_)))
    };
    assert!(!lost(&mut core));
    // It stands still for a minute; the time is looked at before anything is read.
    let woken = start + Duration::from_secs(64);
    core.input(Input::Tick, woken);
    assert!(!lost(&mut core));
    // Its own heartbeat was first in what waited.
    core.input(beat("me"), woken);
    core.input(Input::Tick, woken);
    assert!(!lost(&mut core));
    for (millis, expected) in [(999, false), (1999, false), (2999, false), (3000, true)] {
        core.input(beat("me"), woken + ms(millis));
        core.input(Input::Tick, woken + ms(millis));
        assert_eq!(lost(&mut core), expected, "{millis}");
    }
    assert_eq!(core.others(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_planned_stop_keeps_its_members_until_each_is_back() {
    let mesh = Mesh::default();
    let [mut a, mut b, mut c] = three(&mesh).await;
    let (xa, xb) = (a.join("xa", "r"), b.join("xb", "r"));
    let quiet = b.join("xb", "quiet");
    let mut conns = Vec::new();
    for name in ["makes", "breaks", "stays", "stays too", "here too"] {
        conns.push(c.join(name, "r"));
    }
    let _ = c.join("makes", "quiet");
    a.join("here too", "r");
    sleep(ms(1000)).await;
    a.told(xa);
    b.told(xb);
    b.told(quiet);

    let stopped = Instant::now();
    c.cluster.set_away(true);
    sleep(ms(200)).await;
    assert_eq!((a.cluster.others(), b.cluster.others()), (1, 1), "nobody is sent there");
    c.hub.stop_announcing();
    // One joins elsewhere first, one is closed first and takes its time.
    sleep(ms(500)).await;
    let made = a.join("makes", "r");
    b.join("makes", "quiet");
    for id in c.conns.keys().copied().collect::<Vec<_>>() {
        c.leave(id, LeaveReason::ServerShuttingDown);
    }
    c.end(&mesh).await;
    sleep(ms(2500)).await;
    b.join("breaks", "r");
    // Who is back and goes is not kept for longer.
    sleep(ms(500)).await;
    a.leave(made, LeaveReason::Left);
    sleep(ms(1000)).await;
    let expected = left("left", &["makes"]);
    assert_eq!((a.told(xa), b.told(xb)), (vec![expected.clone()], vec![expected]));

    let end = stopped + ms(200) + RECONNECT_MAX + KEPT_AFTER;
    sleep_until(end - ms(50)).await;
    assert_eq!((a.told(xa), b.told(xb)), (vec![], vec![]));
    sleep_until(end + ms(400)).await;
    let rest = left("server_shutting_down", &["stays", "stays too"]);
    assert_eq!((a.told(xa), b.told(xb)), (vec![rest.clone()], vec![rest]));
    sleep(ms(30_000)).await;
    assert_eq!((a.told(xa), b.told(xb), b.told(quiet)), (vec![], vec![], vec![]));
    assert_eq!(a.cluster.instances().len(), 1, "nothing of it is left");
    assert_eq!(a.view(xa).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_death_in_the_middle_of_a_planned_stop_is_still_a_planned_stop() {
    let mesh = Mesh::default();
    let [mut a, _b, mut c] = three(&mesh).await;
    let xa = a.join("xa", "r");
    c.join("xc", "r");
    sleep(ms(1000)).await;
    a.told(xa);
    c.hub.stop_announcing();
    sleep(ms(300)).await;
    c.kill(&mesh);
    sleep(RECONNECT_MAX + KEPT_AFTER - ms(400)).await;
    assert_eq!(a.told(xa), []);
    sleep(ms(700)).await;
    assert_eq!(a.told(xa), [left("server_shutting_down", &["xc"])]);
    sleep(ms(10_000)).await;
    assert_eq!(a.cluster.instances().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_evacuated_client_is_kept_by_the_instance_that_lives_on() {
    let mesh = Mesh::default();
    let [mut a, mut b, _c] = three(&mesh).await;
    let (xa, xb) = (a.join("xa", "r"), b.join("xb", "r"));
    let [back, gone] = ["back", "gone"].map(|name| a.join(name, "r"));
    sleep(ms(1000)).await;
    a.told(xa);
    b.told(xb);
    a.cluster.set_away(true);
    for id in [back, gone] {
        a.leave(id, LeaveReason::ServerShuttingDown);
    }
    sleep(ms(4000)).await;
    b.join("back", "r");
    sleep(RECONNECT_MAX + KEPT_AFTER - ms(4100)).await;
    assert_eq!((a.told(xa), b.told(xb)), (vec![], vec![]));
    sleep(ms(500)).await;
    let expected = left("server_shutting_down", &["gone"]);
    assert_eq!((a.told(xa), b.told(xb)), (vec![expected.clone()], vec![expected]));
    assert_eq!(b.cluster.others(), 1);
    a.cluster.set_away(false);
    sleep(ms(10)).await;
    assert_eq!(b.cluster.others(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_generations_of_others_are_known() {
    let mesh = Mesh::default();
    let start = |name: &str, generation: &str| {
        let mut settings = settings(name);
        settings.generation = generation.into();
        Site::start(&mesh, settings)
    };
    let sites =
        [start("a", "1"), start("b", "2"), start("c", "1"), start("d", "2"), start("e", "3")];
    sleep(ms(100)).await;
    let [a, b, _c, _d, e] = &sites;
    assert_eq!(a.cluster.newer(), ["2", "3"]);
    assert_eq!(b.cluster.newer(), ["1", "3"]);
    e.cluster.set_away(true);
    sleep(ms(100)).await;
    assert_eq!(a.cluster.newer(), ["2"]);
    let clusters = a.cluster.instances();
    assert_eq!(clusters.iter().filter(|instance| instance.draining).count(), 1);
    let alone = Cluster::alone("1".into());
    assert_eq!((alone.others(), alone.newer().len(), &**alone.generation()), (0, 0, "1"));
    assert!(alone.leave(ms(1)).await);
}

#[test]
fn nothing_is_said_after_the_last_word() {
    let start = Instant::now();
    let mut core = Core::new(settings("me"), 0, start);
    core.input(Input::Leave, start);
    let bye = Message::Bye { from: "me".to_owned() };
    assert_eq!(core.finish(Instant::now()), [Output::Publish(Target::All, bye), Output::Left]);
    core.input(Input::Tick, start + ms(5000));
    assert_eq!(core.finish(Instant::now()), []);
}
