//! The owner task of one socket: one ordered poll that carries out orders, reads all ready
//! input, takes what is due from the outgoing queue and writes it in batches.
//!
//! tungstenite decodes and keeps the protocol's state; it never sees the socket. It reads
//! from slices and writes its control frames into a buffer (its own writing would format
//! and copy every frame once per connection), so everything that goes out is ordered here.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig, WebSocketContext};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::handle::{Handle, Order, Orders, Progress};
use super::registry::Registered;
use super::services::Services;
use super::session::{Expiry, Session};
use crate::auth::Identity;
use crate::close::Close;
use crate::limits::AddressSlot;
use crate::outgoing::{Backlog, Batch, Weight};
use crate::protocol::envelope::EnvelopeError;
use crate::protocol::frame;
use crate::rooms::{LeaveReason, Replayer};
use crate::telemetry::events::{ConnectionClosed, ConnectionOpened, Initiator};
use crate::telemetry::metrics::LadderStep;
use crate::time::UnixMillis;

/// How much is taken from the queue and offered to the kernel at once, in bytes.
const BATCH_BYTES: usize = 64 * 1024;
/// How often reading and writing alternate before other tasks get their turn.
const ROUNDS: usize = 16;
/// How long a close frame of ours waits for its answer, outside the shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a connection that the kernel takes nothing from is looked at, in ms.
const BLOCKED_CHECK: u64 = 250;
/// Bytes on their way that may be nothing but pings.
const PINGS: u64 = 64;
/// What tungstenite allocates for reading, and the step in which it copies.
const DECODE_BUFFER: usize = 1024;
/// What is read from a socket at once; one buffer per worker thread.
const READ_BUFFER: usize = 16 * 1024;

/// The reason that tungstenite puts in place of a close frame with a forbidden code.
const FORBIDDEN_CODE: &str = "Protocol violation";

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BUFFER]);
}

/// With what a connection begins.
pub enum Entry {
    /// It may come in.
    Welcome(Identity),
    /// It is closed with this code, which a browser can read.
    Refused(Close),
}

/// Input for the decoder and what it wants to say.
struct Wire<'i, 'c> {
    input: &'i [u8],
    control: &'c mut Vec<u8>,
}

impl Read for Wire<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.input.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.input.read(buf)
    }
}

impl Write for Wire<'_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.control.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Drained: what is left in the queue goes out, then the close frame.
    Finishing,
    /// Our close frame is handed over; the peer's last words are read.
    Closing(Close),
    /// The peer closed; our answer goes out.
    PeerClosed,
}

/// How a connection ended, for the log.
#[derive(Debug, Clone)]
struct End {
    code: u16,
    reason: std::borrow::Cow<'static, str>,
    initiator: Initiator,
    leave: LeaveReason,
}

impl End {
    fn lost(reason: &'static str) -> Self {
        Self {
            code: 1006,
            reason: reason.into(),
            initiator: Initiator::Peer,
            leave: LeaveReason::Disconnected,
        }
    }

    fn closed(close: Close) -> Self {
        let leave = match close {
            Close::ShuttingDown => LeaveReason::ServerShuttingDown,
            _ => LeaveReason::Disconnected,
        };
        Self {
            code: close.code(),
            reason: close.reason().into(),
            initiator: Initiator::Server,
            leave,
        }
    }
}

/// One connection. Spawn it; it ends when the socket does.
pub struct Connection {
    registered: Registered,
    services: Arc<Services>,
    session: Option<Session>,
    ws: WebSocketContext,
    control: Vec<u8>,
    /// Input that was read and waits until the connection is read from again.
    stash: Vec<u8>,
    stashed: bool,
    /// The peer broke the protocol: its input is thrown away.
    deaf: bool,
    paused: bool,
    batch: Batch,
    /// Bytes on the socket before the first frame (the handshake).
    base: u64,
    stage: Stage,
    draining: bool,
    /// Bytes that have to arrive before this connection counts as drained.
    mark: Option<u64>,
    close_deadline: Option<u64>,
    acked: bool,
    /// The close frame has to go out now or not at all.
    last_try: bool,
    /// How it ends once the answer to the peer's close frame is out.
    later: Option<End>,
    end: Option<End>,
    opened: Instant,
    ping_after: u64,
    last_received: u64,
    last_sent: u64,
    last_progress: u64,
    last_acknowledged: u64,
    blocked_since: Option<u64>,
    messages_out: u64,
    _address: AddressSlot,
}

impl Connection {
    /// A connection after its `101`; `read_ahead` is what the HTTP library had read beyond
    /// the handshake.
    #[must_use]
    pub fn new(
        registered: Registered,
        services: Arc<Services>,
        entry: Entry,
        address: AddressSlot,
        read_ahead: &[u8],
    ) -> Self {
        let settings = &services.settings;
        // What comes out of tungstenite is bounded by what is read while the lane is under
        // its high-water mark; its buffers bound what goes in.
        let config = WebSocketConfig::default()
            .read_buffer_size(DECODE_BUFFER)
            .write_buffer_size(0)
            .max_write_buffer_size(settings.max_frame + 1024)
            .max_message_size(Some(settings.max_frame))
            .max_frame_size(Some(settings.max_frame));
        let interval = u64::try_from(settings.heartbeat_interval.as_millis()).unwrap_or(u64::MAX);
        let now = registered.registry().now_ms();
        let base = registered.handle().socket.written();
        let mut connection = Self {
            session: None,
            ws: WebSocketContext::new(Role::Server, Some(config)),
            control: Vec::new(),
            stash: read_ahead.to_vec(),
            stashed: !read_ahead.is_empty(),
            deaf: false,
            paused: false,
            batch: Batch::default(),
            base,
            stage: Stage::Open,
            draining: false,
            mark: None,
            close_deadline: None,
            acked: false,
            last_try: false,
            later: None,
            end: None,
            opened: Instant::now(),
            // ± 10 %, so that connections that came together do not ping together.
            ping_after: interval / 10 * 9 + fastrand::u64(0..=interval / 5),
            last_received: now,
            last_sent: now,
            last_progress: now,
            last_acknowledged: 0,
            blocked_since: None,
            messages_out: 0,
            registered,
            services,
            _address: address,
        };
        match entry {
            // The echo of the protocol suite has no session and says nothing of itself.
            Entry::Welcome(_) if cfg!(feature = "echo") => {}
            Entry::Welcome(identity) => {
                let (handle, services) = (connection.handle().clone(), connection.services.clone());
                ConnectionOpened {
                    session_id: &handle.session_id,
                    client_id: identity.client_id.as_str(),
                    peer: &handle.peer,
                }
                .emit(&services.metrics);
                connection.session = Some(Session::new(services, handle, identity));
            }
            Entry::Refused(close) => connection.close(close, now),
        }
        connection.plan(now);
        connection
    }

    fn handle(&self) -> &Arc<Handle> {
        self.registered.handle()
    }

    fn work(&mut self, cx: &mut Context<'_>) -> bool {
        let now = self.registered.registry().now_ms();
        let orders = self.handle().take_orders();
        self.carry_out(orders, now);
        for _ in 0..ROUNDS {
            let mut progress = self.read(cx, now);
            progress |= self.write(cx, now);
            if self.end.is_some() {
                return true;
            }
            if !progress {
                return true;
            }
        }
        false
    }

    fn carry_out(&mut self, orders: Orders, now: u64) {
        if orders.has(Order::Notify)
            && let Some(notice) = self.handle().take_notice()
            && matches!(self.stage, Stage::Open)
        {
            // From here on new requests are refused: behind the notice, so that nobody is
            // refused without knowing why.
            self.batch.push_first(notice);
            self.handle().requests.drain();
            if let Some(session) = &mut self.session {
                session.refuse_held();
            }
        }
        if orders.has(Order::Drain) && !self.draining {
            self.draining = true;
            self.handle().queue.set_mark();
            if matches!(self.stage, Stage::Closing(_) | Stage::PeerClosed) {
                // Being closed for another reason: nothing of it is to be waited for.
                self.registered.set_drained();
            }
        }
        if orders.has(Order::Finish) && matches!(self.stage, Stage::Open | Stage::Finishing) {
            let dropped = self.batch.drop_events();
            self.registered.registry().tally().dropped(dropped);
            self.close(Close::ShuttingDown, now);
            self.last_try = true;
        }
        if orders.has(Order::Finish)
            && let Stage::Closing(close) = self.stage
            && close != Close::ShuttingDown
        {
            self.give_up(End::closed(close));
        }
        if orders.has(Order::Terminate) {
            self.give_up(End::closed(Close::ShuttingDown));
        }
        if orders.has(Order::Tick) {
            self.plan(now);
        }
    }

    // ---- reading

    fn may_read(&mut self) -> bool {
        match self.stage {
            Stage::PeerClosed => false,
            Stage::Closing(_) => true,
            Stage::Open | Stage::Finishing => {
                let settings = &self.services.settings;
                let own = self.handle().queue.lane_bytes();
                let limit = if self.paused { settings.low_water } else { settings.high_water };
                self.paused = own > limit;
                !self.paused && self.session.as_ref().is_none_or(|session| !session.is_busy())
            }
        }
    }

    fn read(&mut self, cx: &mut Context<'_>, now: u64) -> bool {
        if self.end.is_some() {
            return false;
        }
        let mut progress = false;
        if matches!(self.stage, Stage::Open | Stage::Finishing)
            && let Some(session) = &mut self.session
            && (session.paused || !session.held.is_empty())
        {
            progress = session.release_held();
        }
        if !self.may_read() {
            return progress;
        }
        if self.stashed {
            self.stashed = false;
            let stash = std::mem::take(&mut self.stash);
            self.decode(&stash, now);
            return true;
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let socket = self.handle().socket.clone();
            match socket.poll_read_into(cx, scratch) {
                Poll::Pending => progress,
                Poll::Ready(Ok(0)) => {
                    self.peer_gone("end of stream");
                    true
                }
                Poll::Ready(Ok(read)) => {
                    self.last_received = now;
                    if !self.deaf {
                        self.decode(&scratch[..read], now);
                    }
                    true
                }
                Poll::Ready(Err(_)) => {
                    self.peer_gone("connection lost");
                    true
                }
            }
        })
    }

    fn decode(&mut self, input: &[u8], now: u64) {
        let mut rest = input;
        while self.end.is_none() && !self.deaf {
            if !self.may_read() {
                self.stash.extend_from_slice(rest);
                self.stashed = true;
                break;
            }
            let mut wire = Wire { input: rest, control: &mut self.control };
            let message = self.ws.read(&mut wire);
            rest = wire.input;
            // Before the message: a pong may be that of a ping in its middle. Also when no
            // message came: tungstenite answers a ping at its next turn.
            if !matches!(message, Ok(Message::Close(_))) {
                self.send_control();
            }
            match message {
                Ok(message @ (Message::Text(_) | Message::Binary(_))) if cfg!(feature = "echo") => {
                    self.echo(message);
                }
                Ok(Message::Text(text)) => self.receive(&text),
                Ok(Message::Binary(bytes)) => match std::str::from_utf8(&bytes) {
                    Ok(text) => self.receive(text),
                    Err(_) => self.receive_garbage(),
                },
                Ok(Message::Close(frame)) => self.peer_closed(frame, now),
                Ok(_) => {}
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => self.violated(&error, now),
            }
        }
    }

    /// Queues what tungstenite has to say: pongs, mostly.
    fn send_control(&mut self) {
        if !self.control.is_empty() && matches!(self.stage, Stage::Open | Stage::Finishing) {
            let pong = Bytes::from(std::mem::take(&mut self.control));
            self.handle().queue.push(pong, Weight::Free);
        }
    }

    /// Answers a message with itself, in test builds only (see `tests/peers/echo.rs`).
    fn echo(&mut self, message: Message) {
        match message {
            Message::Text(text) => {
                self.handle().queue.push(frame::text_frame(&text), Weight::Free);
            }
            // The server itself never sends one; it leaves with the control frames.
            binary => {
                let mut wire = Wire { input: &[], control: &mut self.control };
                let _ = self.ws.write(&mut wire, binary);
                self.send_control();
            }
        }
    }

    fn receive(&mut self, text: &str) {
        let Some(session) = &mut self.session else { return };
        match self.stage {
            Stage::Open | Stage::Finishing => session.receive(text),
            Stage::Closing(Close::ShuttingDown) => session.receive_after_close(text),
            Stage::Closing(_) | Stage::PeerClosed => {}
        }
    }

    fn receive_garbage(&mut self) {
        if let (Some(session), Stage::Open) = (&mut self.session, self.stage) {
            session.messages_in += 1;
            if session.spend_rate().is_ok() {
                session.complain(None, &EnvelopeError::not_utf8().error);
            }
        }
    }

    fn violated(&mut self, error: &Error, now: u64) {
        self.deaf = true;
        let close = match error {
            Error::Capacity(_) => Close::FrameTooLarge,
            Error::Utf8(_) => Close::InvalidText,
            Error::ConnectionClosed | Error::AlreadyClosed => return self.peer_gone("closed"),
            _ => Close::ProtocolError,
        };
        match self.stage {
            Stage::Open | Stage::Finishing => self.close(close, now),
            Stage::Closing(_) | Stage::PeerClosed => {}
        }
    }

    fn peer_closed(&mut self, frame: Option<CloseFrame>, now: u64) {
        if let Stage::Closing(close) = self.stage {
            self.acked = true;
            self.end = Some(End::closed(close));
            return;
        }
        // What tungstenite makes of a code that may not be sent (RFC 6455, 7.4): our own text
        // goes out instead.
        if frame.as_ref().is_some_and(|frame| frame.reason.as_str() == FORBIDDEN_CODE) {
            self.deaf = true;
            return self.close(Close::ProtocolError, now);
        }
        let (code, reason) = frame.map_or((1005, String::new()), |frame| {
            (u16::from(frame.code), frame.reason.as_str().to_owned())
        });
        self.end_of_queue();
        self.batch.drop_rest();
        // The answer, which tungstenite hands out at its next turn.
        let mut wire = Wire { input: &[], control: &mut self.control };
        let _ = self.ws.flush(&mut wire);
        self.batch.push_own(Bytes::from(std::mem::take(&mut self.control)));
        self.stage = Stage::PeerClosed;
        self.set_close_deadline(now);
        self.later = Some(End {
            code,
            reason: reason.into(),
            initiator: Initiator::Peer,
            leave: LeaveReason::Disconnected,
        });
    }

    fn peer_gone(&mut self, how: &'static str) {
        let end = match self.stage {
            // End of stream after our close frame is a clean end.
            Stage::Closing(close) => {
                self.acked = true;
                End::closed(close)
            }
            _ => End::lost(how),
        };
        self.end = Some(end);
    }

    // ---- writing

    fn write(&mut self, cx: &mut Context<'_>, now: u64) -> bool {
        let mut progress = false;
        while self.end.is_none() {
            if matches!(self.stage, Stage::Open | Stage::Finishing)
                && self.batch.bytes() < BATCH_BYTES
            {
                self.take(now);
            }
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

    fn take(&mut self, now: u64) {
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

    fn wrote(&mut self, written: usize) {
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
    fn written_out(&mut self) {
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

    fn check_drain(&mut self, now: u64) {
        if !self.draining {
            return;
        }
        if self.stage == Stage::Open {
            let handle = self.handle().clone();
            if self.mark.is_none() && handle.requests.pending() == 0 && handle.queue.passed_mark() {
                self.mark = Some(self.base + self.batch.fed());
            }
            let Some(mark) = self.mark else { return };
            if handle.socket.written() < mark {
                return;
            }
            if handle.socket.acknowledged() < mark {
                handle.await_acknowledged(mark);
                return;
            }
            self.registered.set_drained();
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

    // ---- ending

    /// Puts our close frame behind what the connection has to get first, and reads on.
    fn close(&mut self, close: Close, now: u64) {
        let queue = self.handle().queue.clone();
        if close == Close::ShuttingDown {
            if let Some(session) = &mut self.session {
                session.undo_joins();
                session.settle_held();
            }
            queue.take_lane(&mut self.batch);
            self.registered.set_closing();
        } else {
            // The notice of a shutdown that begins meanwhile is not worth a wait.
            queue.take_lane(&mut self.batch);
            self.set_close_deadline(now);
        }
        self.end_of_queue();
        if self.deaf {
            self.batch.push_own(frame::close_frame(close));
        } else {
            let reason = CloseFrame { code: close.code().into(), reason: close.reason().into() };
            self.control.clear();
            let mut wire = Wire { input: &[], control: &mut self.control };
            let _ = self.ws.close(&mut wire, Some(reason));
            self.batch.push_own(Bytes::from(std::mem::take(&mut self.control)));
        }
        self.stage = Stage::Closing(close);
    }

    fn slow(&mut self, now: u64) {
        let dropped = self.batch.drop_rest();
        if let Some(tally) = self.registered.registry().tally_if_stopping() {
            tally.dropped(dropped);
        }
        self.services.metrics.ladder_steps.get(LadderStep::Closed).inc();
        self.close(Close::SlowConsumer, now);
    }

    /// Drops what still waits; from now on nothing is queued for this connection.
    fn end_of_queue(&self) {
        let dropped = self.handle().queue.close();
        if let Some(tally) = self.registered.registry().tally_if_stopping() {
            tally.dropped(dropped);
        }
    }

    fn set_close_deadline(&mut self, now: u64) {
        let deadline = now + u64::try_from(CLOSE_TIMEOUT.as_millis()).unwrap_or(0);
        self.close_deadline = Some(deadline);
        self.handle().wake_at(deadline);
    }

    /// Gives the socket up: the kernel forgets what it holds of it.
    fn give_up(&mut self, end: End) {
        self.handle().socket.reset_on_drop();
        self.end = Some(end);
    }

    // ---- time

    /// Does what the time asks for and plans the next tick.
    fn plan(&mut self, now: u64) {
        let settings = &self.services.settings;
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (timeout, slow_timeout) = (ms(settings.heartbeat_timeout), ms(settings.slow_timeout));
        let (max_bytes, max_messages) = (settings.max_bytes as u64, settings.max_messages as u64);
        let high_water = settings.high_water as u64;
        let mut next = u64::MAX;

        if let Some(deadline) = self.close_deadline {
            if now >= deadline {
                let end = match self.stage {
                    Stage::Closing(close) => End::closed(close),
                    _ => self.later.take().unwrap_or_else(|| End::lost("close timeout")),
                };
                return self.give_up(end);
            }
            next = next.min(deadline);
        }

        let socket = &self.handle().socket;
        let acknowledged = socket.acknowledged();
        // A peer that reads slowly is alive. That its kernel takes a ping says nothing.
        let reads = self.batch.bytes() > 0 || socket.unacknowledged() > PINGS;
        if std::mem::replace(&mut self.last_acknowledged, acknowledged) < acknowledged && reads {
            self.last_progress = now;
        }
        let alive = self.last_received.max(self.last_progress);
        if now >= alive.saturating_add(timeout) {
            return self.give_up(End {
                code: 1006,
                reason: "heartbeat timeout".into(),
                initiator: Initiator::Server,
                leave: LeaveReason::Timeout,
            });
        }
        next = next.min(alive.saturating_add(timeout));

        if self.stage == Stage::Open {
            if now >= self.last_sent.saturating_add(self.ping_after) {
                self.handle().queue.push(frame::ping_frame(b""), Weight::Free);
                self.last_sent = now;
            }
            next = next.min(self.last_sent.saturating_add(self.ping_after));
            if let Some(since) = self.blocked_since {
                let queue = &self.handle().queue;
                if queue.backlog().bytes > high_water {
                    queue.squeeze();
                }
                let backlog = queue.hard_backlog();
                if now >= since.saturating_add(slow_timeout)
                    || backlog.bytes > max_bytes
                    || backlog.messages > max_messages
                {
                    self.slow(now);
                } else {
                    next = next.min(now + BLOCKED_CHECK);
                }
            }
        }
        if let Some(look_again) = self.session.as_mut().and_then(Session::check_upload) {
            next = next.min(now.saturating_add(ms(look_again).max(1)));
        }
        if self.stage == Stage::Open
            && !self.handle().requests.is_draining()
            && let Some(session) = &mut self.session
        {
            match session.check_expiry(UnixMillis::now()) {
                Expiry::In(time) => next = next.min(now.saturating_add(ms(time).max(1))),
                Expiry::Over => {
                    session.forbid_held();
                    self.close(Close::TokenExpired, now);
                }
                Expiry::Never => {}
            }
        }
        self.handle().wake_at(next);
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let queue = this.handle().queue.clone();
        loop {
            let seen = queue.signals();
            let done = this.work(cx);
            if this.end.is_some() {
                return Poll::Ready(());
            }
            if !done {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if queue.sleep(cx.waker(), seen) {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Connection {
    /// Leaves everything, also when the task was aborted or panicked.
    fn drop(&mut self) {
        let end = self.end.take().unwrap_or_else(|| End {
            code: Close::Internal.code(),
            reason: Close::Internal.reason().into(),
            initiator: Initiator::Server,
            leave: LeaveReason::Disconnected,
        });
        let handle = self.handle().clone();
        self.end_of_queue();
        // The frame in progress is lost as well.
        let dropped =
            Backlog { messages: self.batch.len() as u64, bytes: self.batch.bytes() as u64 };
        if let Some(tally) = self.registered.registry().tally_if_stopping() {
            tally.dropped(dropped);
            if handle.progress() == Progress::Closing && self.acked {
                tally.count_acked();
            } else if handle.progress() < Progress::Closing {
                tally.count_left_early();
            }
        }
        if let Some(session) = &mut self.session {
            let lost = session.lost_notifications + session.held.give_up() as u64;
            if let Some(tally) = self.registered.registry().tally_if_stopping() {
                tally.held_notifications_dropped(lost);
            }
            session.end(end.leave);
        }
        let client = handle.client.as_ref().map_or("", |client| client.as_str());
        let Some(session) = &self.session else {
            // It was never opened: that it was refused has been told.
            self.services.metrics.connections_closed.get(end.code.into()).inc();
            return;
        };
        ConnectionClosed {
            session_id: &handle.session_id,
            client_id: client,
            peer: &handle.peer,
            code: end.code,
            reason: &end.reason,
            initiator: end.initiator,
            duration: self.opened.elapsed(),
            messages_in: session.messages_in,
            messages_out: self.messages_out,
        }
        .emit(&self.services.metrics);
    }
}
