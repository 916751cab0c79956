//! The truth: the room log's file, read with SQLite itself (or a broker's stream), and what everybody saw held
//! against it. Every disagreement is a failure that names the position.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;

use super::publisher::Style;
use super::subscriber::{SENTINEL, View};
use super::{Publisher, Subscriber, Uploader, number, publisher_of};

/// A position of the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) seq: u64,
    pub(super) n: u64,
    pub(super) late: bool,
    /// From an upload and not sent.
    pub(super) uploaded: bool,
}

/// The whole log.
pub struct Log {
    /// By room, ascending `seq`.
    rooms: FxHashMap<String, Vec<Row>>,
    /// Where each position is.
    places: FxHashMap<(String, u64), Row>,
}

#[derive(Deserialize)]
struct Body {
    n: u64,
}

impl Log {
    /// Reads the file of a server that has ended. A `seq` or a position that is there twice
    /// is a failure.
    pub fn read(file: &Path) -> Self {
        let connection =
            Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        let check: String =
            connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        let mut query = connection
            .prepare("SELECT seq, room, late, uploaded, body FROM positions ORDER BY seq")
            .unwrap();
        let mut positions = Vec::new();
        let mut rows = query.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let body: String = row.get(4).unwrap();
            let Body { n } = serde_json::from_str(&format!("{{{body}}}")).unwrap();
            let position = Row {
                seq: row.get(0).unwrap(),
                n,
                late: row.get(2).unwrap(),
                uploaded: row.get(3).unwrap(),
            };
            positions.push((row.get(1).unwrap(), position));
        }
        Self::of(positions)
    }

    /// The log of these positions, each with its room. A `seq` or a position that is there
    /// twice is a failure.
    pub(super) fn of(positions: Vec<(String, Row)>) -> Self {
        let mut log = Self { rooms: FxHashMap::default(), places: FxHashMap::default() };
        let mut last = 0;
        for (room, row) in positions {
            assert!(row.seq > last, "seq {} names two positions", row.seq);
            last = row.seq;
            log.rooms.entry(room.clone()).or_default().push(row);
            let n = row.n;
            if let Some(first) = log.places.insert((room, n), row) {
                panic!("position {n} is in the log twice: {first:?} and {row:?}");
            }
        }
        log
    }

    /// Positions that it holds.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether a room holds a position.
    pub fn holds(&self, room: &str, n: u64) -> bool {
        self.places.contains_key(&(room.to_owned(), n))
    }

    /// Every acknowledgement, and for those who repeat every position, is in the log where
    /// the acknowledgement said; what went to several rooms is in all of them or in none.
    /// Returns how many acknowledged positions were compared.
    pub fn check_publisher(&self, publisher: &Publisher) -> u64 {
        let index = publisher.index;
        for acked in &publisher.acked {
            let room = &publisher.rooms[acked.room];
            let n = acked.n;
            let Some(row) = self.places.get(&(room.clone(), n)) else {
                panic!("{room}: position {n} was acknowledged as {} and is lost", acked.seq);
            };
            assert_eq!(row.seq, acked.seq, "{room}: {n} is not where the ack said");
            if !acked.duplicate {
                assert_eq!(row.late, acked.late, "{room}: {n} was acknowledged otherwise");
            }
            assert!(!row.uploaded);
        }
        let mut missing = 0;
        for serial in 0..publisher.made {
            let n = number(index, serial);
            let held = publisher.rooms.iter().filter(|room| self.holds(room, n)).count();
            assert!(
                held == 0 || held == publisher.rooms.len(),
                "{n} is in {held} of the rooms {:?}",
                publisher.rooms
            );
            missing += u64::from(held == 0);
            for room in &publisher.rooms {
                if let Some(row) = self.places.get(&(room.clone(), n)) {
                    assert!(!row.late || publisher.is_late(n), "{n} is wrongly late in {room}");
                }
            }
        }
        if publisher.repeats() {
            assert_eq!(missing, 0, "vehicle {index} repeated until all were acknowledged");
        }
        if publisher.style == Style::Notification {
            assert!(publisher.acked.is_empty());
        } else {
            let acked = (publisher.acked.len() / publisher.rooms.len()) as u64;
            assert_eq!(acked + publisher.unknown, publisher.made, "vehicle {index}");
            assert!(missing <= publisher.unknown);
            return acked;
        }
        0
    }

    /// Everything that the uploader was told to be committed is there. Returns how many.
    pub fn check_uploader(&self, uploader: &Uploader) -> u64 {
        uploader
            .must_hold()
            .map(|n| assert!(self.holds(&uploader.room, n), "uploaded position {n} is lost"))
            .count() as u64
    }

    /// What the subscriber saw of each room is what the log has: all that is neither late
    /// nor an upload's history, in order, once. Returns how many events were compared, and
    /// how many of the log's were passed over while it was told that it lags.
    pub fn check_subscriber(&self, subscriber: &Subscriber) -> (u64, u64) {
        let (mut compared, mut passed_over) = (0, 0);
        for view in &subscriber.views {
            let live = self.rooms.get(&view.room).into_iter().flatten();
            // What nobody waited for may be stored after the sentinel.
            let end = view.seen.iter().position(|(_, n)| *n == SENTINEL);
            let seen = end.map_or(&view.seen[..], |end| &view.seen[..=end]);
            let end = end.map_or(u64::MAX, |end| view.seen[end].0);
            let live = live.filter(|row| row.seq > view.start && row.seq <= end);
            let live = live.filter(|row| !row.late && !row.uploaded);
            passed_over += check_view(&subscriber.name, view, seen, live);
            compared += seen.len() as u64;
        }
        (compared, passed_over)
    }
}

fn check_view<'a>(
    name: &str,
    view: &View,
    seen: &[(u64, u64)],
    live: impl Iterator<Item = &'a Row>,
) -> u64 {
    let room = &view.room;
    let mut seen = seen.iter().copied().peekable();
    // Vehicles with a position that was passed over and not yet superseded by a newer one.
    let mut owed: FxHashMap<u64, (u64, u64)> = FxHashMap::default();
    let mut passed_over = 0;
    for row in live {
        if seen.next_if_eq(&(row.seq, row.n)).is_some() {
            owed.remove(&publisher_of(row.n));
            continue;
        }
        let lag = view.lags.iter().find(|(after, up_to)| row.seq > *after && row.seq <= *up_to);
        let Some((_, up_to)) = lag else {
            panic!("{name} missed {row:?} of {room}; the next that it saw: {:?}", seen.peek());
        };
        passed_over += 1;
        owed.insert(publisher_of(row.n), (row.n, *up_to));
    }
    assert_eq!(seen.next(), None, "{name} saw what is not in the log of {room}");
    assert!(owed.is_empty(), "{name} lagged in {room} and never saw anything newer: {owed:?}");
    passed_over
}

/// No `seq` was ever shown with two positions: neither in acknowledgements nor to
/// subscribers, whatever became of the position. Returns how many there were.
pub fn check_seqs(publishers: &[Publisher], subscribers: &[Subscriber]) -> u64 {
    let mut names: FxHashMap<u64, (&str, u64)> = FxHashMap::default();
    let mut check = |seq, room, n| {
        let first = *names.entry(seq).or_insert((room, n));
        assert_eq!(first, (room, n), "seq {seq} was used twice");
    };
    for publisher in publishers {
        for acked in &publisher.acked {
            check(acked.seq, publisher.rooms[acked.room].as_str(), acked.n);
        }
    }
    for subscriber in subscribers {
        for view in &subscriber.views {
            view.seen.iter().for_each(|(seq, n)| check(*seq, view.room.as_str(), *n));
        }
    }
    names.len() as u64
}

/// Everybody was told the same, one epoch: neither a kill nor a restart starts a new one.
pub fn check_epochs(subscribers: &[Subscriber]) {
    let epochs: FxHashSet<_> = subscribers.iter().flat_map(|one| &one.epochs).collect();
    assert_eq!(epochs.len(), 1, "{epochs:?}");
    let resets: u64 = subscribers.iter().map(|subscriber| subscriber.resets).sum();
    assert_eq!(resets, 0, "a resume was answered with a reset");
}
