//! Vehicles and dispatchers on the client library, as many as a deploy has to do with, and
//! what became of all that they made.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use milepost::client::{Builder, Client, Events, ResendRefused};
use milepost::protocol::Mode;
use serde_json::json;
use tokio::time::Instant;

use super::{Log, Publisher, SENTINEL, Subscriber, audit};
use crate::harness::{self, PATIENCE, Server};

/// What all clients of a test share: whether it is over, and who has done how much.
pub struct Work {
    /// Nothing more is to be made.
    pub finish: AtomicBool,
    /// Acknowledgements of a vehicle, events of a subscriber.
    done: Vec<AtomicU64>,
}

impl Work {
    pub fn of(clients: usize) -> Self {
        let done = (0..clients).map(|_| AtomicU64::new(0)).collect();
        Self { finish: AtomicBool::new(false), done }
    }

    /// A client has done something.
    pub fn did(&self, client: usize) {
        self.done[client].fetch_add(1, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.finish.load(Ordering::Relaxed)
    }

    /// Waits until every client has done something since now.
    pub async fn all_at_work(&self) {
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

/// A client that sends again what was refused.
pub fn client(name: String) -> Builder {
    let resend = ResendRefused { max_resends: 100, new_session_wait: Duration::from_secs(60) };
    Client::builder().client_id(name).resend_refused(Some(resend))
}

/// Publishes at the vehicle's pace, one after the other so that none overtakes another;
/// what a deploy delays is made up for after it.
pub async fn drive(
    place: usize,
    mut vehicle: Publisher,
    (client, events): (Client, Events),
    work: &Work,
) -> Publisher {
    drop(events);
    let rooms = vehicle.rooms.clone();
    for room in &rooms {
        client.join(room, Mode::Publish).await.unwrap();
    }
    let mut ticks = tokio::time::interval(vehicle.every());
    while !work.is_over() {
        ticks.tick().await;
        let serial = vehicle.made;
        vehicle.made += 1;
        let position = vehicle.position(serial);
        let key = format!("k{serial}");
        let published =
            client.publish_keyed(rooms.iter().map(String::as_str), &key, &position).await;
        let ack = published.unwrap_or_else(|error| panic!("{serial} was not stored: {error}"));
        work.did(place);
        vehicle.record(serial, &ack.rooms, ack.duplicate, &ack.late);
    }
    client.close().await;
    vehicle
}

/// The last position of a room.
pub async fn publish_sentinel(server: &Server, room: &str) {
    let mut last = harness::Client::connect(server, "sentinel").await;
    last.join(room).await;
    let sentinel = json!({ "latitude": 1, "longitude": 1, "n": SENTINEL });
    assert_eq!(last.request("location_update", sentinel).await["type"], "ack");
    last.close().await;
}

/// Figures of an audit in which nothing was lost or doubled.
pub struct Audited {
    /// Positions that were made, acknowledged, and are once in the log.
    pub made: u64,
    /// Events of subscribers.
    pub compared: u64,
    /// Events that were passed over for newer ones while a subscriber was told that it lags.
    pub passed_over: u64,
    /// Resumes of subscribers, none of them answered with a reset.
    pub resumes: u64,
    /// The longest time between two events of each subscriber, ascending.
    pub gaps: Vec<Duration>,
}

/// Holds all that everybody saw against the log, which has nothing else in it but the
/// sentinel.
pub fn check(vehicles: &[Publisher], subscribers: &[Subscriber], log: &Log) -> Audited {
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
    let resumes = subscribers.iter().map(|one| one.resumes).sum();
    let mut gaps: Vec<_> = subscribers.iter().map(|one| one.longest_gap).collect();
    gaps.sort();
    Audited { made, compared, passed_over, resumes, gaps }
}
