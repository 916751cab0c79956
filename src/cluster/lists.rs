//! Who is in one room, by instance, and what of it is claimed towards the hub.
//!
//! An identity is claimed while any instance's list holds it. Nothing here knows time,
//! messages or whether an instance lives.

use std::collections::hash_map::Entry;

use rustc_hash::{FxHashMap, FxHashSet};
use tokio::time::Instant;

use super::message::Node;
use crate::ids::ClientId;
use crate::rooms::{Claims, LeaveReason, LocalChanges};

/// A member of this instance that has no connection any more but may come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// `None`: for as long as this process lives.
    pub(super) until: Option<Instant>,
    pub(super) reason: LeaveReason,
}

/// The list of another instance.
#[derive(Debug, Default)]
pub(super) struct Theirs {
    pub(super) version: u64,
    pub(super) members: FxHashSet<ClientId>,
}

/// One room.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// Somebody is in it here.
    pub(super) open: bool,
    /// Its messages arrive.
    pub(super) listening: bool,
    /// The version of the own list that the others were told last; 0: nobody was there.
    pub(super) version: u64,
    pub(super) own: FxHashMap<ClientId, Option<Held>>,
    pub(super) theirs: FxHashMap<Node, Theirs>,
    /// How many lists hold an identity.
    claims: FxHashMap<ClientId, u32>,
    /// What the hub was not told yet.
    untold: FxHashMap<ClientId, Option<LeaveReason>>,
    /// What the others were not told yet.
    delta: LocalChanges,
}

impl Lists {
    /// Whom any list holds.
    pub(super) fn claimed(&self) -> impl Iterator<Item = &ClientId> {
        self.claims.keys()
    }

    /// Whether nothing of it is needed any more.
    pub(super) fn is_over(&self) -> bool {
        !self.open && self.own.is_empty()
    }

    /// Adds to the own list.
    pub(super) fn add_own(&mut self, client: &ClientId) {
        match self.own.entry(client.clone()) {
            Entry::Occupied(mut held) => *held.get_mut() = None,
            Entry::Vacant(place) => {
                place.insert(None);
                if self.delta.left.remove(client).is_none() {
                    self.delta.joined.insert(client.clone());
                }
                self.claim(client);
            }
        }
    }

    /// Takes off the own list.
    pub(super) fn drop_own(&mut self, client: &ClientId, reason: LeaveReason) {
        if self.own.remove(client).is_none() {
            return;
        }
        if !self.delta.joined.remove(client) {
            self.delta.left.insert(client.clone(), reason);
        }
        self.disclaim(client, reason);
    }

    /// Takes a member that is only held off the own list: another list has it now.
    pub(super) fn drop_held(&mut self, client: &ClientId) {
        if let Some(Some(held)) = self.own.get(client).copied() {
            self.drop_own(client, held.reason);
        }
    }

    /// Adds to another instance's list; whether it is new there.
    pub(super) fn add(&mut self, node: &Node, client: &ClientId) -> bool {
        let list = self.theirs.entry(node.clone()).or_default();
        let new = list.members.insert(client.clone());
        if new {
            self.claim(client);
        }
        new
    }

    /// Takes off another instance's list.
    pub(super) fn remove(&mut self, node: &str, client: &ClientId, reason: LeaveReason) {
        let Some(list) = self.theirs.get_mut(node) else { return };
        if list.members.remove(client) {
            self.disclaim(client, reason);
        }
    }

    /// Whether a list other than `node`'s holds `client`.
    pub(super) fn elsewhere(&self, node: &str, client: &ClientId) -> bool {
        let here = self.theirs.get(node).is_some_and(|list| list.members.contains(client));
        self.claims.get(client).copied().unwrap_or(0) > u32::from(here)
    }

    /// Takes an instance's whole list away.
    pub(super) fn forget(&mut self, node: &str, reason: LeaveReason) -> bool {
        let Some(list) = self.theirs.remove(node) else { return false };
        for client in &list.members {
            self.disclaim(client, reason);
        }
        !list.members.is_empty()
    }

    fn claim(&mut self, client: &ClientId) {
        let count = self.claims.entry(client.clone()).or_insert(0);
        *count += 1;
        if *count == 1 && self.untold.remove(client).is_none() {
            self.untold.insert(client.clone(), None);
        }
    }

    fn disclaim(&mut self, client: &ClientId, reason: LeaveReason) {
        let Some(count) = self.claims.get_mut(client) else { return };
        *count -= 1;
        if *count == 0 {
            self.claims.remove(client);
            if self.untold.remove(client).is_none() {
                self.untold.insert(client.clone(), Some(reason));
            }
        }
    }

    /// Takes what the hub is to be told.
    pub(super) fn take_untold(&mut self) -> Option<Claims> {
        if self.untold.is_empty() {
            return None;
        }
        let mut claims = Claims::default();
        for (client, left) in self.untold.drain() {
            match left {
                None => claims.joined.push(client),
                Some(reason) => claims.left.push((client, reason)),
            }
        }
        Some(claims)
    }

    /// Takes what the others are to be told.
    pub(super) fn take_delta(&mut self) -> Option<LocalChanges> {
        if self.delta.is_empty() {
            return None;
        }
        Some(std::mem::take(&mut self.delta))
    }
}
