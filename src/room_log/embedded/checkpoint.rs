//! Moves the WAL into the database beside the writer, which never waits for the disk's
//! sync. The writer itself only cuts a WAL that grew although it was being moved.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::schema::OpenError;

/// A checkpoint is due after about this much was written, in bytes.
const DUE_BYTES: usize = 4 << 20;
/// The WAL is cut by the writer when it is longer than this, in pages (64 MiB).
const MAX_PAGES: i64 = 16_384;

/// The checkpointing thread; it ends, awaited, when this is dropped.
pub(super) struct Checkpointer {
    due: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    wal_pages: Arc<AtomicI64>,
    written: usize,
}

impl Checkpointer {
    pub(super) fn start(file: &Path) -> Result<Self, OpenError> {
        let connection = Connection::open(file).map_err(|error| OpenError::new(file, &error))?;
        let (due, wake) = mpsc::sync_channel(1);
        let wal_pages = Arc::new(AtomicI64::new(0));
        let pages = wal_pages.clone();
        let thread = std::thread::Builder::new()
            .name("room-log-sync".to_owned())
            .spawn(move || {
                while wake.recv().is_ok() {
                    // A failure shows at the writer, which writes the same disk.
                    if let Ok(now) = checkpoint(&connection, "PRAGMA wal_checkpoint(PASSIVE)") {
                        pages.store(now, Ordering::Relaxed);
                    }
                }
            })
            .map_err(|error| OpenError::Other {
                file: file.to_owned(),
                text: format!("no thread: {error}"),
            })?;
        Ok(Self { due: Some(due), thread: Some(thread), wal_pages, written: 0 })
    }

    /// Notes that the writer committed about `bytes`; called between its transactions.
    pub(super) fn committed(&mut self, writer: &Connection, bytes: usize) {
        self.written += bytes;
        if self.written < DUE_BYTES {
            return;
        }
        self.written = 0;
        if self.wal_pages.load(Ordering::Relaxed) > MAX_PAGES {
            self.cut(writer);
        } else if let Some(due) = &self.due {
            // Full: one is due already.
            let _ = due.try_send(());
        }
    }

    /// Starts the WAL over if no reader is in it; does not wait for one.
    pub(super) fn cut(&self, writer: &Connection) {
        let cut = writer
            .busy_timeout(std::time::Duration::ZERO)
            .and_then(|()| checkpoint(writer, "PRAGMA wal_checkpoint(RESTART)"));
        let _ = writer.busy_timeout(std::time::Duration::from_secs(5));
        if cut.is_ok() {
            self.wal_pages.store(0, Ordering::Relaxed);
        }
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

/// Runs a checkpoint; the pages of the WAL.
fn checkpoint(connection: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    connection.query_row(pragma, [], |row| row.get(1))
}
