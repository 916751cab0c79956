//! Who is in one room, by identity (delivery.md, "Presence").
//!
//! Connections come and go; an identity joins with its first and leaves with its last.
//! Changes are collected and announced as lists, and what cancels out within the
//! collecting time is never announced: the ordinary mobile reconnect is no event. With
//! several instances an identity is present too while the [`PresenceBus`](super::PresenceBus)
//! claims it; what it claims, and for how long, is decided there.

use std::collections::{BTreeMap, BTreeSet};

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
    /// The instance that held its last connection has died.
    InstanceLost,
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
            Self::InstanceLost => "instance_lost",
        }
    }

    /// The reason of that name; `None` for one that this version does not know.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Left,
            Self::Disconnected,
            Self::Timeout,
            Self::ServerShuttingDown,
            Self::InstanceLost,
        ]
        .into_iter()
        .find(|reason| reason.name() == name)
    }
}

/// An announcement, encoded, and the connection that is not to get it.
pub(super) struct Announcement {
    pub(super) text: String,
    pub(super) except: Option<ConnId>,
}

/// What changed in one room by the connections of this process: whose first came and whose
/// last went. What cancels out is not in it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LocalChanges {
    /// Identities that have a connection now.
    pub joined: BTreeSet<ClientId>,
    /// Identities that have none any more.
    pub left: BTreeMap<ClientId, LeaveReason>,
}

impl LocalChanges {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.joined.is_empty() && self.left.is_empty()
    }
}

/// Why an identity is present.
#[derive(Debug, Default, Clone, Copy)]
struct Member {
    /// Connections of this process.
    connections: u32,
    /// Claimed by the bus.
    claimed: bool,
}

/// The identities of one room.
#[derive(Debug, Default)]
pub struct Presence {
    members: BTreeMap<ClientId, Member>,
    /// Those about whom somebody in the room has to be told something.
    pending: BTreeMap<ClientId, Pending>,
    /// Changes that the bus has not been told; `None` where there is none to tell.
    local: Option<LocalChanges>,
    /// How often the list of members was shown to somebody.
    shown: u64,
}

/// An identity that came or went since the last announcement.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// Whether it was present before: what those know who were in the room then.
    was: bool,
    /// Whether it is present, and how it came to be or not to be so.
    now: Now,
    /// Whether somebody was shown a list with it, and one without it.
    shown_with: bool,
    shown_without: bool,
    /// The value of `shown` at its last change.
    shown: u64,
}

#[derive(Debug, Clone, Copy)]
enum Now {
    Present(Option<ConnId>),
    Absent(LeaveReason),
}

impl Pending {
    /// Whether somebody does not know how it is now.
    fn is_news(&self) -> bool {
        match self.now {
            Now::Present(_) => !self.was || self.shown_without,
            Now::Absent(_) => self.was || self.shown_with,
        }
    }
}

impl Presence {
    /// Nobody yet; the local changes are collected for a bus, see
    /// [`Presence::take_local`].
    #[must_use]
    pub fn for_bus() -> Self {
        Self { local: Some(LocalChanges::default()), ..Self::default() }
    }

    /// Notes that somebody is about to be shown the list of members. A change that is in
    /// that list already has to be announced if it is undone, or the list stays wrong.
    pub fn show(&mut self) {
        self.shown += 1;
    }

    /// Counts a connection of `client` in.
    pub fn join(&mut self, client: &ClientId, conn: ConnId) {
        let member = match self.members.get_mut(client) {
            Some(member) => member,
            None => {
                self.appear(client, Some(conn));
                self.members.entry(client.clone()).or_default()
            }
        };
        member.connections += 1;
        if member.connections == 1
            && let Some(local) = &mut self.local
            && local.left.remove(client).is_none()
        {
            local.joined.insert(client.clone());
        }
    }

    /// Counts a connection of `client` out.
    pub fn leave(&mut self, client: &ClientId, reason: LeaveReason) {
        let Some(member) = self.members.get_mut(client).filter(|m| m.connections > 0) else {
            return;
        };
        member.connections -= 1;
        if member.connections > 0 {
            return;
        }
        let claimed = member.claimed;
        if let Some(local) = &mut self.local
            && !local.joined.remove(client)
        {
            local.left.insert(client.clone(), reason);
        }
        if !claimed {
            self.vanish(client, reason);
        }
    }

    /// Notes that the bus claims `client`.
    pub fn claim(&mut self, client: &ClientId) {
        if let Some(member) = self.members.get_mut(client) {
            member.claimed = true;
            return;
        }
        self.appear(client, None);
        self.members.insert(client.clone(), Member { connections: 0, claimed: true });
    }

    /// Notes that the bus does not claim `client` any more.
    pub fn disclaim(&mut self, client: &ClientId, reason: LeaveReason) {
        let Some(member) = self.members.get_mut(client) else { return };
        member.claimed = false;
        if member.connections == 0 {
            self.vanish(client, reason);
        }
    }

    /// Takes over what the bus claims before anybody is in the room: nobody is to be told.
    pub(super) fn seed(&mut self, claimed: impl IntoIterator<Item = ClientId>) {
        let member = Member { connections: 0, claimed: true };
        self.members.extend(claimed.into_iter().map(|client| (client, member)));
    }

    fn appear(&mut self, client: &ClientId, conn: Option<ConnId>) {
        self.note(client, Now::Present(conn));
    }

    fn vanish(&mut self, client: &ClientId, reason: LeaveReason) {
        self.members.remove(client);
        self.note(client, Now::Absent(reason));
    }

    /// Notes a change; one that cancels out for everybody is forgotten.
    fn note(&mut self, client: &ClientId, now: Now) {
        let shown = self.shown;
        let was = matches!(now, Now::Absent(_));
        let Some(pending) = self.pending.get_mut(client) else {
            let pending = Pending { was, now, shown_with: false, shown_without: false, shown };
            self.pending.insert(client.clone(), pending);
            return;
        };
        if pending.shown < shown {
            match pending.now {
                Now::Present(_) => pending.shown_with = true,
                Now::Absent(_) => pending.shown_without = true,
            }
        }
        pending.now = now;
        pending.shown = shown;
        if !pending.is_news() {
            self.pending.remove(client);
        }
    }

    /// Takes what the bus is to be told.
    pub fn take_local(&mut self) -> Option<LocalChanges> {
        let changes = self.local.as_mut().filter(|local| !local.is_empty())?;
        Some(std::mem::take(changes))
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
        !self.pending.is_empty() || self.local.as_ref().is_some_and(|local| !local.is_empty())
    }

    /// Forgets who left without announcing it.
    pub fn forget_left(&mut self) {
        self.pending.retain(|_, pending| matches!(pending.now, Now::Present(_)));
        if let Some(local) = &mut self.local {
            *local = LocalChanges::default();
        }
    }

    /// The announcements of the changes since the last call: lists, or counts in a room of
    /// more than `listed` members. No text is longer than `max_bytes`.
    pub(super) fn announce(
        &mut self,
        room: &RoomId,
        listed: usize,
        max_bytes: usize,
    ) -> Vec<Announcement> {
        let mut joined = BTreeMap::new();
        let mut left = BTreeMap::new();
        for (client, pending) in std::mem::take(&mut self.pending) {
            match pending.now {
                Now::Present(conn) => _ = joined.insert(client, conn),
                Now::Absent(reason) => _ = left.insert(client, reason),
            }
        }
        if joined.is_empty() && left.is_empty() {
            return Vec::new();
        }
        if self.members.len() > listed {
            let text = server::members_changed(room, joined.len(), left.len(), self.members.len());
            return vec![Announcement { text, except: None }];
        }
        let mut announcements = Vec::new();
        let except = match joined.len() {
            1 => joined.values().next().copied().flatten(),
            _ => None,
        };
        let names: Vec<ClientId> = joined.into_keys().collect();
        for text in server::member_joined(room, &names, max_bytes) {
            announcements.push(Announcement { text, except });
        }
        let mut by_reason: BTreeMap<LeaveReason, Vec<ClientId>> = BTreeMap::new();
        for (client, reason) in left {
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

    /// Some saw it come, some did not; in the end everybody knows how it is.
    #[test]
    fn who_was_shown_nothing_is_told_in_the_end() {
        let mut presence = Presence::default();
        let a = client("a");
        // Somebody is in the room; `a` comes, is shown to somebody else, goes and comes back.
        presence.join(&a, ConnId(1));
        presence.show();
        presence.leave(&a, LeaveReason::Disconnected);
        presence.join(&a, ConnId(2));
        assert_eq!(texts(&mut presence, 10)[0]["type"], "member_joined");
        // It goes, its absence is shown to somebody, it comes and goes again.
        presence.leave(&a, LeaveReason::Left);
        presence.show();
        presence.join(&a, ConnId(3));
        presence.leave(&a, LeaveReason::Timeout);
        let told = texts(&mut presence, 10);
        assert_eq!((told.len(), &told[0]["payload"]["reason"]), (1, &"timeout".into()));
    }

    #[test]
    fn a_claim_keeps_its_member_and_only_the_last_end_is_told() {
        let mut presence = Presence::for_bus();
        let (a, b) = (client("a"), client("b"));
        presence.join(&a, ConnId(1));
        presence.claim(&b);
        let told = texts(&mut presence, 10);
        assert_eq!(told[0]["payload"]["members"], serde_json::json!(["a", "b"]));
        assert_eq!(presence.take_local().unwrap().joined, BTreeSet::from([a.clone()]));
        // The bus echoes what it was told, and holds it over the end of the connection.
        presence.claim(&a);
        presence.leave(&a, LeaveReason::Disconnected);
        assert!(texts(&mut presence, 10).is_empty());
        let local = presence.take_local().unwrap();
        assert_eq!(local.left, BTreeMap::from([(a.clone(), LeaveReason::Disconnected)]));
        presence.disclaim(&a, LeaveReason::InstanceLost);
        presence.disclaim(&a, LeaveReason::Left);
        presence.leave(&a, LeaveReason::Left);
        let told = texts(&mut presence, 10);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0]["payload"]["reason"], "instance_lost");
        assert_eq!((presence.len(), presence.take_local()), (1, None));
        // A connection outlives the claim.
        presence.join(&b, ConnId(2));
        presence.disclaim(&b, LeaveReason::Left);
        assert!(texts(&mut presence, 10).is_empty());
        // What cancels out is not told to the bus.
        presence.take_local();
        presence.leave(&b, LeaveReason::Left);
        presence.join(&b, ConnId(3));
        assert_eq!(presence.take_local(), None);
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
