//! The newest position per vehicle of one room, walkable in the order of the tail.
//!
//! A snapshot and the ladder's second step are both a walk: the next vehicle whose newest
//! event stands at or above a cursor. Nothing is copied, and what is sent ascends.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::ids::{ConnId, VehicleId};
use crate::time::UnixMillis;

/// The newest event of one vehicle.
#[derive(Debug, Clone)]
pub struct Newest {
    /// Its index in the room's tail (also when the tail has trimmed it).
    pub index: u64,
    /// Its place in the room log.
    pub seq: u64,
    /// Time of the fix.
    pub fix: UnixMillis,
    /// The whole frame.
    pub frame: Bytes,
    /// The members of the position's JSON object within the frame.
    pub item: Range<usize>,
    /// The connection that published it, if it is one of this process.
    pub sender: Option<ConnId>,
}

impl Newest {
    /// The members of the JSON object that stands in lists of positions.
    #[must_use]
    pub fn item(&self) -> &[u8] {
        &self.frame[self.item.clone()]
    }
}

/// All vehicles of one room.
#[derive(Debug, Default)]
pub struct NewestMap {
    by_vehicle: FxHashMap<VehicleId, u64>,
    by_index: BTreeMap<u64, (VehicleId, Newest)>,
}

impl NewestMap {
    /// Makes `newest` the newest of `vehicle`; its index must be above all others.
    pub fn put(&mut self, vehicle: VehicleId, newest: Newest) {
        let index = newest.index;
        let old = match self.by_vehicle.get_mut(vehicle.as_str()) {
            Some(at) => Some(std::mem::replace(at, index)),
            None => {
                self.by_vehicle.insert(vehicle.clone(), index);
                None
            }
        };
        if let Some(old) = old {
            self.by_index.remove(&old);
        }
        self.by_index.insert(index, (vehicle, newest));
    }

    /// The vehicle with the smallest index within `range`, of those with a fix not before
    /// `oldest`.
    pub fn walk(
        &self,
        range: Range<u64>,
        oldest: UnixMillis,
    ) -> impl Iterator<Item = &Newest> + '_ {
        self.by_index
            .range(range)
            .map(|(_, (_, newest))| newest)
            .filter(move |newest| newest.fix >= oldest)
    }

    /// The newest positions that stand at or above `index`, in the tail's order.
    pub fn since(&self, index: u64) -> impl Iterator<Item = &Newest> + '_ {
        self.by_index.range(index..).map(|(_, (_, newest))| newest)
    }

    /// Forgets vehicles whose last fix is before `oldest`.
    pub fn expire(&mut self, oldest: UnixMillis) {
        let by_vehicle = &mut self.by_vehicle;
        self.by_index.retain(|_, (vehicle, newest)| {
            let keep = newest.fix >= oldest;
            if !keep {
                by_vehicle.remove(vehicle.as_str());
            }
            keep
        });
    }

    /// How many vehicles there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_index.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_index.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(index: u64, fix: i64) -> Newest {
        Newest {
            index,
            seq: index * 10,
            fix: UnixMillis::new(fix).unwrap(),
            frame: Bytes::from_static(b"xx\"seq\":1}}"),
            item: 2..9,
            sender: None,
        }
    }

    #[test]
    fn a_walk_ascends_and_meets_each_vehicle_once() {
        let mut map = NewestMap::default();
        let name = |n: &str| VehicleId::parse(n).unwrap();
        map.put(name("a"), newest(1, 100));
        map.put(name("b"), newest(2, 50));
        map.put(name("a"), newest(3, 110));
        let epoch = UnixMillis::new(0).unwrap();
        let indices = |map: &NewestMap, from, oldest| {
            map.walk(from..u64::MAX, oldest).map(|n| n.index).collect::<Vec<_>>()
        };
        assert_eq!(indices(&map, 0, epoch), [2, 3]);
        assert_eq!(indices(&map, 3, epoch), [3]);
        assert_eq!(indices(&map, 0, UnixMillis::new(60).unwrap()), [3]);
        map.expire(UnixMillis::new(60).unwrap());
        assert_eq!(map.len(), 1);
        assert_eq!(
            map.walk(0..9, epoch).next().map(|n| n.item().to_vec()),
            Some(b"\"seq\":1".to_vec())
        );
    }
}
