//! The file's schema, version and epoch, and why a file is refused.
//!
//! WAL with `synchronous = NORMAL`: a commit is in the kernel before it is
//! acknowledged, so kill −9 loses nothing. A power loss may take the tail of the WAL;
//! the kernel's boot id tells: a file that was not closed cleanly under another boot id
//! starts a new epoch. Opening is therefore itself synced to the disk (`FULL`), or a
//! power loss could take the mark "open" along with the tail.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use super::lock::Lock;

/// "mile" in the file's header, so that another program's database is told apart.
const APPLICATION_ID: i32 = 0x6d69_6c65;

/// The version of [`SCHEMA`].
pub(super) const VERSION: i32 = 1;

/// How long a statement waits for another connection's lock.
pub(super) const BUSY: Duration = Duration::from_secs(5);

/// Late: older than the vehicle's newest when it was stored.
pub(super) const LATE: i64 = 1;
/// From an upload and not released: never live.
pub(super) const QUIET: i64 = 2;
/// Sent without a time: no duplicate by time and place.
pub(super) const UNTIMED: i64 = 4;

/// Times are milliseconds since 1970, `waited` is from receipt to commit.
/// `events_by_room` serves resume, `events_by_fix` history and an upload's
/// deduplication. `client` is NULL where it is the vehicle's name. `tracks` is saved
/// now and then: what it says is exact up to the event `tracks_upto`.
const SCHEMA: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE rooms (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, trimmed_to INTEGER NOT NULL);
CREATE TABLE vehicles (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE events (
  seq INTEGER PRIMARY KEY,
  room INTEGER NOT NULL,
  vehicle INTEGER NOT NULL,
  flags INTEGER NOT NULL,
  fix INTEGER NOT NULL,
  received_at INTEGER NOT NULL,
  waited INTEGER NOT NULL,
  latitude REAL NOT NULL,
  longitude REAL NOT NULL,
  client TEXT,
  key TEXT,
  body TEXT NOT NULL
);
CREATE INDEX events_by_room ON events (room);
CREATE INDEX events_by_fix ON events (room, fix, vehicle);
CREATE TABLE tracks (
  room INTEGER NOT NULL,
  vehicle INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  newest_seq INTEGER,
  PRIMARY KEY (room, vehicle)
) WITHOUT ROWID;
CREATE VIEW positions AS
  SELECT e.seq, r.name AS room, v.name AS vehicle, coalesce(e.client, v.name) AS client,
    strftime('%Y-%m-%dT%H:%M:%fZ', e.fix / 1000.0, 'unixepoch') AS timestamp,
    strftime('%Y-%m-%dT%H:%M:%fZ', e.received_at / 1000.0, 'unixepoch') AS received_at,
    e.latitude, e.longitude, e.flags & 1 AS late, e.flags & 2 <> 0 AS uploaded, e.key, e.body
  FROM events e JOIN rooms r ON r.id = e.room JOIN vehicles v ON v.id = e.vehicle;
INSERT INTO meta VALUES ('last_seq', 0), ('tracks_upto', 0), ('trimmed_to', 0), ('clean', 1);
";

/// Why a log file cannot be opened. Every text names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Damaged, or no database at all.
    #[error("{}: not a readable database ({text}); restore it from a backup, or move it away to start an empty log", .file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// SQLite's text.
        text: String,
    },
    /// The file or its directory cannot be written.
    #[error("{}: cannot be written ({text}); room_log.path must be a file that this user may write, in a directory that it may write", .file.display())]
    ReadOnly {
        /// The file.
        file: PathBuf,
        /// SQLite's text.
        text: String,
    },
    /// A database of another program.
    #[error("{}: a database, but not a room log; give another room_log.path", .file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// Written by a newer version of this program.
    #[error("{}: schema version {found}, this program knows up to {VERSION}; run the newer program, or give another room_log.path", .file.display())]
    Newer {
        /// The file.
        file: PathBuf,
        /// The file's version.
        found: i32,
    },
    /// Anything else.
    #[error("{}: {text}; check the disk and room_log.path", .file.display())]
    Other {
        /// The file.
        file: PathBuf,
        /// SQLite's or the system's text.
        text: String,
    },
}

impl OpenError {
    pub(super) fn new(file: &Path, error: &rusqlite::Error) -> Self {
        let (file, text) = (file.to_owned(), error.to_string());
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt { file, text }
            }
            Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
                Self::ReadOnly { file, text }
            }
            _ => Self::Other { file, text },
        }
    }
}

/// An open file: the writer's connection and what the file says about itself.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) epoch: Arc<str>,
}

/// Opens the file that `lock` stands for, makes its schema if it is new, settles the
/// epoch and marks it open.
pub(super) fn open(lock: &Lock) -> Result<Opened, OpenError> {
    let file = lock.path();
    let wrap = |error: rusqlite::Error| OpenError::new(file, &error);
    let connection =
        if lock.in_memory() { Connection::open_in_memory() } else { Connection::open(file) }
            .map_err(wrap)?;
    configure(&connection).map_err(wrap)?;
    let version: i32 =
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(wrap)?;
    let application: i32 =
        connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(wrap)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(wrap)?;
    if tables > 0 && application != APPLICATION_ID {
        return Err(OpenError::Foreign { file: file.to_owned() });
    }
    if version > VERSION {
        return Err(OpenError::Newer { file: file.to_owned(), found: version });
    }
    connection
        .query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))
        .and_then(|()| connection.execute_batch("PRAGMA synchronous = FULL"))
        .map_err(wrap)?;
    let epoch = connection
        .unchecked_transaction()
        .and_then(|transaction| {
            if tables == 0 {
                transaction.execute_batch(SCHEMA)?;
                transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
            }
            let epoch = settle_epoch(&transaction, &boot_id())?;
            transaction.commit()?;
            Ok(epoch)
        })
        .map_err(wrap)?;
    connection.execute_batch("PRAGMA synchronous = NORMAL").map_err(wrap)?;
    Ok(Opened { connection, epoch })
}

/// A further connection that only reads. Not for a log in memory.
pub(super) fn open_reader(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(
        file,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    connection.busy_timeout(BUSY)?;
    Ok(connection)
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(32);
    // Checkpoints are our own, off the writer's thread; a WAL that grew is cut back.
    connection.execute_batch(
        "PRAGMA wal_autocheckpoint = 0; PRAGMA journal_size_limit = 67108864;
         PRAGMA cache_size = -32768; PRAGMA temp_store = MEMORY;",
    )
}

/// Keeps the file's epoch, or starts a new one if its tail may be gone.
fn settle_epoch(connection: &Connection, boot: &str) -> rusqlite::Result<Arc<str>> {
    let known: Option<String> = meta(connection, "epoch")?;
    let last_boot: Option<String> = meta(connection, "boot_id")?;
    let clean: Option<i64> = meta(connection, "clean")?;
    let whole = clean == Some(1) || (!boot.is_empty() && last_boot.as_deref() == Some(boot));
    let epoch: Arc<str> = match known {
        Some(epoch) if whole => epoch.into(),
        _ => crate::ids::fresh_id(),
    };
    set_meta(connection, "epoch", &*epoch)?;
    set_meta(connection, "boot_id", boot)?;
    set_meta(connection, "clean", 0)?;
    Ok(epoch)
}

/// The kernel's boot id; empty where there is none, which never counts as the same boot.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// A value of `meta`.
pub(super) fn meta<T: rusqlite::types::FromSql>(
    connection: &Connection,
    key: &str,
) -> rusqlite::Result<Option<T>> {
    connection
        .prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()
}

/// Sets a value of `meta`.
pub(super) fn set_meta(
    connection: &Connection,
    key: &str,
    value: impl rusqlite::ToSql,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?
        .execute(params![key, value])
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn open_at(path: &Path) -> Result<Opened, OpenError> {
        open(&Lock::try_acquire(path).unwrap())
    }

    #[test]
    fn an_epoch_lasts_until_a_power_loss() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        let first = settle_epoch(&connection, "boot 1").unwrap();
        assert_eq!(settle_epoch(&connection, "boot 1").unwrap(), first, "killed");
        set_meta(&connection, "clean", 1).unwrap();
        assert_eq!(settle_epoch(&connection, "boot 2").unwrap(), first, "closed, rebooted");
        let second = settle_epoch(&connection, "boot 3").unwrap();
        assert_ne!(second, first, "not closed, rebooted");
        let third = settle_epoch(&connection, "").unwrap();
        assert_ne!(third, second, "no boot id");
        assert_ne!(settle_epoch(&connection, "").unwrap(), third, "no boot id twice");
        assert!(first.len() <= 64);
    }

    #[test]
    fn refuses_what_is_no_log_of_ours() {
        let folder = tempfile::tempdir().unwrap();
        let junk = folder.path().join("junk.db");
        fs::write(&junk, "no database, but long enough to have a header of 100 bytes".repeat(4))
            .unwrap();
        assert!(matches!(open_at(&junk), Err(OpenError::Corrupt { .. })));

        let foreign = folder.path().join("foreign.db");
        Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
        assert!(matches!(open_at(&foreign), Err(OpenError::Foreign { .. })));

        let newer = folder.path().join("newer.db");
        open_at(&newer).unwrap().connection.execute_batch("PRAGMA user_version = 9").unwrap();
        let error = open_at(&newer).err().unwrap();
        assert!(matches!(error, OpenError::Newer { found: 9, .. }));
        assert!(error.to_string().contains("newer.db"), "{error}");

        let directory = folder.path().join("directory");
        fs::create_dir(&directory).unwrap();
        assert!(matches!(open_at(&directory), Err(OpenError::ReadOnly { .. })));
    }
}
