//! The writer's memory, rebuilt from the file at start: names, newest fixes, and what
//! is within the deduplication window.
//!
//! Reads the saved tracks and what came after them, not the whole log.

use std::collections::VecDeque;

use rusqlite::{Connection, params};

use super::Settings;
use super::catalogue::Catalogue;
use super::reader::bad_column;
use super::schema::{LATE, QUIET, UNTIMED, meta};
use crate::ids::{RoomId, VehicleId};
use crate::room_log::judge::{Judge, Marks, Newest, RoomNo, VehicleNo};

/// A newest fix that retention passed and left in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spared {
    pub(super) seq: u64,
    pub(super) room: RoomNo,
    pub(super) vehicle: VehicleNo,
    pub(super) received_at: i64,
}

/// What the writer knows about its file.
#[derive(Debug)]
pub(super) struct State {
    pub(super) catalogue: Catalogue,
    pub(super) judge: Judge,
    /// The highest `seq` given.
    pub(super) last_seq: u64,
    /// Retention has passed every `seq` up to this one.
    pub(super) trimmed_to: u64,
    /// The time of the last commit, milliseconds since 1970; never goes back.
    pub(super) last_commit: i64,
    pub(super) spared: VecDeque<Spared>,
    /// Tracks that are still to be saved, and what they are then exact up to.
    pub(super) saving: Vec<(RoomNo, VehicleNo)>,
    pub(super) saving_upto: u64,
    /// The highest `seq` that the saved tracks are exact up to.
    pub(super) saved_upto: u64,
}

/// Milliseconds of a configured time.
pub(super) fn millis(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// A row as judging needs it.
struct Seen {
    seq: u64,
    room: RoomNo,
    vehicle: VehicleNo,
    flags: i64,
    fix: i64,
    latitude: f64,
    longitude: f64,
}

const SEEN: &str = "seq, room, vehicle, flags, fix, latitude, longitude";

impl Seen {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            seq: row.get(0)?,
            room: row.get(1)?,
            vehicle: row.get(2)?,
            flags: row.get(3)?,
            fix: row.get(4)?,
            latitude: row.get(5)?,
            longitude: row.get(6)?,
        })
    }

    fn timed(&self) -> Option<i64> {
        (self.flags & UNTIMED == 0).then_some(self.fix)
    }

    /// Its marks; none if its names are not in the file, which this program never does.
    fn marks(&self, state: &State, key: Option<&str>) -> Option<Marks> {
        let room = &state.catalogue.get_room(self.room)?.name;
        let vehicle = state.catalogue.vehicle_name(self.vehicle)?;
        let (latitude, longitude) = (self.latitude, self.longitude);
        Some(state.judge.marks(room, vehicle, key, self.timed(), latitude, longitude))
    }

    fn advance(&self, state: &mut State) {
        if self.flags & (LATE | QUIET) == 0 {
            let place = self.marks(state, None).and_then(|marks| marks.place);
            let newest = Newest { seq: self.seq, fix: self.fix, place };
            state.judge.advance(self.room, self.vehicle, newest);
        }
    }
}

/// Rebuilds the state. `now` is the wall clock, milliseconds since 1970.
pub(super) fn restore(
    connection: &Connection,
    settings: &Settings,
    now: i64,
) -> rusqlite::Result<State> {
    let number = |key| meta::<u64>(connection, key).map(Option::unwrap_or_default);
    let saved_upto = number("tracks_upto")?;
    let mut state = State {
        catalogue: Catalogue::default(),
        judge: Judge::new(millis(settings.dedup_window)),
        last_seq: number("last_seq")?,
        trimmed_to: number("trimmed_to")?,
        last_commit: 0,
        spared: VecDeque::new(),
        saving: Vec::new(),
        saving_upto: 0,
        saved_upto,
    };
    restore_names(connection, &mut state.catalogue)?;
    restore_tracks(connection, &mut state)?;
    state.spared = restore_spared(connection, state.trimmed_to)?;
    state.catalogue.sweep();
    restore_window(connection, &mut state, millis(settings.dedup_window), now)?;
    Ok(state)
}

fn restore_names(connection: &Connection, catalogue: &mut Catalogue) -> rusqlite::Result<()> {
    let mut statement = connection.prepare("SELECT id, name, trimmed_to FROM rooms")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let name = RoomId::parse(row.get_ref(1)?.as_str()?).map_err(|_| bad_column(1))?;
        catalogue.restore_room(row.get(0)?, name, row.get(2)?);
    }
    let mut statement = connection.prepare("SELECT id, name FROM vehicles")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let name = VehicleId::parse(row.get_ref(1)?.as_str()?).map_err(|_| bad_column(1))?;
        catalogue.restore_vehicle(row.get(0)?, name);
    }
    Ok(())
}

fn restore_tracks(connection: &Connection, state: &mut State) -> rusqlite::Result<()> {
    let mut newest = connection.prepare(&format!("SELECT {SEEN} FROM events WHERE seq = ?1"))?;
    let mut statement =
        connection.prepare("SELECT room, vehicle, last_seq, newest_seq FROM tracks")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (room, vehicle, last_seq) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let mut found = None;
        if let Some(seq) = row.get::<_, Option<u64>>(3)? {
            found = newest.query_map([seq], Seen::read)?.next().transpose()?;
        }
        if let Some(seen) = &found {
            seen.advance(state);
        }
        // Neither a newest nor any other event is left of a track that ended.
        if found.is_some() || last_seq > state.trimmed_to {
            state.catalogue.note(room, vehicle, last_seq);
        }
    }
    state.catalogue.dirty.clear();
    let mut statement =
        connection.prepare(&format!("SELECT {SEEN} FROM events WHERE seq > ?1 ORDER BY seq"))?;
    for seen in statement.query_map([state.saved_upto], Seen::read)? {
        let seen = seen?;
        seen.advance(state);
        state.catalogue.note(seen.room, seen.vehicle, seen.seq);
    }
    Ok(())
}

fn restore_spared(connection: &Connection, upto: u64) -> rusqlite::Result<VecDeque<Spared>> {
    connection
        .prepare("SELECT seq, room, vehicle, received_at FROM events WHERE seq <= ?1 ORDER BY seq")?
        .query_map([upto], |row| {
            Ok(Spared {
                seq: row.get(0)?,
                room: row.get(1)?,
                vehicle: row.get(2)?,
                received_at: row.get(3)?,
            })
        })?
        .collect()
}

/// Commits are in the order of `seq`, so the window is the log's end.
fn restore_window(
    connection: &Connection,
    state: &mut State,
    window: i64,
    now: i64,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(&format!(
        "SELECT {SEEN}, received_at + waited, key FROM events ORDER BY seq DESC"
    ))?;
    let mut rows = statement.query(params![])?;
    let mut recent = Vec::new();
    while let Some(row) = rows.next()? {
        let committed: i64 = row.get(7)?;
        state.last_commit = state.last_commit.max(committed);
        if committed.saturating_add(window) <= now {
            break;
        }
        let seen = Seen::read(row)?;
        let key = row.get_ref(8)?.as_str_or_null()?;
        let Some(marks) = seen.marks(state, key) else { continue };
        recent.push((marks, seen.seq, committed));
    }
    for (marks, seq, committed) in recent.into_iter().rev() {
        state.judge.remember(&marks, seq, committed);
    }
    Ok(())
}
