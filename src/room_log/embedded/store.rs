//! The writer's statements. Each function is one step that may be repeated: it changes
//! the file or nothing, and never the writer's memory.

use rusqlite::{Connection, OptionalExtension, params};

use super::catalogue::Catalogue;
use super::reader::{COLUMNS, position};
use super::schema::{QUIET, UNTIMED, set_meta};
use crate::ids::{ClientId, VehicleId};
use crate::room_log::judge::{RoomNo, VehicleNo};
use crate::room_log::{Append, StoredPosition};
use crate::time::UnixMillis;

/// A row of `events` to be written, beside what its append holds.
#[derive(Debug)]
pub(super) struct NewRow {
    /// Which append of the batch it is from.
    pub(super) append: usize,
    pub(super) seq: u64,
    pub(super) room: RoomNo,
    pub(super) vehicle: VehicleNo,
    pub(super) flags: i64,
    pub(super) waited: i64,
}

/// A track as it is to be saved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Track {
    pub(super) room: RoomNo,
    pub(super) vehicle: VehicleNo,
    pub(super) last_seq: u64,
    pub(super) newest_seq: Option<u64>,
}

/// What one transaction writes.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) appends: Vec<Append>,
    pub(super) rows: Vec<NewRow>,
    /// Rows that go: superseded ones that retention had spared, released ones' old place.
    pub(super) removed: Vec<u64>,
    pub(super) tracks: Vec<Track>,
    /// Set when the last of the changed tracks is among `tracks`.
    pub(super) tracks_upto: Option<u64>,
    /// The highest `seq` of the log once this is written.
    pub(super) last_seq: u64,
}

/// Runs `work` in one transaction: all of it is committed, or nothing.
pub(super) fn transaction<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let result = work(connection).and_then(|value| {
        connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(value)
    });
    if result.is_err() && !connection.is_autocommit() {
        // Fails only if SQLite rolled back by itself.
        let _ = connection.execute_batch("ROLLBACK");
    }
    result
}

/// Writes a batch.
pub(super) fn write(
    connection: &Connection,
    catalogue: &Catalogue,
    batch: &Batch,
) -> rusqlite::Result<()> {
    transaction(connection, |connection| {
        write_names(connection, catalogue)?;
        let mut insert = connection.prepare_cached(
            "INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?;
        for row in &batch.rows {
            let append = &batch.appends[row.append];
            let same_name = append.client.as_str() == append.vehicle.as_str();
            insert.execute(params![
                row.seq,
                row.room,
                row.vehicle,
                row.flags,
                append.fix_time().get(),
                append.received_at.get(),
                row.waited,
                append.latitude,
                append.longitude,
                (!same_name).then(|| append.client.as_str()),
                append.key.as_deref(),
                &*append.body,
            ])?;
        }
        for seq in &batch.removed {
            connection.prepare_cached("DELETE FROM events WHERE seq = ?1")?.execute([seq])?;
        }
        save_tracks(connection, &batch.tracks)?;
        if let Some(upto) = batch.tracks_upto {
            set_meta(connection, "tracks_upto", upto)?;
        }
        set_meta(connection, "last_seq", batch.last_seq)
    })
}

/// Brings the tables of names up to the catalogue.
pub(super) fn write_names(connection: &Connection, names: &Catalogue) -> rusqlite::Result<()> {
    for number in &names.dead_rooms {
        connection.prepare_cached("DELETE FROM rooms WHERE id = ?1")?.execute([number])?;
    }
    for number in &names.dead_vehicles {
        connection.prepare_cached("DELETE FROM vehicles WHERE id = ?1")?.execute([number])?;
    }
    for number in &names.new_rooms {
        if let Some(room) = names.get_room(*number) {
            connection
                .prepare_cached("INSERT INTO rooms VALUES (?1, ?2, ?3)")?
                .execute(params![number, room.name.as_str(), room.trimmed_to])?;
        }
    }
    for number in &names.new_vehicles {
        if let Some(name) = names.vehicle_name(*number) {
            connection
                .prepare_cached("INSERT INTO vehicles VALUES (?1, ?2)")?
                .execute(params![number, name.as_str()])?;
        }
    }
    Ok(())
}

fn save_tracks(connection: &Connection, tracks: &[Track]) -> rusqlite::Result<()> {
    let mut save =
        connection.prepare_cached("INSERT OR REPLACE INTO tracks VALUES (?1, ?2, ?3, ?4)")?;
    for track in tracks {
        save.execute(params![track.room, track.vehicle, track.last_seq, track.newest_seq])?;
    }
    Ok(())
}

/// The stored position that an upload's repeats: the same key, or without one the same
/// place, at the same time of the fix. For the whole of the log.
pub(super) fn find_repeated(
    connection: &Connection,
    room: RoomNo,
    vehicle: VehicleNo,
    append: &Append,
) -> rusqlite::Result<Option<u64>> {
    connection
        .prepare_cached(
            "SELECT seq FROM events INDEXED BY events_by_fix
             WHERE room = ?1 AND fix = ?2 AND vehicle = ?3 AND flags & ?4 = 0
               AND CASE WHEN ?5 IS NULL THEN latitude = ?6 AND longitude = ?7 ELSE key = ?5 END
             ORDER BY seq LIMIT 1",
        )?
        .query_row(
            params![
                room,
                append.fix_time().get(),
                vehicle,
                UNTIMED,
                append.key.as_deref(),
                append.latitude,
                append.longitude
            ],
            |row| row.get(0),
        )
        .optional()
}

/// A position of an upload that is not live yet.
#[derive(Debug)]
pub(super) struct QuietRow {
    pub(super) vehicle_no: VehicleNo,
    pub(super) vehicle: VehicleId,
    pub(super) client: ClientId,
    pub(super) fix: UnixMillis,
    pub(super) untimed: bool,
    pub(super) received_at: UnixMillis,
    pub(super) latitude: f64,
    pub(super) longitude: f64,
    pub(super) key: Option<Box<str>>,
    pub(super) body: Box<str>,
}

/// Reads the row `seq` of `room` if it is an upload's and not released.
pub(super) fn read_quiet(
    connection: &Connection,
    room: RoomNo,
    seq: u64,
) -> rusqlite::Result<Option<QuietRow>> {
    connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS}, e.latitude, e.longitude, e.key
             FROM events e JOIN vehicles v ON v.id = e.vehicle
             WHERE e.seq = ?1 AND e.room = ?2 AND e.flags & ?3 <> 0"
        ))?
        .query_row(params![seq, room, QUIET], |row| {
            let stored = position(row)?;
            Ok(QuietRow {
                vehicle_no: row.get(7)?,
                vehicle: stored.vehicle,
                client: stored.client,
                fix: stored.fix,
                untimed: row.get::<_, i64>(5)? & UNTIMED != 0,
                received_at: stored.received_at,
                latitude: row.get(8)?,
                longitude: row.get(9)?,
                key: row.get(10)?,
                body: stored.body,
            })
        })
        .optional()
}

/// Reads these events, in their order.
pub(super) fn read_events(
    connection: &Connection,
    seqs: &[u64],
) -> rusqlite::Result<Vec<StoredPosition>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM events e JOIN vehicles v ON v.id = e.vehicle WHERE e.seq = ?1"
    ))?;
    let mut events = Vec::with_capacity(seqs.len());
    for seq in seqs {
        events.extend(statement.query_row([seq], position).optional()?);
    }
    Ok(events)
}
