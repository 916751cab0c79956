//! The embedded engine: one SQLite file, one writer thread, a few reader threads
//! (delivery.md, "Engines"). Nothing here runs SQL on a runtime's worker.
//!
//! Appends wait in one queue; the writer takes what waits, judges it once, and writes
//! the same rows until they are written, so a failing store neither loses nor doubles
//! anything. Events leave through the channel given to [`Embedded::open`].

mod catalogue;
mod checkpoint;
mod disk;
mod lock;
mod queue;
mod reader;
mod recovery;
mod retention;
mod schema;
mod store;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::{
    Append, HistoryError, HistoryPage, HistoryQuery, LogEvent, Page, ReadError, Release, RoomLog,
    StoreFailure,
};
use crate::ids::RoomId;
use queue::{Command, Queue};
use reader::Readers;
use writer::Writer;

pub use lock::{Lock, LockError, MEMORY};
pub use schema::OpenError;

/// What of the configuration the engine needs (operation.md, `room_log.*`).
#[derive(Debug, Clone)]
pub struct Settings {
    /// Events older than this leave the log.
    pub retention_age: Duration,
    /// The oldest events leave while the log is larger than this, in bytes.
    pub retention_bytes: u64,
    /// A vehicle leaves the snapshot this long after its last fix.
    pub newest_age: Duration,
    /// Below this many free bytes on the disk the log warns and stops growing.
    pub min_free: u64,
    /// How long a repeated position is recognised, from its commit.
    pub dedup_window: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            retention_age: Duration::from_secs(7 * 86_400),
            retention_bytes: 4 << 30,
            newest_age: Duration::from_secs(86_400),
            min_free: 256 << 20,
            dedup_window: Duration::from_secs(600),
        }
    }
}

/// The embedded engine's handle. Dropping it without [`RoomLog::close`] is what a kill
/// is to the file: what is queued and not committed is gone, never acknowledged.
pub struct Embedded {
    file: PathBuf,
    epoch: Arc<str>,
    queue: Arc<Queue>,
    /// `None` for a log in memory, which its writer reads.
    readers: Option<Readers>,
}

impl Embedded {
    /// Opens the log that `lock` stands for and starts its threads. Blocks: a long log
    /// takes up to seconds to come up, so call it off the runtime's workers.
    ///
    /// # Errors
    /// [`OpenError`], which names the file and what to do.
    pub fn open(
        lock: Lock,
        settings: &Settings,
        events: mpsc::UnboundedSender<LogEvent>,
    ) -> Result<Self, OpenError> {
        let file = lock.path().to_owned();
        let in_memory = lock.in_memory();
        let opened = schema::open(&lock)?;
        let epoch = opened.epoch.clone();
        let queue = Arc::new(Queue::default());
        let writer = Writer::new(opened, lock, settings, queue.clone(), events)?;
        let failed = |error: std::io::Error| OpenError::Other {
            file: file.clone(),
            text: format!("no thread: {error}"),
        };
        let readers = if in_memory { None } else { Some(Readers::start(&file)?) };
        std::thread::Builder::new()
            .name("room-log".to_owned())
            .spawn(move || writer.run())
            .map_err(failed)?;
        Ok(Self { file, epoch, queue, readers })
    }

    /// Runs `job` on a reader's connection, off the runtime's workers.
    fn query<T: Send + 'static>(
        &self,
        job: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreFailure>> {
        let (sender, receiver) = oneshot::channel();
        let job: reader::Job = Box::new(move |connection| {
            let _ = sender.send(job(connection));
        });
        match &self.readers {
            Some(readers) => readers.submit(job),
            None => self.queue.push(Command::Read(job)),
        }
        let file = self.file.clone();
        async move {
            match receiver.await {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(error)) => Err(writer::failure(&file, &error)),
                Err(_) => Err(StoreFailure::store("the room log is closed")),
            }
        }
        .boxed()
    }
}

impl RoomLog for Embedded {
    fn append(&self, append: Append) {
        self.queue.push(Command::Append(append));
    }

    fn load_room(&self, room: RoomId) {
        self.queue.push(Command::Load(room));
    }

    fn release(&self, release: Release) {
        self.queue.push(Command::Release(release));
    }

    fn epoch(&self) -> Arc<str> {
        self.epoch.clone()
    }

    fn read(
        &self,
        room: RoomId,
        after_seq: u64,
        up_to_seq: u64,
        max_bytes: usize,
        live_only: bool,
    ) -> BoxFuture<'static, Result<Page, ReadError>> {
        let answer = self.query(move |connection| {
            reader::page(connection, &room, after_seq, up_to_seq, max_bytes, live_only)
        });
        async move { answer.await? }.boxed()
    }

    fn history(
        &self,
        query: HistoryQuery,
    ) -> BoxFuture<'static, Result<HistoryPage, HistoryError>> {
        let after = match query.cursor.as_deref().map(reader::Place::parse) {
            None => None,
            Some(Some(place)) => Some(place),
            Some(None) => return std::future::ready(Err(HistoryError::BadCursor)).boxed(),
        };
        let answer = self.query(move |connection| reader::history(connection, &query, after));
        async move { Ok(answer.await?) }.boxed()
    }

    fn flush(&self) -> BoxFuture<'static, ()> {
        let (sender, receiver) = oneshot::channel();
        self.queue.push(Command::Flush(sender));
        receiver.map(drop).boxed()
    }

    fn poke(&self) {
        self.queue.poke();
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let (sender, receiver) = oneshot::channel();
        self.queue.push(Command::Close(sender));
        receiver.map(drop).boxed()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.queue.abandon();
    }
}

#[cfg(test)]
mod tests;
