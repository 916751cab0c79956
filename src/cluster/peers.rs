//! The other instances: which live, which stop, which are lost.
//!
//! Silence counts only while this instance's own heartbeats come back from the broker: a
//! broker that is down, or a process that was stalled itself, makes nobody lost.

use std::time::Duration;

use tokio::time::Instant;

use super::core::{Core, KEPT_AFTER, Output};
use super::message::{Beat, Node};
use crate::budget::MAX_BUDGET;
use crate::ids::RoomId;
use crate::rooms::LeaveReason;

/// After so many heartbeats without a word an instance is lost.
const LOST_AFTER: u32 = 3;

/// The own heartbeats that came back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Echo {
    /// Since when they have come regularly.
    since: Instant,
    last: Instant,
}

/// Another instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) generation: String,
    pub(super) started: i64,
    pub(super) clients: u64,
    pub(super) away: bool,
    pub(super) draining: bool,
    heard: Instant,
    /// Until when its members are kept, once it stops.
    kept_until: Option<Instant>,
    /// It stops, and nothing more is expected of it.
    ended: bool,
}

impl Peer {
    /// Whether clients can go to it.
    pub(super) fn is_open(&self) -> bool {
        !self.draining && !self.away && !self.ended
    }
}

impl Core {
    /// The longest pause between two heartbeats that came back regularly.
    fn regular(&self) -> Duration {
        self.settings.heartbeat * 3 / 2
    }

    /// An own heartbeat came back.
    pub(super) fn echoed(&mut self, now: Instant) {
        match &mut self.echo {
            Some(echo) if now - echo.last <= self.settings.heartbeat * 3 / 2 => echo.last = now,
            echo => {
                self.suspect |= echo.is_some();
                *echo = Some(Echo { since: now, last: now });
            }
        }
        if std::mem::take(&mut self.suspect) {
            self.ask_all();
            self.digest();
        }
    }

    /// Whether the own heartbeats come back at present.
    pub(super) fn is_echoed(&self, now: Instant) -> bool {
        self.echo.is_some_and(|echo| now - echo.last <= self.regular())
    }

    pub(super) fn beat_of(&mut self, beat: Beat, now: Instant) {
        if beat.hello {
            self.beat(false);
        }
        let node: Node = beat.from.into();
        let known = self.peers.get_mut(&node);
        let new = known.is_none();
        let mut peer = Peer {
            generation: beat.generation,
            started: beat.started,
            clients: beat.clients,
            away: beat.away,
            draining: false,
            heard: now,
            kept_until: None,
            ended: false,
        };
        if let Some(known) = known {
            peer.kept_until = known.kept_until;
            peer.draining = known.draining;
            peer.ended = known.ended;
        } else {
            self.out.push(Output::Found(node.clone()));
        }
        if let Some(reconnect_max) = beat.draining.filter(|_| !peer.draining) {
            let reconnect_max = Duration::from_millis(reconnect_max).min(MAX_BUDGET);
            peer.draining = true;
            peer.kept_until = Some(now + reconnect_max + KEPT_AFTER);
            self.leaving.push(node.clone());
        }
        self.peers.insert(node.clone(), peer);
        if new && beat.rooms > 0 {
            self.ask_peer(&node);
        }
    }

    pub(super) fn bye(&mut self, node: &str) {
        let Some((node, peer)) = self.peers.get_key_value(node) else { return };
        let (node, keeps) = (node.clone(), peer.kept_until.is_some());
        if keeps {
            self.end_of(&node);
        } else {
            self.forget_peer(&node, LeaveReason::ServerShuttingDown);
        }
    }

    fn end_of(&mut self, node: &Node) {
        if let Some(peer) = self.peers.get_mut(node) {
            peer.ended = true;
        }
        self.asked.retain(|(asked, _), _| asked != node);
        self.to_ask.remove(node);
    }

    /// Finds who is lost, and whose members were kept for long enough.
    pub(super) fn look_at_peers(&mut self, now: Instant) {
        let lost_after = self.settings.heartbeat * LOST_AFTER;
        let echo = self.echo.filter(|_| self.is_echoed(now));
        let nodes: Vec<Node> = self.peers.keys().cloned().collect();
        for node in nodes {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            if peer.kept_until.is_some_and(|until| until <= now) {
                peer.kept_until = None;
                self.leaving.retain(|leaving| *leaving != node);
                self.forget_lists(&node, LeaveReason::ServerShuttingDown);
            }
            let Some(peer) = self.peers.get(&node) else { continue };
            let silent = peer.ended
                || echo.is_some_and(|echo| now - peer.heard.max(echo.since) >= lost_after);
            match (silent, peer.draining, peer.kept_until) {
                (true, false, _) => {
                    self.out.push(Output::Lost(node.clone()));
                    self.forget_peer(&node, LeaveReason::InstanceLost);
                }
                (true, true, None) => self.forget_peer(&node, LeaveReason::ServerShuttingDown),
                (true, true, Some(_)) => self.end_of(&node),
                (false, ..) => {}
            }
        }
    }

    fn forget_peer(&mut self, node: &Node, reason: LeaveReason) {
        self.end_of(node);
        self.peers.remove(node);
        self.leaving.retain(|leaving| leaving != node);
        self.forget_lists(node, reason);
    }

    fn forget_lists(&mut self, node: &Node, reason: LeaveReason) {
        let touched: Vec<RoomId> = self
            .rooms
            .iter_mut()
            .filter_map(|(room, lists)| lists.forget(node, reason).then(|| room.clone()))
            .collect();
        for room in touched {
            self.touch(&room);
        }
    }

    /// Whether what an instance says of its rooms is taken: it is known, and its members
    /// are not given up.
    pub(super) fn counts(&self, node: &str) -> bool {
        self.peers
            .get(node)
            .is_some_and(|peer| !peer.ended && (!peer.draining || peer.kept_until.is_some()))
    }

    /// Live instances to which clients can go.
    pub(super) fn others(&self) -> usize {
        self.peers.values().filter(|peer| peer.is_open()).count()
    }

    /// The generations of those that differ from the own one, at most `limit`.
    pub(super) fn newer(&self, limit: usize) -> Vec<String> {
        let mut generations: Vec<String> = self
            .peers
            .values()
            .filter(|peer| peer.is_open() && *peer.generation != *self.settings.generation)
            .map(|peer| peer.generation.clone())
            .filter(|generation| !generation.is_empty())
            .collect();
        generations.sort();
        generations.dedup();
        generations.truncate(limit);
        generations
    }
}
