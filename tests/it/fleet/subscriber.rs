//! A dispatcher that watches rooms, resumes each with the last `seq` it saw, and keeps all
//! that it saw, in order.

use std::net::SocketAddr;
use std::time::Duration;

use rustc_hash::FxHashSet;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Link;
use super::link::{End, Incoming};

/// The number of the position that ends a test: whoever has seen it has seen everything.
pub const SENTINEL: u64 = 1 << 52;

/// What a subscriber saw of one room.
#[derive(Default)]
pub struct View {
    /// The room.
    pub room: String,
    /// The `seq` after which the view begins.
    pub start: u64,
    /// `seq` and number of every event, in the order of arrival.
    pub seen: Vec<(u64, u64)>,
    /// Ranges (after, up to) in which only the newest position per vehicle was sent.
    pub lags: Vec<(u64, u64)>,
    /// The resume point.
    since: Option<(String, u64)>,
    lagging: Option<u64>,
    finished: bool,
}

/// A dispatcher.
pub struct Subscriber {
    /// Its name.
    pub name: String,
    /// What it saw of each of its rooms.
    pub views: Vec<View>,
    /// Every epoch that it was told.
    pub epochs: FxHashSet<String>,
    /// Resumes that were answered with all that was missed.
    pub resumes: u64,
    /// Resumes that were not: the view began anew.
    pub resets: u64,
    /// The longest time between two events.
    pub longest_gap: Duration,
    last_event: Option<Instant>,
}

impl Subscriber {
    pub fn new(name: String, rooms: &[&str]) -> Self {
        let view = |room: &&str| View { room: (*room).to_owned(), ..View::default() };
        Self {
            name,
            views: rooms.iter().map(view).collect(),
            epochs: FxHashSet::default(),
            resumes: 0,
            resets: 0,
            longest_gap: Duration::ZERO,
            last_event: None,
        }
    }

    /// Watches on one connection until it ends or the sentinel was seen in every room.
    pub async fn session(&mut self, address: SocketAddr) -> End {
        let Some(mut link) = Link::open(address, &self.name).await else {
            return End::Lost(None);
        };
        let joins = self.views.iter().enumerate().map(|(id, view)| view.join(id)).collect();
        link.send_all(joins).await;
        let mut come_back = None;
        while let Some(Incoming { kind, id, payload }) = link.next().await {
            match kind.as_str() {
                "location_update" => {
                    if self.update(&payload.room_id, payload.seq, payload.n.unwrap()) {
                        link.close().await;
                        return End::Finished;
                    }
                }
                "room_joined" => {
                    assert!(id.is_some(), "the epoch changed under a live server: {payload:?}");
                    self.joined(&payload.room_id, &payload.epoch, payload.seq, payload.recovered);
                }
                "lagging" => self.lagging(&payload.room_id, payload.from_seq),
                "caught_up" => self.caught_up(&payload.room_id, payload.seq),
                "server_shutting_down" => come_back = Some(payload.come_back()),
                "error" if payload.code == "SERVER_DRAINING" => {}
                "snapshot" | "member_joined" | "member_left" | "members_changed" => {}
                other => panic!("unexpected {other}: {payload:?}"),
            }
        }
        for view in &mut self.views {
            view.link_lost();
        }
        End::Lost(come_back)
    }

    fn view(&mut self, room: &str) -> &mut View {
        self.views.iter_mut().find(|view| view.room == room).unwrap()
    }

    /// An event came; `true` once the sentinel was seen in every room.
    pub fn update(&mut self, room: &str, seq: u64, n: u64) -> bool {
        self.view(room).update(seq, n);
        let now = Instant::now();
        let before = self.last_event.replace(now);
        let gap = before.map_or(Duration::ZERO, |before| now - before);
        self.longest_gap = self.longest_gap.max(gap);
        n == SENTINEL && self.views.iter().all(|view| view.finished)
    }

    /// A room was joined, for the first time or again.
    pub fn joined(&mut self, room: &str, epoch: &str, seq: u64, recovered: bool) {
        self.epochs.insert(epoch.to_owned());
        let view = self.view(room);
        if view.since.is_some() && recovered {
            // The head in this answer is no resume point: what was missed follows.
            view.link_lost();
            self.resumes += 1;
            return;
        }
        let reset = view.since.replace((epoch.to_owned(), seq)).is_some();
        view.start = seq;
        view.seen.clear();
        view.lags.clear();
        view.lagging = None;
        self.resets += u64::from(reset);
    }

    /// From here on only the newest position per vehicle comes.
    pub fn lagging(&mut self, room: &str, from_seq: u64) {
        self.view(room).lagging = Some(from_seq);
    }

    /// From here on everything comes again.
    pub fn caught_up(&mut self, room: &str, seq: u64) {
        self.view(room).caught_up(seq);
    }
}

impl View {
    fn join(&self, id: usize) -> Value {
        let since = self.since.as_ref().map(|(epoch, seq)| json!({ "epoch": epoch, "seq": seq }));
        let payload = json!({ "roomId": self.room, "mode": "subscribe", "since": since });
        json!({ "type": "join_room", "id": id, "payload": payload })
    }

    fn update(&mut self, seq: u64, n: u64) {
        let room = &self.room;
        let (_, last) = self.since.as_mut().expect("an event before room_joined");
        assert!(seq > *last, "{room}: {seq} after {last}: an event came twice or out of order");
        *last = seq;
        self.seen.push((seq, n));
        self.finished |= n == SENTINEL;
    }

    fn caught_up(&mut self, at: u64) {
        let from = self.lagging.take().expect("caught_up without lagging");
        self.lags.push((from, at));
        let (_, seq) = self.since.as_mut().unwrap();
        *seq = at.max(*seq);
    }

    /// In the middle of a lag: what was sent is a valid resume point all the same.
    fn link_lost(&mut self) {
        if let Some(from) = self.lagging.take() {
            let up_to = self.since.as_ref().map_or(from, |(_, seq)| *seq);
            self.lags.push((from, up_to));
        }
    }
}
