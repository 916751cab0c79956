//! Who is in one room, by identity (delivery.md, "Presence").
//!
//! Connections come and go; an identity joins with its first and leaves with its last.
//! Changes are collected and announced as lists, and what cancels out within the
//! collecting time is never announced: the ordinary mobile reconnect is no event.

use std::collections::BTreeMap;

use crate::ids::{ClientId, ConnId, RoomId};
use crate::protocol::server;

/// Why members left, as `member_left` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaveReason {
    /// It asked to.
    Left,
    /// Its last connection ended.
    Disconnected,
    /// Its last connection was silent for too long.
    Timeout,
    /// This server is being stopped or drained.
    ServerShuttingDown,
}

impl LeaveReason {
    /// The word on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Disconnected => "disconnected",
            Self::Timeout => "timeout",
            Self::ServerShuttingDown => "server_shutting_down",
        }
    }
}

/// An announcement, encoded, and the connection that is not to get it.
pub(super) struct Announcement {
    pub(super) text: String,
    pub(super) except: Option<ConnId>,
}

/// The identities of one room.
#[derive(Debug, Default)]
pub struct Presence {
    members: BTreeMap<ClientId, u32>,
    /// Changes that are still to be announced, each with the value of `shown` then.
    joined: BTreeMap<ClientId, (ConnId, u64)>,
    left: BTreeMap<ClientId, (LeaveReason, u64)>,
    /// How often the list of members was shown to somebody.
    shown: u64,
}

impl Presence {
    /// Notes that somebody is about to be shown the list of members. A change that is in
    /// that list already has to be announced if it is undone, or the list stays wrong.
    pub fn show(&mut self) {
        self.shown += 1;
    }

    /// Counts a connection of `client` in.
    pub fn join(&mut self, client: &ClientId, conn: ConnId) {
        if let Some(count) = self.members.get_mut(client) {
            *count += 1;
            return;
        }
        self.members.insert(client.clone(), 1);
        if self.left.remove(client).is_none_or(|(_, shown)| shown < self.shown) {
            self.joined.insert(client.clone(), (conn, self.shown));
        }
    }

    /// Counts a connection of `client` out.
    pub fn leave(&mut self, client: &ClientId, reason: LeaveReason) {
        let Some(count) = self.members.get_mut(client) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.members.remove(client);
        if self.joined.remove(client).is_none_or(|(_, shown)| shown < self.shown) {
            self.left.insert(client.clone(), (reason, self.shown));
        }
    }

    /// Identities present.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether nobody visible is present.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The first `limit` identities.
    pub fn members(&self, limit: usize) -> impl Iterator<Item = &ClientId> {
        self.members.keys().take(limit)
    }

    /// Whether there is something to announce.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        !self.joined.is_empty() || !self.left.is_empty()
    }

    /// Forgets the changes without announcing them.
    pub fn forget_changes(&mut self) {
        self.joined.clear();
        self.left.clear();
    }

    /// The announcements of the changes since the last call: lists, or counts in a room of
    /// more than `listed` members. No text is longer than `max_bytes`.
    pub(super) fn announce(
        &mut self,
        room: &RoomId,
        listed: usize,
        max_bytes: usize,
    ) -> Vec<Announcement> {
        let joined = std::mem::take(&mut self.joined);
        let left = std::mem::take(&mut self.left);
        if joined.is_empty() && left.is_empty() {
            return Vec::new();
        }
        if self.members.len() > listed {
            let text = server::members_changed(room, joined.len(), left.len(), self.members.len());
            return vec![Announcement { text, except: None }];
        }
        let mut announcements = Vec::new();
        let except = match joined.len() {
            1 => joined.values().next().map(|(conn, _)| *conn),
            _ => None,
        };
        let names: Vec<ClientId> = joined.into_keys().collect();
        for text in server::member_joined(room, &names, max_bytes) {
            announcements.push(Announcement { text, except });
        }
        let mut by_reason: BTreeMap<LeaveReason, Vec<ClientId>> = BTreeMap::new();
        for (client, (reason, _)) in left {
            by_reason.entry(reason).or_default().push(client);
        }
        for (reason, names) in by_reason {
            for text in server::member_left(room, &names, reason.name(), max_bytes) {
                announcements.push(Announcement { text, except: None });
            }
        }
        announcements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> ClientId {
        ClientId::parse(name).unwrap()
    }

    fn texts(presence: &mut Presence, listed: usize) -> Vec<serde_json::Value> {
        let room = RoomId::parse("r").unwrap();
        presence
            .announce(&room, listed, 65_536)
            .iter()
            .map(|a| serde_json::from_str(&a.text).unwrap())
            .collect()
    }

    #[test]
    fn a_reconnect_is_no_event_in_either_order() {
        let mut presence = Presence::default();
        let a = client("a");
        presence.join(&a, ConnId(1));
        assert_eq!(texts(&mut presence, 10).len(), 1);
        // New socket before the old one dies.
        presence.join(&a, ConnId(2));
        presence.leave(&a, LeaveReason::Disconnected);
        assert!(!presence.has_changes());
        // Old socket first, within the collecting time.
        presence.leave(&a, LeaveReason::Disconnected);
        presence.join(&a, ConnId(3));
        assert!(!presence.has_changes());
        assert_eq!(presence.len(), 1);
    }

    #[test]
    fn what_somebody_was_shown_is_taken_back() {
        let mut presence = Presence::default();
        let (a, b) = (client("a"), client("b"));
        presence.join(&a, ConnId(1));
        presence.show();
        presence.join(&b, ConnId(2));
        // `b` was shown `a`, nobody was shown `b`.
        presence.leave(&a, LeaveReason::Disconnected);
        presence.leave(&b, LeaveReason::Disconnected);
        let told = texts(&mut presence, 10);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0]["type"], "member_left");
        assert_eq!(told[0]["payload"]["members"], serde_json::json!(["a"]));

        presence.join(&a, ConnId(1));
        texts(&mut presence, 10);
        presence.leave(&a, LeaveReason::Disconnected);
        presence.show();
        presence.join(&a, ConnId(3));
        assert_eq!(texts(&mut presence, 10)[0]["payload"]["members"], serde_json::json!(["a"]));
    }

    #[test]
    fn one_change_names_its_client_and_a_list_does_not() {
        let mut presence = Presence::default();
        presence.join(&client("a"), ConnId(1));
        let one = texts(&mut presence, 10);
        assert_eq!(one[0]["payload"]["clientId"], "a");
        presence.join(&client("b"), ConnId(2));
        presence.join(&client("c"), ConnId(3));
        let two = texts(&mut presence, 10);
        assert_eq!(two[0]["payload"]["members"], serde_json::json!(["b", "c"]));
        assert!(two[0]["payload"].get("clientId").is_none());
        presence.leave(&client("a"), LeaveReason::Timeout);
        presence.leave(&client("b"), LeaveReason::Left);
        let left = texts(&mut presence, 10);
        assert_eq!(left.len(), 2, "one list a reason");
        assert_eq!(left[0]["payload"]["reason"], "left");
        assert_eq!(left[1]["payload"]["reason"], "timeout");
    }

    #[test]
    fn a_big_room_gets_counts() {
        let mut presence = Presence::default();
        for n in 0..5 {
            presence.join(&client(&n.to_string()), ConnId(n));
        }
        let counts = texts(&mut presence, 4);
        assert_eq!(counts[0]["type"], "members_changed");
        assert_eq!(counts[0]["payload"]["joined"], 5);
        assert_eq!(counts[0]["payload"]["memberCount"], 5);
    }

    #[test]
    fn long_lists_are_cut_into_frames() {
        let mut presence = Presence::default();
        for n in 0..1000 {
            presence.join(&client(&format!("{n:0>120}")), ConnId(n));
        }
        let room = RoomId::parse("r").unwrap();
        let announcements = presence.announce(&room, 1000, 16_384);
        assert!(announcements.len() > 7);
        let mut all = 0;
        for announcement in &announcements {
            assert!(announcement.text.len() <= 16_384);
            let value: serde_json::Value = serde_json::from_str(&announcement.text).unwrap();
            all += value["payload"]["members"].as_array().unwrap().len();
        }
        assert_eq!(all, 1000);
    }
}
