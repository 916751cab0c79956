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
use std::sync::atomic::Ordering;
use std::time::Duration;

use milepost::client::{Connector, Endpoint, Event, Events};
use milepost::protocol::Mode;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::fleet::library::{self, Work};
use crate::fleet::{Log, Pace, Progress, Publisher, Style, Subscriber, now_millis};
use crate::harness::Server;
use crate::harness::server::Builder;

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

/// What the clients share: where the service is, and their work.
struct Service {
    address: Mutex<SocketAddr>,
    work: Work,
}

/// Stands in for a balancer: a new connection goes to whoever runs now.
struct ToService(Arc<Service>);

impl Connector for ToService {
    type Io = TcpStream;

    async fn connect(&self, _: &Endpoint) -> io::Result<TcpStream> {
        let address = *self.0.address.lock();
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

fn client(name: String, service: &Arc<Service>) -> (milepost::client::Client, Events) {
    let client = library::client(name).endpoint("ws://service/ws");
    client.start_with(ToService(service.clone())).unwrap()
}

async fn drive(place: usize, vehicle: Publisher, service: Arc<Service>) -> Publisher {
    let client = client(format!("vehicle-{}", vehicle.index), &service);
    library::drive(place, vehicle, client, &service.work).await
}

async fn watch(place: usize, mut subscriber: Subscriber, service: Arc<Service>) -> Subscriber {
    let (client, mut events) = client(subscriber.name.clone(), &service);
    client.join(ROOM, Mode::Subscribe).await.unwrap();
    loop {
        match events.next().await.expect("the client gave up") {
            Event::Location(event) => {
                service.work.did(place);
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
    let service =
        Arc::new(Service { address: Mutex::new(running.public), work: Work::of(clients) });
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
        service.work.all_at_work().await;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..500))).await;
        running = deploy(running, &file, restart % 2 == 1, &service).await;
        progress.step(format!("{} clients", size.vehicles + size.subscribers as u64));
    }
    service.work.all_at_work().await;
    service.work.finish.store(true, Ordering::Relaxed);
    let vehicles = vehicles.join_all().await;
    library::publish_sentinel(&running, ROOM).await;
    let subscribers = subscribers.join_all().await;
    running.terminate();
    assert_eq!(running.wait().code, Some(0));
    let audited = library::check(&vehicles, &subscribers, &Log::read(&file));
    assert!(audited.resumes >= size.restarts, "{}", audited.resumes);
    let recognised = vehicles.iter().flat_map(|vehicle| &vehicle.acked);
    let recognised = recognised.filter(|acked| acked.duplicate).count();
    let gaps = &audited.gaps;
    progress.finish(&format!(
        "{} restarts, {} vehicles at {RATE}/s, {} subscribers: {} positions, all acknowledged \
         and once in the log ({recognised} of them acknowledged as a repetition); {} events \
         compared ({} passed over for newer ones while lagging), {} resumes, 0 resets, 0 lost, \
         0 doubled; longest gap of any subscriber {:.2?}, median of their longest {:.2?}",
        size.restarts,
        size.vehicles,
        size.subscribers,
        audited.made,
        audited.compared,
        audited.passed_over,
        audited.resumes,
        gaps[gaps.len() - 1],
        gaps[gaps.len() / 2],
    ));
}
