//! The engine as a whole: through kills and takeovers, on a failing store, uploads,
//! retention.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::*;
use crate::ids::{ClientId, ConnId, VehicleId};
use crate::room_log::{Committed, Receipt, RoomOutcome, StoredPosition, Verdict};
use crate::time::UnixMillis;

struct Log {
    engine: Embedded,
    events: mpsc::UnboundedReceiver<LogEvent>,
}

impl Log {
    async fn open(path: &Path, settings: &Settings) -> Self {
        let lock = Lock::acquire(path, Duration::from_secs(30)).await.unwrap();
        let (sender, events) = mpsc::unbounded_channel();
        Self { engine: Embedded::open(lock, settings, sender).unwrap(), events }
    }

    async fn next(&mut self) -> LogEvent {
        self.events.recv().await.unwrap()
    }

    async fn committed(&mut self) -> Vec<Committed> {
        match self.next().await {
            LogEvent::Committed(committed) => committed,
            other => panic!("{other:?}"),
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

    /// Drops the engine as a kill does and waits until its file is free.
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
    let now = UnixMillis::now();
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
        received_at: now,
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

#[tokio::test]
async fn a_full_store_loses_doubles_and_answers_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::open(&folder.path().join("room.db"), &Settings::default()).await;
    let before = stored(&log.append(position(&["a"], "v", 0)).await);
    log.engine.queue.max_pages.store(1, Ordering::Relaxed);
    let mut big = position(&["a", "b"], "v", 1);
    big.body = "x".repeat(100_000).into();
    let (sender, mut answered) = oneshot::channel();
    big.reply = Some(Box::new(move |receipt: Receipt| {
        let _ = sender.send(receipt);
    }));
    log.engine.append(big);
    let LogEvent::Failing(failure) = log.next().await else { panic!("not failing") };
    assert!(failure.to_string().contains("room.db"), "{failure}");
    assert!(failure.to_string().contains("free space"), "{failure}");
    // More comes while it fails, a repetition among it; nothing is answered.
    log.engine.append(position(&["a", "b"], "v", 1));
    log.engine.append(position(&["a"], "w", 2));
    log.engine.load_room(room("a"));
    log.engine.poke();
    assert!(answered.try_recv().is_err());
    assert_eq!(log.read_all("a", 0, u64::MAX).await.unwrap(), [before], "nothing in part");
    log.engine.queue.max_pages.store(0, Ordering::Relaxed);
    log.engine.poke();
    assert!(matches!(log.next().await, LogEvent::Recovered));
    let mut committed = log.committed().await;
    while committed.len() < 3 {
        committed.extend(log.committed().await);
    }
    let seqs: Vec<_> = committed.iter().map(|one| one.outcomes[0].seq).collect();
    assert_eq!(seqs, [before + 1, before + 1, before + 3]);
    assert!(committed[1].outcomes.iter().all(|outcome| outcome.verdict == Verdict::Duplicate));
    let first = committed.remove(0);
    let receipt = Receipt { outcomes: first.outcomes };
    assert!(!receipt.duplicate());
    (first.append.reply.unwrap())(receipt.clone());
    assert_eq!(answered.await.unwrap(), receipt);
    assert!(matches!(log.next().await, LogEvent::RoomLoaded { head, .. } if head == before + 3));
    log.close().await;
}

#[tokio::test]
async fn a_kill_while_the_store_fails_keeps_what_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("room.db");
    let mut log = Log::open(&path, &Settings::default()).await;
    let before = stored(&log.append(position(&["a"], "v", 0)).await);
    log.engine.queue.max_pages.store(1, Ordering::Relaxed);
    let mut big = position(&["a"], "v", 1);
    big.body = "x".repeat(100_000).into();
    log.engine.append(big);
    assert!(matches!(log.next().await, LogEvent::Failing(_)));
    log.kill().await;
    let mut log = Log::open(&path, &Settings::default()).await;
    assert_eq!(log.read_all("a", 0, u64::MAX).await.unwrap(), [before]);
    let next = log.append(position(&["a"], "v", 1)).await;
    assert_eq!(next[0].verdict, Verdict::Stored { newest: true });
    log.close().await;
}

#[tokio::test]
async fn a_successor_gets_the_file_only_after_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("room.db");
    let mut first = Log::open(&path, &Settings::default()).await;
    assert!(matches!(Lock::try_acquire(&path), Err(LockError::Held { .. })));
    let successor = tokio::spawn({
        let path = path.clone();
        async move { Log::open(&path, &Settings::default()).await }
    });
    for second in 0..100 {
        first.append(position(&["a"], "v", second)).await;
    }
    assert!(!successor.is_finished());
    first.close().await;
    let mut second = successor.await.unwrap();
    assert_eq!(second.load("a").await.0, 100);
    second.close().await;
}

#[tokio::test]
async fn an_upload_is_recognised_beyond_the_window_by_the_log_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("room.db");
    let settings = Settings { dedup_window: Duration::ZERO, ..Settings::default() };
    let mut log = Log::open(&path, &settings).await;
    let keyed = Append { key: Some("k".into()), ..position(&["a"], "v", 1) };
    let first = stored(&log.append(keyed).await);
    let second = stored(&log.append(position(&["a"], "v", 2)).await);
    log.append(position(&["a"], "v", 3)).await;
    let again = |key: Option<&str>, second| Append {
        quiet: true,
        key: key.map(Into::into),
        ..position(&["a"], "v", second)
    };
    assert_eq!(log.append(again(Some("k"), 1)).await[0].seq, first);
    assert_eq!(log.append(again(None, 2)).await[0].seq, second);
    stored(&log.append(again(Some("other"), 1)).await);
    let mut elsewhere = again(None, 2);
    elsewhere.latitude = 51.6;
    stored(&log.append(elsewhere).await);
    // Live ones are recognised within the window only, or as the newest.
    stored(&log.append(position(&["a"], "v", 2)).await);
    assert_eq!(log.append(position(&["a"], "v", 3)).await[0].verdict, Verdict::Duplicate);
    log.close().await;
}

#[tokio::test]
async fn retention_by_age_takes_all_names_with_it_and_never_a_seq() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("room.db");
    let settings = Settings::default();
    let mut log = Log::open(&path, &settings).await;
    let mut last = 0;
    for second in 0..700 {
        let mut old = position(&["old"], &format!("v{}", second % 7), second);
        old.received_at = old.received_at.plus(-8 * 86_400_000);
        last = stored(&log.append(old).await);
    }
    let fresh = stored(&log.append(position(&["new"], "w", 1)).await);
    // The writer removes in steps of its own; every load gives it a turn.
    while log.load("old").await.1 < last {}
    let (_, trimmed_to, newest) = log.load("old").await;
    assert_eq!((trimmed_to, newest.len()), (last, 0));
    assert_eq!(
        log.read_all("old", last - 1, fresh).await,
        Err(ReadError::Trimmed { trimmed_to: last })
    );
    let after = stored(&log.append(position(&["new"], "w", 2)).await);
    assert_eq!(after, fresh + 1);
    log.close().await;
    let connection = rusqlite::Connection::open(&path).unwrap();
    let count = |table: &str| -> i64 {
        connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |r| r.get(0)).unwrap()
    };
    let counts = ["events", "rooms", "vehicles", "tracks"].map(count);
    assert_eq!(counts, [2, 1, 1, 1], "nothing is left of the old room");
    assert_eq!(count("positions"), 2);
}

#[tokio::test]
async fn a_memory_log_reads_what_it_wrote() {
    let mut log = Log::open(Path::new(MEMORY), &Settings::default()).await;
    let seq = stored(&log.append(position(&["a"], "v", 1)).await);
    assert_eq!(log.read_all("a", 0, seq).await.unwrap(), [seq]);
    log.engine.flush().await;
    log.close().await;
}

#[tokio::test]
async fn retention_by_size_spares_the_snapshot_and_tells_who_missed_something() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("room.db");
    let settings = Settings { retention_bytes: 1 << 20, min_free: 0, ..Settings::default() };
    let mut log = Log::open(&path, &settings).await;
    let big = |vehicle, second| Append {
        body: "x".repeat(4000).into(),
        ..position(&["a"], vehicle, second)
    };
    let silent = stored(&log.append(big("silent", 0)).await);
    let mut last = 0;
    for second in 0..600 {
        last = stored(&log.append(big("busy", second)).await);
    }
    let trimmed_to = loop {
        let (_, trimmed_to, newest) = log.load("a").await;
        assert_eq!(newest.iter().map(|n| n.seq).collect::<Vec<_>>(), [silent, last]);
        if trimmed_to > 300 {
            break trimmed_to;
        }
    };
    assert!(trimmed_to < last, "not more than needed");
    let missed = log.read_all("a", trimmed_to - 1, last).await;
    assert!(matches!(missed, Err(ReadError::Trimmed { .. })));
    log.kill().await;
    let mut log = Log::open(&path, &settings).await;
    let (_, trimmed_to, newest) = log.load("a").await;
    assert_eq!(newest.iter().map(|n| n.seq).collect::<Vec<_>>(), [silent, last]);
    let kept: Vec<_> = (trimmed_to + 1..=last).collect();
    assert_eq!(log.read_all("a", trimmed_to, last).await.unwrap(), kept);
    // Still judged by what retention passed; superseded, it goes.
    assert_eq!(log.append(big("silent", 0)).await[0].verdict, Verdict::Duplicate);
    stored(&log.append(big("silent", 1)).await);
    log.close().await;
    let connection = rusqlite::Connection::open(&path).unwrap();
    let count: i64 = connection
        .query_row("SELECT count(*) FROM events WHERE seq = ?1", [silent], |row| row.get(0))
        .unwrap();
    assert_eq!(count, 0);
}

#[tokio::test]
async fn a_late_or_old_fix_is_no_part_of_the_snapshot() {
    let mut log = Log::open(Path::new(MEMORY), &Settings::default()).await;
    let day_before = -86_400 - 60;
    let old = log.append(position(&["a"], "old", day_before)).await;
    assert_eq!(old[0].verdict, Verdict::Stored { newest: true }, "age alone is no reason");
    let newest = stored(&log.append(position(&["a"], "v", 9)).await);
    let late = log.append(position(&["a"], "v", 8)).await;
    assert_eq!(late[0].verdict, Verdict::Stored { newest: false });
    let receipt = Receipt { outcomes: late };
    assert_eq!(receipt.late().collect::<Vec<_>>(), [&room("a")]);
    let (head, _, snapshot) = log.load("a").await;
    assert_eq!(snapshot.iter().map(|n| n.seq).collect::<Vec<_>>(), [newest]);
    assert_eq!(log.read_all("a", 0, head).await.unwrap(), [old[0].seq, newest]);
    let all = log.engine.read(room("a"), 0, head, usize::MAX, false).await.unwrap();
    assert_eq!(all.events.iter().map(|e| e.late).collect::<Vec<_>>(), [false, false, true]);
    log.close().await;
}

const CHILD: &str = "MILEPOST_TEST_LOG";

/// The child process of `kill_9_loses_nothing_that_was_acknowledged`, which runs this binary
/// again; by itself it has nothing to do.
#[test]
fn child_appends_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
        let mut log = Log::open(Path::new(&path), &Settings::default()).await;
        println!("\nepoch {}", log.engine.epoch());
        for second in 0.. {
            log.engine.append(position(&["a", "b"], "v", second));
            for one in log.committed().await {
                println!("ack {} {}", one.append.fix_time().get(), one.outcomes[0].seq);
            }
        }
    });
}

#[tokio::test]
async fn kill_9_loses_nothing_that_was_acknowledged() {
    use std::io::BufRead;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("room.db");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--nocapture", "--exact"])
        .arg("room_log::embedded::tests::child_appends_until_it_is_killed")
        .env(CHILD, &path)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut epoch, mut acked) = (String::new(), Vec::new());
    while let Some(Ok(line)) = lines.next() {
        if let Some(text) = line.strip_prefix("epoch ") {
            text.clone_into(&mut epoch);
        }
        if let Some((fix, seq)) = line.strip_prefix("ack ").and_then(|text| text.split_once(' ')) {
            acked.push((fix.parse::<i64>().unwrap(), seq.parse::<u64>().unwrap()));
        }
        if acked.len() == 200 {
            let held = Lock::try_acquire(&path).unwrap_err();
            let LockError::Held { pid, .. } = held else { panic!("{held}") };
            assert_eq!(pid, Some(child.id()));
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(acked.len() >= 200, "the child worked");
    let mut log = Log::open(&path, &Settings::default()).await;
    assert_eq!(&*log.engine.epoch(), epoch);
    let head = log.load("a").await.0;
    let found = log.read_all("a", 0, head).await.unwrap();
    for (fix, seq) in &acked {
        assert!(found.contains(seq), "{seq} of {fix}");
    }
    assert_eq!(log.read_all("b", 0, head).await.unwrap().len(), found.len(), "in both or none");
    let (fix, seq) = acked[100];
    let again = Append { fix: UnixMillis::new(fix), ..position(&["a", "b"], "v", 0) };
    let again = log.append(again).await;
    assert_eq!((again[0].seq, again[0].verdict), (seq, Verdict::Duplicate));
    log.close().await;
}
