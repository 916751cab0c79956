//! The handle that callers hold: it checks, sends commands to the client's task, and waits.
//!
//! Dropping a future takes its request back; dropping the last handle ends the task.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::Acked;
use super::builder::Builder;
use super::error::Error;
use super::event::State;
use super::fix;
use super::requests::Request;
use super::resend::Resends;
use super::rooms::Waiter;
use super::task::Command;
use crate::ids::RoomId;
use crate::protocol::decode::{Positions, RoomJoined};
use crate::protocol::position::MAX_KEY_BYTES;
use crate::protocol::{ErrorCode, Kind, Mode, ServerMessage, Since};

/// A client of one server, or of several that are one system. Cheap to clone; the session
/// ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Client {
    commands: mpsc::UnboundedSender<Command>,
    permits: Arc<Semaphore>,
    state: watch::Receiver<State>,
    keys: Arc<std::sync::atomic::AtomicU64>,
}

/// Takes a request back when its caller gives up.
struct GiveUp<'a> {
    commands: &'a mpsc::UnboundedSender<Command>,
    key: u64,
    armed: bool,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        if self.armed {
            let _ = self.commands.send(Command::Cancel(self.key));
        }
    }
}

impl Client {
    /// Sets a client up.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(super) fn new(
        commands: mpsc::UnboundedSender<Command>,
        permits: Arc<Semaphore>,
        state: watch::Receiver<State>,
    ) -> Self {
        Self { commands, permits, state, keys: Arc::default() }
    }

    fn key(&self) -> u64 {
        self.keys.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    /// How the connection stands, to look at or to wait for.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Joins a room and stays in it across reconnects until [`Client::leave`]. Waits for a
    /// session if there is none. Given up before the answer, the room is not joined.
    ///
    /// # Errors
    /// What the server says; [`Error::Invalid`] for a bad name.
    pub async fn join(&self, room: &str, mode: Mode) -> Result<Box<RoomJoined>, Error> {
        self.join_from(room, mode, None).await
    }

    /// As [`Client::join`], going on after `since`, a place that an earlier client reached:
    /// the sequence number of its last event, in the epoch of its last [`Event::Joined`].
    ///
    /// [`Event::Joined`]: super::Event::Joined
    ///
    /// # Errors
    /// As [`Client::join`].
    pub async fn join_since(
        &self,
        room: &str,
        mode: Mode,
        since: Since,
    ) -> Result<Box<RoomJoined>, Error> {
        self.join_from(room, mode, Some(since)).await
    }

    async fn join_from(
        &self,
        room: &str,
        mode: Mode,
        since: Option<Since>,
    ) -> Result<Box<RoomJoined>, Error> {
        let room = room_id(room)?;
        let key = self.key();
        let (reply, answer) = oneshot::channel();
        let waiter = Waiter { key, reply };
        self.command(Command::Join { room, mode, since, waiter })?;
        let mut give_up = GiveUp { commands: &self.commands, key, armed: true };
        let result = answer.await;
        give_up.armed = false;
        result.unwrap_or(Err(Error::Closed))
    }

    /// Leaves a room.
    ///
    /// # Errors
    /// What the server says. The room is left for good all the same.
    pub async fn leave(&self, room: &str) -> Result<(), Error> {
        let room = room_id(room)?;
        self.command(Command::Forget(room.clone()))?;
        let payload = room_payload(&room);
        match self.request(Kind::LeaveRoom, false, payload, Vec::new(), false).await {
            Ok(Some(ServerMessage::RoomLeft(_))) => Ok(()),
            // The session that was in the room is gone, and the next one never was.
            Err(Error::Refused(refused)) if refused.is(ErrorCode::NotJoined) => Ok(()),
            other => Err(other.map_or_else(|error| error, unexpected)),
        }
    }

    /// Publishes a position and waits until the log of every room holds it. `rooms` is one
    /// to sixteen rooms; `position` is a [`Fix`](super::Fix) or anything that serializes to
    /// an object.
    ///
    /// # Errors
    /// What the server says; [`Error::UnknownOutcome`] if the connection died meanwhile.
    pub async fn publish<T>(
        &self,
        rooms: impl IntoIterator<Item = impl AsRef<str>>,
        position: &T,
    ) -> Result<Acked, Error>
    where
        T: Serialize + ?Sized,
    {
        let rooms = room_ids(rooms)?;
        let payload = fix::payload(&rooms, None, position)?;
        self.acknowledged(payload, rooms, false).await
    }

    /// Publishes a position under an idempotency key of 1 to 64 bytes: if the connection
    /// dies before the answer, it is sent again within the server's deduplication window
    /// and stored once.
    ///
    /// # Errors
    /// What the server says; [`Error::UnknownOutcome`] once the window has passed.
    pub async fn publish_keyed<T>(
        &self,
        rooms: impl IntoIterator<Item = impl AsRef<str>>,
        key: &str,
        position: &T,
    ) -> Result<Acked, Error>
    where
        T: Serialize + ?Sized,
    {
        if !(1..=MAX_KEY_BYTES).contains(&key.len()) {
            return Err(Error::Invalid("a key must have 1 to 64 bytes".into()));
        }
        let rooms = room_ids(rooms)?;
        let payload = fix::payload(&rooms, Some(key), position)?;
        self.acknowledged(payload, rooms, true).await
    }

    async fn acknowledged(
        &self,
        payload: Box<str>,
        rooms: Vec<RoomId>,
        keyed: bool,
    ) -> Result<Acked, Error> {
        match self.request(Kind::LocationUpdate, false, payload, rooms, keyed).await? {
            Some(ServerMessage::Ack(ack)) => Ok(ack),
            other => Err(unexpected(other)),
        }
    }

    /// Publishes a position without an answer; done when the socket has taken it. A refusal
    /// comes as [`Event::Refused`](super::Event::Refused).
    ///
    /// # Errors
    /// [`Error::Invalid`] or [`Error::Closed`].
    pub async fn notify<T>(
        &self,
        rooms: impl IntoIterator<Item = impl AsRef<str>>,
        position: &T,
    ) -> Result<(), Error>
    where
        T: Serialize + ?Sized,
    {
        let rooms = room_ids(rooms)?;
        let payload = fix::payload(&rooms, None, position)?;
        self.request(Kind::LocationUpdate, true, payload, rooms, false).await.map(drop)
    }

    /// The newest position per vehicle of a room.
    ///
    /// # Errors
    /// What the server says.
    pub async fn positions(&self, room: &str) -> Result<Positions, Error> {
        let room = room_id(room)?;
        let payload = room_payload(&room);
        match self.request(Kind::Positions, false, payload, vec![room], false).await? {
            Some(ServerMessage::Positions(positions)) => Ok(positions),
            other => Err(unexpected(other)),
        }
    }

    /// Ends the session with a close handshake and waits for it, 3 s at most. What is
    /// unanswered fails.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.command(Command::Close(done)).is_ok() {
            // The sender is dropped when the task ends: either way it is over.
            let _ = closed.await;
        }
    }

    fn command(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).map_err(|_| Error::Closed)
    }

    async fn request(
        &self,
        kind: Kind,
        notification: bool,
        payload: Box<str>,
        rooms: Vec<RoomId>,
        keyed: bool,
    ) -> Result<Option<ServerMessage>, Error> {
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| Error::Closed)?;
        let key = self.key();
        let (reply, answer) = oneshot::channel();
        self.command(Command::Request(Request {
            key,
            kind,
            notification,
            payload,
            rooms,
            keyed,
            reply,
            permit,
            sent_as: None,
            first_sent: None,
            resends: Resends::default(),
            unknown: false,
        }))?;
        let mut give_up = GiveUp { commands: &self.commands, key, armed: true };
        let result = answer.await;
        give_up.armed = false;
        result.unwrap_or(Err(Error::Closed))
    }
}

#[allow(clippy::needless_pass_by_value, reason = "takes what matched nothing")]
fn unexpected(answer: Option<ServerMessage>) -> Error {
    let kind = answer.as_ref().map_or("nothing", ServerMessage::kind);
    Error::Protocol(format!("the answer is {kind:?}"))
}

fn room_id(room: &str) -> Result<RoomId, Error> {
    RoomId::parse(room).map_err(|bad| Error::Invalid(format!("a room must be {bad}")))
}

fn room_ids(rooms: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<RoomId>, Error> {
    let rooms: Vec<RoomId> =
        rooms.into_iter().map(|room| room_id(room.as_ref())).collect::<Result<_, _>>()?;
    if rooms.is_empty() || rooms.len() > crate::protocol::client::MAX_ROOMS {
        return Err(Error::Invalid("a position goes to 1 to 16 rooms".into()));
    }
    Ok(rooms)
}

fn room_payload(room: &RoomId) -> Box<str> {
    serde_json::json!({ "roomId": room.as_str() }).to_string().into()
}
