//! Moves the WAL into the database beside the writer, which never waits for the disk's
//! sync. The writer itself only cuts a WAL that grew although it was being moved.

use std::path::Path;
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::schema::{self, OpenError};

/// The WAL is looked at after so many commits, which cost 20 KB of it or more each.
const LOOK_EVERY: u32 = 16;
/// A checkpoint is due when so many pages of the WAL are not in the database (4 MiB).
const DUE_PAGES: i64 = 1024;
/// The writer cuts the WAL when it is longer than this, in pages (64 MiB), and …
const MAX_PAGES: i64 = 16_384;
/// … no more than this is left to move, or when it is far too long (256 MiB).
const LAST_PAGES: i64 = 4096;
const TOO_LONG: i64 = 4 * MAX_PAGES;

/// The checkpointing thread; it ends, awaited, when this is dropped.
pub(super) struct Checkpointer {
    due: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    commits: u32,
}

impl Checkpointer {
    pub(super) fn start(file: &Path) -> Result<Self, OpenError> {
        let connection = Connection::open(file).map_err(|error| OpenError::new(file, &error))?;
        let (due, wake) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("room-log-sync".to_owned())
            .spawn(move || {
                while wake.recv().is_ok() {
                    // A failure shows at the writer, which writes the same disk.
                    let _ = checkpoint(&connection, "PRAGMA wal_checkpoint(PASSIVE)");
                }
            })
            .map_err(|error| OpenError::Other {
                file: file.to_owned(),
                text: format!("no thread: {error}"),
            })?;
        Ok(Self { due: Some(due), thread: Some(thread), commits: 0 })
    }

    /// Notes a commit of the writer; called between its transactions.
    pub(super) fn committed(&mut self, writer: &Connection) {
        self.commits += 1;
        if self.commits < LOOK_EVERY {
            return;
        }
        self.commits = 0;
        let Ok((pages, moved)) = checkpoint(writer, "PRAGMA wal_checkpoint(NOOP)") else { return };
        let left = pages - moved;
        if pages > MAX_PAGES && left <= LAST_PAGES || pages > TOO_LONG {
            self.cut(writer);
        } else if left > DUE_PAGES
            && let Some(due) = &self.due
        {
            // Full: one is due already.
            let _ = due.try_send(());
        }
    }

    /// Starts the WAL over if no reader is in it; does not wait for one.
    pub(super) fn cut(&self, writer: &Connection) {
        let _ = writer
            .busy_timeout(Duration::ZERO)
            .and_then(|()| checkpoint(writer, "PRAGMA wal_checkpoint(RESTART)"));
        let _ = writer.busy_timeout(schema::BUSY);
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.due = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs a checkpoint; the pages of the WAL, and how many of them are in the database.
fn checkpoint(connection: &Connection, pragma: &str) -> rusqlite::Result<(i64, i64)> {
    connection.query_row(pragma, [], |row| Ok((row.get(1)?, row.get(2)?)))
}
