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

use crate::ids::{RoomId, VehicleId};

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

    /// The marks of a position. `fix` is its time as sent, `None` if it had none. Names,
    /// not numbers: a number may go and come again within the window.
    #[must_use]
    pub fn marks(
        &self,
        room: &RoomId,
        vehicle: &VehicleId,
        key: Option<&str>,
        fix: Option<i64>,
        latitude: f64,
        longitude: f64,
    ) -> Marks {
        let mark = |write: &dyn Fn(&mut dyn Hasher)| {
            self.hashers.each_ref().map(|state| {
                let mut hasher = state.build_hasher();
                // 0xff is in no UTF-8 text.
                hasher.write(room.as_str().as_bytes());
                hasher.write_u8(0xff);
                hasher.write(vehicle.as_str().as_bytes());
                hasher.write_u8(0xff);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: i64 = 10;

    #[derive(Debug, Clone)]
    struct Sent {
        pause: i64,
        room: u32,
        vehicle: u32,
        key: Option<u8>,
        fix: Option<i64>,
        place: u8,
    }

    fn sent() -> impl Strategy<Value = Sent> {
        (
            0_i64..4,
            0_u32..2,
            0_u32..2,
            prop::option::weighted(0.4, 0_u8..4),
            prop::option::weighted(0.8, 0_i64..6),
            0_u8..2,
        )
            .prop_map(|(pause, room, vehicle, key, fix, place)| Sent {
                pause,
                room,
                vehicle,
                key,
                fix,
                place,
            })
    }

    fn name(number: u32) -> String {
        format!("name {number}")
    }

    proptest! {
        /// The rules of protocol.md over a list of all that was ever stored.
        #[test]
        fn judges_as_a_list_does(all in prop::collection::vec(sent(), 1..80)) {
            let mut judge = Judge::new(WINDOW);
            let mut list: Vec<(u64, i64, Sent, bool)> = Vec::new();
            let mut now = 100;
            for one in all {
                now += one.pause;
                let fix = one.fix.unwrap_or(now);
                let of = |s: &Sent| (s.room, s.vehicle) == (one.room, one.vehicle);
                let newest = list
                    .iter()
                    .filter(|(_, _, known, late)| of(known) && !late)
                    .max_by_key(|(seq, at, known, _)| (known.fix.unwrap_or(*at), *seq));
                let same_fix = |known: &Sent| {
                    one.fix.is_some() && known.fix == one.fix && known.place == one.place
                };
                let in_window = list
                    .iter()
                    .filter(|(_, at, known, _)| of(known) && now < at + WINDOW)
                    .filter(|(_, _, known, _)| match one.key {
                        Some(_) => known.key == one.key,
                        None => same_fix(known),
                    })
                    .map(|(seq, ..)| *seq)
                    .max();
                let as_newest = newest
                    .filter(|(_, _, known, _)| one.key.is_none() && same_fix(known))
                    .map(|(seq, ..)| *seq);
                let expected = in_window.or(as_newest);
                let late =
                    newest.is_some_and(|(_, at, known, _)| fix < known.fix.unwrap_or(*at));

                let room = RoomId::parse(&name(one.room)).unwrap();
                let vehicle = VehicleId::parse(&name(one.vehicle)).unwrap();
                let key = one.key.map(|key| key.to_string());
                // −0.0 and 0.0 are one place.
                let latitude = if one.pause % 2 == 0 { 0.0 } else { -0.0 };
                let marks = judge.marks(
                    &room, &vehicle, key.as_deref(), one.fix, latitude, f64::from(one.place),
                );
                let found = judge.duplicate_of(one.room, one.vehicle, &marks, now);
                prop_assert_eq!(found, expected);
                if found.is_none() {
                    prop_assert_eq!(judge.is_late(one.room, one.vehicle, fix), late);
                    let seq = list.len() as u64 + 1;
                    judge.remember(&marks, seq, now);
                    if !late {
                        let newest = Newest { seq, fix, place: marks.place };
                        judge.advance(one.room, one.vehicle, newest);
                    }
                    list.push((seq, now, one, late));
                }
            }
        }
    }

    #[test]
    fn the_window_leaves_no_memory_behind() {
        let mut judge = Judge::new(WINDOW);
        let (room, vehicle) = (RoomId::parse("r").unwrap(), VehicleId::parse("v").unwrap());
        for now in 0..1000 {
            let marks = judge.marks(&room, &vehicle, Some(&now.to_string()), Some(now), 1.0, 1.0);
            assert_eq!(judge.duplicate_of(1, 1, &marks, now), None);
            judge.remember(&marks, now.unsigned_abs(), now);
        }
        assert!(judge.seen.len() <= 20 && judge.expiry.len() <= 20);
    }
}
