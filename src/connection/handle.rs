//! What the rest of the process sees of a connection: its queue, its requests, its socket
//! for sampling, and the orders that its task carries out.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::admission::Requests;
use crate::ids::{ClientId, ConnId};
use crate::outgoing::Queue;
use crate::transport::Socket;

/// What a connection's task is told to do. Orders are merged, never lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Order {
    /// Send the notice now and refuse new requests.
    Notify = 1,
    /// Set the mark, and close once it is passed.
    Drain = 2,
    /// Send the close frame now, behind the frame in progress.
    Finish = 4,
    /// Give the socket up without a close frame.
    Terminate = 8,
    /// A time that the task asked for has come.
    Tick = 16,
    /// Serve on no longer: the hand-over to another instance is over.
    LetGo = 32,
}

/// The orders taken at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Orders(u8);

impl Orders {
    /// Whether `order` is among them.
    #[must_use]
    pub fn has(self, order: Order) -> bool {
        self.0 & order as u8 != 0
    }
}

/// How far the shutdown is with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Progress {
    /// Not drained.
    Open = 0,
    /// All that had to arrive has arrived.
    Drained = 1,
    /// The close frame is on its way.
    Closing = 2,
    /// Given up.
    Terminated = 3,
}

/// No wait for the kernel.
const NO_MARK: u64 = u64::MAX;

/// The shared side of one connection.
#[derive(Debug)]
pub struct Handle {
    /// Its number.
    pub conn: ConnId,
    /// Its public name.
    pub session_id: Arc<str>,
    /// Who it is; `None` when it was not told in time who it is (it is being refused).
    pub client: Option<ClientId>,
    /// The client's address, as far as the proxies in between can be trusted.
    pub peer: SocketAddr,
    /// Its socket.
    pub socket: Socket,
    /// Its outgoing queue.
    pub queue: Arc<Queue>,
    /// Its requests.
    pub requests: Arc<Requests>,
    orders: AtomicU8,
    notice: Mutex<Option<Bytes>>,
    notified: AtomicBool,
    served_until: OnceLock<Instant>,
    progress: AtomicU8,
    /// Whether the registry has counted it out of those that are not drained.
    settled: AtomicBool,
    /// When the task wants a [`Order::Tick`], in milliseconds of the registry's clock.
    due: AtomicU64,
    /// Bytes that the peer's kernel has to acknowledge before the task goes on.
    ack_mark: AtomicU64,
    is_gone: AtomicBool,
    gone: Notify,
}

impl Handle {
    /// A new connection that nothing was asked of.
    #[must_use]
    pub fn new(
        conn: ConnId,
        session_id: Arc<str>,
        client: Option<ClientId>,
        peer: SocketAddr,
        socket: Socket,
        requests: Arc<Requests>,
        queue: Arc<Queue>,
    ) -> Self {
        Self {
            conn,
            session_id,
            client,
            peer,
            socket,
            queue,
            requests,
            orders: AtomicU8::new(0),
            notice: Mutex::default(),
            notified: AtomicBool::new(false),
            served_until: OnceLock::new(),
            progress: AtomicU8::new(0),
            settled: AtomicBool::new(false),
            due: AtomicU64::new(u64::MAX),
            ack_mark: AtomicU64::new(NO_MARK),
            is_gone: AtomicBool::new(false),
            gone: Notify::new(),
        }
    }

    /// Gives an order and wakes the task.
    pub fn order(&self, order: Order) {
        self.orders.fetch_or(order as u8, Ordering::AcqRel);
        self.queue.wake();
    }

    /// Gives the notice, once: a second call changes nothing. Returns whether it was the
    /// first. With `served_until`, a drained client is served on, to be let go then with
    /// [`Order::LetGo`]; without, it is closed as soon as it has drained.
    pub fn notify(&self, notice: Bytes, served_until: Option<Instant>) -> bool {
        if self.notified.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Some(until) = served_until {
            let _ = self.served_until.set(until);
        }
        *self.notice.lock() = Some(notice);
        self.order(Order::Notify);
        true
    }

    /// Whether the notice has been given.
    #[must_use]
    pub fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Acquire)
    }

    /// Until when it is served on after its notice, so that it can join elsewhere first.
    #[must_use]
    pub fn served_until(&self) -> Option<Instant> {
        self.served_until.get().copied()
    }

    pub(crate) fn take_notice(&self) -> Option<Bytes> {
        self.notice.lock().take()
    }

    pub(crate) fn take_orders(&self) -> Orders {
        if self.orders.load(Ordering::Acquire) == 0 {
            return Orders::default();
        }
        Orders(self.orders.swap(0, Ordering::AcqRel))
    }

    /// How far the shutdown is with it.
    #[must_use]
    pub fn progress(&self) -> Progress {
        match self.progress.load(Ordering::Acquire) {
            0 => Progress::Open,
            1 => Progress::Drained,
            2 => Progress::Closing,
            _ => Progress::Terminated,
        }
    }

    /// Advances the progress; returns whether it was less before.
    pub(super) fn advance(&self, progress: Progress) -> bool {
        self.progress.fetch_max(progress as u8, Ordering::AcqRel) < progress as u8
    }

    /// Notes that the drain need not wait for it any more; returns whether that is new.
    pub(super) fn settle(&self) -> bool {
        !self.settled.swap(true, Ordering::AcqRel)
    }

    /// Asks for a tick at `at` milliseconds of the registry's clock, or earlier if one was
    /// asked for earlier.
    pub(super) fn wake_at(&self, at: u64) {
        self.due.fetch_min(at, Ordering::AcqRel);
    }

    /// Gives the tick if its time has come.
    pub(super) fn tick(&self, now: u64) {
        if self.due.load(Ordering::Relaxed) <= now {
            self.due.store(u64::MAX, Ordering::Release);
            self.order(Order::Tick);
        }
    }

    /// Returns when the connection is gone.
    pub async fn gone(&self) {
        let gone = self.gone.notified();
        tokio::pin!(gone);
        // Listen before looking, or the end in between is missed.
        gone.as_mut().enable();
        if !self.is_gone.load(Ordering::Acquire) {
            gone.await;
        }
    }

    pub(super) fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
        self.gone.notify_waiters();
    }

    /// Asks to be woken when the peer's kernel has acknowledged `bytes`.
    pub(super) fn await_acknowledged(&self, bytes: u64) {
        self.ack_mark.store(bytes, Ordering::Release);
    }

    /// Whether it waits for its peer's kernel; wakes the task if that wait is over.
    pub fn sample_acknowledged(&self) -> bool {
        let mark = self.ack_mark.load(Ordering::Acquire);
        if mark == NO_MARK {
            return false;
        }
        if self.socket.acknowledged() < mark {
            return true;
        }
        self.ack_mark.store(NO_MARK, Ordering::Release);
        self.queue.wake();
        false
    }
}
