//! Rooms on a log that other instances write to as well: a client that comes from a faster
//! one, an epoch that changes under a subscription, rooms that nobody is in.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::*;
use crate::room_log::{
    Committed, ELSEWHERE, HistoryError, HistoryPage, HistoryQuery, LogEvent, Page, Release,
    RoomOutcome, StoredPosition,
};

/// What it was asked, in order.
#[derive(Default)]
struct Asked(Mutex<Vec<String>>);

impl Asked {
    fn note(&self, call: &str, room: &RoomId) {
        self.0.lock().push(format!("{call} {room}"));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl RoomLog for Asked {
    fn append(&self, _: Append) {}
    fn release(&self, _: Release) {}
    fn poke(&self) {}

    fn load_room(&self, room: RoomId) {
        self.note("load", &room);
    }

    fn unload_room(&self, room: RoomId) {
        self.note("unload", &room);
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn confirm_head(&self, room: RoomId) {
        self.note("confirm", &room);
    }

    fn epoch(&self) -> Arc<str> {
        "one".into()
    }

    fn read(
        &self,
        _: RoomId,
        _: u64,
        _: u64,
        _: usize,
        _: bool,
    ) -> BoxFuture<'static, Result<Page, ReadError>> {
        std::future::pending().boxed()
    }

    fn history(&self, _: HistoryQuery) -> BoxFuture<'static, Result<HistoryPage, HistoryError>> {
        std::future::pending().boxed()
    }

    fn flush(&self) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
}

struct Shared {
    hub: Arc<Hub>,
    log: Arc<Asked>,
    events: Vec<LogEvent>,
}

fn stored(seq: u64) -> StoredPosition {
    StoredPosition {
        seq,
        vehicle: VehicleId::parse("v").unwrap(),
        client: client(9),
        fix: UnixMillis::now(),
        received_at: UnixMillis::now(),
        body: r#""latitude":1,"longitude":2"#.into(),
        late: false,
    }
}

impl Shared {
    fn new() -> Self {
        let settings = Settings {
            rooms: 0,
            members_per_room: 0,
            presence_members: 10,
            max_frame_out: 65_536,
            tail_bytes: 65_536,
            replay_rest: 65_536,
            newest_age: Duration::from_secs(3600),
        };
        let metrics = Arc::new(Metrics::new(&Counter::default()));
        let (hub, _announcer) = Hub::new(settings, metrics);
        let log = Arc::new(Asked::default());
        hub.set_log(log.clone());
        Self { hub, log, events: Vec::new() }
    }

    /// Joins as `conn`, resuming behind `since`.
    fn join(&self, conn: u64, since: Option<u64>) -> Arc<Queue> {
        let queue = Arc::new(Queue::new(ConnId(conn)));
        let join = Join {
            queue: queue.clone(),
            client: client(1),
            hidden: true,
            mode: Mode::Subscribe,
            flat: false,
            again: false,
            since: since.map(|seq| Since { epoch: "one".into(), seq }),
            id: Some(serde_json::from_str("\"j\"").unwrap()),
            done: Box::new(|| {}),
        };
        if let JoinProgress::Waiting { load: true } = self.hub.join(&room(0), join).unwrap() {
            self.log.load_room(room(0));
        }
        queue
    }

    fn loaded(&mut self, epoch: &str, head: u64) {
        let newest = vec![stored(head)];
        let epoch = epoch.into();
        self.events.push(LogEvent::RoomLoaded {
            room: room(0),
            epoch,
            head,
            trimmed_to: 0,
            newest,
        });
    }

    fn arrived(&mut self, seq: u64) {
        let StoredPosition { vehicle, client, fix, received_at, body, .. } = stored(seq);
        let append = Append {
            rooms: vec![room(0)],
            vehicle,
            client,
            sender: ELSEWHERE,
            key: None,
            fix: Some(fix),
            latitude: 1.0,
            longitude: 2.0,
            body,
            received_at,
            quiet: false,
            reply: None,
        };
        let verdict = Verdict::Stored { newest: true };
        let outcomes = vec![RoomOutcome { room: room(0), seq, verdict }];
        self.events.push(LogEvent::Arrived(vec![Committed { append, outcomes }]));
    }

    fn confirmed(&mut self, head: u64) {
        self.events.push(LogEvent::HeadConfirmed { room: room(0), head });
    }

    /// Has everything so far distributed.
    async fn distribute(&mut self) {
        let (sender, events) = mpsc::unbounded_channel();
        for event in self.events.drain(..) {
            sender.send(event).unwrap();
        }
        drop(sender);
        let metrics = Arc::new(Metrics::new(&Counter::default()));
        Distributor::new(self.hub.clone(), metrics, events, Arc::new(Silent)).run().await;
    }
}

/// What a connection gets now: types, with epoch and `seq` or what was asked for.
fn read(queue: &Queue) -> Vec<String> {
    let mut batch = Batch::default();
    let mut pages = Vec::new();
    queue.take_lane(&mut batch);
    queue.take(&mut batch, 1 << 20, &mut pages).unwrap();
    assert!(pages.is_empty());
    let frames = batch.frames();
    let messages = frames.iter().map(|frame| {
        let header = if frame[1] < 126 { 2 } else { 4 };
        let message: Value = serde_json::from_slice(&frame[header..]).unwrap();
        let payload = &message["payload"];
        match message["type"].as_str().unwrap() {
            "room_joined" => {
                let (epoch, seq) = (payload["epoch"].as_str().unwrap(), &payload["seq"]);
                let positions = payload["positions"].as_array().unwrap().len();
                let id = message.get("id").map_or("no id", |_| "id");
                format!("joined {epoch} {seq} {} {positions} {id}", payload["recovered"])
            }
            other => format!("{other} {}", payload["seq"]),
        }
    });
    messages.collect()
}

#[tokio::test]
async fn a_client_from_a_faster_instance_waits_until_the_log_has_said_how_far_it_is() {
    let mut world = Shared::new();
    let first = world.join(1, None);
    world.loaded("one", 10);
    world.distribute().await;
    assert_eq!(read(&first), ["joined one 10 false 1 id"]);
    assert_eq!(world.log.take(), ["load room-0"]);
    // It has had 12 elsewhere; here nothing above 10 has been heard.
    let faster = world.join(2, Some(12));
    assert_eq!(world.log.take(), ["confirm room-0"]);
    assert!(read(&faster).is_empty(), "not answered yet");
    for seq in [11, 12, 13] {
        world.arrived(seq);
    }
    world.confirmed(12);
    world.arrived(14);
    world.distribute().await;
    assert_eq!(
        read(&faster),
        ["joined one 13 true 1 id", "location_update 13", "location_update 14"]
    );
    // One that claims what the log does not have.
    let liar = world.join(3, Some(99));
    world.confirmed(14);
    world.distribute().await;
    assert_eq!(read(&liar), ["joined one 14 false 1 id"]);
    // Behind the head nobody has to wait.
    let behind = world.join(4, Some(13));
    assert_eq!(read(&behind), ["joined one 14 true 1 id", "location_update 14"]);
    assert_eq!(world.log.take(), ["confirm room-0"]);
}

#[tokio::test]
async fn a_join_that_waits_for_the_head_can_be_taken_back_or_find_the_room_gone() {
    let mut world = Shared::new();
    let first = world.join(1, None);
    world.loaded("one", 10);
    world.distribute().await;
    read(&first);
    world.join(2, Some(12));
    assert!(world.hub.cancel(&room(0), ConnId(2)).is_some());
    assert!(world.hub.cancel(&room(0), ConnId(2)).is_none());
    let third = world.join(3, Some(12));
    world.log.take();
    world.hub.leave(&room(0), ConnId(1), &client(1), true, LeaveReason::Left);
    assert_eq!(world.log.take(), ["unload room-0"]);
    world.confirmed(12);
    world.distribute().await;
    assert_eq!(world.log.take(), ["load room-0"], "it is loaded again");
    world.loaded("one", 12);
    world.distribute().await;
    assert_eq!(read(&third), ["joined one 12 true 1 id"]);
}

#[tokio::test]
async fn another_epoch_is_told_before_anything_of_it() {
    let mut world = Shared::new();
    let (one, two) = (world.join(1, None), world.join(2, None));
    world.loaded("one", 10);
    world.distribute().await;
    read(&one);
    world.arrived(11);
    world.loaded("two", 3);
    world.arrived(4);
    world.distribute().await;
    // What was not taken yet of the old epoch is superseded by the snapshot.
    assert_eq!(read(&one), ["joined two 3 false 1 no id", "location_update 4"]);
    assert_eq!(
        read(&two),
        ["joined one 10 false 1 id", "joined two 3 false 1 no id", "location_update 4"]
    );
    assert_eq!((&*world.hub.epoch(), world.hub.head()), ("two", 4));
    // A resume point of the old epoch is unknown, however low it is.
    let late = world.join(3, Some(3));
    assert_eq!(read(&late), ["joined two 4 false 1 id"]);
    assert_eq!(world.log.take(), ["load room-0"]);
    world.arrived(5);
    world.distribute().await;
    for queue in [&one, &two, &late] {
        assert_eq!(read(queue), ["location_update 5"]);
    }
}
