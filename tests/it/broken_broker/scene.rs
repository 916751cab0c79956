//! Two instances on one broker with a small fleet on each, and the audit at the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fleet::{End, Log, Pace, Publisher, SENTINEL, Style, Subscriber, audit, now_millis};
use crate::harness::{Client, PATIENCE, Server, admin};

const ROOMS: [&str; 2] = ["north", "south"];
/// Time between two positions of a vehicle.
const EVERY: Duration = Duration::from_millis(20);

/// The instances and who works on them.
pub struct Scene {
    /// The instances.
    pub servers: Vec<Server>,
    finish: Arc<AtomicBool>,
    heard: Vec<Arc<Notify>>,
    publishers: JoinSet<(End, Publisher)>,
    subscribers: JoinSet<(End, Subscriber)>,
}

impl Scene {
    /// Everybody connects and works.
    pub async fn start(servers: Vec<Server>) -> Self {
        let base = now_millis() - 3 * 3_600_000;
        let pace = Pace { every: EVERY, window: 32, step: 1, base, late: true };
        let finish = Arc::<AtomicBool>::default();
        let (mut publishers, mut subscribers) = (JoinSet::new(), JoinSet::new());
        let mut heard = Vec::new();
        let styles = [
            (Style::Keyed, &ROOMS[..1]),
            (Style::Keyed, &ROOMS[..]),
            (Style::Timed, &ROOMS[..]),
            (Style::Notification, &ROOMS[1..]),
        ];
        for (place, server) in servers.iter().enumerate() {
            let address = server.public;
            for (number, (style, rooms)) in (1..).zip(styles) {
                let index = 10 * place as u64 + number;
                let mut publisher = Publisher::new(index, rooms, style, pace);
                if style != Style::Notification {
                    heard.push(publisher.heard.clone());
                }
                let finish = finish.clone();
                publishers
                    .spawn(async move { (publisher.session(address, &finish).await, publisher) });
            }
            for rooms in [&ROOMS[..], &ROOMS[..1]] {
                let name = format!("dispatcher-{place}-{}", rooms.len());
                let mut subscriber = Subscriber::new(name, rooms);
                subscribers.spawn(async move { (subscriber.session(address).await, subscriber) });
            }
        }
        let scene = Self { servers, finish, heard, publishers, subscribers };
        scene.all_at_work().await;
        scene
    }

    /// Waits until every vehicle has had an acknowledgement since now.
    pub async fn all_at_work(&self) {
        for heard in &self.heard {
            // One that was stored before does not count.
            let _ = timeout(Duration::ZERO, heard.notified()).await;
            timeout(3 * PATIENCE, heard.notified()).await.expect("no acknowledgement came");
        }
    }

    /// Waits until every instance holds for the broker, and readiness says so.
    pub async fn all_paused(&self) {
        for server in &self.servers {
            let line = tokio::task::block_in_place(|| {
                server.wait_for_line(|line| {
                    line["event"] == "plane.paused" && line["hold"] == "broker"
                })
            });
            assert_eq!(line["level"], "WARN", "{line:#}");
            let (status, ready) = admin::json(server.admin, "GET", "/readyz");
            assert_eq!((status, &ready["status"]), (200, &json!("degraded")), "{ready:#}");
            assert_eq!(ready["reason"], "broker", "{ready:#}");
        }
    }

    /// Waits until every instance works again, and readiness says so.
    pub async fn all_resumed(&self) {
        for server in &self.servers {
            tokio::task::block_in_place(|| {
                server.wait_for_line(|line| {
                    line["event"] == "plane.resumed" && line["hold"] == "broker"
                })
            });
            let (status, ready) = admin::json(server.admin, "GET", "/readyz");
            assert_eq!((status, &ready["status"]), (200, &json!("ready")), "{ready:#}");
        }
    }

    /// Everybody finishes, the instances end, and what everybody saw is held against the
    /// log. Returns how many positions were acknowledged.
    pub async fn finish(mut self, log: impl AsyncFnOnce() -> Log) -> u64 {
        self.all_at_work().await;
        self.finish.store(true, Ordering::Relaxed);
        let publishers = finished(self.publishers.join_all().await);
        publish_sentinels(self.servers[0].public).await;
        let subscribers = finished(self.subscribers.join_all().await);
        for server in &mut self.servers {
            server.terminate();
            assert_eq!(server.wait().code, Some(0), "{:#?}", server.shutdown_lines());
        }
        let log = log().await;
        let acked: u64 = publishers.iter().map(|one| log.check_publisher(one)).sum();
        audit::check_seqs(&publishers, &subscribers);
        audit::check_epochs(&subscribers);
        let compared: u64 = subscribers.iter().map(|one| log.check_subscriber(one).0).sum();
        assert!(acked > 0 && compared > acked, "{acked} {compared}");
        acked
    }
}

fn finished<T>(ends: Vec<(End, T)>) -> Vec<T> {
    let finished = |(end, one)| {
        assert_eq!(end, End::Finished);
        one
    };
    ends.into_iter().map(finished).collect()
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
