//! The writer thread: takes what waits, judges it once, writes it until it is written,
//! and only then reports it.
//!
//! Judging runs ahead of the file by one batch at most, and that batch is repeated as
//! it is: nothing is judged twice, reported in part or overtaken. The thread alone owns
//! the connection that writes, and the lock, which it gives back last.

mod intake;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Settings;
use super::checkpoint::Checkpointer;
use super::lock::Lock;
use super::queue::{Abandoned, Command, Queue};
use super::recovery::{self, State, millis};
use super::retention::Retention;
use super::schema::{OpenError, Opened, set_meta};
use super::store::{self, Batch, NewRow, Track};
use crate::ids::RoomId;
use crate::room_log::{Committed, LogEvent, RoomOutcome, StoreFailure};
use crate::time::UnixMillis;

/// The most rows of one transaction. Where every row is of another room, each changes
/// index pages of its own: 4096 rows share them twice as well as 1024 do.
const MAX_ROWS: usize = 4096;
/// How long the writer sleeps at most, so that age is noticed without traffic.
const TICK: Duration = Duration::from_secs(1);
/// Under load a commit starts no sooner than this after the one before: a commit costs
/// the WAL its pages however few rows it has. A lone append never waits.
const PACE: Duration = Duration::from_millis(1);
/// A failing store is tried again after this, doubled each time …
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// … up to this.
const LAST_RETRY: Duration = Duration::from_millis(500);
/// The tracks are saved after this many events, so many of them with each batch.
const SAVE_AFTER: u64 = 32_768;
const SAVE_AT_ONCE: usize = 512;
/// How often size and age are looked at, in milliseconds.
const CHECK_EVERY: i64 = if cfg!(test) { 0 } else { 250 };
/// The fewest and most events that retention removes between two batches.
const TRIM: (usize, usize) = (256, 8192);

/// What SQLite's error means for the operator.
pub(super) fn failure(file: &Path, error: &rusqlite::Error) -> StoreFailure {
    use rusqlite::ErrorCode::{
        CannotOpen, DatabaseCorrupt, DiskFull, NotADatabase, PermissionDenied, ReadOnly,
        SystemIoFailure,
    };
    let hint = match error.sqlite_error_code() {
        Some(DiskFull) => "free space on its disk",
        Some(SystemIoFailure | CannotOpen) => "check its disk",
        Some(ReadOnly | PermissionDenied) => "make the file and its directory writable",
        Some(DatabaseCorrupt | NotADatabase) => "stop the server and restore the file",
        _ => "it is tried again",
    };
    StoreFailure::store(format!("room log {}: {error}; {hint}", file.display()))
}

/// The writer and all that it owns. The order of the fields is the order of the end:
/// the file is closed, then the lock is free, then the channel of events ends.
pub(super) struct Writer {
    checkpointer: Option<Checkpointer>,
    connection: Connection,
    lock: Lock,
    events: mpsc::UnboundedSender<LogEvent>,
    file: PathBuf,
    epoch: Arc<str>,
    queue: Arc<Queue>,
    state: State,
    retention: Retention,
    newest_age: i64,
    failing: bool,
    over: bool,
    trimming: bool,
    checked_at: i64,
    /// When the last commit started, if it was for more than one.
    pace: Option<Instant>,
}

impl Writer {
    pub(super) fn new(
        opened: Opened,
        lock: Lock,
        settings: &Settings,
        queue: Arc<Queue>,
        events: mpsc::UnboundedSender<LogEvent>,
    ) -> Result<Self, OpenError> {
        let file = lock.path().to_owned();
        let Opened { connection, epoch } = opened;
        let state = recovery::restore(&connection, settings, UnixMillis::now().get())
            .map_err(|error| OpenError::new(&file, &error))?;
        let checkpointer = if lock.in_memory() { None } else { Some(Checkpointer::start(&file)?) };
        Ok(Self {
            checkpointer,
            connection,
            lock,
            events,
            file,
            epoch,
            queue,
            state,
            retention: Retention::new(settings),
            newest_age: millis(settings.newest_age),
            failing: false,
            over: false,
            trimming: false,
            checked_at: 0,
            pace: None,
        })
    }

    /// Works until closed or abandoned.
    pub(super) fn run(mut self) {
        let mut work = VecDeque::new();
        let closed = loop {
            if let Some(started) = self.pace.take() {
                self.queue.linger(PACE.saturating_sub(started.elapsed()), MAX_ROWS);
            }
            let patience = if self.trimming { Duration::ZERO } else { TICK };
            if self.queue.take(&mut work, patience).is_err() {
                break None;
            }
            match self.work_off(&mut work) {
                Ok(None) => {}
                Ok(Some(closed)) => break Some(closed),
                Err(Abandoned) => break None,
            }
        };
        self.queue.shut();
        drop(work);
        if let Some(closed) = closed {
            self.emit(LogEvent::Closed);
            let _ = closed.send(());
        }
    }

    /// Handles everything in `work`; ends early, with whom to tell, when it is closed.
    fn work_off(
        &mut self,
        work: &mut VecDeque<Command>,
    ) -> Result<Option<oneshot::Sender<()>>, Abandoned> {
        let mut written = 0;
        while let Some(command) = work.pop_front() {
            match command {
                Command::Append(append) => {
                    work.push_front(Command::Append(append));
                    written = self.append(work)?;
                    self.maintain(written);
                }
                Command::Load(room) => self.load(room)?,
                Command::Release(release) => self.release(&release)?,
                Command::Read(job) => job(&self.connection),
                Command::Flush(done) => {
                    let _ = done.send(());
                }
                Command::Close(done) => {
                    self.close()?;
                    return Ok(Some(done));
                }
            }
        }
        if written == 0 {
            self.maintain(0);
        }
        Ok(None)
    }

    /// Judges and writes the appends at the front of `work`; how many rows they made.
    fn append(&mut self, work: &mut VecDeque<Command>) -> Result<usize, Abandoned> {
        let started = Instant::now();
        let now = self.commit_time();
        let mut batch = Batch::default();
        let mut outcomes = Vec::new();
        while batch.rows.len() < MAX_ROWS {
            match work.pop_front() {
                Some(Command::Append(append)) => {
                    outcomes.push(self.judge(&append, now, &mut batch)?);
                    batch.appends.push(append);
                }
                Some(other) => {
                    work.push_front(other);
                    break;
                }
                None => break,
            }
        }
        let rows = batch.rows.len();
        self.pace = (batch.appends.len() > 1).then_some(started);
        self.commit(batch, outcomes)?;
        Ok(rows)
    }

    /// The time of a commit, milliseconds since 1970: the wall clock, never back.
    fn commit_time(&mut self) -> i64 {
        self.state.last_commit = self.state.last_commit.max(UnixMillis::now().get());
        self.state.last_commit
    }

    /// Writes a judged batch and reports it.
    fn commit(
        &mut self,
        mut batch: Batch,
        outcomes: Vec<Vec<RoomOutcome>>,
    ) -> Result<(), Abandoned> {
        if !batch.rows.is_empty() {
            batch.last_seq = self.state.last_seq;
            self.add_tracks(&mut batch);
            self.persist(|connection, state| store::write(connection, &state.catalogue, &batch))?;
            self.written(&batch);
        }
        let committed = batch
            .appends
            .into_iter()
            .zip(outcomes)
            .map(|(append, outcomes)| Committed { append, outcomes })
            .collect();
        self.emit(LogEvent::Committed(committed));
        Ok(())
    }

    /// Adds a share of the tracks that are to be saved.
    fn add_tracks(&mut self, batch: &mut Batch) {
        let state = &mut self.state;
        if state.saving.is_empty() && state.last_seq.saturating_sub(state.saved_upto) >= SAVE_AFTER
        {
            // What this batch changes counts as changed after this save.
            state.saving_upto = batch.rows.first().map_or(state.last_seq, |row| row.seq - 1);
            state.saving = state.catalogue.dirty.drain().collect();
            for row in &batch.rows {
                state.catalogue.dirty.insert((row.room, row.vehicle));
            }
        }
        if state.saving.is_empty() {
            return;
        }
        let rest = state.saving.len().saturating_sub(SAVE_AT_ONCE);
        let share: Vec<_> = state.saving.drain(rest..).collect();
        batch.tracks = share
            .into_iter()
            .filter_map(|(room, vehicle)| {
                let last_seq = state.catalogue.last_seq(room, vehicle)?;
                let newest_seq = state.judge.newest(room, vehicle).map(|newest| newest.seq);
                Some(Track { room, vehicle, last_seq, newest_seq })
            })
            .collect();
        batch.tracks_upto = state.saving.is_empty().then_some(state.saving_upto);
    }

    /// Takes note of a batch that is in the file.
    fn written(&mut self, batch: &Batch) {
        let names = &mut self.state.catalogue;
        names.new_rooms.clear();
        names.new_vehicles.clear();
        names.dead_rooms.clear();
        names.dead_vehicles.clear();
        if let Some(upto) = batch.tracks_upto {
            self.state.saved_upto = upto;
        }
        if let Some(checkpointer) = &mut self.checkpointer {
            checkpointer.committed(&self.connection);
        }
    }

    fn load(&mut self, room: RoomId) -> Result<(), Abandoned> {
        let visible = UnixMillis::now().get().saturating_sub(self.newest_age);
        let number = self.state.catalogue.find_room(&room);
        let mut seqs: Vec<u64> = number
            .into_iter()
            .flat_map(|number| self.state.judge.newest_in(number))
            .filter(|(_, newest)| newest.fix >= visible)
            .map(|(_, newest)| newest.seq)
            .collect();
        seqs.sort_unstable();
        let newest = if seqs.is_empty() {
            Vec::new()
        } else {
            self.persist(|connection, _| store::read_events(connection, &seqs))?
        };
        let trimmed_to = number
            .and_then(|number| self.state.catalogue.get_room(number))
            .map_or(self.state.trimmed_to, |room| room.trimmed_to);
        let (epoch, head) = (self.epoch.clone(), self.state.last_seq);
        self.emit(LogEvent::RoomLoaded { room, epoch, head, trimmed_to, newest });
        Ok(())
    }

    /// Removes what is due to leave the log, in a step that `written` rows justify.
    fn maintain(&mut self, written: usize) {
        let now = UnixMillis::now().get();
        let due = now.abs_diff(self.checked_at) >= CHECK_EVERY.unsigned_abs();
        if !self.trimming && !due {
            return;
        }
        if due || self.over {
            self.checked_at = now;
            let file = (!self.lock.in_memory()).then_some(self.file.as_path());
            self.over = self.retention.is_over(&self.connection, file);
        }
        let limit = (written * 2).clamp(TRIM.0, TRIM.1);
        let state = &mut self.state;
        // A failure shows at the next batch, and the step comes again.
        self.trimming =
            self.retention.step(&self.connection, state, now, self.over, limit).unwrap_or(false);
    }

    /// Saves all tracks and marks the file as closed cleanly.
    fn close(&mut self) -> Result<(), Abandoned> {
        let state = &mut self.state;
        let upto = state.last_seq;
        let mut changed: Vec<_> = state.catalogue.dirty.drain().collect();
        changed.append(&mut state.saving);
        let mut batch = Batch { last_seq: upto, tracks_upto: Some(upto), ..Batch::default() };
        batch.tracks.extend(changed.into_iter().filter_map(|(room, vehicle)| {
            let last_seq = state.catalogue.last_seq(room, vehicle)?;
            let newest_seq = state.judge.newest(room, vehicle).map(|newest| newest.seq);
            Some(Track { room, vehicle, last_seq, newest_seq })
        }));
        self.persist(|connection, state| store::write(connection, &state.catalogue, &batch))?;
        self.persist(|connection, _| set_meta(connection, "clean", 1))
    }

    /// Repeats `work` until the store does it. Failure and recovery are reported once.
    fn persist<T>(
        &mut self,
        mut work: impl FnMut(&Connection, &State) -> rusqlite::Result<T>,
    ) -> Result<T, Abandoned> {
        let mut wait = FIRST_RETRY;
        loop {
            #[cfg(test)]
            self.limit_pages();
            match work(&self.connection, &self.state) {
                Ok(value) => {
                    if std::mem::take(&mut self.failing) {
                        self.emit(LogEvent::Recovered);
                    }
                    return Ok(value);
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        self.emit(LogEvent::Failing(failure(&self.file, &error)));
                    }
                    self.queue.pause(wait)?;
                    wait = (wait * 2).min(LAST_RETRY);
                    // A WAL that can start over needs no more room on the disk.
                    if let Some(checkpointer) = &self.checkpointer {
                        checkpointer.cut(&self.connection);
                    }
                }
            }
        }
    }

    #[cfg(test)]
    fn limit_pages(&self) {
        let limit = match self.queue.max_pages.load(std::sync::atomic::Ordering::Relaxed) {
            0 => 0xffff_fffe,
            limit => limit,
        };
        let pragma = format!("PRAGMA max_page_count = {limit}");
        self.connection.query_row(&pragma, [], |_| Ok(())).unwrap();
    }

    fn emit(&self, event: LogEvent) {
        // Without a consumer the process is ending.
        let _ = self.events.send(event);
    }
}
