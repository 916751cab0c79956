//! Rolling deploys of several instances on one broker behind a TCP load balancer: each
//! instance is replaced in turn, successor first. Vehicles publish keyed positions all
//! through and dispatchers watch. Not a position is lost or doubled, no vehicle's order
//! changes, nobody is said to have left, and every process ends with 0. And the same where an
//! instance is killed (SIGKILL) instead, but for who is said to have left.
//!
//! In full (300 vehicles at 2 a second, 100 subscribers), with a progress bar:
//! `MILEPOST_ROLLING_ROUNDS=10 cargo test --release --test it rolling -- --nocapture`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use milepost::client::{Event, Events};
use milepost::protocol::Mode;
use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fleet::library::{self, Work};
use crate::fleet::{Log, Pace, Progress, Publisher, Style, Subscriber, now_millis};
use crate::harness::{Balancer, NatsServer, PATIENCE, Server};

const ROOM: &str = "fleet";
const INSTANCES: usize = 3;
/// Positions a second and vehicle.
const RATE: u64 = 2;
const SHORT: Size = Size { rounds: 1, vehicles: 30, subscribers: 10 };
const FULL: Size = Size { rounds: 10, vehicles: 300, subscribers: 100 };

#[derive(Clone, Copy)]
struct Size {
    rounds: u64,
    vehicles: u64,
    subscribers: usize,
}

impl Size {
    fn clients(self) -> usize {
        self.vehicles as usize + self.subscribers
    }
}

/// What the clients share.
struct Service {
    url: String,
    work: Work,
    /// Everybody is in the room: from now on nobody comes or goes.
    complete: AtomicBool,
    /// The members that each subscriber knows of.
    members: Vec<AtomicU64>,
}

impl Service {
    /// Waits until every subscriber has heard of everybody.
    async fn all_present(&self, clients: usize) {
        let deadline = Instant::now() + 3 * PATIENCE;
        for (subscriber, members) in self.members.iter().enumerate() {
            while members.load(Ordering::Relaxed) < clients as u64 {
                assert!(
                    Instant::now() < deadline,
                    "subscriber {subscriber} sees {} of {clients}",
                    members.load(Ordering::Relaxed)
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

fn client(name: String, service: &Service) -> (milepost::client::Client, Events) {
    library::client(name).endpoint(&service.url).start().unwrap()
}

async fn drive(place: usize, vehicle: Publisher, service: Arc<Service>) -> Publisher {
    let client = client(format!("vehicle-{}", vehicle.index), &service);
    library::drive(place, vehicle, client, &service.work).await
}

async fn watch(
    place: usize,
    mut subscriber: Subscriber,
    service: Arc<Service>,
    end: End,
) -> Subscriber {
    let (client, mut events) = client(subscriber.name.clone(), &service);
    client.join(ROOM, Mode::Subscribe).await.unwrap();
    let set_members = |count: u64| service.members[place].store(count, Ordering::Relaxed);
    let mut finished = false;
    let mut members = std::collections::BTreeSet::new();
    while !finished {
        match events.next().await.expect("the client gave up") {
            Event::Location(event) => {
                service.work.did(place);
                let n = event.extra["n"].as_u64().unwrap();
                finished = subscriber.update(ROOM, event.seq, n);
            }
            Event::Joined(joined) => {
                subscriber.joined(ROOM, &joined.epoch, joined.seq, joined.recovered);
                let now: std::collections::BTreeSet<_> = joined.members.into_iter().collect();
                if service.complete.load(Ordering::Relaxed) {
                    // A deploy is no reason to miss anybody, on whatever instance one is.
                    assert_eq!(now, members, "{}", subscriber.name);
                }
                members = now;
                set_members(members.len() as u64);
            }
            Event::MembersJoined(named) => {
                assert!(
                    !service.complete.load(Ordering::Relaxed) || service.work.is_over(),
                    "{}: said to have come: {named:?}",
                    subscriber.name
                );
                members.extend(named.members);
                set_members(members.len() as u64);
            }
            Event::MembersLeft(_) if end == End::Kill => {}
            Event::MembersLeft(named) => {
                assert!(
                    service.work.is_over(),
                    "{}: said to have left: {named:?}",
                    subscriber.name
                );
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
    client.close().await;
    subscriber
}

fn start(nats: &NatsServer) -> Server {
    Server::builder().nats(nats).start()
}

/// Replaces one instance as an orchestrator does: the successor is ready and known to the
/// balancer before the old one is told to stop.
fn replace(old: &mut Server, nats: &NatsServer, balancer: &mut Balancer) {
    let successor = start(nats);
    balancer.add(successor.public);
    old.terminate();
    let exit = old.wait();
    assert_eq!(exit.code, Some(0), "{:#?}", old.shutdown_lines());
    balancer.remove(old.public);
    *old = successor;
}

/// How an instance ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// SIGTERM, once its successor is there.
    Stop,
    /// SIGKILL; another one is started afterwards.
    Kill,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_by_rolling_deploys() {
    let asked = std::env::var("MILEPOST_ROLLING_ROUNDS").ok();
    let size =
        asked.as_ref().map_or(SHORT, |rounds| Size { rounds: rounds.parse().unwrap(), ..FULL });
    run(size, End::Stop, asked.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_when_instances_are_killed() {
    run(SHORT, End::Kill, true).await;
}

async fn run(size: Size, end: End, quiet: bool) {
    let mut progress = Progress::new("rolling deploy", size.rounds * INSTANCES as u64, quiet);
    let nats = NatsServer::start();
    let mut balancer = Balancer::start();
    let mut instances: Vec<Server> = (0..INSTANCES).map(|_| start(&nats)).collect();
    instances.iter().for_each(|instance| balancer.add(instance.public));
    let service = Arc::new(Service {
        url: format!("ws://{}/ws", balancer.public),
        work: Work::of(size.clients()),
        complete: AtomicBool::new(false),
        members: (0..size.subscribers).map(|_| AtomicU64::new(0)).collect(),
    });
    let every = Duration::from_millis(1000 / RATE);
    let pace =
        Pace { every, window: 32, step: every.as_millis() as u64, base: now_millis(), late: false };
    let (mut subscribers, mut vehicles) = (JoinSet::new(), JoinSet::new());
    for index in 0..size.subscribers {
        let subscriber = Subscriber::new(format!("dispatcher-{index}"), &[ROOM]);
        subscribers.spawn(watch(index, subscriber, service.clone(), end));
    }
    for index in 1..=size.vehicles {
        let vehicle = Publisher::new(index, &[ROOM], Style::Keyed, pace);
        vehicles.spawn(drive(size.subscribers + index as usize - 1, vehicle, service.clone()));
    }
    service.all_present(size.clients()).await;
    service.complete.store(end == End::Stop, Ordering::Relaxed);
    for _ in 0..size.rounds {
        for instance in &mut instances {
            // Not before the last one is over for everybody, and then at a random moment.
            service.work.all_at_work().await;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..500))).await;
            tokio::task::block_in_place(|| match end {
                End::Stop => replace(instance, &nats, &mut balancer),
                End::Kill => {
                    instance.signal(Signal::KILL);
                    let successor = start(&nats);
                    balancer.remove(instance.public);
                    balancer.add(successor.public);
                    *instance = successor;
                }
            });
            progress.step(format!("{} clients", size.clients()));
        }
    }
    service.work.all_at_work().await;
    service.work.finish.store(true, Ordering::Relaxed);
    let vehicles = vehicles.join_all().await;
    library::publish_sentinel(&instances[0], ROOM).await;
    let subscribers = subscribers.join_all().await;
    for instance in &mut instances {
        instance.terminate();
        assert_eq!(instance.wait().code, Some(0), "{:#?}", instance.shutdown_lines());
    }
    let log = Log::read_stream(&nats.url()).await;
    let audited = library::check(&vehicles, &subscribers, &log);
    let gaps = &audited.gaps;
    progress.finish(&format!(
        "{} instances replaced, {} vehicles at {RATE}/s, {} subscribers: {} positions, all \
         acknowledged and once in the log; {} events compared ({} passed over for newer ones \
         while lagging), {} resumes, 0 resets, 0 lost, 0 doubled, nobody said to have left; \
         longest gap of a subscriber: p99 {:.2?}, max {:.2?}",
        size.rounds * INSTANCES as u64,
        size.vehicles,
        size.subscribers,
        audited.made,
        audited.compared,
        audited.passed_over,
        audited.resumes,
        gaps[gaps.len() * 99 / 100],
        gaps[gaps.len() - 1],
    ));
}
