//! Writing: what is due into the batch, the batch into the socket, and how far the drain is.

use std::task::{Context, Poll};

use super::end::End;
use super::timing::BLOCKED_CHECK;
use super::{Connection, Stage};
use crate::close::Close;
use crate::connection::handle::{Handle, Progress};
use crate::outgoing::Batch;
use crate::rooms::Replayer;

/// How much is taken from the queue and offered to the kernel at once, in bytes.
const BATCH_BYTES: usize = 64 * 1024;

impl Connection {
    pub(super) fn write(&mut self, cx: &mut Context<'_>, now: u64) -> bool {
        let mut progress = false;
        while self.end.is_none() {
            if matches!(self.stage, Stage::Open | Stage::Finishing)
                && self.batch.bytes() < BATCH_BYTES
            {
                self.take(now);
            }
            // What comes in from here on is signalled.
            let is_all = self.batch.bytes() < BATCH_BYTES;
            self.check_drain(now);
            if self.batch.is_empty() {
                self.last_try = false;
                self.written_out();
                break;
            }
            let mut slices = Batch::empty_slices();
            let filled = self.batch.slices(&mut slices);
            let result = self.handle().socket.poll_write_slices(cx, &slices[..filled]);
            match result {
                Poll::Ready(Ok(written)) => {
                    progress = true;
                    self.blocked_since = None;
                    self.last_sent = now;
                    self.wrote(written);
                    if is_all && self.batch.is_empty() && !self.draining {
                        self.last_try = false;
                        self.written_out();
                        break;
                    }
                }
                Poll::Ready(Err(_)) => self.peer_gone("connection lost"),
                Poll::Pending if self.last_try => {
                    // The kernel has no room for the close frame, and there is no more time.
                    let handle = self.handle().clone();
                    self.registered.registry().give_up(handle);
                    self.give_up(End::closed(Close::ShuttingDown));
                }
                Poll::Pending => {
                    if self.blocked_since.is_none() {
                        self.blocked_since = Some(now);
                        self.handle().wake_at(now + BLOCKED_CHECK);
                    }
                    break;
                }
            }
        }
        progress
    }

    pub(super) fn take(&mut self, now: u64) {
        let queue = self.handle().queue.clone();
        let mut pages = Vec::new();
        if queue.take(&mut self.batch, BATCH_BYTES, &mut pages).is_err() {
            self.slow(now);
        }
        for (feed, asked) in pages {
            let member = self.session.as_ref().and_then(|session| session.rooms.get(feed.room()));
            let Some(member) = member.copied() else { continue };
            let replayer =
                Replayer { queue: queue.clone(), feed, mode: member.mode, flat: member.flat };
            let hub = self.services.hub.clone();
            if let Some(log) = self.services.log.get().cloned() {
                tokio::spawn(replayer.read(hub, log, asked));
            }
        }
    }

    pub(super) fn wrote(&mut self, written: usize) {
        let finished = self.batch.advance(written);
        self.messages_out += finished as u64;
        let handle = self.handle();
        handle.queue.note_in_flight(&self.batch);
        if let Some(tally) = self.registered.registry().tally_if_stopping() {
            tally.flushed(finished, written);
        }
        self.services.metrics.deliveries.inc_by(finished as u64);
    }

    /// All that was taken is with the kernel.
    pub(super) fn written_out(&mut self) {
        match self.stage {
            Stage::PeerClosed => {
                self.handle().socket.shutdown_write();
                self.end = self.later.take();
            }
            // After a violation there is nothing to wait for but the end of the stream.
            Stage::Closing(_) if self.deaf => self.handle().socket.shutdown_write(),
            _ => {}
        }
    }

    pub(super) fn check_drain(&mut self, now: u64) {
        if !self.draining {
            return;
        }
        if self.stage == Stage::Open {
            let handle = self.handle().clone();
            if handle.progress() < Progress::Drained && !self.has_drained(&handle) {
                return;
            }
            if self.served_on {
                return;
            }
            self.registered.settle();
            handle.queue.stop_listening();
            // What is in the queue now goes out first. Not what comes: a client that goes on
            // sending requests would never leave an empty queue behind.
            handle.queue.set_mark();
            self.stage = Stage::Finishing;
        }
        // Held notifications have nobody to tell: they wait for the plane as long as there is
        // time.
        let waits = self.session.as_ref().is_some_and(|session| !session.held.is_empty());
        if self.stage == Stage::Finishing && !waits && self.handle().queue.passed_mark() {
            self.close(Close::ShuttingDown, now);
        }
    }

    /// Whether all that had to arrive has arrived; notes it.
    fn has_drained(&mut self, handle: &Handle) -> bool {
        if self.mark.is_none() && handle.requests.pending() == 0 && handle.queue.passed_mark() {
            self.mark = Some(self.base + self.batch.fed());
        }
        let Some(mark) = self.mark else { return false };
        if handle.socket.written() < mark {
            return false;
        }
        if handle.socket.acknowledged() < mark {
            handle.await_acknowledged(mark);
            return false;
        }
        self.registered.set_drained();
        true
    }
}
