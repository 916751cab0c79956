//! What every engine must do, run against each of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::*;
use crate::broker;
use crate::telemetry::Metrics;
use crate::test_nats::NatsServer;

mod model;

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Where a log is kept, so that it can be opened again.
enum Store {
    Embedded { folder: tempfile::TempDir, settings: Settings },
    Nats { server: NatsServer },
}

impl Store {
    fn embedded() -> Self {
        Self::embedded_with(Settings { min_free: 0, ..Settings::default() })
    }

    fn embedded_with(settings: Settings) -> Self {
        Self::Embedded { folder: tempfile::tempdir().unwrap(), settings }
    }

    fn nats() -> Self {
        Self::Nats { server: NatsServer::start() }
    }

    async fn open(&self) -> Log {
        let (sender, events) = mpsc::unbounded_channel();
        let engine: Arc<dyn RoomLog> = match self {
            Self::Embedded { folder, settings } => {
                let path = folder.path().join("room.db");
                let lock = Lock::acquire(&path, Duration::from_secs(30)).await.unwrap();
                Arc::new(Embedded::open(lock, settings, sender).unwrap())
            }
            Self::Nats { server } => {
                let settings =
                    broker::Settings { urls: vec![server.url()], ..broker::Settings::default() };
                let link = broker::Link::connect(settings).await.unwrap();
                let metrics = Arc::new(Metrics::new(&Default::default()));
                let settings = nats::Settings::default();
                Arc::new(Nats::open(link, settings, metrics, sender).await.unwrap())
            }
        };
        Log { engine, events }
    }
}

struct Log {
    engine: Arc<dyn RoomLog>,
    events: mpsc::UnboundedReceiver<LogEvent>,
}

impl Log {
    async fn next(&mut self) -> LogEvent {
        tokio::time::timeout(LIMIT, self.events.recv()).await.expect("an event").unwrap()
    }

    /// The next answers; a position for several rooms may be seen in them before.
    async fn committed(&mut self) -> Vec<Committed> {
        loop {
            match self.next().await {
                LogEvent::Committed(committed) | LogEvent::Answered(committed) => return committed,
                LogEvent::Arrived(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn append(&mut self, append: Append) -> Vec<RoomOutcome> {
        self.engine.append(append);
        let mut committed = self.committed().await;
        assert_eq!(committed.len(), 1);
        committed.remove(0).outcomes
    }

    async fn load(&mut self, name: &str) -> (u64, u64, Vec<StoredPosition>) {
        self.engine.load_room(room(name));
        match self.next().await {
            LogEvent::RoomLoaded { head, trimmed_to, newest, .. } => (head, trimmed_to, newest),
            other => panic!("{other:?}"),
        }
    }

    async fn read_all(&self, name: &str, after: u64, up_to: u64) -> Result<Vec<u64>, ReadError> {
        let (mut after, mut seqs) = (after, Vec::new());
        loop {
            let page = self.engine.read(room(name), after, up_to, 700, true).await?;
            seqs.extend(page.events.iter().map(|event| event.seq));
            match page.next {
                Some(next) => after = next,
                None => return Ok(seqs),
            }
        }
    }

    /// Drops the engine as a kill does and waits until it has ended.
    async fn kill(self) {
        let Self { engine, mut events } = self;
        drop(engine);
        while let Some(event) = events.recv().await {
            assert!(!matches!(event, LogEvent::Closed));
        }
    }

    async fn close(mut self) {
        self.engine.close().await;
        assert!(matches!(self.next().await, LogEvent::Closed));
        assert!(self.events.recv().await.is_none());
    }
}

fn room(name: &str) -> RoomId {
    RoomId::parse(name).unwrap()
}

/// A position `second` seconds into an hour that ended lately.
fn position(rooms: &[&str], vehicle: &str, second: i64) -> Append {
    Append {
        rooms: rooms.iter().map(|name| room(name)).collect(),
        vehicle: VehicleId::parse(vehicle).unwrap(),
        client: ClientId::parse("driver").unwrap(),
        sender: ConnId(1),
        key: None,
        fix: Some(base().plus(second * 1000)),
        latitude: 51.5,
        longitude: -0.1,
        body: format!(r#""latitude":51.5,"longitude":-0.1,"n":{second}"#).into(),
        received_at: UnixMillis::now(),
        quiet: false,
        reply: None,
    }
}

/// The same for the whole of a test's process.
fn base() -> UnixMillis {
    static BASE: std::sync::OnceLock<UnixMillis> = std::sync::OnceLock::new();
    *BASE.get_or_init(|| UnixMillis::now().plus(-3_600_000))
}

fn stored(outcomes: &[RoomOutcome]) -> u64 {
    assert!(matches!(outcomes[0].verdict, Verdict::Stored { .. }), "{outcomes:?}");
    outcomes[0].seq
}

macro_rules! for_each_engine {
    ($($test:ident)*) => {
        mod on_embedded {
            use super::Store;
            $(#[tokio::test]
            async fn $test() {
                super::$test(Store::embedded()).await;
            })*
        }

        mod on_nats {
            use super::Store;
            $(#[tokio::test]
            async fn $test() {
                super::$test(Store::nats()).await;
            })*
        }
    };
}

for_each_engine! {
    seq_and_epoch_outlive_kills_and_closes
    an_upload_is_silent_until_its_newest_fix_is_released
    everything_queued_is_committed_in_order_before_a_flush_ends
    a_cursor_of_nobody_is_refused
    pages_end_at_the_bytes_asked_for_and_go_on_where_they_ended
    a_reply_is_called_by_nobody_but_the_consumer
}

async fn seq_and_epoch_outlive_kills_and_closes(store: Store) {
    let mut log = store.open().await;
    let epoch = log.engine.epoch();
    let first = stored(&log.append(position(&["a"], "v", 1)).await);
    log.kill().await;
    let mut log = store.open().await;
    assert_eq!(log.engine.epoch(), epoch, "a kill keeps the epoch");
    assert_eq!(log.append(position(&["a"], "v", 1)).await[0].seq, first, "still a duplicate");
    let second = stored(&log.append(position(&["a"], "v", 2)).await);
    assert!(second > first);
    log.close().await;
    let mut log = store.open().await;
    assert_eq!(log.engine.epoch(), epoch);
    let (head, trimmed_to, newest) = log.load("a").await;
    assert_eq!((head, trimmed_to), (second, 0));
    assert_eq!(newest.len(), 1);
    assert_eq!((newest[0].seq, newest[0].client.as_str()), (second, "driver"));
    assert!(newest[0].body.contains(r#""n":2"#));
    log.close().await;
}

async fn an_upload_is_silent_until_its_newest_fix_is_released(store: Store) {
    let mut log = store.open().await;
    let live = stored(&log.append(position(&["a"], "v", 50)).await);
    let mut quiet = Vec::new();
    for second in [40, 60, 70] {
        let append = Append { quiet: true, ..position(&["a"], "v", second) };
        quiet.push(stored(&log.append(append).await));
    }
    let (head, _, newest) = log.load("a").await;
    assert_eq!(newest.iter().map(|n| n.seq).collect::<Vec<_>>(), [live], "not in the snapshot");
    assert_eq!(log.read_all("a", 0, head).await.unwrap(), [live], "not in a replay");
    let other = stored(&log.append(position(&["a"], "w", 1)).await);
    let sender = ConnId(9);
    log.engine.release(Release { room: room("a"), seq: quiet[2], sender });
    let mut committed = log.committed().await;
    let released = committed.remove(0);
    assert_eq!(released.append.sender, sender);
    assert!(!released.append.quiet && released.append.reply.is_none());
    let moved = released.outcomes[0].seq;
    assert!(moved > other, "what is sent ascends");
    // Neither an older one nor the same again.
    for seq in quiet {
        log.engine.release(Release { room: room("a"), seq, sender });
    }
    let after = log.append(position(&["a"], "v", 65)).await;
    assert_eq!(after[0].verdict, Verdict::Stored { newest: false }, "late after the release");
    assert_eq!(log.read_all("a", 0, after[0].seq).await.unwrap(), [live, other, moved]);
    let again = log.append(Append { quiet: true, ..position(&["a"], "v", 70) }).await;
    assert_eq!((again[0].seq, again[0].verdict), (moved, Verdict::Duplicate));
    log.close().await;
}

async fn everything_queued_is_committed_in_order_before_a_flush_ends(store: Store) {
    let mut log = store.open().await;
    for second in 0..3000 {
        log.engine.append(position(&["a", "b"], "v", second));
    }
    log.engine.flush().await;
    let mut seqs = Vec::new();
    while seqs.len() < 3000 {
        seqs.extend(log.committed().await.iter().map(|one| one.outcomes[1].seq));
    }
    assert_eq!(seqs, (1..=3000).map(|n| 2 * n).collect::<Vec<_>>());
    assert!(log.events.try_recv().is_err());
    log.close().await;
}

async fn a_cursor_of_nobody_is_refused(store: Store) {
    let log = store.open().await;
    let query = HistoryQuery {
        room: room("a"),
        vehicle: None,
        from: None,
        to: None,
        limit: 1,
        max_bytes: 1,
        cursor: Some("x".into()),
    };
    assert_eq!(log.engine.history(query).await, Err(HistoryError::BadCursor));
    log.close().await;
}

async fn pages_end_at_the_bytes_asked_for_and_go_on_where_they_ended(store: Store) {
    let mut log = store.open().await;
    for second in 0..20 {
        log.append(position(&["a"], "v", second)).await;
        log.append(position(&["b"], "v", second)).await;
    }
    let page = log.engine.read(room("a"), 0, 39, 1, true).await.unwrap();
    assert_eq!((page.events.len(), page.next), (1, Some(1)), "one at least");
    let page = log.engine.read(room("a"), 5, 9, 10_000, true).await.unwrap();
    assert_eq!(page.events.iter().map(|e| e.seq).collect::<Vec<_>>(), [7, 9]);
    assert_eq!(page.next, None);
    assert_eq!(log.read_all("a", 0, 39).await.unwrap().len(), 20);
    assert!(log.read_all("nobody's", 0, 39).await.unwrap().is_empty());
    log.close().await;
}

async fn a_reply_is_called_by_nobody_but_the_consumer(store: Store) {
    let mut log = store.open().await;
    let (sender, mut answered) = tokio::sync::oneshot::channel();
    let reply: Reply = Box::new(move |receipt: Receipt| drop(sender.send(receipt)));
    log.engine.append(Append { reply: Some(reply), ..position(&["a", "b"], "v", 1) });
    let mut committed = log.committed().await;
    log.engine.flush().await;
    assert!(answered.try_recv().is_err());
    let Committed { append, outcomes } = committed.remove(0);
    let rooms: Vec<_> = outcomes.iter().map(|outcome| outcome.room.clone()).collect();
    assert_eq!(rooms, append.rooms);
    (append.reply.unwrap())(Receipt { outcomes });
    assert!(!answered.await.unwrap().duplicate());
    log.close().await;
}
