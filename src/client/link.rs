//! One session's socket: what waits to be written, what was asked and is unanswered, when
//! it was last heard.
//!
//! A link is polled by the client's task and owns no task or timer of its own. It knows the
//! WebSocket protocol, not the rooms.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use rustc_hash::FxHashMap;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::connector::Failure;
use crate::budget::MAX_BUDGET;
use crate::ids::RoomId;
use crate::protocol::decode::Welcome;
use crate::protocol::{ServerFrame, ServerMessage};

/// How long a close may take before the socket is dropped.
pub(super) const CLOSE_TIME: Duration = Duration::from_secs(3);

/// What a wire id on this link stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    Request(u64),
    Join(RoomId),
    Refresh(Arc<str>),
}

/// What came of polling a link.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// A notification was handed to the socket.
    Written(u64),
    /// A message of the server.
    Text(Utf8Bytes),
    /// The peer closed, or the socket broke (1006). Comes once.
    Closed { code: u16, reason: String },
    /// The close is through; the link can go.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Our close frame goes out once the outbox is empty.
    SendClose,
    /// A close frame went out or came in.
    Closing,
    Gone,
}

struct Out {
    text: String,
    wire: Option<i64>,
    notification: Option<u64>,
}

/// A time from the server, in milliseconds, as one that clocks can hold.
fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis).min(MAX_BUDGET)
}

pub(super) struct Link<S> {
    pub(super) id: u64,
    pub(super) endpoint: usize,
    pub(super) shown: Arc<str>,
    pub(super) session: Arc<str>,
    pub(super) welcome: Box<Welcome>,
    pub(super) token: Option<Arc<str>>,
    pub(super) born: Instant,
    /// The last frame of any kind.
    pub(super) heard: Instant,
    /// The last message.
    pub(super) heard_message: Instant,
    pub(super) pinged: Instant,
    /// The server announced its end.
    pub(super) noticed: bool,
    /// Answered `SERVER_DRAINING`: new requests would be refused too.
    pub(super) refuses: bool,
    pub(super) asked: FxHashMap<i64, Asked>,
    /// When a close in progress is given up.
    pub(super) close_by: Option<Instant>,
    socket: WebSocketStream<S>,
    outbox: VecDeque<Out>,
    unflushed: bool,
    stage: Stage,
    reported: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Link<S> {
    /// Waits for `welcome`.
    pub(super) async fn welcomed(
        id: u64,
        endpoint: usize,
        shown: Arc<str>,
        mut socket: WebSocketStream<S>,
        token: Option<Arc<str>>,
    ) -> Result<Self, Failure> {
        let welcome = loop {
            match socket.next().await {
                Some(Ok(Message::Text(text))) => match ServerFrame::parse(&text) {
                    Ok(ServerFrame { message: ServerMessage::Welcome(welcome), .. }) => {
                        break welcome;
                    }
                    Ok(other) => {
                        let kind = other.message.kind().to_owned();
                        return Err(Failure::Protocol(format!("{kind} before welcome")));
                    }
                    Err(error) => return Err(Failure::Protocol(error.to_string())),
                },
                Some(Ok(Message::Close(frame))) => {
                    let _ = socket.flush().await;
                    let (code, reason) = close_of(frame);
                    return Err(Failure::Closed { code, reason: reason.into(), token });
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Failure::Io(error.to_string())),
                None => return Err(Failure::Io("closed before welcome".into())),
            }
        };
        let now = Instant::now();
        Ok(Self {
            id,
            endpoint,
            shown,
            session: welcome.session_id.as_str().into(),
            welcome,
            token,
            born: now,
            heard: now,
            heard_message: now,
            pinged: now,
            noticed: false,
            refuses: false,
            asked: FxHashMap::default(),
            close_by: None,
            socket,
            outbox: VecDeque::new(),
            unflushed: true,
            stage: Stage::Open,
            reported: false,
        })
    }

    /// Whether messages can still be sent.
    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Whether new requests make sense here.
    pub(super) fn takes_requests(&self) -> bool {
        self.is_open() && !self.noticed && !self.refuses
    }

    /// The server's deduplication window.
    pub(super) fn window(&self) -> Duration {
        millis(self.welcome.dedup_window_ms)
    }

    /// How often the server is heard at least; never so short that it keeps us busy.
    pub(super) fn heartbeat(&self) -> Duration {
        millis(self.welcome.heartbeat_ms).max(Duration::from_secs(1))
    }

    /// After how much silence the socket is given up.
    pub(super) fn heartbeat_timeout(&self) -> Duration {
        millis(self.welcome.heartbeat_timeout_ms).max(Duration::from_secs(2))
    }

    /// Queues a message whose answer carries `wire`.
    pub(super) fn ask(&mut self, wire: i64, text: String, asked: Asked) {
        self.asked.insert(wire, asked);
        self.outbox.push_back(Out { text, wire: Some(wire), notification: None });
    }

    /// Queues a message that has no answer; [`LinkEvent::Written`] says when it is out.
    pub(super) fn tell(&mut self, text: String, notification: Option<u64>) {
        self.outbox.push_back(Out { text, wire: None, notification });
    }

    /// Takes what was never handed to the socket: the wire ids and the notifications.
    pub(super) fn unsent(&mut self) -> (Vec<i64>, Vec<u64>) {
        let outbox = std::mem::take(&mut self.outbox);
        let wires = outbox.iter().filter_map(|out| out.wire).collect();
        let notifications = outbox.iter().filter_map(|out| out.notification).collect();
        (wires, notifications)
    }

    /// Nothing was read from this link until `now`, at this client's own wish.
    pub(super) fn excuse_silence(&mut self, now: Instant) {
        self.heard = now;
        self.heard_message = now;
    }

    /// Begins the close from this side; what was queued goes out first.
    pub(super) fn close(&mut self, now: Instant) {
        if self.stage == Stage::Open {
            self.stage = Stage::SendClose;
            self.reported = true;
            self.close_by = Some(now + CLOSE_TIME);
        }
    }

    /// Gives the socket up without a word.
    pub(super) fn abandon(&mut self) {
        self.stage = Stage::Gone;
    }

    fn broken(&mut self) -> LinkEvent {
        self.stage = Stage::Gone;
        if std::mem::replace(&mut self.reported, true) {
            LinkEvent::Ended
        } else {
            LinkEvent::Closed { code: 1006, reason: String::new() }
        }
    }

    /// Writes what waits and, if `read`, reads one message.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, read: bool) -> Poll<LinkEvent> {
        if self.stage == Stage::Gone {
            return Poll::Ready(LinkEvent::Ended);
        }
        if let Poll::Ready(Some(event)) = self.poll_write(cx) {
            return Poll::Ready(event);
        }
        if !read && self.stage == Stage::Open {
            return Poll::Pending;
        }
        self.poll_read(cx)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        while !self.outbox.is_empty() || self.stage == Stage::SendClose {
            if ready!(self.socket.poll_ready_unpin(cx)).is_err() {
                return Poll::Ready(Some(self.broken()));
            }
            let (message, notification) = match self.outbox.pop_front() {
                Some(out) => (Message::text(out.text), out.notification),
                None => {
                    self.stage = Stage::Closing;
                    let reason = Utf8Bytes::default();
                    (Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason })), None)
                }
            };
            if self.socket.start_send_unpin(message).is_err() {
                return Poll::Ready(Some(self.broken()));
            }
            self.unflushed = true;
            if let Some(key) = notification {
                return Poll::Ready(Some(LinkEvent::Written(key)));
            }
        }
        if self.unflushed {
            match ready!(Pin::new(&mut self.socket).poll_flush(cx)) {
                Ok(()) => self.unflushed = false,
                Err(_) => return Poll::Ready(Some(self.broken())),
            }
        }
        Poll::Ready(None)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<LinkEvent> {
        loop {
            let message = match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(message)) => message,
                Some(Err(_)) | None => return Poll::Ready(self.broken()),
            };
            let now = Instant::now();
            self.heard = now;
            match message {
                Message::Text(text) => {
                    self.heard_message = now;
                    return Poll::Ready(LinkEvent::Text(text));
                }
                Message::Close(frame) => {
                    self.stage = Stage::Closing;
                    self.close_by.get_or_insert(now + CLOSE_TIME);
                    // The reply is queued in the socket; the next poll flushes it.
                    self.unflushed = true;
                    if !std::mem::replace(&mut self.reported, true) {
                        let (code, reason) = close_of(frame);
                        return Poll::Ready(LinkEvent::Closed { code, reason });
                    }
                    self.outbox.clear();
                    if let Poll::Ready(Some(event)) = self.poll_write(cx) {
                        return Poll::Ready(event);
                    }
                }
                _ => {
                    // A pong is queued; it goes out with the next flush.
                    self.unflushed = true;
                    if let Poll::Ready(Some(event)) = self.poll_write(cx) {
                        return Poll::Ready(event);
                    }
                }
            }
        }
    }
}

fn close_of(frame: Option<CloseFrame>) -> (u16, String) {
    frame.map_or((1005, String::new()), |frame| (frame.code.into(), frame.reason.to_string()))
}
