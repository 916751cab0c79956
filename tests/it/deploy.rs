//! Deploys in the middle of the day: SIGTERM, a successor on the same log, vehicles and
//! dispatchers on the client library. Not a position is lost or doubled. Half of the
//! deploys stop the old process first; in the other half the new one already waits.
//!
//! In full (200 vehicles at 5 a second, 50 subscribers), with a progress bar:
//! `MILEPOST_DEPLOY_RESTARTS=20 cargo test --release --test it deploy -- --nocapture`

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use milepost::client::{Connector, Endpoint, Event, Events, ResendRefused};
use milepost::protocol::Mode;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fleet::{
    Log, Pace, Progress, Publisher, SENTINEL, Style, Subscriber, audit, now_millis,
};
use crate::harness::server::Builder;
use crate::harness::{Client, PATIENCE, Server};

const ROOM: &str = "fleet";
/// Positions a second and vehicle.
const RATE: u64 = 5;
/// Restarts, vehicles and subscribers of the short form, and of the full one.
const SHORT: Size = Size { restarts: 3, vehicles: 40, subscribers: 10 };
const FULL: Size = Size { restarts: 20, vehicles: 200, subscribers: 50 };

#[derive(Clone, Copy)]
struct Size {
    restarts: u64,
    vehicles: u64,
    subscribers: usize,
}

/// What the clients share: where the service is, and whether it was the last deploy.
struct Service {
    address: Mutex<SocketAddr>,
    finish: AtomicBool,
    /// What each client has done, counted: acknowledgements of a vehicle, events of a
    /// subscriber.
    done: Vec<AtomicU64>,
}

impl Service {
    fn address(&self) -> SocketAddr {
        *self.address.lock()
    }

    fn did(&self, client: usize) {
        self.done[client].fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until every client has done something since now.
    async fn all_at_work(&self) {
        let before: Vec<u64> = self.done.iter().map(|done| done.load(Ordering::Relaxed)).collect();
        let deadline = Instant::now() + 3 * PATIENCE;
        for (client, before) in before.into_iter().enumerate() {
            while self.done[client].load(Ordering::Relaxed) == before {
                assert!(Instant::now() < deadline, "client {client} did not come back");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Stands in for a balancer: a new connection goes to whoever runs now.
struct ToService(Arc<Service>);

impl Connector for ToService {
    type Io = TcpStream;

    async fn connect(&self, _: &Endpoint) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.0.address()).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

fn client(name: String, service: &Arc<Service>) -> (milepost::client::Client, Events) {
    let resend = ResendRefused { max_resends: 100, new_session_wait: Duration::from_secs(60) };
    milepost::client::Client::builder()
        .endpoint("ws://service/ws")
        .client_id(name)
        .resend_refused(Some(resend))
        .start_with(ToService(service.clone()))
        .unwrap()
}

/// Publishes at the vehicle's pace, one after the other so that none overtakes another;
/// what a deploy delays is made up for after it.
async fn drive(place: usize, mut vehicle: Publisher, service: Arc<Service>) -> Publisher {
    let (client, events) = client(format!("vehicle-{}", vehicle.index), &service);
    drop(events);
    client.join(ROOM, Mode::Publish).await.unwrap();
    let mut ticks = tokio::time::interval(Duration::from_millis(1000 / RATE));
    while !service.finish.load(Ordering::Relaxed) {
        ticks.tick().await;
        let serial = vehicle.made;
        vehicle.made += 1;
        let position = vehicle.position(serial);
        let published = client.publish_keyed([ROOM], &format!("k{serial}"), &position).await;
        let ack = published.unwrap_or_else(|error| panic!("{serial} was not stored: {error}"));
        service.did(place);
        vehicle.record(serial, &ack.rooms, ack.duplicate, &ack.late);
    }
    client.close().await;
    vehicle
}

async fn watch(place: usize, mut subscriber: Subscriber, service: Arc<Service>) -> Subscriber {
    let (client, mut events) = client(subscriber.name.clone(), &service);
    client.join(ROOM, Mode::Subscribe).await.unwrap();
    loop {
        match events.next().await.expect("the client gave up") {
            Event::Location(event) => {
                service.did(place);
                let n = event.extra["n"].as_u64().unwrap();
                if subscriber.update(ROOM, event.seq, n) {
                    client.close().await;
                    return subscriber;
                }
            }
            Event::Joined(joined) => {
                subscriber.joined(ROOM, &joined.epoch, joined.seq, joined.recovered);
            }
            // On a busy machine a reader may be slow; it is held to what it was told.
            Event::Lagging(told) => subscriber.lagging(ROOM, told.from_seq),
            Event::CaughtUp(told) => subscriber.caught_up(ROOM, told.seq),
            event @ (Event::Gap { .. } | Event::Left { .. }) => {
                panic!("{}: {event:?}", subscriber.name);
            }
            _ => {}
        }
    }
}

fn server(file: &Path) -> Builder {
    Server::builder().set("room_log.path", file.display())
}

/// One deploy. `overlap`: the successor is started first and waits for the log.
async fn deploy(old: Server, file: &Path, overlap: bool, service: &Service) -> Server {
    let next = |old: Option<&mut Server>| {
        let successor = server(file).spawn();
        *service.address.lock() = successor.public;
        if let Some(old) = old {
            old.terminate();
        }
        successor
    };
    tokio::task::block_in_place(|| {
        let mut old = old;
        let successor = if overlap {
            let successor = next(Some(&mut old));
            assert_eq!(old.wait().code, Some(0), "{:#?}", old.shutdown_lines());
            successor
        } else {
            old.terminate();
            assert_eq!(old.wait().code, Some(0), "{:#?}", old.shutdown_lines());
            next(None)
        };
        successor.wait_for("server.ready");
        successor
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_by_deploys() {
    let asked = std::env::var("MILEPOST_DEPLOY_RESTARTS").ok();
    let size = asked
        .as_ref()
        .map_or(SHORT, |restarts| Size { restarts: restarts.parse().unwrap(), ..FULL });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("milepost.db");
    let mut progress = Progress::new("deploy", size.restarts, asked.is_none());
    let mut running = server(&file).start();
    let clients = size.subscribers + size.vehicles as usize;
    let service = Arc::new(Service {
        address: Mutex::new(running.public),
        finish: AtomicBool::new(false),
        done: (0..clients).map(|_| AtomicU64::new(0)).collect(),
    });
    let every = Duration::from_millis(1000 / RATE);
    let pace =
        Pace { every, window: 32, step: every.as_millis() as u64, base: now_millis(), late: false };
    let (mut subscribers, mut vehicles) = (JoinSet::new(), JoinSet::new());
    for index in 0..size.subscribers {
        let subscriber = Subscriber::new(format!("dispatcher-{index}"), &[ROOM]);
        subscribers.spawn(watch(index, subscriber, service.clone()));
    }
    for index in 1..=size.vehicles {
        let vehicle = Publisher::new(index, &[ROOM], Style::Keyed, pace);
        vehicles.spawn(drive(size.subscribers + index as usize - 1, vehicle, service.clone()));
    }
    for restart in 0..size.restarts {
        // Not before the last one is over for everybody, and then at a random moment.
        service.all_at_work().await;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..500))).await;
        running = deploy(running, &file, restart % 2 == 1, &service).await;
        progress.step(format!("{} clients", size.vehicles + size.subscribers as u64));
    }
    service.all_at_work().await;
    service.finish.store(true, Ordering::Relaxed);
    let vehicles = vehicles.join_all().await;
    let mut last = Client::connect(&running, "sentinel").await;
    last.join(ROOM).await;
    let sentinel = json!({ "latitude": 1, "longitude": 1, "n": SENTINEL });
    assert_eq!(last.request("location_update", sentinel).await["type"], "ack");
    last.close().await;
    let subscribers = subscribers.join_all().await;
    running.terminate();
    assert_eq!(running.wait().code, Some(0));
    check(size, &vehicles, &subscribers, &Log::read(&file), progress);
}

fn check(
    size: Size,
    vehicles: &[Publisher],
    subscribers: &[Subscriber],
    log: &Log,
    progress: Progress,
) {
    let acked: u64 = vehicles.iter().map(|vehicle| log.check_publisher(vehicle)).sum();
    let made: u64 = vehicles.iter().map(|vehicle| vehicle.made).sum();
    assert_eq!(acked, made, "every position that was made was acknowledged in the end");
    assert_eq!(log.len() as u64, made + 1, "and nothing else but the sentinel is in the log");
    audit::check_seqs(vehicles, subscribers);
    audit::check_epochs(subscribers);
    let (mut compared, mut passed_over) = (0, 0);
    for subscriber in subscribers {
        let (seen, passed) = log.check_subscriber(subscriber);
        compared += seen;
        passed_over += passed;
    }
    let resumes: u64 = subscribers.iter().map(|one| one.resumes).sum();
    assert!(resumes >= size.restarts, "{resumes}");
    let mut gaps: Vec<_> = subscribers.iter().map(|one| one.longest_gap).collect();
    gaps.sort();
    let recognised = vehicles.iter().flat_map(|vehicle| &vehicle.acked);
    let recognised = recognised.filter(|acked| acked.duplicate).count();
    progress.finish(&format!(
        "{} restarts, {} vehicles at {RATE}/s, {} subscribers: {made} positions, all acknowledged \
         and once in the log ({recognised} of them acknowledged as a repetition); {compared} events \
         compared ({passed_over} passed over for newer ones while lagging), {resumes} resumes, 0 \
         resets, 0 lost, 0 doubled; longest gap of any subscriber {:.2?}, median of their longest \
         {:.2?}",
        size.restarts,
        size.vehicles,
        size.subscribers,
        gaps[gaps.len() - 1],
        gaps[gaps.len() / 2],
    ));
}
