//! A vehicle that publishes at a pace, keeps what is not acknowledged, and repeats it on
//! its next connection (or does not, where that could double it).

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::link::{End, Incoming, Joined, Payload};
use super::{Link, number, serial};

/// Every so many positions one is older than those before it.
const LATE_EVERY: u64 = 50;

/// What a publisher's positions carry and whether it repeats them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A key; repeated until acknowledged.
    Keyed,
    /// A key; never repeated.
    KeyedOnce,
    /// No key; repeated, the time and place tell the duplicate.
    Timed,
    /// No key; never repeated.
    TimedOnce,
    /// A notification: nobody acknowledges it.
    Notification,
}

/// One room's part of an acknowledgement.
pub struct Acked {
    /// The position.
    pub n: u64,
    /// The room, an index of [`Publisher::rooms`].
    pub room: usize,
    /// Its place.
    pub seq: u64,
    /// Whether the log had it before.
    pub duplicate: bool,
    /// Whether it is late there.
    pub late: bool,
}

/// How fast, and when the fixes were made.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Time between two positions.
    pub every: Duration,
    /// The most that are unanswered at once.
    pub window: usize,
    /// Milliseconds between the times of two fixes.
    pub step: u64,
    /// The time of the first fix, in milliseconds since 1970.
    pub base: u64,
    /// Whether some fixes are late.
    pub late: bool,
}

/// A vehicle.
pub struct Publisher {
    /// Its number, the upper part of those of its positions.
    pub index: u64,
    /// Where it publishes, each position in all of them.
    pub rooms: Vec<String>,
    /// What it does.
    pub style: Style,
    /// All acknowledgements.
    pub acked: Vec<Acked>,
    /// Positions made so far.
    pub made: u64,
    /// Positions of which nobody will ever know more: sent, neither acknowledged nor
    /// repeated.
    pub unknown: u64,
    /// Positions sent a second time.
    pub repeated: u64,
    /// Told of every acknowledgement.
    pub heard: Arc<Notify>,
    unacked: VecDeque<u64>,
    /// Those before it have been sent at least once.
    sent: u64,
    pace: Pace,
    clock: Option<(Instant, u64)>,
}

impl Publisher {
    pub fn new(index: u64, rooms: &[&str], style: Style, pace: Pace) -> Self {
        let rooms = rooms.iter().map(|room| (*room).to_owned()).collect();
        Self {
            index,
            rooms,
            style,
            acked: Vec::new(),
            made: 0,
            unknown: 0,
            repeated: 0,
            heard: Arc::default(),
            unacked: VecDeque::new(),
            sent: 0,
            pace,
            clock: None,
        }
    }

    /// Time between two of its positions.
    pub fn every(&self) -> Duration {
        self.pace.every
    }

    /// Whether the fix of this position is older than the ones before it.
    pub fn is_late(&self, n: u64) -> bool {
        self.pace.late && serial(n) % LATE_EVERY == LATE_EVERY - 1
    }

    /// Whether each of its positions must be in the log in the end.
    pub fn repeats(&self) -> bool {
        matches!(self.style, Style::Keyed | Style::Timed)
    }

    /// Begins to count the time anew: what was not made meanwhile never will be.
    pub fn reset_clock(&mut self) {
        self.clock = None;
    }

    /// Publishes on one connection until it ends or, once `finish` is set, until there is
    /// nothing left to repeat.
    pub async fn session(&mut self, address: SocketAddr, finish: &AtomicBool) -> End {
        let Some(mut link) = Link::open(address, &format!("vehicle-{}", self.index)).await else {
            return End::Lost(None);
        };
        let mut come_back = match link.join_to_publish(&self.rooms).await {
            Joined::All { come_back } => come_back,
            Joined::Ended { come_back } => return End::Lost(come_back),
        };
        if !self.repeats() {
            self.unknown += self.unacked.len() as u64;
            self.unacked.clear();
        }
        let mut next = self.unacked.front().copied().unwrap_or(self.made);
        let mut in_flight = 0;
        let mut ticks = tokio::time::interval(self.pace.every.max(Duration::from_millis(4)));
        loop {
            let finishing = finish.load(Ordering::Relaxed);
            if !finishing {
                self.make();
            }
            if come_back.is_none() {
                let room = self.pace.window.saturating_sub(in_flight);
                let due = self.unacked.iter().copied().filter(|serial| *serial >= next);
                let due: Vec<u64> = due.take(room).collect();
                if let Some(last) = due.last() {
                    next = last + 1;
                    let before = due.iter().filter(|serial| **serial < self.sent);
                    self.repeated += before.count() as u64;
                    self.sent = self.sent.max(next);
                    in_flight += due.len();
                    let messages = due.iter().map(|serial| self.message(*serial)).collect();
                    link.send_all(messages).await;
                    if self.style == Style::Notification {
                        self.unknown += due.len() as u64;
                        self.unacked.retain(|serial| *serial >= next);
                        in_flight = 0;
                    }
                }
            }
            if finishing && self.unacked.is_empty() {
                link.close().await;
                return End::Finished;
            }
            tokio::select! {
                message = link.next() => {
                    let Some(Incoming { kind, id, payload }) = message else {
                        return End::Lost(come_back);
                    };
                    match kind.as_str() {
                        "ack" => {
                            in_flight -= 1;
                            self.acknowledged(id.unwrap(), &payload);
                        }
                        "server_shutting_down" => come_back = Some(payload.come_back()),
                        // A pause that was too long for them.
                        "notifications_dropped" => {}
                        // It did not start: it is repeated elsewhere like any other.
                        "error" if payload.code == "SERVER_DRAINING" => {}
                        other => panic!("unexpected {other}: {payload:?}"),
                    }
                }
                _ = ticks.tick() => {}
            }
        }
    }

    fn make(&mut self) {
        let (start, first) = *self.clock.get_or_insert((Instant::now(), self.made));
        let due = first + (start.elapsed().as_micros() / self.pace.every.as_micros()) as u64;
        while self.made < due && self.unacked.len() < self.pace.window {
            self.unacked.push_back(self.made);
            self.made += 1;
        }
    }

    /// The payload of a position, without rooms and key.
    pub fn position(&self, serial: u64) -> Value {
        let n = number(self.index, serial);
        let fix = self.pace.base + serial * self.pace.step;
        let fix = if self.is_late(n) { fix - 60_000 } else { fix };
        json!({
            "latitude": 40.0 + (serial % 1000) as f64 / 1000.0,
            "longitude": 10.0 + self.index as f64 / 1000.0,
            "speed": 13.5,
            "heading": serial % 360,
            "timestamp": fix,
            "n": n,
        })
    }

    fn message(&self, serial: u64) -> Value {
        let mut payload = self.position(serial);
        payload["roomId"] = json!(self.rooms);
        if matches!(self.style, Style::Keyed | Style::KeyedOnce) {
            payload["key"] = json!(format!("k{serial}"));
        }
        let mut message = json!({ "type": "location_update", "payload": payload });
        if self.style != Style::Notification {
            message["id"] = json!(serial);
        }
        message
    }

    fn acknowledged(&mut self, serial: u64, ack: &Payload) {
        let place = self.unacked.iter().position(|waiting| *waiting == serial);
        let place = place.unwrap_or_else(|| panic!("acknowledged twice or never sent: {serial}"));
        self.unacked.remove(place);
        self.heard.notify_one();
        let rooms = ack.rooms.iter().map(|(room, seq)| (room.clone(), *seq)).collect();
        self.record(serial, &rooms, ack.duplicate, &ack.late);
    }

    /// Takes note of an acknowledgement.
    pub fn record(
        &mut self,
        serial: u64,
        rooms: &BTreeMap<String, u64>,
        duplicate: bool,
        late: &[String],
    ) {
        assert_eq!(rooms.len(), self.rooms.len(), "an ack names all rooms: {rooms:?}");
        for (index, room) in self.rooms.iter().enumerate() {
            let late = late.contains(room);
            let n = number(self.index, serial);
            self.acked.push(Acked { n, room: index, seq: rooms[room], duplicate, late });
        }
    }
}
