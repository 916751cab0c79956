//! Several instances in one process: hubs with their connections, and what carries the
//! messages between them, in memory or over a real broker.

mod liveness;
mod merge;
mod model;
mod nats;
mod site;
mod sync;

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;

use super::message::{Message, Target};
use super::wire::{Event, Wire};
use crate::ids::RoomId;

/// A broker in memory, which loses what it is told to lose.
#[derive(Clone, Default)]
struct Mesh(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    nodes: FxHashMap<String, Node>,
    /// How many of the next messages about rooms are lost.
    lose: usize,
    /// What was published, by kind; what of it was delivered to others.
    published: FxHashMap<&'static str, usize>,
    delivered: FxHashMap<&'static str, usize>,
    longest: usize,
}

struct Node {
    events: mpsc::UnboundedSender<Event>,
    rooms: Vec<RoomId>,
    up: bool,
}

fn kind(payload: &[u8]) -> &'static str {
    match Message::decode(payload).unwrap() {
        Message::Beat(_) => "beat",
        Message::Bye { .. } => "bye",
        Message::Delta(_) => "delta",
        Message::Digest { .. } => "digest",
        Message::Ask { .. } => "ask",
        Message::List(_) => "list",
        Message::Same { .. } => "same",
    }
}

impl Mesh {
    fn wire(&self, name: &str) -> MeshWire {
        let (events, receiver) = mpsc::unbounded_channel();
        events.send(Event::Suspect).unwrap();
        let node = Node { events, rooms: Vec::new(), up: true };
        self.0.lock().nodes.insert(name.to_owned(), node);
        MeshWire { mesh: self.clone(), name: name.to_owned(), events: receiver }
    }

    fn set_up(&self, name: &str, up: bool) {
        let mut state = self.0.lock();
        let Some(node) = state.nodes.get_mut(name) else { return };
        if up && !node.up {
            node.events.send(Event::Suspect).unwrap();
        }
        node.up = up;
    }

    fn remove(&self, name: &str) {
        self.0.lock().nodes.remove(name);
    }

    fn lose(&self, count: usize) {
        self.0.lock().lose = count;
    }

    fn published(&self, kind: &str) -> usize {
        self.0.lock().published.get(kind).copied().unwrap_or(0)
    }

    fn forget_counts(&self) {
        let mut state = self.0.lock();
        state.published.clear();
        state.delivered.clear();
        state.longest = 0;
    }
}

struct MeshWire {
    mesh: Mesh,
    name: String,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Wire for MeshWire {
    fn publish(&mut self, to: &Target, payload: Vec<u8>) {
        let mut state = self.mesh.0.lock();
        let kind = kind(&payload);
        let count = state.published.entry(kind).or_default();
        *count += 1;
        assert!(kind != "ask" || *count < 5000, "questions that answers lead to");
        state.longest = state.longest.max(payload.len());
        if !state.nodes.get(&self.name).is_some_and(|node| node.up) {
            return;
        }
        if state.lose > 0 && *to != Target::All {
            state.lose -= 1;
            return;
        }
        let mut count = 0;
        for (name, node) in state.nodes.iter().filter(|(_, node)| node.up) {
            let wanted = match to {
                Target::All => true,
                Target::Room(room) => node.rooms.contains(room),
                Target::Node(to) => **to == **name,
            };
            if wanted {
                count += usize::from(*name != self.name);
                let _ = node.events.send(Event::Message(payload.clone()));
            }
        }
        *state.delivered.entry(kind).or_default() += count;
    }

    fn listen(&mut self, room: RoomId) {
        let mut state = self.mesh.0.lock();
        if let Some(node) = state.nodes.get_mut(&self.name) {
            node.rooms.push(room.clone());
            node.events.send(Event::Listening(room)).unwrap();
        }
    }

    fn unlisten(&mut self, room: &RoomId) {
        let mut state = self.mesh.0.lock();
        if let Some(node) = state.nodes.get_mut(&self.name) {
            node.rooms.retain(|listened| listened != room);
        }
    }

    async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}
