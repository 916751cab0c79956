//! The numbers of rooms and vehicles, and which vehicle has events in which room.
//!
//! A number is given on the first event and goes when the last event of its room or
//! vehicle leaves the log, so that names nobody uses any more cost nothing. What is new
//! since the last commit is kept for the writer to store.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ids::{RoomId, VehicleId};
use crate::room_log::judge::{RoomNo, VehicleNo};

/// A room that has events in the log.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) name: RoomId,
    pub(super) trimmed_to: u64,
    /// The highest `seq` per vehicle, whatever its verdict.
    pub(super) last_seq: FxHashMap<VehicleNo, u64>,
}

#[derive(Debug)]
struct Vehicle {
    name: VehicleId,
    rooms: u32,
}

/// The rooms and vehicles of the log.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    rooms: FxHashMap<RoomNo, Room>,
    room_numbers: FxHashMap<RoomId, RoomNo>,
    vehicles: FxHashMap<VehicleNo, Vehicle>,
    vehicle_numbers: FxHashMap<VehicleId, VehicleNo>,
    last_room: RoomNo,
    last_vehicle: VehicleNo,
    pub(super) new_rooms: Vec<RoomNo>,
    pub(super) new_vehicles: Vec<VehicleNo>,
    /// Gone from here and not yet from the file.
    pub(super) dead_rooms: Vec<RoomNo>,
    pub(super) dead_vehicles: Vec<VehicleNo>,
    /// Tracks that changed since they were last saved.
    pub(super) dirty: FxHashSet<(RoomNo, VehicleNo)>,
}

impl Catalogue {
    /// Takes a room as the file has it.
    pub(super) fn restore_room(&mut self, number: RoomNo, name: RoomId, trimmed_to: u64) {
        self.last_room = self.last_room.max(number);
        self.room_numbers.insert(name.clone(), number);
        self.rooms.insert(number, Room { name, trimmed_to, last_seq: FxHashMap::default() });
    }

    /// Takes a vehicle as the file has it.
    pub(super) fn restore_vehicle(&mut self, number: VehicleNo, name: VehicleId) {
        self.last_vehicle = self.last_vehicle.max(number);
        self.vehicle_numbers.insert(name.clone(), number);
        self.vehicles.insert(number, Vehicle { name, rooms: 0 });
    }

    /// The number of a room, a new one if it has none. `trimmed_to` is what a new room
    /// starts with: anything up to there may have been its own once.
    pub(super) fn room(&mut self, name: &RoomId, trimmed_to: u64) -> RoomNo {
        if let Some(number) = self.room_numbers.get(name) {
            return *number;
        }
        self.last_room += 1;
        self.restore_room(self.last_room, name.clone(), trimmed_to);
        self.new_rooms.push(self.last_room);
        self.last_room
    }

    /// The number of a vehicle, a new one if it has none.
    pub(super) fn vehicle(&mut self, name: &VehicleId) -> VehicleNo {
        if let Some(number) = self.vehicle_numbers.get(name) {
            return *number;
        }
        self.last_vehicle += 1;
        self.restore_vehicle(self.last_vehicle, name.clone());
        self.new_vehicles.push(self.last_vehicle);
        self.last_vehicle
    }

    pub(super) fn find_room(&self, name: &RoomId) -> Option<RoomNo> {
        self.room_numbers.get(name).copied()
    }

    pub(super) fn get_room(&self, number: RoomNo) -> Option<&Room> {
        self.rooms.get(&number)
    }

    pub(super) fn get_room_mut(&mut self, number: RoomNo) -> Option<&mut Room> {
        self.rooms.get_mut(&number)
    }

    pub(super) fn vehicle_name(&self, number: VehicleNo) -> Option<&VehicleId> {
        self.vehicles.get(&number).map(|vehicle| &vehicle.name)
    }

    /// Notes an event of a vehicle in a room; it is saved with the tracks.
    pub(super) fn note(&mut self, room: RoomNo, vehicle: VehicleNo, seq: u64) {
        let Some(entry) = self.rooms.get_mut(&room) else { return };
        let known = entry.last_seq.entry(vehicle).or_insert_with(|| {
            if let Some(vehicle) = self.vehicles.get_mut(&vehicle) {
                vehicle.rooms += 1;
            }
            seq
        });
        *known = seq.max(*known);
        self.dirty.insert((room, vehicle));
    }

    /// The highest `seq` of a vehicle in a room.
    pub(super) fn last_seq(&self, room: RoomNo, vehicle: VehicleNo) -> Option<u64> {
        self.rooms.get(&room)?.last_seq.get(&vehicle).copied()
    }

    /// Removes the track of a vehicle in a room, and the room and the vehicle if it was
    /// their last.
    pub(super) fn end(&mut self, room: RoomNo, vehicle: VehicleNo) {
        self.dirty.remove(&(room, vehicle));
        let Some(entry) = self.rooms.get_mut(&room) else { return };
        if entry.last_seq.remove(&vehicle).is_none() {
            return;
        }
        if entry.last_seq.is_empty()
            && let Some(entry) = self.rooms.remove(&room)
        {
            self.room_numbers.remove(&entry.name);
            self.dead_rooms.push(room);
        }
        if let Some(known) = self.vehicles.get_mut(&vehicle) {
            known.rooms -= 1;
            if known.rooms == 0
                && let Some(gone) = self.vehicles.remove(&vehicle)
            {
                self.vehicle_numbers.remove(&gone.name);
                self.dead_vehicles.push(vehicle);
            }
        }
    }

    /// Removes rooms and vehicles without a track, as a kill between two transactions
    /// leaves them behind.
    pub(super) fn sweep(&mut self) {
        let rooms: Vec<_> = self
            .rooms
            .iter()
            .filter(|(_, room)| room.last_seq.is_empty())
            .map(|(n, _)| *n)
            .collect();
        for number in rooms {
            if let Some(room) = self.rooms.remove(&number) {
                self.room_numbers.remove(&room.name);
                self.dead_rooms.push(number);
            }
        }
        let vehicles: Vec<_> = self
            .vehicles
            .iter()
            .filter(|(_, vehicle)| vehicle.rooms == 0)
            .map(|(n, _)| *n)
            .collect();
        for number in vehicles {
            if let Some(vehicle) = self.vehicles.remove(&number) {
                self.vehicle_numbers.remove(&vehicle.name);
                self.dead_vehicles.push(number);
            }
        }
    }
}
