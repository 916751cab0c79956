//! Kill −9 at random moments under load, on one and the same log: nothing that was
//! acknowledged is lost or doubled, no `seq` is used twice, and every subscriber's view is
//! the log.
//!
//! In full, with a progress bar:
//! `MILEPOST_CRASH_ROUNDS=200 cargo test --release --test it crash -- --nocapture`

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::fleet::{
    End, Log, Pace, Progress, Publisher, SENTINEL, Style, Subscriber, Uploader, audit, now_millis,
};
use crate::harness::server::Builder;
use crate::harness::{Client, PATIENCE, Server};

const ROOMS: [&str; 2] = ["north", "south"];
/// Rounds of the short form.
const ROUNDS: u64 = 8;
/// Every so many kills one comes while the server starts and the clients connect.
const EARLY: u64 = 4;

/// Everybody, between the rounds.
#[derive(Default)]
struct Fleet {
    publishers: Vec<Publisher>,
    subscribers: Vec<Subscriber>,
    uploaders: Vec<Uploader>,
}

impl Fleet {
    fn new(every: Duration) -> Self {
        // The fixes are past ones, so that those of a fast publisher are never in the future.
        let base = now_millis() - 3 * 3_600_000;
        let pace = Pace { every, window: 32, step: 1, base, late: true };
        let publishers = [
            (Style::Keyed, &ROOMS[..1]),
            (Style::Keyed, &ROOMS[..]),
            (Style::KeyedOnce, &ROOMS[1..]),
            (Style::Timed, &ROOMS[..]),
            (Style::TimedOnce, &ROOMS[..1]),
            (Style::Notification, &ROOMS[..]),
        ];
        let publishers = publishers
            .into_iter()
            .zip(1..)
            .map(|((style, rooms), index)| Publisher::new(index, rooms, style, pace))
            .collect();
        let subscribers = [&ROOMS[..], &ROOMS[..], &ROOMS[..1], &ROOMS[1..]]
            .into_iter()
            .enumerate()
            .map(|(index, rooms)| Subscriber::new(format!("dispatcher-{index}"), rooms))
            .collect();
        let uploaders = vec![Uploader::new(101, ROOMS[0], base)];
        Self { publishers, subscribers, uploaders }
    }

    /// Lets everybody connect and work. Ends with all connections.
    async fn sessions(self, address: SocketAddr, finish: Arc<AtomicBool>) -> (Self, Vec<End>) {
        let (mut publishers, mut subscribers, mut uploaders) =
            (JoinSet::new(), JoinSet::new(), JoinSet::new());
        for mut publisher in self.publishers {
            let finish = finish.clone();
            publishers.spawn(async move {
                publisher.reset_clock();
                (publisher.session(address, &finish).await, publisher)
            });
        }
        for mut subscriber in self.subscribers {
            subscribers.spawn(async move { (subscriber.session(address).await, subscriber) });
        }
        for mut uploader in self.uploaders {
            let finish = finish.clone();
            uploaders.spawn(async move { (uploader.session(address, &finish).await, uploader) });
        }
        let (mut fleet, mut ends) = (Self::default(), Vec::new());
        for (end, publisher) in publishers.join_all().await {
            ends.push(end);
            fleet.publishers.push(publisher);
        }
        for (end, uploader) in uploaders.join_all().await {
            ends.push(end);
            fleet.uploaders.push(uploader);
        }
        if finish.load(Ordering::Relaxed) {
            publish_sentinels(address).await;
        }
        for (end, subscriber) in subscribers.join_all().await {
            ends.push(end);
            fleet.subscribers.push(subscriber);
        }
        (fleet, ends)
    }

    fn acked(&self) -> usize {
        self.publishers.iter().map(|publisher| publisher.acked.len()).sum()
    }
}

/// The last position of each room.
async fn publish_sentinels(address: SocketAddr) {
    let mut client = Client::connect_to(format!("ws://{address}/ws?clientId=sentinel")).await;
    for room in ROOMS {
        client.join(room).await;
    }
    let last = json!({ "latitude": 1, "longitude": 1, "roomId": ROOMS, "n": SENTINEL });
    assert_eq!(client.request("location_update", last).await["type"], "ack");
    client.close().await;
}

fn server(file: &Path) -> Builder {
    Server::builder().set("limits.message_rate", 0).set("room_log.path", file.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_doubled_by_kills() {
    let asked = std::env::var("MILEPOST_CRASH_ROUNDS").ok();
    let rounds = asked.as_ref().map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    // An unoptimised server gets less to do.
    let every = Duration::from_micros(if cfg!(debug_assertions) { 5_000 } else { 1_000 });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("milepost.db");
    let mut progress = Progress::new("crash", rounds, asked.is_none());
    let mut fleet = Fleet::new(every);
    let heard = Arc::new(Notify::new());
    fleet.publishers.iter_mut().for_each(|publisher| publisher.heard = heard.clone());
    let mut slowest = Duration::ZERO;
    let mut random = fastrand::Rng::new();
    for round in 0..rounds {
        let early = round % EARLY == EARLY - 1;
        let started = Instant::now();
        let server = server(&file).spawn();
        if !early {
            server.wait_for("server.ready");
            slowest = slowest.max(started.elapsed());
        }
        let working = tokio::spawn(fleet.sessions(server.public, Arc::default()));
        // The random moment: while it starts and all connect, or under load.
        if !early {
            timeout(PATIENCE, heard.notified()).await.expect("no acknowledgement came");
        }
        let moment = random.u64(if early { 0..100 } else { 0..500 });
        tokio::time::sleep(Duration::from_millis(moment)).await;
        server.signal(Signal::KILL);
        fleet = working.await.unwrap().0;
        let _ = heard.notified().now_or_never();
        drop(server);
        progress.step(format!("{} acknowledged", fleet.acked()));
    }

    let mut server = server(&file).start();
    let finish = Arc::new(AtomicBool::new(true));
    let (fleet, ends) = fleet.sessions(server.public, finish).await;
    assert!(ends.iter().all(|end| *end == End::Finished), "{ends:?}");
    server.terminate();
    assert_eq!(server.wait().code, Some(0));
    let figures = check(&fleet, &file, rounds);
    progress.finish(&format!("{figures}; slowest start {slowest:.2?}"));
}

/// Everything that everybody saw, against the log.
fn check(fleet: &Fleet, file: &Path, rounds: u64) -> String {
    let log = Log::read(file);
    let acked: u64 = fleet.publishers.iter().map(|one| log.check_publisher(one)).sum();
    let uploaded: u64 = fleet.uploaders.iter().map(|one| log.check_uploader(one)).sum();
    let seqs = audit::check_seqs(&fleet.publishers, &fleet.subscribers);
    audit::check_epochs(&fleet.subscribers);
    let (mut compared, mut passed_over) = (0, 0);
    for subscriber in &fleet.subscribers {
        let (seen, passed) = log.check_subscriber(subscriber);
        compared += seen;
        passed_over += passed;
    }
    let resumes: u64 = fleet.subscribers.iter().map(|one| one.resumes).sum();
    let repeated: u64 = fleet.publishers.iter().map(|one| one.repeated).sum();
    let recognised = fleet.publishers.iter().flat_map(|one| &one.acked);
    let recognised = recognised.filter(|acked| acked.duplicate).count();
    let restarted: u64 = fleet.uploaders.iter().map(|one| one.restarted).sum();
    let duplicates: u64 = fleet.uploaders.iter().map(|one| one.duplicates).sum();
    // The load was one: else all of the above would hold for want of anything to break it.
    assert!(
        acked > rounds * 20 && uploaded > 0 && compared > acked,
        "{acked} {uploaded} {compared}"
    );
    assert!(resumes > 0 && repeated > 0 && restarted > 0, "{resumes} {repeated} {restarted}");
    format!(
        "{rounds} kills, {acked} positions acknowledged and {uploaded} uploaded, all once in the \
         log of {}; {seqs} seqs, none used twice; {resumes} resumes, 0 resets, {compared} events \
         compared ({passed_over} passed over while lagging); {repeated} repeated after a kill, \
         {recognised} of them recognised; {restarted} uploads restarted, {duplicates} of their \
         positions recognised; 0 lost, 0 doubled",
        log.len(),
    )
}
