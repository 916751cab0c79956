//! The engine against a real server: several engines on one stream, a broker that fails,
//! and what is only true of a shared log.

use std::sync::atomic::Ordering;

use rustix::process::Signal;

use super::*;
use crate::broker;
use crate::ids::{ClientId, ConnId, VehicleId};
use crate::room_log::{Committed, ELSEWHERE, RoomOutcome, StoredPosition, Verdict};
use crate::test_nats::NatsServer;
use crate::time::UnixMillis;

mod several;
mod stream;
mod trouble;

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

struct Log {
    engine: Nats,
    link: Link,
    events: mpsc::UnboundedReceiver<LogEvent>,
}

impl Log {
    async fn open(server: &NatsServer) -> Self {
        Self::open_with(server, Settings::default()).await
    }

    async fn open_with(server: &NatsServer, settings: Settings) -> Self {
        let link = link(server).await;
        let (sender, events) = mpsc::unbounded_channel();
        let engine = Nats::open(link.clone(), settings, metrics(), sender).await.unwrap();
        Self { engine, link, events }
    }

    async fn next(&mut self) -> LogEvent {
        tokio::time::timeout(LIMIT, self.events.recv()).await.expect("an event").unwrap()
    }

    /// The next committed append, and the events of others before it.
    async fn committed(&mut self) -> (Vec<u64>, Committed) {
        let mut others = Vec::new();
        loop {
            match self.next().await {
                LogEvent::Committed(mut batch) | LogEvent::Answered(mut batch) => {
                    assert_eq!(batch.len(), 1);
                    return (others, batch.remove(0));
                }
                LogEvent::Arrived(batch) => {
                    others.extend(batch.iter().map(|one| one.outcomes[0].seq));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    async fn append(&mut self, append: Append) -> Vec<RoomOutcome> {
        self.engine.append(append);
        self.committed().await.1.outcomes
    }

    async fn load(&mut self, name: &str) -> (u64, Vec<StoredPosition>) {
        self.engine.load_room(room(name));
        loop {
            match self.next().await {
                LogEvent::RoomLoaded { head, newest, .. } => return (head, newest),
                LogEvent::Arrived(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// What others published, until `count` of it has come.
    async fn arrived(&mut self, count: usize) -> Vec<Committed> {
        let mut all = Vec::new();
        while all.len() < count {
            match self.next().await {
                LogEvent::Arrived(batch) => all.extend(batch),
                other => panic!("{other:?}"),
            }
        }
        all
    }

    async fn read_all(&self, name: &str, up_to: u64) -> Vec<u64> {
        let (mut after, mut seqs) = (0, Vec::new());
        loop {
            let page = self.engine.read(room(name), after, up_to, 700, true).await.unwrap();
            seqs.extend(page.events.iter().map(|event| event.seq));
            match page.next {
                Some(next) => after = next,
                None => return seqs,
            }
        }
    }
}

async fn link(server: &NatsServer) -> Link {
    let settings = broker::Settings {
        urls: vec![server.url()],
        stream: "fleet".to_owned(),
        ..broker::Settings::default()
    };
    Link::connect(settings).await.unwrap()
}

fn room(name: &str) -> RoomId {
    RoomId::parse(name).unwrap()
}

/// A position `second` seconds into an hour that ended lately.
fn position(rooms: &[&str], vehicle: &str, second: i64) -> Append {
    static BASE: std::sync::OnceLock<UnixMillis> = std::sync::OnceLock::new();
    let base = *BASE.get_or_init(|| UnixMillis::now().plus(-3_600_000));
    Append {
        rooms: rooms.iter().map(|name| room(name)).collect(),
        vehicle: VehicleId::parse(vehicle).unwrap(),
        client: ClientId::parse("driver").unwrap(),
        sender: ConnId(1),
        key: None,
        fix: Some(base.plus(second * 1000)),
        latitude: 51.5,
        longitude: -0.1,
        body: format!(r#""latitude":51.5,"longitude":-0.1,"n":{second}"#).into(),
        received_at: UnixMillis::now(),
        quiet: false,
        reply: None,
    }
}

fn newest(outcomes: &[RoomOutcome]) -> u64 {
    assert_eq!(outcomes[0].verdict, Verdict::Stored { newest: true }, "{outcomes:?}");
    outcomes[0].seq
}

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(&Default::default()))
}
