//! The model and the steps that are played to it and to the real thing alike.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use serde_json::Value;

use crate::ids::{ConnId, RoomId, VehicleId};
use crate::outgoing::seat::Pace;
use crate::outgoing::*;
use crate::protocol::frame;
use crate::telemetry::Metrics;
use crate::time::UnixMillis;

pub(super) const CONNS: usize = 4;
pub(super) const ROOMS: usize = 2;
const TAIL_BYTES: usize = 1500;
const REPLAY_REST: usize = 400;
/// Positions that are in the log before the feed is.
const LOGGED: u64 = 6;

#[derive(Debug, Clone, Copy)]
pub(super) enum Since {
    Head,
    /// This many of the room's positions before its head.
    Back(usize),
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Position { room: usize, vehicle: u8, sender: Option<usize>, pad: usize },
    Other { room: usize, sender: Option<usize>, pad: usize },
    Join { conn: usize, room: usize, since: Since, flat: bool, walk: bool },
    Leave { conn: usize, room: usize },
    Take { conn: usize, budget: usize, flush: bool },
    Squeeze { conn: usize },
    Mark { conn: usize },
    Stop { conn: usize },
    Push { conn: usize, counts: bool, pad: usize },
    Page { which: usize, size: usize, fail: bool },
    Show { conn: usize, room: usize },
    Close { conn: usize },
}

#[derive(Debug, Clone)]
struct Event {
    /// `None`: no position.
    seq: Option<u64>,
    vehicle: u8,
    sender: Option<ConnId>,
    frame: Bytes,
    /// Its place in the tail; `None`: from before the feed.
    index: Option<u64>,
}

struct ModelRoom {
    feed: Arc<Feed>,
    events: Vec<Event>,
    head: u64,
    last_seq: u64,
}

/// What waits for a subscriber, as numbers into the room's events.
#[derive(Debug, Default)]
struct Subscriber {
    seat: u32,
    flat: bool,
    expect: VecDeque<usize>,
    /// May come or not: its own, from before it joined again.
    optional: Vec<usize>,
    last_sent: u64,
    lagging: bool,
    may_lag: bool,
    must_lag: bool,
    dropped: u64,
    walk: bool,
    /// Whether it was replaying when it began to read.
    replaying: bool,
    stopped: bool,
    asked: Option<PageRequest>,
    /// What of a page from the log has not been sent yet.
    page: VecDeque<usize>,
    /// The mark: numbers that have to be sent or superseded before it is passed.
    marked: Vec<usize>,
}

/// What a subscriber's real seat is doing.
#[derive(Default)]
struct Phase {
    replaying: bool,
    lagging: bool,
    trimmed: bool,
    /// Or gone.
    parked: bool,
}

struct Conn {
    queue: Arc<Queue>,
    batch: Batch,
    /// Frames of the batch that the model has seen.
    seen: usize,
    lane: VecDeque<(u64, usize, bool)>,
    marking: bool,
    stopped: bool,
    rooms: [Option<Subscriber>; ROOMS],
    /// Walks shown in rooms it does not listen to.
    walks: [usize; ROOMS],
}

pub(super) struct World {
    rooms: Vec<ModelRoom>,
    conns: Vec<Conn>,
    asked: Vec<(usize, ConnId, PageRequest)>,
    next_seq: u64,
    next_conn: u64,
    next_own: u64,
}

fn room_id(room: usize) -> RoomId {
    RoomId::parse(format!("room-{room}").as_str()).unwrap()
}

fn position(room: usize, seq: u64, vehicle: u8, pad: usize) -> (Bytes, std::ops::Range<usize>) {
    let item = format!(r#""seq":{seq},"v":{vehicle},"pad":"{}""#, "x".repeat(pad));
    let text = format!(r#"{{"type":"p","room":{room},{item}}}"#);
    let frame = frame::text_frame(&text);
    let end = frame.len() - 1;
    (frame, end - item.len()..end)
}

impl ModelRoom {
    fn new(room: usize, next_seq: &mut u64, metrics: &Arc<Metrics>) -> Self {
        let mut events = Vec::new();
        let mut newest: Vec<PositionEvent> = Vec::new();
        for n in 0..LOGGED {
            let vehicle = u8::try_from(n % 4).unwrap();
            let event = position_event(room, *next_seq, vehicle, None, 10);
            events.push(Event {
                seq: Some(*next_seq),
                vehicle,
                sender: None,
                frame: event.frame.clone(),
                index: None,
            });
            newest.retain(|older| older.vehicle != event.vehicle);
            newest.push(event);
            *next_seq += 1;
        }
        let (head, last_seq) = (newest.len() as u64, *next_seq - 1);
        let feed = Feed::new(
            room_id(room),
            "epoch".into(),
            last_seq,
            newest,
            Bounds { tail_bytes: TAIL_BYTES, replay_rest: REPLAY_REST, max_frame_out: 400 },
            metrics.clone(),
        );
        Self { feed: Arc::new(feed), events, head, last_seq }
    }

    /// Number of the first event that the tail holds.
    fn first_held(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        let (mut bytes, mut first) = (0, self.events.len());
        for (n, event) in self.events.iter().enumerate().rev() {
            if event.index.is_none() {
                break;
            }
            if !wanted(event) {
                continue;
            }
            bytes += event.frame.len();
            if bytes > TAIL_BYTES && first < self.events.len() {
                break;
            }
            first = n;
        }
        first
    }

    fn is_newest(&self, n: usize) -> bool {
        let vehicle = self.events[n].vehicle;
        !self.events[n + 1..].iter().any(|later| later.seq.is_some() && later.vehicle == vehicle)
    }

    /// Whether it need not be sent to one who gets the newest only.
    fn superseded(&self, n: usize) -> bool {
        self.events[n].seq.is_some() && !self.is_newest(n)
    }
}

fn position_event(
    room: usize,
    seq: u64,
    vehicle: u8,
    sender: Option<ConnId>,
    pad: usize,
) -> PositionEvent {
    let (frame, item) = position(room, seq, vehicle, pad);
    PositionEvent {
        vehicle: VehicleId::parse(format!("v{vehicle}").as_str()).unwrap(),
        seq,
        fix: UnixMillis::new(i64::try_from(seq).unwrap()).unwrap(),
        frame,
        item,
        sender,
    }
}

impl Subscriber {
    fn get(&mut self, room: &ModelRoom, n: usize) {
        assert!(!self.walk, "an event before the end of the snapshot");
        let event = &room.events[n];
        if let Some(front) = self.page.pop_front() {
            assert_eq!(front, n, "a page is sent in its order");
        }
        if self.replaying {
            // Events without a seq are not in the log: they come when it has been read.
            let passed = |front: &&usize| {
                **front < n && (room.events[**front].seq.is_none() || self.optional.contains(front))
            };
            let before = self.expect.iter().take_while(passed).count();
            if self.expect.get(before) == Some(&n) && before > 0 {
                self.expect.remove(before);
                self.expect.push_front(n);
            }
        }
        if self.lagging || (self.flat && self.may_lag) {
            // One that is not told may skip as soon as it lags.
            assert!(self.flat || !room.superseded(n), "the newest per vehicle only");
            while self.expect.front().is_some_and(|front| *front < n) {
                let skipped = self.expect.pop_front().unwrap();
                self.skip(room, skipped);
            }
        } else {
            assert!(!self.must_lag, "skips without a word");
            while self.expect.front().is_some_and(|n| self.optional.contains(n))
                && self.expect.front() != Some(&n)
            {
                self.expect.pop_front();
            }
        }
        assert_eq!(self.expect.front(), Some(&n), "in order, once, gapless: {:?}", self.expect);
        self.expect.pop_front();
        if let Some(seq) = event.seq {
            assert!(seq > self.last_sent, "{seq} after {}", self.last_sent);
            self.last_sent = seq;
        }
    }

    fn skip(&mut self, room: &ModelRoom, n: usize) {
        if !self.optional.contains(&n) {
            assert!(room.superseded(n), "{:?} was skipped", room.events[n]);
            self.dropped += 1;
        }
    }

    fn lag_said(&mut self, payload: &Value) {
        assert!(!self.walk && !self.lagging && !self.flat);
        assert!(self.may_lag, "lagging without a reason");
        assert_eq!(payload["fromSeq"], self.last_sent);
        assert_eq!(payload["dropped"], 0);
        (self.lagging, self.may_lag, self.must_lag, self.dropped) = (true, false, false, 0);
    }

    fn caught_up_said(&mut self, room: &ModelRoom, payload: &Value) {
        assert!(self.lagging && !self.flat);
        self.catch_up(room);
        assert_eq!(payload["seq"], self.last_sent);
        assert_eq!(payload["dropped"], self.dropped);
    }

    fn catch_up(&mut self, room: &ModelRoom) {
        while let Some(n) = self.expect.pop_front() {
            self.skip(room, n);
        }
        self.lagging = false;
    }

    fn reset(&mut self, last_seq: u64) {
        let (seat, flat, stopped) = (self.seat, self.flat, self.stopped);
        *self = Self { seat, flat, stopped, last_sent: last_seq, ..Self::default() };
    }
}

impl Conn {
    fn new(conn: u64) -> Self {
        Self {
            queue: Arc::new(Queue::new(ConnId(conn))),
            batch: Batch::default(),
            seen: 0,
            lane: VecDeque::new(),
            marking: false,
            stopped: false,
            rooms: Default::default(),
            walks: Default::default(),
        }
    }

    fn flush(&mut self) {
        self.batch.advance(self.batch.bytes());
        self.queue.note_in_flight(&self.batch);
        self.seen = 0;
    }

    /// The subscriber's real seat, for its phase.
    fn phase(&self, room: &ModelRoom, at: usize) -> Phase {
        let Some(subscriber) = &self.rooms[at] else { return Phase::default() };
        room.feed.with(|state| {
            let seat = state.seats.get(subscriber.seat as usize);
            let Some(seat) = seat.filter(|seat| Arc::ptr_eq(&seat.queue, &self.queue)) else {
                return Phase { parked: true, ..Phase::default() };
            };
            Phase {
                replaying: seat.replay.is_some(),
                lagging: seat.pace != Pace::Full,
                trimmed: seat.cursor.index < state.tail.first().index,
                parked: seat.parked,
            }
        })
    }
}

impl World {
    pub(super) fn new() -> Self {
        let metrics = Arc::new(Metrics::new(&Counter::default()));
        let mut next_seq = 1;
        let rooms = (0..ROOMS).map(|room| ModelRoom::new(room, &mut next_seq, &metrics)).collect();
        let conns = (0..CONNS as u64).map(Conn::new).collect();
        Self { rooms, conns, asked: Vec::new(), next_seq, next_conn: CONNS as u64, next_own: 0 }
    }

    pub(super) fn feed(&self, room: usize) -> &Arc<Feed> {
        &self.rooms[room].feed
    }

    pub(super) fn step(&mut self, step: &Step) {
        let before: Vec<_> = self
            .conns
            .iter()
            .map(|c| (c.queue.conn(), c.queue.is_empty(), c.queue.signals()))
            .collect();
        self.play(step);
        for (conn, (id, was_empty, signals)) in self.conns.iter().zip(before) {
            if was_empty && conn.queue.conn() == id && !conn.queue.is_empty() {
                assert_ne!(conn.queue.signals(), signals, "its owner was not woken: {step:?}");
            }
        }
        for conn in &self.conns {
            self.check_backlog(conn, step);
            self.check_mark(conn);
        }
    }

    fn play(&mut self, step: &Step) {
        match *step {
            Step::Position { room, vehicle, sender, pad } => {
                let sender = sender.map(|conn| self.conns[conn].queue.conn());
                let seq = self.next_seq;
                self.next_seq += 1;
                let event = position_event(room, seq, vehicle, sender, pad);
                let place = &self.rooms[room];
                place.feed.with(|state| state.append_position(&event, &mut Vec::new()));
                self.appended(room, Some(seq), vehicle, sender, event.frame);
            }
            Step::Other { room, sender, pad } => {
                let sender = sender.map(|conn| self.conns[conn].queue.conn());
                let n = self.rooms[room].events.len();
                let pad = "x".repeat(pad);
                let text = format!(r#"{{"type":"o","room":{room},"n":{n},"pad":"{pad}"}}"#);
                let frame = frame::text_frame(&text);
                let place = &self.rooms[room];
                place.feed.with(|state| state.append_other(frame.clone(), sender, &mut Vec::new()));
                self.appended(room, None, 0, sender, frame);
            }
            Step::Join { conn, room, since, flat, walk } => {
                self.join(conn, room, since, flat, walk);
            }
            Step::Leave { conn, room } => {
                let conn = &mut self.conns[conn];
                if conn.rooms[room].as_ref().is_some_and(|subscriber| !subscriber.stopped) {
                    self.rooms[room].feed.unsubscribe(conn.queue.conn());
                    conn.rooms[room] = None;
                }
            }
            Step::Take { conn, budget, flush } => {
                self.take(conn, budget);
                if flush {
                    self.conns[conn].flush();
                }
            }
            Step::Squeeze { conn } => self.squeeze(conn),
            Step::Mark { conn } => self.mark(conn),
            Step::Stop { conn } => self.stop(conn),
            Step::Push { conn, counts, pad } => {
                let n = self.next_own;
                self.next_own += 1;
                let conn = &mut self.conns[conn];
                let text = format!(r#"{{"type":"own","n":{n},"pad":"{}"}}"#, "x".repeat(pad));
                let frame = frame::text_frame(&text);
                conn.lane.push_back((n, frame.len(), conn.marking && counts));
                conn.queue.push(frame, if counts { Weight::Counts } else { Weight::Free });
            }
            Step::Page { which, size, fail } => self.page(which, size, fail),
            Step::Show { conn, room } => {
                let place = &self.rooms[room];
                let conn = &mut self.conns[conn];
                if conn.stopped {
                    return;
                }
                match &mut conn.rooms[room] {
                    Some(subscriber) => subscriber.walk = true,
                    None => conn.walks[room] += 1,
                }
                place.feed.with(|state| {
                    let walk = walk(state);
                    place.feed.show(state, &conn.queue, walk);
                });
            }
            Step::Close { conn } => self.close(conn),
        }
    }

    fn appended(
        &mut self,
        room: usize,
        seq: Option<u64>,
        vehicle: u8,
        sender: Option<ConnId>,
        frame: Bytes,
    ) {
        let place = &mut self.rooms[room];
        let n = place.events.len();
        place.events.push(Event { seq, vehicle, sender, frame, index: Some(place.head) });
        place.head += 1;
        place.last_seq = seq.unwrap_or(place.last_seq);
        for conn in &mut self.conns {
            let own = sender == Some(conn.queue.conn());
            if let Some(subscriber) = &mut conn.rooms[room]
                && !subscriber.stopped
                && !own
                && (seq.is_some() || !subscriber.flat)
            {
                subscriber.expect.push_back(n);
            }
        }
    }

    fn join(&mut self, conn: usize, room: usize, since: Since, flat: bool, walked: bool) {
        let place = &self.rooms[room];
        let conn = &mut self.conns[conn];
        if conn.stopped || conn.walks[room] > 0 {
            return;
        }
        // A join in a room that it is in already replaces the old one.
        place.feed.unsubscribe(conn.queue.conn());
        let seqs: Vec<u64> = place.events.iter().filter_map(|event| event.seq).collect();
        let (start, last_sent) = match since {
            Since::Head => (Start::Head, place.last_seq),
            Since::Back(back) => {
                let seq = seqs.len().checked_sub(back + 1).map_or(0, |at| seqs[at]);
                (Start::After(seq), seq)
            }
        };
        let mut subscriber = Subscriber { flat, last_sent, walk: walked, ..Default::default() };
        for (n, event) in place.events.iter().enumerate() {
            if event.seq.is_some_and(|seq| seq > last_sent) {
                subscriber.expect.push_back(n);
                if event.sender == Some(conn.queue.conn()) {
                    subscriber.optional.push(n);
                }
            }
        }
        let events = if flat { Events::PositionsOnly } else { Events::All };
        place.feed.with(|state| {
            let walk = walked.then(|| walk(state));
            place.feed.subscribe(state, &conn.queue, events, start, walk);
            subscriber.seat = state.by_conn[&conn.queue.conn()];
        });
        conn.rooms[room] = Some(subscriber);
    }

    fn take(&mut self, conn: usize, budget: usize) {
        let at = conn;
        let conn = &mut self.conns[at];
        let mut lost = false;
        for (room, place) in self.rooms.iter().enumerate() {
            let phase = conn.phase(place, room);
            let Some(subscriber) = &mut conn.rooms[room] else { continue };
            subscriber.replaying = phase.replaying;
            let held = place.first_held(|_| true);
            if !phase.replaying && !phase.lagging {
                let real = |n: &usize| !subscriber.optional.contains(n);
                let behind = subscriber.expect.iter().any(|n| *n < held && real(n));
                subscriber.must_lag |= behind && !subscriber.flat;
                subscriber.may_lag |= phase.trimmed;
            }
            let others = place.first_held(|event| event.seq.is_none());
            lost |= subscriber.expect.iter().any(|n| place.events[*n].seq.is_none() && *n < others);
        }
        let mut pages = Vec::new();
        let taken = conn.queue.take(&mut conn.batch, budget, &mut pages);
        let frames: Vec<Bytes> = conn.batch.frames().split_off(conn.seen);
        conn.seen += frames.len();
        for frame in frames {
            let header = if frame[1] < 126 { 2 } else { 4 };
            let message: Value = serde_json::from_slice(&frame[header..]).unwrap();
            self.taken(at, &message, frame.len());
        }
        let conn = &mut self.conns[at];
        for (feed, asked) in pages {
            let room = self.rooms.iter().position(|r| Arc::ptr_eq(&r.feed, &feed)).unwrap();
            let subscriber = conn.rooms[room].as_mut().unwrap();
            assert!(subscriber.page.is_empty() && subscriber.asked.is_none(), "asked too early");
            subscriber.asked = Some(asked);
            self.asked.push((room, conn.queue.conn(), asked));
        }
        if taken.is_err() {
            assert!(lost, "nothing that may not be skipped is gone");
            return self.close(at);
        }
        for (room, place) in self.rooms.iter().enumerate() {
            let parked = conn.phase(place, room).parked;
            let Some(subscriber) = &mut conn.rooms[room] else { continue };
            if parked {
                if subscriber.flat && subscriber.may_lag {
                    subscriber.catch_up(place);
                }
                let optional = std::mem::take(&mut subscriber.optional);
                subscriber.expect.retain(|n| !optional.contains(n));
                assert!(subscriber.expect.is_empty(), "parked: {subscriber:?}");
                (subscriber.may_lag, subscriber.must_lag) = (false, false);
                if subscriber.stopped {
                    conn.rooms[room] = None;
                }
            }
        }
    }

    fn taken(&mut self, conn: usize, message: &Value, bytes: usize) {
        let conn = &mut self.conns[conn];
        let payload = &message["payload"];
        let kind = message["type"].as_str().unwrap();
        if kind == "own" {
            let (n, len, _) = conn.lane.pop_front().expect("once");
            assert_eq!((message["n"].as_u64(), bytes), (Some(n), len));
            return;
        }
        let room = match message["room"].as_u64() {
            Some(room) => usize::try_from(room).unwrap(),
            None => (0..ROOMS).find(|r| payload["roomId"] == room_id(*r).as_str()).unwrap(),
        };
        let place = &self.rooms[room];
        if kind == "snapshot" {
            let seqs: Vec<_> = payload["positions"].as_array().into_iter().flatten().collect();
            assert!(seqs.windows(2).all(|two| two[0]["seq"].as_u64() < two[1]["seq"].as_u64()));
            if payload["more"] != true {
                match &mut conn.rooms[room] {
                    Some(subscriber) if subscriber.walk => subscriber.walk = false,
                    _ => conn.walks[room] -= 1,
                }
            }
            return;
        }
        let subscriber = conn.rooms[room].as_mut().expect("nothing comes after a leave");
        match kind {
            "p" => {
                let seq = message["seq"].as_u64();
                let n = place.events.iter().position(|event| event.seq == seq && seq.is_some());
                subscriber.get(place, n.unwrap());
            }
            "o" => subscriber.get(place, usize::try_from(message["n"].as_u64().unwrap()).unwrap()),
            "lagging" => subscriber.lag_said(payload),
            "caught_up" => subscriber.caught_up_said(place, payload),
            other => panic!("{other}"),
        }
    }

    fn squeeze(&mut self, conn: usize) {
        let conn = &mut self.conns[conn];
        for (room, place) in self.rooms.iter().enumerate() {
            let phase = conn.phase(place, room);
            if let Some(subscriber) = &mut conn.rooms[room]
                && !phase.replaying
                && !phase.lagging
                && !phase.parked
            {
                let real = |n: &usize| !subscriber.optional.contains(n);
                subscriber.may_lag = true;
                subscriber.must_lag |= !subscriber.flat && subscriber.expect.iter().any(real);
            }
        }
        conn.queue.squeeze();
    }

    fn mark(&mut self, conn: usize) {
        let conn = &mut self.conns[conn];
        if conn.marking {
            return;
        }
        conn.marking = true;
        conn.lane.iter_mut().for_each(|own| own.2 = true);
        for (room, place) in self.rooms.iter().enumerate() {
            let replaying = conn.phase(place, room).replaying;
            let Some(subscriber) = &mut conn.rooms[room] else { continue };
            let real = |n: &usize| !subscriber.optional.contains(n);
            subscriber.marked = if replaying {
                // What is still in the log is no part of the queue.
                subscriber.page.iter().copied().collect()
            } else {
                subscriber.expect.iter().copied().filter(real).collect()
            };
        }
        conn.queue.set_mark();
    }

    fn stop(&mut self, conn: usize) {
        let conn = &mut self.conns[conn];
        conn.stopped = true;
        for (room, place) in self.rooms.iter().enumerate() {
            let phase = conn.phase(place, room);
            let Some(subscriber) = &mut conn.rooms[room] else { continue };
            if phase.replaying || phase.parked {
                conn.rooms[room] = None;
            } else {
                subscriber.stopped = true;
            }
        }
        conn.queue.stop_listening();
        // A walk in a room that it only publishes to goes on to its end.
    }

    fn page(&mut self, which: usize, size: usize, fail: bool) {
        if self.asked.is_empty() {
            return;
        }
        let (room, id, asked) = self.asked.remove(which % self.asked.len());
        let place = &self.rooms[room];
        let conn = self.conns.iter_mut().find(|conn| conn.queue.conn() == id);
        let mut subscriber = conn.and_then(|conn| conn.rooms[room].as_mut());
        if fail {
            place.feed.with(|state| place.feed.reset(state, id, None));
            if let Some(subscriber) = subscriber.filter(|subscriber| !subscriber.stopped) {
                subscriber.reset(place.last_seq);
            }
            return;
        }
        let within =
            |event: &Event| event.seq.is_some_and(|seq| seq > asked.after && seq <= asked.up_to);
        let all: Vec<usize> =
            (0..place.events.len()).filter(|n| within(&place.events[*n])).collect();
        let page = &all[..all.len().min(size.max(1))];
        let seq = |n: &usize| place.events[*n].seq.unwrap();
        let next = (page.len() < all.len()).then(|| page.last().map_or(asked.after, seq));
        let frames = page.iter().map(|n| (seq(n), place.events[*n].frame.clone())).collect();
        if let Some(subscriber) = &mut subscriber
            && subscriber.asked.is_some_and(|wanted| wanted.after == asked.after)
        {
            subscriber.asked = None;
            // Its own since it joined are not sent to it.
            let expect = &subscriber.expect;
            subscriber.page = page.iter().copied().filter(|n| expect.contains(n)).collect();
        }
        place.feed.page_read(id, asked, frames, next);
    }

    fn close(&mut self, conn: usize) {
        let queue = self.conns[conn].queue.clone();
        queue.close();
        queue.push(Bytes::from_static(b"too late"), Weight::Counts);
        assert!(queue.is_empty());
        for place in &self.rooms {
            place.feed.with(|state| {
                assert!(!state.by_conn.contains_key(&queue.conn()));
                assert!(!state.seats.iter().any(|(_, seat)| Arc::ptr_eq(&seat.queue, &queue)));
            });
        }
        self.conns[conn] = Conn::new(self.next_conn);
        self.next_conn += 1;
    }

    fn check_backlog(&self, conn: &Conn, step: &Step) {
        let own = Backlog {
            messages: conn.lane.len() as u64,
            bytes: conn.lane.iter().map(|(_, len, _)| *len as u64).sum(),
        };
        let in_flight =
            Backlog { messages: conn.batch.len() as u64, bytes: conn.batch.bytes() as u64 };
        let (mut all, mut hard) = (own.plus(in_flight), own);
        for (room, place) in self.rooms.iter().enumerate() {
            let phase = conn.phase(place, room);
            let Some(subscriber) = &conn.rooms[room] else { continue };
            let others = place.first_held(|event| event.seq.is_none());
            let is_other = |n: &usize| place.events[*n].seq.is_none();
            if subscriber.expect.iter().any(|n| is_other(n) && *n < others) {
                // It falls behind when it is read.
                return;
            }
            let sum = |wanted: &dyn Fn(&usize) -> bool, from: &VecDeque<usize>| {
                let real = from.iter().filter(|n| wanted(n));
                real.fold(Backlog::default(), |sum, n| {
                    let bytes = place.events[*n].frame.len() as u64;
                    sum.plus(Backlog { messages: 1, bytes })
                })
            };
            let expect = &subscriber.expect;
            let real = |n: &usize| !subscriber.optional.contains(n);
            let (waits, counts) = if phase.replaying {
                (sum(&|_| true, &subscriber.page), Backlog::default())
            } else if phase.lagging {
                let newest = |n: &usize| !place.superseded(*n);
                (sum(&|n| real(n) && newest(n), expect), sum(&is_other, expect))
            } else {
                (sum(&real, expect), sum(&real, expect))
            };
            (all, hard) = (all.plus(waits), hard.plus(counts));
        }
        assert_eq!(conn.queue.backlog(), all, "after {step:?}");
        assert_eq!(conn.queue.hard_backlog(), hard, "hard, after {step:?}");
    }

    /// The mark is not passed before what it covers is sent or superseded.
    fn check_mark(&self, conn: &Conn) {
        if !conn.marking || !conn.queue.passed_mark() {
            return;
        }
        assert!(!conn.lane.iter().any(|own| own.2), "an answer is not sent yet");
        for (room, place) in self.rooms.iter().enumerate() {
            let Some(subscriber) = &conn.rooms[room] else { continue };
            for n in &subscriber.marked {
                let left =
                    subscriber.expect.contains(n) && !(subscriber.lagging && place.superseded(*n));
                assert!(!left, "{:?} is not sent yet", place.events[*n]);
            }
        }
    }

    /// Everybody reads everything: then nothing is left anywhere.
    pub(super) fn finish(&mut self) {
        for conn in 0..CONNS {
            self.take(conn, usize::MAX);
            assert!(self.conns[conn].queue.passed_mark(), "a mark that is never passed");
            loop {
                self.conns[conn].flush();
                let before = self.asked.len();
                let id = self.conns[conn].queue.conn();
                let Some(which) = self.asked.iter().position(|asked| asked.1 == id) else { break };
                self.page(which, usize::MAX, false);
                assert_eq!(self.asked.len(), before - 1);
                self.take(conn, usize::MAX);
            }
            let conn = &self.conns[conn];
            assert!(conn.queue.is_empty() && conn.lane.is_empty());
            assert_eq!(conn.queue.backlog(), Backlog::default());
            assert!(conn.queue.passed_mark());
            assert_eq!(conn.walks, [0; ROOMS]);
            for subscriber in conn.rooms.iter().flatten() {
                assert!(subscriber.expect.is_empty() && !subscriber.lagging, "{subscriber:?}");
            }
        }
        for place in &self.rooms {
            place.feed.with(|state| {
                assert_eq!(state.lagging(), 0);
                assert!(state.seats.iter().all(|(_, seat)| seat.parked));
                assert_eq!(state.by_conn.len(), state.seats.len());
            });
        }
        for conn in 0..CONNS {
            self.close(conn);
        }
        for place in &self.rooms {
            place.feed.with(|state| assert!(state.seats.is_empty() && state.by_conn.is_empty()));
        }
    }
}

fn walk(state: &FeedState) -> SnapshotWalk {
    let members = (0..3)
        .map(|n| crate::ids::ClientId::parse(format!("member-{n}").as_str()).unwrap())
        .collect();
    SnapshotWalk::new(members, state.head().index, UnixMillis::new(0).unwrap())
}
