//! Rooms on the embedded log, in one process: whatever the interleaving of appends, joins
//! with any `since`, leaves, slow reads, retention and restarts, each subscriber gets a
//! gapless, ascending sequence without duplicates, or an explicit reset.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use proptest::prelude::*;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::ids::{ClientId, ConnId, RoomId, VehicleId};
use crate::outgoing::{Batch, Queue};
use crate::protocol::client::{Mode, Since};
use crate::room_log::{self, Append, Embedded, Lock, ReadError, RoomLog, StoreFailure, Verdict};
use crate::telemetry::Metrics;
use crate::time::UnixMillis;

mod shared;

const CONNS: usize = 3;
const ROOMS: usize = 2;
const VEHICLES: usize = 4;

#[derive(Debug, Clone, Copy)]
enum From {
    Nothing,
    /// Where this client's view ended.
    Known,
    /// This many of the room's events before the newest.
    Back(usize),
    Future,
    OtherEpoch,
}

#[derive(Debug, Clone)]
enum Step {
    /// Into the rooms whose bit is set.
    Append {
        rooms: usize,
        vehicle: usize,
        late: bool,
        pad: usize,
    },
    Join {
        conn: usize,
        room: usize,
        from: From,
    },
    Leave {
        conn: usize,
        room: usize,
    },
    Read {
        conn: usize,
        budget: usize,
    },
    Squeeze {
        conn: usize,
    },
    /// Until all that was appended is committed and distributed.
    Settle,
    Disconnect {
        conn: usize,
    },
    Restart {
        clean: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let from = prop_oneof![
        1 => Just(From::Nothing),
        4 => Just(From::Known),
        2 => (0_usize..60).prop_map(From::Back),
        1 => Just(From::Future),
        1 => Just(From::OtherEpoch),
    ];
    let step = prop_oneof![
        20 => (1_usize..4, 0..VEHICLES, proptest::bool::weighted(0.1), 0_usize..600)
            .prop_map(|(rooms, vehicle, late, pad)| Step::Append { rooms, vehicle, late, pad }),
        5 => (0..CONNS, 0..ROOMS, from)
            .prop_map(|(conn, room, from)| Step::Join { conn, room, from }),
        1 => (0..CONNS, 0..ROOMS).prop_map(|(conn, room)| Step::Leave { conn, room }),
        6 => (0..CONNS, 100_usize..3000).prop_map(|(conn, budget)| Step::Read { conn, budget }),
        1 => (0..CONNS).prop_map(|conn| Step::Squeeze { conn }),
        3 => Just(Step::Settle),
        1 => (0..CONNS).prop_map(|conn| Step::Disconnect { conn }),
        1 => any::<bool>().prop_map(|clean| Step::Restart { clean }),
    ];
    proptest::collection::vec(step, 20..160)
}

/// What the log acknowledged: the truth.
#[derive(Debug, Clone, Copy)]
struct Stored {
    vehicle: usize,
    late: bool,
}

type Truth = Arc<Mutex<[BTreeMap<u64, Stored>; ROOMS]>>;

/// One subscription as its client sees it.
#[derive(Debug, Default)]
struct View {
    since: Option<Since>,
    /// Whether `room_joined` has come.
    joined: bool,
    answered: Arc<AtomicUsize>,
    /// Everything up to it was had: the next event is the first after it.
    at: u64,
    lagging: bool,
    /// After `caught_up`: what was superseded before it does not come.
    skipping: bool,
    skipped: Vec<u64>,
    snapshot: Vec<u64>,
    more: bool,
    snapshot_seq: u64,
}

struct Conn {
    id: u64,
    queue: Arc<Queue>,
    batch: Batch,
    views: [Option<View>; ROOMS],
    reading: Vec<JoinHandle<()>>,
}

struct Silent;

impl LogWatcher for Silent {
    fn failing(&self, failure: &StoreFailure) {
        panic!("{failure}");
    }

    fn recovered(&self) {}
}

struct World {
    path: PathBuf,
    _folder: tempfile::TempDir,
    settings: room_log::Settings,
    hub: Arc<Hub>,
    log: Option<Arc<Embedded>>,
    distributor: JoinHandle<()>,
    conns: Vec<Conn>,
    /// Per client and room: epoch and `seq` to resume from.
    known: [[Option<(String, u64)>; ROOMS]; CONNS],
    truth: Truth,
    appended: usize,
    replied: Arc<AtomicUsize>,
    next_conn: u64,
    clock: i64,
    /// Skipped by somebody who was told so.
    skipped: Vec<(usize, u64)>,
}

fn room(room: usize) -> RoomId {
    RoomId::parse(format!("room-{room}").as_str()).unwrap()
}

fn client(conn: usize) -> ClientId {
    ClientId::parse(format!("client-{conn}").as_str()).unwrap()
}

async fn open(
    path: &std::path::Path,
    settings: &room_log::Settings,
) -> (Arc<Hub>, Arc<Embedded>, JoinHandle<()>) {
    let lock = Lock::acquire(path, Duration::from_secs(30)).await.unwrap();
    let (sender, events) = mpsc::unbounded_channel();
    let log = Arc::new(Embedded::open(lock, settings, sender).unwrap());
    let metrics = Arc::new(Metrics::new(&Counter::default()));
    let hub_settings = Settings {
        rooms: 0,
        members_per_room: 0,
        presence_members: 10,
        max_frame_out: 2048,
        tail_bytes: 6000,
        replay_rest: 1000,
        newest_age: settings.newest_age,
    };
    let (hub, _announcer) = Hub::new(hub_settings, metrics.clone());
    hub.set_epoch(log.epoch());
    let distributor = Distributor::new(hub.clone(), metrics, events, Arc::new(Silent));
    (hub, log, tokio::spawn(distributor.run()))
}

impl Conn {
    fn new(id: u64) -> Self {
        Self {
            id,
            queue: Arc::new(Queue::new(ConnId(id))),
            batch: Batch::default(),
            views: Default::default(),
            reading: Vec::new(),
        }
    }
}

impl World {
    async fn new(retention_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("room.db");
        let settings =
            room_log::Settings { retention_bytes, min_free: 0, ..room_log::Settings::default() };
        let (hub, log, distributor) = open(&path, &settings).await;
        Self {
            path,
            _folder: folder,
            settings,
            hub,
            log: Some(log),
            distributor,
            conns: (0..CONNS as u64).map(|id| Conn::new(id + 1)).collect(),
            known: Default::default(),
            truth: Truth::default(),
            appended: 0,
            replied: Arc::default(),
            next_conn: 100,
            clock: UnixMillis::now().get() - 3_600_000,
            skipped: Vec::new(),
        }
    }

    fn log(&self) -> &Arc<Embedded> {
        self.log.as_ref().unwrap()
    }

    async fn step(&mut self, step: &Step) {
        match *step {
            Step::Append { rooms, vehicle, late, pad } => self.append(rooms, vehicle, late, pad),
            Step::Join { conn, room, from } => self.join(conn, room, from).await,
            Step::Leave { conn, room: at } => {
                self.answered(conn, at).await;
                self.read_lane(conn).await;
                let (id, view) = (self.conns[conn].id, self.conns[conn].views[at].take());
                if let Some(view) = view {
                    self.skipped.extend(view.skipped.iter().map(|seq| (at, *seq)));
                    let reason = LeaveReason::Left;
                    self.hub.leave(&room(at), ConnId(id), &client(conn), false, reason);
                }
            }
            Step::Read { conn, budget } => self.read(conn, budget).await,
            Step::Squeeze { conn } => self.conns[conn].queue.squeeze(),
            Step::Settle => self.settle().await,
            Step::Disconnect { conn } => self.disconnect(conn).await,
            Step::Restart { clean } => self.restart(clean).await,
        }
    }

    fn append(&mut self, rooms: usize, vehicle: usize, late: bool, pad: usize) {
        self.clock += 1;
        let now = UnixMillis::now();
        let rooms: Vec<usize> = (0..ROOMS).filter(|n| rooms & (1 << n) != 0).collect();
        let (truth, replied) = (self.truth.clone(), self.replied.clone());
        self.appended += 1;
        let clock = if late { self.clock - 3_600_000 } else { self.clock };
        let names: Vec<RoomId> = rooms.iter().map(|n| room(*n)).collect();
        self.log().append(Append {
            rooms: names,
            vehicle: VehicleId::parse(format!("v{vehicle}").as_str()).unwrap(),
            client: client(99),
            sender: ConnId(9_999),
            key: None,
            fix: UnixMillis::new(clock),
            latitude: 1.0,
            longitude: 2.0,
            body: format!(r#""latitude":1,"longitude":2,"pad":"{}""#, "x".repeat(pad)).into(),
            received_at: now,
            quiet: false,
            reply: Some(Box::new(move |receipt| {
                let mut truth = truth.lock();
                for (n, outcome) in rooms.iter().zip(&receipt.outcomes) {
                    let late = outcome.verdict == Verdict::Stored { newest: false };
                    assert_ne!(outcome.verdict, Verdict::Duplicate);
                    truth[*n].insert(outcome.seq, Stored { vehicle, late });
                }
                replied.fetch_add(1, Ordering::AcqRel);
            })),
        });
    }

    /// Waits until the join of `conn`, if there is one, is answered: what a session holds
    /// back behind it.
    async fn answered(&self, conn: usize, room: usize) {
        let Some(view) = &self.conns[conn].views[room] else { return };
        while view.answered.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
    }

    async fn join(&mut self, conn: usize, at: usize, from: From) {
        self.answered(conn, at).await;
        let since = {
            let truth = self.truth.lock();
            let epoch = self.log().epoch().to_string();
            let back = |back: usize| {
                let live = truth[at].iter().rev().filter(|(_, stored)| !stored.late);
                live.map(|(seq, _)| *seq).nth(back).unwrap_or(0)
            };
            match from {
                From::Nothing => None,
                From::Known => {
                    self.known[conn][at].clone().map(|(epoch, seq)| Since { epoch, seq })
                }
                From::Back(count) => Some(Since { epoch, seq: back(count) }),
                From::Future => Some(Since { epoch, seq: back(0) + 1_000_000 }),
                From::OtherEpoch => Some(Since { epoch: "another".to_owned(), seq: back(0) }),
            }
        };
        self.read_lane(conn).await;
        let (name, id) = (room(at), self.conns[conn].id);
        let old = self.conns[conn].views[at].take();
        let again = old.is_some();
        if let Some(old) = old {
            self.skipped.extend(old.skipped.iter().map(|seq| (at, *seq)));
            if let Some(active) = self.hub.get(&name) {
                active.feed().unsubscribe(ConnId(id));
            }
        }
        let view = View { since: since.clone(), ..View::default() };
        let answered = view.answered.clone();
        self.conns[conn].views[at] = Some(view);
        let join = Join {
            queue: self.conns[conn].queue.clone(),
            client: client(conn),
            hidden: false,
            mode: Mode::Subscribe,
            flat: false,
            again,
            since,
            id: None,
            done: Box::new(move || answered.store(1, Ordering::Release)),
        };
        if let JoinProgress::Waiting { load: true } = self.hub.join(&name, join).unwrap() {
            self.log().load_room(name);
        }
    }

    /// Reads the answers that wait, and no events.
    async fn read_lane(&mut self, conn: usize) {
        while self.conns[conn].queue.lane_bytes() > 0 {
            let Conn { queue, batch, .. } = &mut self.conns[conn];
            queue.take_lane(batch);
            self.messages(conn).await;
        }
    }

    async fn read(&mut self, conn: usize, budget: usize) {
        let mut pages = Vec::new();
        let taken = {
            let conn = &mut self.conns[conn];
            conn.queue.take(&mut conn.batch, budget, &mut pages)
        };
        self.messages(conn).await;
        for (feed, asked) in pages {
            let replayer = Replayer {
                queue: self.conns[conn].queue.clone(),
                feed,
                mode: Mode::Subscribe,
                flat: false,
            };
            let task = tokio::spawn(replayer.read(self.hub.clone(), self.log().clone(), asked));
            self.conns[conn].reading.push(task);
        }
        assert!(taken.is_ok(), "presence is not announced here: nothing can fall behind");
        tokio::task::yield_now().await;
    }

    async fn messages(&mut self, conn: usize) {
        let Conn { queue, batch, .. } = &mut self.conns[conn];
        let frames = batch.frames();
        batch.advance(batch.bytes());
        queue.note_in_flight(batch);
        for frame in frames {
            let header = if frame[1] < 126 { 2 } else { 4 };
            let message: Value = serde_json::from_slice(&frame[header..]).unwrap();
            self.message(conn, &message).await;
        }
    }

    async fn message(&mut self, conn: usize, message: &Value) {
        let payload = &message["payload"];
        let at = (0..ROOMS).find(|n| payload["roomId"] == room(*n).as_str()).unwrap();
        let seq = payload["seq"].as_u64();
        let view = self.conns[conn].views[at].as_mut().expect("nothing comes after a leave");
        match message["type"].as_str().unwrap() {
            "room_joined" => {
                let (seq, recovered) = (seq.unwrap(), payload["recovered"] == true);
                let since = if view.joined { None } else { view.since.clone() };
                view.joined = true;
                (view.lagging, view.skipping) = (false, false);
                view.snapshot_seq = seq;
                view.snapshot.clear();
                let epoch = payload["epoch"].as_str().unwrap().to_owned();
                if recovered {
                    let since = since.expect("recovered without a since");
                    assert_eq!(since.epoch, epoch);
                    view.at = since.seq;
                } else {
                    view.at = seq;
                    if let Some(since) = since {
                        self.check_reset(at, &since, &epoch, seq).await;
                    }
                }
                let at_seq = self.conns[conn].views[at].as_ref().unwrap().at;
                self.known[conn][at] = Some((epoch, at_seq));
                self.snapshot(conn, at, payload);
            }
            "snapshot" => self.snapshot(conn, at, payload),
            "location_update" => {
                let seq = seq.unwrap();
                assert!(view.joined && seq > view.at, "{seq} after {}", view.at);
                assert!(!view.more, "an event before the end of the snapshot");
                let truth = self.truth.lock();
                assert!(!truth[at][&seq].late, "{seq} is late");
                let between = truth[at].range(view.at + 1..seq).filter(|(_, stored)| !stored.late);
                let between: Vec<u64> = between.map(|(seq, _)| *seq).collect();
                if view.lagging || view.skipping {
                    view.skipped.extend(between);
                } else {
                    assert!(between.is_empty(), "a gap before {seq}: {between:?}");
                }
                view.skipping = false;
                view.at = seq;
                self.known[conn][at].as_mut().unwrap().1 = seq;
            }
            "lagging" => {
                assert!(!view.lagging);
                assert_eq!(payload["fromSeq"], view.at);
                view.lagging = true;
            }
            "caught_up" => {
                assert!(view.lagging);
                assert_eq!(payload["seq"], view.at);
                (view.lagging, view.skipping) = (false, true);
            }
            other => panic!("{other}"),
        }
    }

    /// A reset is honest: the log could not have replayed.
    async fn check_reset(&self, at: usize, since: &Since, epoch: &str, head: u64) {
        if since.epoch != epoch || since.seq > head {
            return;
        }
        let read = self.log().read(room(at), since.seq, head, 1000, true).await;
        assert!(matches!(read, Err(ReadError::Trimmed { .. })), "{since:?} of {head}: {read:?}");
    }

    fn snapshot(&mut self, conn: usize, at: usize, payload: &Value) {
        let view = self.conns[conn].views[at].as_mut().unwrap();
        let positions = payload["positions"].as_array().into_iter().flatten();
        view.snapshot.extend(positions.map(|position| position["seq"].as_u64().unwrap()));
        view.more = payload["more"] == true;
        if view.more {
            return;
        }
        // The newest per vehicle at the join, less those that moved before their page was
        // built: these follow as events.
        let truth = self.truth.lock();
        let mut newest = BTreeMap::new();
        let mut moved = [false; VEHICLES];
        for (seq, stored) in truth[at].iter().filter(|(_, stored)| !stored.late) {
            if *seq <= view.snapshot_seq {
                newest.insert(stored.vehicle, *seq);
            } else {
                moved[stored.vehicle] = true;
            }
        }
        let told = |seq: &u64| truth[at][seq].vehicle;
        assert!(view.snapshot.windows(2).all(|two| two[0] < two[1]), "{:?}", view.snapshot);
        for seq in &view.snapshot {
            assert_eq!(newest.get(&told(seq)), Some(seq), "snapshot at {}", view.snapshot_seq);
        }
        for (vehicle, seq) in newest {
            let there = view.snapshot.contains(&seq);
            assert!(there || moved[vehicle], "vehicle {vehicle} is not in the snapshot");
        }
    }

    async fn settle(&self) {
        self.log().flush().await;
        while self.replied.load(Ordering::Acquire) < self.appended {
            tokio::task::yield_now().await;
        }
    }

    async fn disconnect(&mut self, conn: usize) {
        let old = std::mem::replace(&mut self.conns[conn], Conn::new(self.next_conn));
        self.next_conn += 1;
        old.queue.close();
        for (at, view) in old.views.into_iter().enumerate() {
            let Some(view) = view else { continue };
            self.skipped.extend(view.skipped.iter().map(|seq| (at, *seq)));
            if self.hub.cancel(&room(at), ConnId(old.id)).is_none() {
                let reason = LeaveReason::Disconnected;
                self.hub.leave(&room(at), ConnId(old.id), &client(conn), false, reason);
            }
        }
        for task in old.reading {
            task.await.unwrap();
        }
    }

    async fn restart(&mut self, clean: bool) {
        for conn in 0..CONNS {
            self.disconnect(conn).await;
        }
        assert_eq!(self.hub.counts().1, 0, "members are left behind");
        let log = self.log.take().unwrap();
        if clean {
            log.close().await;
        }
        drop(log);
        let (hub, log, distributor) = open(&self.path, &self.settings).await;
        self.hub = hub;
        self.log = Some(log);
        // All that was committed has been told before the file was free.
        std::mem::replace(&mut self.distributor, distributor).await.unwrap();
        // What a kill took was never acknowledged.
        self.appended = self.replied.load(Ordering::Acquire);
    }

    /// Everybody reads to the end: nothing is missing.
    async fn finish(&mut self) {
        self.settle().await;
        for conn in 0..CONNS {
            for room in 0..ROOMS {
                self.answered(conn, room).await;
            }
            loop {
                self.read(conn, usize::MAX).await;
                let reading = std::mem::take(&mut self.conns[conn].reading);
                if reading.is_empty() {
                    break;
                }
                for task in reading {
                    task.await.unwrap();
                }
            }
            assert!(self.conns[conn].queue.is_empty());
            for (at, view) in self.conns[conn].views.iter().enumerate() {
                let Some(view) = view else { continue };
                assert!(view.joined && !view.lagging && !view.more);
                let truth = self.truth.lock();
                let rest = truth[at].range(view.at + 1..).filter(|(_, stored)| !stored.late);
                let rest: Vec<u64> = rest.map(|(seq, _)| *seq).collect();
                self.skipped.extend(view.skipped.iter().map(|seq| (at, *seq)));
                assert!(rest.is_empty(), "{rest:?} never came");
            }
        }
        let truth = self.truth.lock();
        for (at, seq) in &self.skipped {
            let vehicle = truth[*at][seq].vehicle;
            let newer = truth[*at].range(seq + 1..);
            let mut newer = newer.filter(|(_, stored)| !stored.late && stored.vehicle == vehicle);
            assert!(newer.next().is_some(), "{seq} was the newest of its vehicle and is skipped");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 30,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn each_subscriber_gets_a_gapless_sequence_or_a_reset(
        steps in steps(),
        retention in prop_oneof![Just(u64::MAX), Just(80_000_u64), Just(60_000_u64)],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new(retention).await;
            for step in &steps {
                world.step(step).await;
            }
            world.finish().await;
        });
    }
}
