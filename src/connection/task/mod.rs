//! The owner task of one socket: one ordered poll that carries out orders, reads all ready
//! input, takes what is due from the outgoing queue and writes it in batches.
//!
//! tungstenite decodes and keeps the protocol's state; it never sees the socket. It reads
//! from slices and writes its control frames into a buffer (its own writing would format
//! and copy every frame once per connection), so everything that goes out is ordered here.

mod closing;
mod end;
mod reading;
mod timing;
mod wire;
mod writing;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig, WebSocketContext};

use self::end::End;
use super::handle::{Handle, Order, Orders, Progress};
use super::registry::Registered;
use super::services::Services;
use super::session::Session;
use crate::auth::Identity;
use crate::close::Close;
use crate::limits::AddressSlot;
use crate::outgoing::{Backlog, Batch};
use crate::rooms::LeaveReason;
use crate::telemetry::events::{ConnectionClosed, ConnectionOpened, Initiator};

/// How often reading and writing alternate before other tasks get their turn.
const ROUNDS: usize = 16;
/// What tungstenite allocates for reading, and the step in which it copies.
const DECODE_BUFFER: usize = 512;

/// With what a connection begins.
pub enum Entry {
    /// It may come in.
    Welcome(Identity),
    /// It is closed with this code, which a browser can read.
    Refused(Close),
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

/// What reading led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    /// There was some; there may be more.
    Some,
    /// None: the socket wakes the task when there is.
    None,
    /// The socket was not asked.
    NotNow,
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
    /// Served on once drained, until it is let go.
    served_on: bool,
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
            served_on: false,
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
            let input = self.read(cx, now);
            let wrote = self.write(cx, now);
            if self.end.is_some() {
                return true;
            }
            // What was written may be what reading waited for.
            if !(input == Input::Some || wrote && input == Input::NotNow) {
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
            self.served_on = self.handle().served_until().is_some();
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
                self.registered.settle();
            }
        }
        if orders.has(Order::LetGo) {
            self.served_on = false;
            if self.draining && matches!(self.stage, Stage::Closing(_) | Stage::PeerClosed) {
                self.registered.settle();
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
