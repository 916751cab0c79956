//! The state of this instance's view of the others: inputs and times in, outputs out.
//!
//! Pure: no I/O, no clock of its own, no hub. Liveness is in [`peers`](super::peers), what
//! is asked and answered in [`sync`](super::sync).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};
use tokio::time::Instant;

use super::lists::{Held, Lists};
use super::message::{Beat, Delta, Message, Node, Target, cost, reason_of, runs};
use super::peers::{Echo, Peer};
use super::sync::Asked;
use crate::ids::{ClientId, RoomId};
use crate::rooms::{Claims, LeaveReason, LocalChanges};

/// What an instance says of itself, and its times.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This process's public name, new for every process.
    pub instance: Arc<str>,
    /// `server.generation`.
    pub generation: Arc<str>,
    /// How often it says that it lives; three times this without a word is a lost one.
    pub heartbeat: Duration,
    /// When the clients of a stop or an evacuation come back at the latest while others
    /// are about (`shutdown.reconnect_max`); [`KEPT_AFTER`] is added.
    pub reconnect_max: Duration,
    /// The longest message, in bytes.
    pub max_message: usize,
}

impl Settings {
    /// An instance of that name and generation, with the default times.
    #[must_use]
    pub fn new(instance: Arc<str>, generation: Arc<str>, reconnect_max: Duration) -> Self {
        Self {
            instance,
            generation,
            heartbeat: Duration::from_secs(1),
            reconnect_max,
            max_message: 256 << 10,
        }
    }
}

/// How long after `reconnect_max` members of a stopped instance are kept (delivery.md).
pub const KEPT_AFTER: Duration = Duration::from_secs(5);
/// How long a member is kept whose last connection here ended: longer than the news of its
/// new connection at another instance takes.
const MOVE_TAKES: Duration = Duration::from_millis(250);
/// How long those who come to a room wait for the others' lists of it: whoever comes first
/// is to see everybody, but nobody waits for an instance that does not answer.
const LISTS_WITHIN: Duration = Duration::from_millis(500);
/// How often the versions of what changed lately are said again.
const DIGEST_EVERY: Duration = Duration::from_secs(10);
/// How many digests that came back name a change.
const DIGESTS: u8 = 2;

/// What happens.
#[derive(Debug)]
pub(super) enum Input {
    /// Somebody is about to be in the room here.
    Opened(RoomId),
    /// Who is in the room here.
    Changed(RoomId, LocalChanges),
    /// Nobody is in the room here any more.
    Closed(RoomId),
    /// The messages of a room arrive from now on.
    Listening(RoomId),
    /// A message came.
    Message(Message),
    /// There is a new connection to the broker, or messages were lost.
    Suspect,
    /// This process is being stopped.
    Drain,
    /// This process takes no new clients, or takes them again.
    Away(bool),
    /// This process ends.
    Leave,
    /// Time passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(super) enum Output {
    Publish(Target, Message),
    /// The messages of a room are wanted.
    Listen(RoomId),
    Unlisten(RoomId),
    Claim(RoomId, Claims),
    /// Who is in the room elsewhere is known, as far as it can be.
    Known(RoomId),
    /// The end of this process has been said.
    Left,
    /// An instance is not heard of any more.
    Lost(Node),
    /// An instance is there.
    Found(Node),
}

/// The state.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) settings: Settings,
    /// The last version of any room.
    pub(super) clock: u64,
    pub(super) rooms: FxHashMap<RoomId, Lists>,
    pub(super) peers: BTreeMap<Node, Peer>,
    /// Those whose members are kept although it stops.
    pub(super) leaving: Vec<Node>,
    pub(super) asked: FxHashMap<(Node, RoomId), Asked>,
    pub(super) to_ask: BTreeMap<Node, FxHashSet<RoomId>>,
    pub(super) echo: Option<Echo>,
    /// Everything is to be asked again once the echo is back.
    pub(super) suspect: bool,
    pub(super) clients: u64,
    pub(super) started: i64,
    pub(super) draining: bool,
    away: bool,
    /// The end of this process was said: nothing follows.
    over: bool,
    /// Rooms that were opened and whose lists are still to come, since when.
    opening: FxHashMap<RoomId, Instant>,
    holds: BinaryHeap<Reverse<(Instant, RoomId, ClientId)>>,
    /// Rooms whose version changed, and how often it will still be said.
    recent: BTreeMap<RoomId, (u64, u8)>,
    next_beat: Instant,
    next_digest: Instant,
    dirty: FxHashSet<RoomId>,
    pub(super) out: Vec<Output>,
}

impl Core {
    pub(super) fn new(settings: Settings, started: i64, now: Instant) -> Self {
        Self {
            settings,
            clock: 0,
            rooms: FxHashMap::default(),
            peers: BTreeMap::new(),
            leaving: Vec::new(),
            asked: FxHashMap::default(),
            to_ask: BTreeMap::new(),
            echo: None,
            suspect: false,
            clients: 0,
            started,
            draining: false,
            away: false,
            over: false,
            opening: FxHashMap::default(),
            holds: BinaryHeap::new(),
            recent: BTreeMap::new(),
            next_beat: now,
            next_digest: now + DIGEST_EVERY,
            dirty: FxHashSet::default(),
            out: Vec::new(),
        }
    }

    pub(super) fn me(&self) -> &str {
        &self.settings.instance
    }

    pub(super) fn input(&mut self, input: Input, now: Instant) {
        match input {
            Input::Opened(room) => self.opened(room, now),
            Input::Changed(room, changes) => self.changed(&room, changes, now),
            Input::Closed(room) => self.closed(&room, now),
            Input::Listening(room) => self.listening(&room),
            Input::Message(message) => self.message(message, now),
            Input::Suspect => {
                self.suspect = true;
                self.echo = None;
                self.beat(true);
                self.next_beat = now + self.settings.heartbeat;
            }
            Input::Drain => self.drain(now),
            Input::Away(away) => {
                self.away = away;
                self.beat(false);
            }
            Input::Leave => {
                self.over = true;
                let bye = Message::Bye { from: self.me().to_owned() };
                self.out.push(Output::Publish(Target::All, bye));
                self.out.push(Output::Left);
            }
            Input::Tick => self.tick(now),
        }
    }

    fn opened(&mut self, room: RoomId, now: Instant) {
        self.opening.insert(room.clone(), now);
        let lists = self.rooms.entry(room.clone()).or_insert_with(|| {
            self.out.push(Output::Listen(room));
            Lists::default()
        });
        lists.open = true;
    }

    fn listening(&mut self, room: &RoomId) {
        let Some(lists) = self.rooms.get_mut(room) else { return };
        lists.listening = true;
        let peers: Vec<Node> = self.peers.keys().cloned().collect();
        for peer in peers {
            self.ask(&peer, room);
        }
    }

    fn changed(&mut self, room: &RoomId, changes: LocalChanges, now: Instant) {
        let Some(lists) = self.rooms.get_mut(room) else { return };
        for client in &changes.joined {
            lists.add_own(client);
            back(lists, &self.leaving, None, client);
        }
        for (client, reason) in changes.left {
            self.hold(room, &client, reason, now);
        }
        self.dirty.insert(room.clone());
    }

    /// Keeps a member without a connection on the own list for a while.
    fn hold(&mut self, room: &RoomId, client: &ClientId, reason: LeaveReason, now: Instant) {
        let until = match reason {
            // The others keep them, and this process tells nobody anything any more.
            _ if self.draining => None,
            LeaveReason::ServerShuttingDown => Some(now + self.settings.reconnect_max + KEPT_AFTER),
            _ => Some(now + MOVE_TAKES),
        };
        let Some(lists) = self.rooms.get_mut(room) else { return };
        if let Some(held) = lists.own.get_mut(client) {
            *held = Some(Held { until, reason });
            if let Some(until) = until {
                self.holds.push(Reverse((until, room.clone(), client.clone())));
            }
        }
    }

    fn closed(&mut self, room: &RoomId, now: Instant) {
        let Some(lists) = self.rooms.get_mut(room) else { return };
        lists.open = false;
        let connected =
            |(client, held): (&ClientId, &Option<Held>)| held.is_none().then(|| client.clone());
        let left: Vec<ClientId> = lists.own.iter().filter_map(connected).collect();
        for client in left {
            self.hold(room, &client, LeaveReason::Disconnected, now);
        }
        self.dirty.insert(room.clone());
    }

    fn drain(&mut self, now: Instant) {
        if self.draining {
            return;
        }
        // Who has left before is told now; the rest is for the others to keep.
        self.end_holds(None);
        self.flush_rooms();
        self.draining = true;
        self.beat(false);
        self.next_beat = now + self.settings.heartbeat;
    }

    fn message(&mut self, message: Message, now: Instant) {
        let from = match &message {
            Message::Beat(Beat { from, .. })
            | Message::Bye { from }
            | Message::Delta(Delta { from, .. })
            | Message::Digest { from, .. }
            | Message::Ask { from, .. }
            | Message::Same { from, .. } => from,
            Message::List(list) => &list.from,
        };
        if from == self.me() {
            match message {
                Message::Beat(_) => self.echoed(now),
                Message::Digest { rooms, .. } => self.digest_back(&rooms),
                _ => {}
            }
            return;
        }
        match message {
            Message::Beat(beat) => self.beat_of(beat, now),
            Message::Bye { from } => self.bye(&from),
            Message::Delta(delta) => self.delta(delta),
            Message::Digest { from, rooms } => self.digest_of(&from, rooms),
            Message::Ask { from, rooms } => self.answer(from, rooms),
            Message::List(list) => self.list(list, now),
            Message::Same { from, rooms } => self.same(&from, rooms),
        }
    }

    fn tick(&mut self, now: Instant) {
        if self.next_beat <= now {
            self.beat(false);
            self.next_beat = now + self.settings.heartbeat;
        }
        self.end_holds(Some(now));
        self.look_at_peers(now);
        self.ask_again(now);
        if self.next_digest <= now {
            self.next_digest = now + DIGEST_EVERY;
            self.digest();
        }
    }

    pub(super) fn beat(&mut self, hello: bool) {
        if self.over {
            return;
        }
        let beat = Beat {
            from: self.me().to_owned(),
            generation: self.settings.generation.to_string(),
            started: self.started,
            draining: self.draining.then(|| millis(self.settings.reconnect_max)),
            away: self.away,
            clients: self.clients,
            rooms: self.rooms.values().filter(|lists| !lists.own.is_empty()).count() as u64,
            hello,
        };
        self.out.push(Output::Publish(Target::All, Message::Beat(beat)));
    }

    /// Says the versions of what changed lately.
    pub(super) fn digest(&mut self) {
        if self.recent.is_empty() {
            return;
        }
        let rooms = self.recent.iter().map(|(room, (version, _))| (room.clone(), *version));
        let limit = self.settings.max_message;
        for rooms in runs(rooms, limit, |(room, _)| cost(room.as_str()) + 24) {
            let digest = Message::Digest { from: self.me().to_owned(), rooms };
            self.out.push(Output::Publish(Target::All, digest));
        }
    }

    /// A digest has been to the broker and back.
    fn digest_back(&mut self, rooms: &[(RoomId, u64)]) {
        for (room, version) in rooms {
            if let Some((recent, left)) = self.recent.get_mut(room)
                && *recent == *version
            {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.recent.remove(room);
                }
            }
        }
    }

    /// Ends the holds that are due; all that are not of a drain with `None`.
    fn end_holds(&mut self, now: Option<Instant>) {
        let mut kept = Vec::new();
        while let Some(Reverse((until, ..))) = self.holds.peek() {
            if now.is_some_and(|now| *until > now) {
                break;
            }
            let Some(Reverse((until, room, client))) = self.holds.pop() else { break };
            let Some(lists) = self.rooms.get_mut(&room) else { continue };
            // A later hold, or none any more, has its own entry.
            if let Some(Some(held)) = lists.own.get(&client).copied()
                && held.until == Some(until)
            {
                if now.is_none() && held.reason == LeaveReason::ServerShuttingDown {
                    kept.push(Reverse((until, room, client)));
                    continue;
                }
                lists.drop_own(&client, held.reason);
                self.dirty.insert(room);
            }
        }
        self.holds.extend(kept);
    }

    /// Marks a room whose lists changed.
    pub(super) fn touch(&mut self, room: &RoomId) {
        self.dirty.insert(room.clone());
    }

    /// Takes the list of `peer` for `room` forward by a change of it.
    pub(super) fn apply(&mut self, peer: &Node, delta: &Delta) {
        let stops = self.leaving.contains(peer);
        let Some(lists) = self.rooms.get_mut(&delta.room) else { return };
        lists.theirs.entry(peer.clone()).or_default().version = delta.version;
        for (reason, clients) in delta.left.iter().filter(|_| !stops) {
            for client in clients {
                lists.remove(peer, client, reason_of(reason));
            }
        }
        for client in &delta.joined {
            if lists.add(peer, client) {
                back(lists, &self.leaving, Some(peer), client);
                if !self.draining {
                    lists.drop_held(client);
                }
            }
        }
        self.dirty.insert(delta.room.clone());
    }

    /// Publishes what changed in the rooms, and forgets rooms that are over.
    fn flush_rooms(&mut self) {
        for room in std::mem::take(&mut self.dirty) {
            self.flush_room(&room);
            let Some(lists) = self.rooms.get_mut(&room) else { continue };
            if let Some(claims) = lists.take_untold() {
                self.out.push(Output::Claim(room.clone(), claims));
            }
            if lists.is_over() {
                self.rooms.remove(&room);
                self.asked.retain(|(_, asked), _| *asked != room);
                self.out.push(Output::Unlisten(room));
            }
        }
    }

    /// Publishes what changed in the own list of a room.
    pub(super) fn flush_room(&mut self, room: &RoomId) {
        let Some(lists) = self.rooms.get_mut(room) else { return };
        let Some(changes) = lists.take_delta() else { return };
        let limit = self.settings.max_message;
        let size = |client: &ClientId| cost(client.as_str());
        let mut left: BTreeMap<LeaveReason, Vec<ClientId>> = BTreeMap::new();
        let mut bytes: usize = changes.joined.iter().chain(changes.left.keys()).map(size).sum();
        for (client, reason) in changes.left {
            left.entry(reason).or_default().push(client);
        }
        let named = |(reason, clients): (LeaveReason, _)| (reason.name().to_owned(), clients);
        bytes += left.len() * 32;
        let mut steps = Vec::new();
        if bytes <= limit {
            let joined = changes.joined.into_iter().collect();
            steps.push((joined, left.into_iter().map(named).collect()));
        } else {
            for joined in runs(changes.joined, limit, size) {
                steps.push((joined, Vec::new()));
            }
            for (reason, clients) in left {
                for clients in runs(clients, limit, size) {
                    steps.push((Vec::new(), vec![named((reason, clients))]));
                }
            }
        }
        for (joined, left) in steps {
            self.clock += 1;
            let prev = std::mem::replace(&mut lists.version, self.clock);
            let delta = Delta {
                from: self.settings.instance.to_string(),
                room: room.clone(),
                prev,
                version: self.clock,
                joined,
                left,
            };
            self.out.push(Output::Publish(Target::Room(room.clone()), Message::Delta(delta)));
        }
        self.recent.insert(room.clone(), (lists.version, DIGESTS));
    }

    /// Says of which rooms the lists are there.
    fn flush_known(&mut self, now: Instant) {
        if self.opening.is_empty() {
            return;
        }
        let awaited: FxHashSet<&RoomId> = self.asked.keys().map(|(_, room)| room).collect();
        let echoed = self.is_echoed(now);
        let (rooms, out) = (&self.rooms, &mut self.out);
        self.opening.retain(|room, since| {
            let listening = rooms.get(room).is_some_and(|lists| lists.listening);
            let known = echoed && listening && !awaited.contains(room);
            let waits = !known && now - *since < LISTS_WITHIN;
            if !waits {
                out.push(Output::Known(room.clone()));
            }
            waits
        });
    }

    /// What is to be done now.
    pub(super) fn finish(&mut self, now: Instant) -> Vec<Output> {
        self.flush_rooms();
        self.flush_known(now);
        self.flush_asks();
        std::mem::take(&mut self.out)
    }
}

/// `client` has come to `node`, or to this instance: it is not missed at those that stop.
pub(super) fn back(lists: &mut Lists, leaving: &[Node], node: Option<&Node>, client: &ClientId) {
    for other in leaving.iter().filter(|other| Some(*other) != node) {
        lists.remove(other, client, LeaveReason::ServerShuttingDown);
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
