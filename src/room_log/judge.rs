//! Newest, late and duplicate, per room and vehicle, in the log's order (protocol.md,
//! "A position"). Pure: no clock, no I/O; every engine drives one.
//!
//! It holds what judging needs and no position: rooms and vehicles are numbers, a key
//! or a time and place is a keyed 128-bit hash (vehicles choose their keys, so an
//! unkeyed hash would let one aim at another's). What left the deduplication window
//! leaves the memory when the next position is judged.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};

use rustc_hash::FxHashMap;

/// A room's number.
pub type RoomNo = u32;
/// A vehicle's number.
pub type VehicleNo = u32;

/// What identifies a position within its room and vehicle: 128 bits of a keyed hash.
pub type Mark = [u64; 2];

/// The marks of one position in one room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Of its key, if it has one.
    pub key: Option<Mark>,
    /// Of its time and place, if it was sent with a time.
    pub place: Option<Mark>,
}

/// The newest fix of a vehicle in a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest {
    /// Its place in the log.
    pub seq: u64,
    /// Its time, milliseconds since 1970.
    pub fix: i64,
    /// Its time and place, if it was sent with a time.
    pub place: Option<Mark>,
}

/// Decides newest, late and duplicate.
#[derive(Debug)]
pub struct Judge {
    window: i64,
    hashers: [RandomState; 2],
    newest: FxHashMap<RoomNo, FxHashMap<VehicleNo, Newest>>,
    seen: FxHashMap<Mark, u64>,
    expiry: VecDeque<(i64, Mark, u64)>,
}

impl Judge {
    /// A judge that knows nothing yet, with a deduplication window in milliseconds.
    #[must_use]
    pub fn new(window_ms: i64) -> Self {
        Self {
            window: window_ms,
            hashers: [RandomState::new(), RandomState::new()],
            newest: FxHashMap::default(),
            seen: FxHashMap::default(),
            expiry: VecDeque::new(),
        }
    }

    /// The marks of a position. `fix` is its time as sent, `None` if it had none.
    #[must_use]
    pub fn marks(
        &self,
        room: RoomNo,
        vehicle: VehicleNo,
        key: Option<&str>,
        fix: Option<i64>,
        latitude: f64,
        longitude: f64,
    ) -> Marks {
        let mark = |write: &dyn Fn(&mut dyn Hasher)| {
            self.hashers.each_ref().map(|state| {
                let mut hasher = state.build_hasher();
                hasher.write_u64(u64::from(room) << 32 | u64::from(vehicle));
                write(&mut hasher);
                hasher.finish()
            })
        };
        Marks {
            key: key.map(|key| {
                mark(&|hasher| {
                    hasher.write_u8(0);
                    hasher.write(key.as_bytes());
                })
            }),
            // Adding 0.0 turns −0.0 into 0.0: the same place.
            place: fix.map(|fix| {
                mark(&|hasher| {
                    hasher.write_u8(1);
                    hasher.write_i64(fix);
                    hasher.write_u64((latitude + 0.0).to_bits());
                    hasher.write_u64((longitude + 0.0).to_bits());
                })
            }),
        }
    }

    /// The `seq` of the stored position that one with these marks repeats, if any.
    /// `now` (milliseconds since 1970) is the commit time of what is judged and must
    /// not go back.
    pub fn duplicate_of(
        &mut self,
        room: RoomNo,
        vehicle: VehicleNo,
        marks: &Marks,
        now: i64,
    ) -> Option<u64> {
        self.expire(now);
        if let Some(key) = &marks.key {
            return self.seen.get(key).copied();
        }
        let place = marks.place.as_ref()?;
        self.seen.get(place).copied().or_else(|| {
            self.newest(room, vehicle)
                .filter(|newest| newest.place.as_ref() == Some(place))
                .map(|newest| newest.seq)
        })
    }

    /// Whether a fix of this time would be late.
    #[must_use]
    pub fn is_late(&self, room: RoomNo, vehicle: VehicleNo, fix: i64) -> bool {
        self.newest(room, vehicle).is_some_and(|newest| fix < newest.fix)
    }

    /// Takes a position that is stored under `seq`, committed at `now`, into the
    /// deduplication window.
    pub fn remember(&mut self, marks: &Marks, seq: u64, now: i64) {
        for mark in [marks.key, marks.place].into_iter().flatten() {
            self.seen.insert(mark, seq);
            self.expiry.push_back((now.saturating_add(self.window), mark, seq));
        }
    }

    /// Makes a stored position the vehicle's newest, unless a newer one is known.
    /// Of two fixes of one time the one stored later is the newest. Returns the one
    /// it replaced.
    pub fn advance(&mut self, room: RoomNo, vehicle: VehicleNo, newest: Newest) -> Option<Newest> {
        let vehicles = self.newest.entry(room).or_default();
        match vehicles.get(&vehicle) {
            Some(known) if (known.fix, known.seq) > (newest.fix, newest.seq) => None,
            _ => vehicles.insert(vehicle, newest),
        }
    }

    /// The vehicle's newest fix in the room.
    #[must_use]
    pub fn newest(&self, room: RoomNo, vehicle: VehicleNo) -> Option<&Newest> {
        self.newest.get(&room)?.get(&vehicle)
    }

    /// All vehicles' newest fixes in the room, in no order.
    pub fn newest_in(&self, room: RoomNo) -> impl Iterator<Item = (VehicleNo, &Newest)> {
        self.newest.get(&room).into_iter().flatten().map(|(vehicle, newest)| (*vehicle, newest))
    }

    /// Forgets the vehicle's newest fix in the room: it left the log.
    pub fn forget(&mut self, room: RoomNo, vehicle: VehicleNo) {
        if let Some(vehicles) = self.newest.get_mut(&room) {
            vehicles.remove(&vehicle);
            if vehicles.is_empty() {
                self.newest.remove(&room);
            }
        }
    }

    fn expire(&mut self, now: i64) {
        while let Some(&(until, mark, seq)) = self.expiry.front() {
            if until > now {
                break;
            }
            self.expiry.pop_front();
            if self.seen.get(&mark) == Some(&seq) {
                self.seen.remove(&mark);
            }
        }
    }
}
