//! What a client tells its owner without being asked: events of the rooms, and how the
//! connection stands.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use tokio::sync::mpsc;

use super::error::{Error, Refused};
use crate::ids::RoomId;
use crate::protocol::decode::{
    CaughtUp, Lagging, Location, MembersChanged, MembersNamed, NotificationsDropped, RoomJoined,
    ServerShuttingDown, Snapshot,
};

/// Something happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A vehicle moved. Each event of a room comes once, in order, across reconnects.
    Location(Box<Location>),
    /// A room is joined, for the first time or again; with `recovered` the missed events
    /// follow, otherwise its positions (and [`Event::Snapshot`]s) replace the view.
    Joined(Box<RoomJoined>),
    /// A further page of the snapshot.
    Snapshot(Box<Snapshot>),
    /// The server made this client leave the room.
    Left {
        /// The room.
        room: RoomId,
        /// Why.
        reason: Option<String>,
    },
    /// A room could not be joined again after a reconnect.
    JoinFailed {
        /// The room.
        room: RoomId,
        /// What the server said.
        error: Arc<str>,
        /// Whether the library tries again by itself; otherwise the room is given up.
        retrying: bool,
    },
    /// Events of the room are missing from here on.
    Gap {
        /// The room.
        room: RoomId,
        /// Why.
        cause: GapCause,
    },
    /// Members came.
    MembersJoined(Box<MembersNamed>),
    /// Members went.
    MembersLeft(Box<MembersNamed>),
    /// Members of a big room changed.
    MembersChanged(MembersChanged),
    /// This client reads too slowly: only the newest position per vehicle comes.
    Lagging(Lagging),
    /// The lag is over.
    CaughtUp(CaughtUp),
    /// The server let positions sent by [`notify`](super::Client::notify) go.
    NotificationsDropped(NotificationsDropped),
    /// The server refused something that had no request id.
    Refused(Box<Refused>),
    /// The server announced its end; the client moves by itself.
    Notice(ServerShuttingDown),
    /// A fresh token could not be had or was not accepted.
    TokenRefused(Arc<str>),
    /// The connection's state changed.
    State(State),
}

/// Why events are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapCause {
    /// The server could not go on from where this client stood: the snapshot that comes
    /// with [`Event::Joined`] is the truth.
    Reset,
    /// A sequence number did not ascend.
    Order,
}

/// How the connection stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// What the client is doing.
    pub phase: Phase,
    /// The session, while there is one.
    pub session: Option<Arc<str>>,
    /// The endpoint of that session.
    pub endpoint: Option<Arc<str>>,
    /// Whether the view may be behind: no session, a room not joined on it, or a server
    /// that has been silent for two of its heartbeats.
    pub stale: bool,
}

/// What the client is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No session yet.
    Connecting,
    /// A session is there.
    Connected,
    /// A session is there; its server has announced its end.
    Draining,
    /// The session was lost; another one is on its way.
    Reconnecting,
    /// The server did not accept the token; waiting for another one.
    Unauthorized,
    /// The end: closed by its owner, or no token that the server accepts.
    Closed,
}

/// The events of one client, in order.
///
/// They are for reading: while more than a few hundred wait here, the client reads nothing
/// from its socket, answers included, so that the server treats it as the slow consumer
/// that it is. Read them in a task of their own, or drop this: then they are let go.
#[derive(Debug)]
pub struct Events {
    pub(super) receiver: mpsc::Receiver<Event>,
}

impl Events {
    /// The next event; `None` once the client is closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        self.receiver.recv().await
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.receiver.poll_recv(cx)
    }
}

impl Event {
    pub(super) fn join_failed(room: RoomId, error: &Error, retrying: bool) -> Self {
        Self::JoinFailed { room, error: error.to_string().into(), retrying }
    }
}
