//! The way of log lines out of the process.
//!
//! A plain OS thread writes them to a descriptor of its own (never through std's
//! lock on stdout, which a full pipe would hold for ever), fed by a bounded queue.
//! Callers never wait: an ordinary line that finds the queue full is dropped and
//! counted. Reserved lines (the shutdown's) stand in the same order but are never
//! dropped; what stdout does not take in time goes to stderr.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use prometheus_client::metrics::counter::Counter;

use super::nonblocking;

/// Ordinary lines that may wait.
pub const CAPACITY_LINES: usize = 16 * 1024;
/// Bytes that may wait.
pub const CAPACITY_BYTES: usize = 8 * 1024 * 1024;
/// What one write takes along at most: the capacity of a pipe.
const BATCH_BYTES: usize = 64 * 1024;
/// Between tries on a descriptor that somebody else has set to non-blocking.
const RETRY: Duration = Duration::from_millis(5);

/// Where Kubernetes looks for a container's last words.
const TERMINATION_LOG: &str = "/dev/termination-log";

#[derive(Debug)]
struct Line {
    text: Vec<u8>,
    reserved: bool,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Line>,
    queued_bytes: usize,
    ordinary: usize,
    /// Reserved lines of the batch that is being written.
    in_flight: Vec<Vec<u8>>,
    writing: bool,
    /// Reserved lines that the descriptor refused for good.
    refused: Vec<Vec<u8>>,
    last_reserved: Option<Vec<u8>>,
    closed: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    idle: Condvar,
    dropped: Counter,
    capacity_lines: usize,
}

/// Ends the thread when the last handle is gone.
#[derive(Debug)]
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.work.notify_all();
    }
}

/// A handle to the writer; clones share it.
#[derive(Debug, Clone)]
pub struct Sink(Arc<Owner>);

impl Sink {
    /// Writes to a duplicate of standard output.
    ///
    /// # Errors
    /// If the descriptor cannot be duplicated or the thread not started.
    pub fn stdout() -> io::Result<Self> {
        Self::new(io::stdout().as_fd().try_clone_to_owned()?, CAPACITY_LINES)
    }

    /// Writes to `fd`; at most `capacity_lines` ordinary lines wait.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(fd: OwnedFd, capacity_lines: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            idle: Condvar::new(),
            dropped: Counter::default(),
            capacity_lines,
        });
        let owner = Owner(Arc::clone(&shared));
        std::thread::Builder::new().name("log".into()).spawn(move || shared.run(File::from(fd)))?;
        Ok(Self(Arc::new(owner)))
    }

    fn shared(&self) -> &Shared {
        &self.0.0
    }

    /// Queues a line (with its line end). Never waits. A `reserved` one is never
    /// dropped.
    pub fn push(&self, text: Vec<u8>, reserved: bool) {
        let shared = self.shared();
        let mut state = shared.state.lock();
        let full = state.ordinary >= shared.capacity_lines || state.queued_bytes >= CAPACITY_BYTES;
        if reserved {
            state.last_reserved = Some(text.clone());
        } else if full {
            drop(state);
            shared.dropped.inc();
            return;
        } else {
            state.ordinary += 1;
        }
        state.queued_bytes += text.len();
        state.queue.push_back(Line { text, reserved });
        drop(state);
        shared.work.notify_one();
    }

    /// Lines dropped so far, for the metric too.
    #[must_use]
    pub fn dropped(&self) -> &Counter {
        &self.shared().dropped
    }

    /// Waits until everything queued is written. Blocks the calling thread, so not
    /// for an async task. `false` if `deadline` passed first, or if reserved lines
    /// were refused (their reader is gone).
    #[must_use]
    pub fn flush(&self, deadline: Duration) -> bool {
        let shared = self.shared();
        let mut state = shared.state.lock();
        let waited = shared.idle.wait_while_for(
            &mut state,
            |state| state.writing || !state.queue.is_empty(),
            deadline,
        );
        !waited.timed_out() && state.refused.is_empty()
    }

    /// Writes the reserved lines that standard output has not taken to stderr, and
    /// the last one to `/dev/termination-log` where that file exists, without waiting
    /// for any reader. What was in the middle of a write may thus appear twice.
    pub fn drain_to_stderr(&self) {
        self.drain_to(io::stderr().as_fd(), Path::new(TERMINATION_LOG));
    }

    /// As [`Sink::drain_to_stderr`], to other places.
    pub fn drain_to(&self, fd: BorrowedFd<'_>, termination_log: &Path) {
        let (unwritten, last) = {
            let mut state = self.shared().state.lock();
            let mut unwritten = std::mem::take(&mut state.refused);
            unwritten.append(&mut state.in_flight);
            let State { queue, queued_bytes, .. } = &mut *state;
            queue.retain_mut(|line| {
                if line.reserved {
                    *queued_bytes = queued_bytes.saturating_sub(line.text.len());
                    unwritten.push(std::mem::take(&mut line.text));
                }
                !line.reserved
            });
            (unwritten.concat(), state.last_reserved.clone())
        };
        if unwritten.is_empty() {
            return;
        }
        // Nobody is left to tell if this fails as well.
        let _ = nonblocking::write(fd, &unwritten);
        if let Some(last) = last
            && let Ok(mut file) = OpenOptions::new()
                .write(true)
                .truncate(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(termination_log)
        {
            let _ = file.write_all(&last);
        }
    }
}

impl Shared {
    fn run(&self, mut file: File) {
        let mut batch = Vec::with_capacity(BATCH_BYTES);
        while let Some(ordinary) = self.next_batch(&mut batch) {
            let written = write_all(&mut file, &batch);
            let mut state = self.state.lock();
            let mut in_flight = std::mem::take(&mut state.in_flight);
            if written.is_err() {
                state.refused.append(&mut in_flight);
                self.dropped.inc_by(ordinary);
            }
            state.writing = false;
            if state.queue.is_empty() {
                self.idle.notify_all();
            }
        }
    }

    /// Waits for lines and takes a batch; returns how many ordinary ones are in it,
    /// or `None` when there is nothing left and nobody to bring more.
    fn next_batch(&self, batch: &mut Vec<u8>) -> Option<u64> {
        batch.clear();
        let mut ordinary = 0;
        let mut state = self.state.lock();
        while state.queue.is_empty() {
            if state.closed {
                return None;
            }
            self.work.wait(&mut state);
        }
        while let Some(line) = state.queue.front() {
            if !batch.is_empty() && batch.len() + line.text.len() > BATCH_BYTES {
                break;
            }
            let Some(line) = state.queue.pop_front() else { break };
            batch.extend_from_slice(&line.text);
            if line.reserved {
                state.in_flight.push(line.text);
            } else {
                ordinary += 1;
                state.ordinary = state.ordinary.saturating_sub(1);
            }
        }
        state.queued_bytes = state.queued_bytes.saturating_sub(batch.len());
        state.writing = true;
        Some(ordinary)
    }
}

fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(RETRY),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, PipeReader, Read};

    const LONG: Duration = Duration::from_secs(20);

    fn piped(capacity: usize) -> (PipeReader, Sink) {
        let (reader, writer) = io::pipe().unwrap();
        (reader, Sink::new(writer.into(), capacity).unwrap())
    }

    #[test]
    fn lines_come_out_in_order_and_flush_waits_for_them() {
        let (reader, sink) = piped(CAPACITY_LINES);
        for n in 0..1000 {
            sink.push(format!("{n}\n").into_bytes(), n % 7 == 0);
        }
        assert!(sink.flush(LONG));
        drop(sink);
        let lines: Vec<String> = BufReader::new(reader).lines().map(Result::unwrap).collect();
        assert_eq!(lines, (0..1000).map(|n| n.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn a_pipe_nobody_reads_stops_nobody() {
        let (mut reader, sink) = piped(1000);
        // Until the pipe is full (so that the sink's thread is in the middle of a write that
        // cannot end) and long after the queue is.
        let mut pushed = 0;
        while rustix::io::ioctl_fionread(&reader).unwrap() < 60_000 || sink.dropped().get() < 90_000
        {
            sink.push(format!("ordinary line number {pushed}\n").into_bytes(), false);
            pushed += 1;
        }
        for n in 0..5 {
            sink.push(format!("shutdown {n}\n").into_bytes(), true);
        }
        assert!(!sink.flush(Duration::from_millis(50)));

        let (mut stderr_reader, stderr) = io::pipe().unwrap();
        let termination_log = tempfile::NamedTempFile::new().unwrap();
        sink.drain_to(stderr.as_fd(), termination_log.path());
        // Again: nothing is left, so nothing comes twice.
        sink.drain_to(stderr.as_fd(), termination_log.path());
        drop(stderr);
        let mut text = String::new();
        stderr_reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "shutdown 0\nshutdown 1\nshutdown 2\nshutdown 3\nshutdown 4\n");
        let last = std::fs::read_to_string(termination_log.path()).unwrap();
        assert_eq!(last, "shutdown 4\n");

        // The reader comes back: what was queued still arrives, the reserved ones not again.
        let dropped = sink.dropped().get();
        drop(sink);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest.lines().count() as u64, pushed - dropped);
        assert!(!rest.contains("shutdown"));
    }

    #[test]
    fn a_reserved_line_behind_a_blocked_write_keeps_its_place() {
        let (reader, sink) = piped(100);
        for n in 0..20_000 {
            sink.push(format!("ordinary line number {n}\n").into_bytes(), false);
        }
        sink.push(b"shutdown\n".to_vec(), true);
        let lines = std::thread::spawn(move || {
            BufReader::new(reader).lines().map(Result::unwrap).collect::<Vec<_>>()
        });
        assert!(sink.flush(LONG));
        drop(sink);
        assert_eq!(lines.join().unwrap().last().unwrap(), "shutdown");
    }

    #[test]
    fn a_line_in_the_middle_of_its_write_is_neither_flushed_nor_lost() {
        let (_reader, writer) = io::pipe().unwrap();
        while nonblocking::write(writer.as_fd(), &[b'x'; 4096]).is_ok() {}
        let sink = Sink::new(writer.into(), 100).unwrap();
        sink.push(b"shutdown\n".to_vec(), true);
        while !sink.shared().state.lock().writing {
            std::thread::yield_now();
        }
        assert!(sink.shared().state.lock().queue.is_empty());
        assert!(!sink.flush(Duration::from_millis(20)));
        let (mut stderr_reader, stderr) = io::pipe().unwrap();
        sink.drain_to(stderr.as_fd(), Path::new("/nonexistent"));
        drop(stderr);
        let mut text = String::new();
        stderr_reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "shutdown\n");
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error_not_a_stop() {
        let (reader, sink) = piped(100);
        drop(reader);
        sink.push(b"one\n".to_vec(), false);
        assert!(sink.flush(LONG));
        assert_eq!(sink.dropped().get(), 1);
        sink.push(b"shutdown\n".to_vec(), true);
        assert!(!sink.flush(LONG));
        let (mut stderr_reader, stderr) = io::pipe().unwrap();
        sink.drain_to(stderr.as_fd(), Path::new("/nonexistent"));
        drop(stderr);
        let mut text = String::new();
        stderr_reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "shutdown\n");
    }

    #[test]
    fn a_non_blocking_descriptor_is_waited_for() {
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let sink = Sink::new(writer.into(), CAPACITY_LINES).unwrap();
        let line = vec![b'x'; 1 << 20];
        sink.push(line, true);
        let bytes = std::thread::spawn(move || BufReader::new(reader).bytes().count());
        assert!(sink.flush(LONG));
        drop(sink);
        assert_eq!(bytes.join().unwrap(), 1 << 20);
    }
}
