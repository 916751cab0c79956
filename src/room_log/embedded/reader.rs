//! Reads on threads and connections of their own: pages of missed events and history.
//! Never writes; every answer is one snapshot of the file.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::schema::{self, LATE, OpenError, QUIET};
use crate::ids::{ClientId, RoomId, VehicleId};
use crate::room_log::{
    EVENT_OVERHEAD, HistoryPage, HistoryQuery, MAX_SEQ, Page, ReadError, StoredPosition,
};
use crate::time::UnixMillis;

/// A question to the file.
pub(super) type Job = Box<dyn FnOnce(&Connection) + Send>;

/// Two, so that one long history does not hold up every resume.
const THREADS: usize = 2;

#[derive(Default)]
struct Jobs {
    waiting: Mutex<(VecDeque<Job>, bool)>,
    wake: Condvar,
}

/// The reader threads; they end when this is dropped.
pub(super) struct Readers(Arc<Jobs>);

impl Readers {
    pub(super) fn start(file: &Path) -> Result<Self, OpenError> {
        let readers = Self(Arc::default());
        for _ in 0..THREADS {
            let connection =
                schema::open_reader(file).map_err(|error| OpenError::new(file, &error))?;
            let jobs = readers.0.clone();
            std::thread::Builder::new()
                .name("room-log-read".to_owned())
                .spawn(move || jobs.work(&connection))
                .map_err(|error| OpenError::Other {
                    file: file.to_owned(),
                    text: format!("no thread: {error}"),
                })?;
        }
        Ok(readers)
    }

    pub(super) fn submit(&self, job: Job) {
        self.0.waiting.lock().0.push_back(job);
        self.0.wake.notify_one();
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.0.waiting.lock().1 = true;
        self.0.wake.notify_all();
    }
}

impl Jobs {
    fn work(&self, connection: &Connection) {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.1 {
                return;
            }
            if let Some(job) = waiting.0.pop_front() {
                parking_lot::MutexGuard::unlocked(&mut waiting, || job(connection));
            } else {
                self.wake.wait(&mut waiting);
            }
        }
    }
}

/// The columns that [`position`] reads, from `events e JOIN vehicles v`.
pub(super) const COLUMNS: &str =
    "e.seq, v.name, e.client, e.fix, e.received_at, e.flags, e.body, e.vehicle";

/// Reads a row of [`COLUMNS`].
pub(super) fn position(row: &Row<'_>) -> rusqlite::Result<StoredPosition> {
    let flags: i64 = row.get(5)?;
    let vehicle = VehicleId::parse(row.get_ref(1)?.as_str()?).map_err(|_| bad_column(1))?;
    let client = match row.get_ref(2)?.as_str_or_null()? {
        None => ClientId::parse(vehicle.as_str()),
        Some(name) => ClientId::parse(name),
    }
    .map_err(|_| bad_column(2))?;
    Ok(StoredPosition {
        seq: row.get(0)?,
        vehicle,
        client,
        fix: UnixMillis::new(row.get(3)?).ok_or_else(|| bad_column(3))?,
        received_at: UnixMillis::new(row.get(4)?).ok_or_else(|| bad_column(4))?,
        body: row.get_ref(6)?.as_str()?.into(),
        late: flags & (LATE | QUIET) != 0,
    })
}

/// A value that this program never writes.
pub(super) fn bad_column(index: usize) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(
        index,
        rusqlite::types::Type::Text,
        "not a value of a room log".into(),
    )
}

fn size(position: &StoredPosition) -> usize {
    position.body.len()
        + position.vehicle.as_str().len()
        + position.client.as_str().len()
        + EVENT_OVERHEAD
}

fn find_room(connection: &Connection, room: &RoomId) -> rusqlite::Result<Option<(u32, u64)>> {
    connection
        .prepare_cached("SELECT id, trimmed_to FROM rooms WHERE name = ?1")?
        .query_row([room.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}

/// A page of the events after `after_seq`.
pub(super) fn page(
    connection: &Connection,
    room: &RoomId,
    after_seq: u64,
    up_to_seq: u64,
    max_bytes: usize,
    live_only: bool,
) -> rusqlite::Result<Result<Page, ReadError>> {
    let snapshot = connection.unchecked_transaction()?;
    let found = find_room(&snapshot, room)?;
    let trimmed_to = match found {
        Some((_, trimmed_to)) => trimmed_to,
        None => schema::meta(&snapshot, "trimmed_to")?.unwrap_or(0),
    };
    if after_seq < trimmed_to {
        return Ok(Err(ReadError::Trimmed { trimmed_to }));
    }
    let mut page = Page { events: Vec::new(), next: None };
    let Some((room, _)) = found else { return Ok(Ok(page)) };
    let mut statement = snapshot.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM events e INDEXED BY events_by_room
         JOIN vehicles v ON v.id = e.vehicle
         WHERE e.room = :room AND e.seq > :after AND e.seq <= :up_to AND e.flags & :hidden = 0
         ORDER BY e.seq"
    ))?;
    let mut rows = statement.query(named_params! {
        ":room": room,
        ":after": after_seq.min(MAX_SEQ),
        ":up_to": up_to_seq.min(MAX_SEQ),
        ":hidden": if live_only { LATE | QUIET } else { 0 },
    })?;
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let event = position(row)?;
        bytes += size(&event);
        if bytes > max_bytes
            && let Some(last) = page.events.last()
        {
            page.next = Some(last.seq);
            break;
        }
        page.events.push(event);
    }
    Ok(Ok(page))
}

/// A place in history: what the index orders by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    fix: i64,
    vehicle: i64,
    seq: i64,
}

impl Place {
    /// Reads a cursor.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        let place = Self { fix: parts.next()??, vehicle: parts.next()??, seq: parts.next()?? };
        parts.next().is_none().then_some(place)
    }

    fn cursor(self) -> Box<str> {
        format!("{}.{}.{}", self.fix, self.vehicle, self.seq).into()
    }
}

/// A page of history.
pub(super) fn history(
    connection: &Connection,
    query: &HistoryQuery,
    after: Option<Place>,
) -> rusqlite::Result<HistoryPage> {
    let snapshot = connection.unchecked_transaction()?;
    let mut page = HistoryPage { events: Vec::new(), cursor: None };
    let Some((room, _)) = find_room(&snapshot, &query.room)? else { return Ok(page) };
    let vehicle: Option<u32> = match &query.vehicle {
        None => None,
        Some(name) => {
            let number = snapshot
                .prepare_cached("SELECT id FROM vehicles WHERE name = ?1")?
                .query_row([name.as_str()], |row| row.get(0))
                .optional()?;
            if number.is_none() {
                return Ok(page);
            }
            number
        }
    };
    let from = query.from.map_or(i64::MIN, UnixMillis::get);
    let after = after.unwrap_or(Place { fix: i64::MIN, vehicle: i64::MIN, seq: i64::MIN });
    // The index alone orders and filters; only rows of the page are fetched.
    let mut statement = snapshot.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM events e INDEXED BY events_by_fix
         JOIN vehicles v ON v.id = e.vehicle
         WHERE e.room = :room AND e.fix >= :from AND e.fix <= :to
           AND (:vehicle IS NULL OR e.vehicle = :vehicle)
           AND (e.fix > :fix OR e.vehicle > :after_vehicle
                OR e.vehicle = :after_vehicle AND e.seq > :seq)
         ORDER BY e.fix, e.vehicle, e.seq"
    ))?;
    let mut rows = statement.query(named_params! {
        ":room": room,
        ":vehicle": vehicle,
        ":from": from.max(after.fix),
        ":to": query.to.map_or(i64::MAX, UnixMillis::get),
        ":fix": after.fix,
        ":after_vehicle": after.vehicle,
        ":seq": after.seq,
    })?;
    let (mut bytes, mut last) = (0, after);
    while let Some(row) = rows.next()? {
        let event = position(row)?;
        bytes += size(&event);
        let full = page.events.len() >= query.limit.max(1) || bytes > query.max_bytes;
        if full && !page.events.is_empty() {
            page.cursor = Some(last.cursor());
            break;
        }
        last = Place {
            fix: event.fix.get(),
            vehicle: row.get(7)?,
            seq: i64::try_from(event.seq).unwrap_or(i64::MAX),
        };
        page.events.push(event);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_back_and_others_refused() {
        let place = Place { fix: -5, vehicle: 7, seq: 9 };
        assert_eq!(Place::parse(&place.cursor()), Some(place));
        for text in ["", "1", "1.2", "1.2.3.4", "a.b.c", "1.2.99999999999999999999", "…"] {
            assert_eq!(Place::parse(text), None, "{text}");
        }
    }
}
