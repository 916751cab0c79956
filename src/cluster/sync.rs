//! Getting lists that are not known, or not known for certain, from the instance that has
//! them.
//!
//! A list is replaced when all of its parts are there, never before: whatever is asked
//! again, nobody is taken for gone meanwhile. An ask is repeated until it is answered, but
//! never because of its answer: two instances that disagree must not fill the broker.

use std::collections::BTreeMap;
use std::time::Duration;

use rustc_hash::FxHashSet;
use tokio::time::Instant;

use super::core::{Core, Output, back};
use super::message::{Delta, List, Message, Node, Target, cost, runs};
use crate::ids::{ClientId, RoomId};
use crate::rooms::LeaveReason;

/// After how long an ask is repeated.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How many changes wait for the list that they change; with more it is asked again.
const WAITING: usize = 64;

/// A list that is on its way.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// When it was asked for; not yet.
    at: Option<Instant>,
    version: u64,
    parts: u32,
    members: Vec<ClientId>,
    /// Changes that came meanwhile.
    waiting: BTreeMap<u64, Delta>,
    overflowed: bool,
}

impl Core {
    /// Wants the list of `room` that `peer` has.
    pub(super) fn ask(&mut self, peer: &Node, room: &RoomId) {
        if !self.counts(peer) || !self.rooms.get(room).is_some_and(|lists| lists.listening) {
            return;
        }
        // What is on its way was asked before whatever is the reason now.
        let asked = self.asked.entry((peer.clone(), room.clone())).or_default();
        asked.at = None;
        asked.parts = 0;
        asked.members.clear();
        self.to_ask.entry(peer.clone()).or_default().insert(room.clone());
    }

    pub(super) fn ask_peer(&mut self, peer: &Node) {
        let rooms: Vec<RoomId> = self.rooms.keys().cloned().collect();
        for room in rooms {
            self.ask(peer, &room);
        }
    }

    /// Wants all lists that may have changed meanwhile.
    pub(super) fn ask_all(&mut self) {
        let peers: Vec<Node> = self.peers.keys().cloned().collect();
        for peer in peers {
            self.ask_peer(&peer);
        }
    }

    /// Repeats what was not answered, while the link works.
    pub(super) fn ask_again(&mut self, now: Instant) {
        if !self.is_echoed(now) {
            return;
        }
        let late: Vec<(Node, RoomId)> = self
            .asked
            .iter_mut()
            .filter_map(|(key, asked)| {
                let at = *asked.at.get_or_insert(now);
                (now - at >= ASK_AGAIN).then(|| key.clone())
            })
            .collect();
        for (peer, room) in late {
            self.ask(&peer, &room);
        }
    }

    /// Publishes what is to be asked, in few messages.
    pub(super) fn flush_asks(&mut self) {
        for (peer, rooms) in std::mem::take(&mut self.to_ask) {
            let known = rooms.into_iter().filter_map(|room| {
                let lists = self.rooms.get(&room)?;
                let version = lists.theirs.get(&peer).map_or(0, |list| list.version);
                Some((room, version))
            });
            let limit = self.settings.max_message;
            for rooms in runs(known, limit, |(room, _)| cost(room.as_str()) + 24) {
                if !rooms.is_empty() {
                    let ask = Message::Ask { from: self.settings.instance.to_string(), rooms };
                    self.out.push(Output::Publish(Target::Node(peer.clone()), ask));
                }
            }
        }
    }

    /// Answers an ask.
    pub(super) fn answer(&mut self, asker: String, rooms: Vec<(RoomId, u64)>) {
        let to = Target::Node(asker.into());
        let me = self.me().to_owned();
        let limit = self.settings.max_message;
        let mut same = Vec::new();
        for (room, known) in rooms {
            self.flush_room(&room);
            let lists = self.rooms.get(&room).filter(|lists| !lists.own.is_empty());
            let version = match lists {
                Some(lists) => lists.version,
                None if known == 0 => 0,
                // Above whatever the asker has of this instance.
                None => self.clock,
            };
            if version == known {
                same.push(room);
                continue;
            }
            let members = lists.into_iter().flat_map(|lists| lists.own.keys().cloned());
            let parts = runs(members, limit, |client| cost(client.as_str()));
            let last = parts.len() - 1;
            for (part, members) in parts.into_iter().enumerate() {
                let list = List {
                    from: me.clone(),
                    room: room.clone(),
                    version,
                    part: u32::try_from(part).unwrap_or(u32::MAX),
                    last: part == last,
                    members,
                };
                self.out.push(Output::Publish(to.clone(), Message::List(list)));
            }
        }
        for rooms in runs(same, limit, |room| cost(room.as_str())) {
            if !rooms.is_empty() {
                let same = Message::Same { from: me.clone(), rooms };
                self.out.push(Output::Publish(to.clone(), same));
            }
        }
    }

    /// A change came; it is applied if nothing before it is missing.
    pub(super) fn delta(&mut self, delta: Delta) {
        let peer: Node = delta.from.as_str().into();
        if !self.counts(&peer) {
            return;
        }
        if !self.rooms.get(&delta.room).is_some_and(|lists| lists.listening)
            || delta.version <= self.known(&peer, &delta.room).0
        {
            return;
        }
        let key = (peer, delta.room.clone());
        if let Some(asked) = self.asked.get_mut(&key) {
            asked.wait(delta);
        } else if self.follows(&key.0, &delta) {
            self.apply(&key.0, &delta);
        } else {
            self.ask(&key.0, &key.1);
            if let Some(asked) = self.asked.get_mut(&key) {
                asked.wait(delta);
            }
        }
    }

    /// The versions of another instance's rooms.
    pub(super) fn digest_of(&mut self, from: &str, rooms: Vec<(RoomId, u64)>) {
        if !self.counts(from) {
            return;
        }
        let peer: Node = from.into();
        for (room, version) in rooms {
            let Some(lists) = self.rooms.get(&room) else { continue };
            let known = lists.theirs.get(&peer).map_or(0, |list| list.version);
            if known < version && !self.asked.contains_key(&(peer.clone(), room.clone())) {
                self.ask(&peer, &room);
            }
        }
    }

    /// A part of a list came.
    pub(super) fn list(&mut self, list: List, now: Instant) {
        let peer: Node = list.from.as_str().into();
        if !self.counts(&peer) {
            return;
        }
        let key = (peer, list.room.clone());
        let Some(asked) = self.asked.get_mut(&key) else { return };
        if list.part == 0 {
            asked.version = list.version;
            asked.parts = 0;
            asked.members.clear();
        }
        if asked.parts != list.part || asked.version != list.version {
            // A part is missing: it comes again with the repeated ask.
            return;
        }
        asked.parts += 1;
        asked.at = Some(now);
        asked.members.extend(list.members);
        if list.last {
            let members = std::mem::take(&mut asked.members).into_iter().collect();
            self.replace(&key.0, &key.1, list.version, &members);
            self.answered(&key, now);
        }
    }

    pub(super) fn same(&mut self, from: &str, rooms: Vec<RoomId>) {
        let peer: Node = from.into();
        for room in rooms {
            // Nothing that waits from before this word is news; what the word itself has
            // missed is found by the next change or digest.
            let Some(asked) = self.asked.remove(&(peer.clone(), room)) else { continue };
            for delta in asked.waiting.into_values() {
                if self.follows(&peer, &delta) {
                    self.apply(&peer, &delta);
                }
            }
        }
    }

    /// What waited for a list goes on from it. Where something is missing in between, the
    /// list is asked for again in a while.
    fn answered(&mut self, key: &(Node, RoomId), now: Instant) {
        let Some(mut asked) = self.asked.remove(key) else { return };
        let mut waiting = std::mem::take(&mut asked.waiting);
        while let Some(delta) = waiting.first_entry() {
            if self.follows(&key.0, delta.get()) {
                self.apply(&key.0, &delta.remove());
            } else if self.known(&key.0, &key.1).0 >= *delta.key() {
                delta.remove();
            } else {
                break;
            }
        }
        if asked.overflowed || !waiting.is_empty() {
            let again = Asked { at: Some(now), waiting, ..Asked::default() };
            self.asked.insert(key.clone(), again);
        }
    }

    /// The version of `peer`'s list that is known here, and whether nobody is on it.
    fn known(&self, peer: &Node, room: &RoomId) -> (u64, bool) {
        let list = self.rooms.get(room).and_then(|lists| lists.theirs.get(peer));
        list.map_or((0, true), |list| (list.version, list.members.is_empty()))
    }

    /// Whether a change is the next after what is known.
    fn follows(&self, peer: &Node, delta: &Delta) -> bool {
        let (version, empty) = self.known(peer, &delta.room);
        delta.version > version && (delta.prev == version || (delta.prev == 0 && empty))
    }

    fn replace(&mut self, peer: &Node, room: &RoomId, version: u64, members: &FxHashSet<ClientId>) {
        let stops = self.leaving.contains(peer);
        let Some(lists) = self.rooms.get_mut(room) else { return };
        let list = lists.theirs.entry(peer.clone()).or_default();
        if version < list.version {
            return;
        }
        list.version = version;
        if !stops {
            let gone: Vec<ClientId> = list.members.difference(members).cloned().collect();
            for client in gone {
                lists.remove(peer, &client, LeaveReason::Disconnected);
            }
        }
        for client in members {
            // Who came back from an instance that stops is not expected again.
            if stops && lists.elsewhere(peer, client) {
                continue;
            }
            if lists.add(peer, client) {
                back(lists, &self.leaving, Some(peer), client);
                if !self.draining {
                    lists.drop_held(client);
                }
            }
        }
        self.touch(room);
    }
}

impl Asked {
    fn wait(&mut self, delta: Delta) {
        if self.waiting.len() < WAITING {
            self.waiting.insert(delta.version, delta);
        } else {
            self.overflowed = true;
        }
    }
}
