//! The way to the writer: one queue that never blocks who appends. Its order is the
//! log's order.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::reader::Job;
use crate::ids::RoomId;
use crate::room_log::{Append, Release};

/// What the writer is asked to do.
pub(super) enum Command {
    Append(Append),
    Load(RoomId),
    Release(Release),
    Read(Job),
    Flush(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

#[derive(Default)]
struct Waiting {
    commands: VecDeque<Command>,
    idle: bool,
    poked: bool,
    abandoned: bool,
    closed: bool,
}

/// The way to the writer.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    wake: Condvar,
    /// Makes the store fail as a full disk does: the most pages of the file, 0 = no limit.
    #[cfg(test)]
    pub(super) max_pages: std::sync::atomic::AtomicU32,
}

/// The handle is gone: what is left is dropped, as by a kill.
pub(super) struct Abandoned;

impl Queue {
    pub(super) fn push(&self, command: Command) {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return;
        }
        waiting.commands.push_back(command);
        if waiting.idle {
            waiting.idle = false;
            self.wake.notify_one();
        }
    }

    pub(super) fn poke(&self) {
        self.waiting.lock().poked = true;
        self.wake.notify_one();
    }

    pub(super) fn abandon(&self) {
        self.waiting.lock().abandoned = true;
        self.wake.notify_one();
    }

    /// Moves all that waits to `work`, which is empty; waits at most `patience` for
    /// something to come.
    pub(super) fn take(
        &self,
        work: &mut VecDeque<Command>,
        patience: Duration,
    ) -> Result<(), Abandoned> {
        let mut waiting = self.waiting.lock();
        if waiting.commands.is_empty() && !waiting.abandoned && !patience.is_zero() {
            waiting.idle = true;
            self.wake.wait_for(&mut waiting, patience);
            waiting.idle = false;
        }
        if waiting.abandoned {
            return Err(Abandoned);
        }
        std::mem::swap(&mut waiting.commands, work);
        Ok(())
    }

    /// Lets more come for `time`, unless `enough` wait already.
    pub(super) fn linger(&self, time: Duration, enough: usize) {
        let mut waiting = self.waiting.lock();
        if !waiting.abandoned && waiting.commands.len() < enough {
            self.wake.wait_for(&mut waiting, time);
        }
    }

    /// Waits for the next try of a failing store.
    pub(super) fn pause(&self, time: Duration) -> Result<(), Abandoned> {
        let mut waiting = self.waiting.lock();
        if !waiting.poked && !waiting.abandoned {
            self.wake.wait_for(&mut waiting, time);
        }
        waiting.poked = false;
        if waiting.abandoned { Err(Abandoned) } else { Ok(()) }
    }

    /// Refuses and drops everything from now on.
    pub(super) fn shut(&self) {
        let commands = {
            let mut waiting = self.waiting.lock();
            waiting.closed = true;
            std::mem::take(&mut waiting.commands)
        };
        drop(commands);
    }
}
