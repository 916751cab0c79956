//! What carries the messages of instances, and the one over NATS.
//!
//! Core subjects under the stream's name, which the stream does not store:
//! `<stream>.instance` for all, `<stream>.presence.<room>` for those with members in a
//! room, `<stream>.peer.<instance>` for one.

use std::sync::Arc;

use async_nats::Client;
use futures_util::StreamExt;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::message::Target;
use crate::broker::{Link, LinkState, subject};
use crate::ids::RoomId;

/// How many messages wait to be looked at; more wait in the client of the broker.
const WAITING: usize = 1024;

/// What the carrier tells.
#[derive(Debug)]
pub(super) enum Event {
    /// A message.
    Message(Vec<u8>),
    /// The messages of this room arrive from now on.
    Listening(RoomId),
    /// There is a new connection, or messages were lost.
    Suspect,
}

/// Carries messages; it may lose them, and says so when it knows.
pub(super) trait Wire: Send + 'static {
    fn publish(&mut self, to: &Target, payload: Vec<u8>);
    fn listen(&mut self, room: RoomId);
    fn unlisten(&mut self, room: &RoomId);
    /// The next event; `None` when there will be none any more.
    fn next(&mut self) -> impl Future<Output = Option<Event>> + Send;
}

/// The carrier over NATS.
pub(super) struct Nats {
    link: Link,
    prefix: String,
    rooms: FxHashMap<RoomId, AbortHandle>,
    own: Vec<AbortHandle>,
    events: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
}

impl Nats {
    /// Begins to listen to what is for all and for `instance`.
    pub(super) fn new(link: Link, instance: &Arc<str>) -> Self {
        let (sender, events) = mpsc::channel(WAITING);
        let prefix = link.settings().stream.clone();
        let mut wire =
            Self { link, prefix, rooms: FxHashMap::default(), own: Vec::new(), events, sender };
        let all = wire.subject(&Target::All);
        let mine = wire.subject(&Target::Node(instance.clone()));
        for subject in [all, mine] {
            let forward = forward(wire.link.client().clone(), subject, None, wire.sender.clone());
            wire.own.push(tokio::spawn(forward).abort_handle());
        }
        let watch = watch(wire.link.clone(), wire.sender.clone());
        wire.own.push(tokio::spawn(watch).abort_handle());
        wire
    }

    fn subject(&self, to: &Target) -> String {
        let prefix = &self.prefix;
        match to {
            Target::All => format!("{prefix}.instance"),
            Target::Room(room) => format!("{prefix}.presence.{}", subject::encode(room.as_str())),
            Target::Node(node) => format!("{prefix}.peer.{}", subject::encode(node)),
        }
    }
}

impl Wire for Nats {
    fn publish(&mut self, to: &Target, payload: Vec<u8>) {
        // What is lost is found: by its version, or when the link is back.
        let _ = self.link.publish(self.subject(to), None, None, payload.into());
    }

    fn listen(&mut self, room: RoomId) {
        let subject = self.subject(&Target::Room(room.clone()));
        let client = self.link.client().clone();
        let forward = forward(client, subject, Some(room.clone()), self.sender.clone());
        let task = tokio::spawn(forward).abort_handle();
        if let Some(before) = self.rooms.insert(room, task) {
            before.abort();
        }
    }

    fn unlisten(&mut self, room: &RoomId) {
        if let Some(task) = self.rooms.remove(room) {
            task.abort();
        }
    }

    async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.own.iter().chain(self.rooms.values()).for_each(AbortHandle::abort);
    }
}

/// Subscribes and passes on what comes; the subscription ends with the task.
async fn forward(
    client: Client,
    subject: String,
    room: Option<RoomId>,
    events: mpsc::Sender<Event>,
) {
    let mut messages = match client.subscribe(subject).await {
        Ok(messages) => messages,
        Err(error) => {
            // Only once the link is closed.
            tracing::debug!(event = "cluster.subscribe", %error, "cluster: cannot subscribe");
            return;
        }
    };
    if let Some(room) = room
        && events.send(Event::Listening(room)).await.is_err()
    {
        return;
    }
    while let Some(message) = messages.next().await {
        if events.send(Event::Message(message.payload.into())).await.is_err() {
            return;
        }
    }
}

/// Tells of every new connection and of messages that were dropped.
async fn watch(link: Link, events: mpsc::Sender<Event>) {
    let (mut state, mut dropped) = (link.state(), link.dropped());
    let mut known = None;
    loop {
        let now = match &*state.borrow_and_update() {
            LinkState::Up { generation } => Some(*generation),
            LinkState::Down { .. } => known,
            LinkState::Closed => return,
        };
        if now != known {
            known = now;
            if events.send(Event::Suspect).await.is_err() {
                return;
            }
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            more = dropped.changed() => {
                if more.is_err() || events.send(Event::Suspect).await.is_err() {
                    return;
                }
            }
        }
    }
}
