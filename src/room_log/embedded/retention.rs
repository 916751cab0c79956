//! What leaves the log: the oldest events, by age, by size, and early when the disk is
//! nearly full. One small transaction at a time, between the writer's batches.
//!
//! A vehicle's newest fix is spared, so that the snapshot outlives a log that is small
//! for its traffic; it goes when a newer one comes or when its own age is reached.

use std::path::Path;

use rusqlite::{Connection, params};
use rustc_hash::{FxHashMap, FxHashSet};

use super::recovery::{Spared, State, millis};
use super::schema::set_meta;
use super::{Settings, disk, store};
use crate::room_log::judge::{RoomNo, VehicleNo};

/// Free pages kept inside the file while the disk is nearly full, so that the log goes
/// on without growing: 16 MiB.
const RESERVE_BYTES: u64 = 16 << 20;

/// What the engine's settings mean for the file's contents.
#[derive(Debug)]
pub(super) struct Retention {
    age: i64,
    spare_age: i64,
    bytes: u64,
    min_free: u64,
    low: bool,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    seq: u64,
    room: RoomNo,
    vehicle: VehicleNo,
    received_at: i64,
}

impl Retention {
    pub(super) fn new(settings: &Settings) -> Self {
        let age = millis(settings.retention_age);
        Self {
            age,
            spare_age: age.max(millis(settings.newest_age)),
            bytes: settings.retention_bytes,
            min_free: settings.min_free,
            low: false,
        }
    }

    /// Whether the file is too large, or its disk too full.
    pub(super) fn is_over(&mut self, connection: &Connection, file: Option<&Path>) -> bool {
        let number = |pragma: &str| -> u64 {
            connection
                .prepare_cached(pragma)
                .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
                .unwrap_or(0)
        };
        let page = number("PRAGMA page_size");
        let free = number("PRAGMA freelist_count") * page;
        let used = (number("PRAGMA page_count") * page).saturating_sub(free);
        let folder = file.and_then(Path::parent);
        let on_disk = folder.and_then(|folder| disk::free_bytes(folder).ok());
        let low = on_disk.is_some_and(|bytes| bytes < self.min_free);
        if low != self.low {
            self.low = low;
            let (free_bytes, min_free) = (on_disk.unwrap_or(0), self.min_free);
            if low {
                tracing::warn!(
                    free_bytes,
                    min_free,
                    "room log: the disk is nearly full, old events leave early"
                );
            } else {
                tracing::info!(free_bytes, min_free, "room log: the disk has room again");
            }
        }
        used > self.bytes || (low && free < RESERVE_BYTES)
    }

    /// Removes at most `limit` of the oldest events: those over age, or any if `over`.
    /// Returns whether there may be more to remove. An error leaves all as it was.
    pub(super) fn step(
        &self,
        connection: &Connection,
        state: &mut State,
        now: i64,
        over: bool,
        limit: usize,
    ) -> rusqlite::Result<bool> {
        let aged = now.saturating_sub(self.age);
        let mut due: Vec<Candidate> = Vec::new();
        {
            let mut statement = connection.prepare_cached(
                "SELECT seq, room, vehicle, received_at FROM events WHERE seq > ?1
                 ORDER BY seq LIMIT ?2",
            )?;
            let mut rows = statement.query(params![state.trimmed_to, limit])?;
            while let Some(row) = rows.next()? {
                let candidate = Candidate {
                    seq: row.get(0)?,
                    room: row.get(1)?,
                    vehicle: row.get(2)?,
                    received_at: row.get(3)?,
                };
                if !over && candidate.received_at >= aged {
                    break;
                }
                due.push(candidate);
            }
        }
        let more = due.len() == limit;
        let spare_after = now.saturating_sub(self.spare_age);
        let is_newest = |seq, room, vehicle| {
            state.judge.newest(room, vehicle).is_some_and(|newest| newest.seq == seq)
        };
        let (kept, gone): (Vec<_>, Vec<_>) = due.iter().copied().partition(|event| {
            event.received_at >= spare_after && is_newest(event.seq, event.room, event.vehicle)
        });
        let expired: Vec<Spared> = state
            .spared
            .iter()
            .take_while(|spared| spared.received_at < spare_after)
            .take(limit)
            .copied()
            .collect();
        if due.is_empty() && expired.is_empty() {
            return Ok(false);
        }
        let trimmed_to = due.last().map_or(state.trimmed_to, |event| event.seq);
        let mut rooms: FxHashMap<RoomNo, u64> = FxHashMap::default();
        for event in &due {
            rooms.insert(event.room, event.seq);
        }
        let leaving: Vec<(u64, RoomNo, VehicleNo)> = gone
            .iter()
            .map(|event| (event.seq, event.room, event.vehicle))
            .chain(expired.iter().map(|event| (event.seq, event.room, event.vehicle)))
            .collect();
        let seqs: FxHashSet<u64> = leaving.iter().map(|(seq, ..)| *seq).collect();
        // A track ends with its last event, unless its newest stays.
        let mut ended: Vec<(RoomNo, VehicleNo)> = leaving
            .iter()
            .map(|&(_, room, vehicle)| (room, vehicle))
            .filter(|&(room, vehicle)| {
                let newest = state.judge.newest(room, vehicle);
                state.catalogue.last_seq(room, vehicle).is_some_and(|last| last <= trimmed_to)
                    && newest.is_none_or(|newest| seqs.contains(&newest.seq))
            })
            .collect();
        ended.sort_unstable();
        ended.dedup();
        store::transaction(connection, |connection| {
            let mut delete = connection.prepare_cached("DELETE FROM events WHERE seq = ?1")?;
            for (seq, ..) in &leaving {
                delete.execute([seq])?;
            }
            for (room, seq) in &rooms {
                connection
                    .prepare_cached("UPDATE rooms SET trimmed_to = ?2 WHERE id = ?1")?
                    .execute(params![room, seq])?;
            }
            for (room, vehicle) in &ended {
                connection
                    .prepare_cached("DELETE FROM tracks WHERE room = ?1 AND vehicle = ?2")?
                    .execute(params![room, vehicle])?;
            }
            set_meta(connection, "trimmed_to", trimmed_to)
        })?;
        for (seq, room, vehicle) in leaving {
            if state.judge.newest(room, vehicle).is_some_and(|newest| newest.seq == seq) {
                state.judge.forget(room, vehicle);
            }
        }
        state.spared.drain(..expired.len());
        state.spared.extend(kept.iter().map(|event| Spared {
            seq: event.seq,
            room: event.room,
            vehicle: event.vehicle,
            received_at: event.received_at,
        }));
        for (room, seq) in rooms {
            if let Some(room) = state.catalogue.get_room_mut(room) {
                room.trimmed_to = seq;
            }
        }
        for (room, vehicle) in ended {
            state.catalogue.end(room, vehicle);
        }
        state.trimmed_to = trimmed_to;
        Ok(more)
    }
}
