//! One active room: who is in it and its event stream.
//!
//! Lock order: presence, then the feed, then a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::bus::{Claims, PresenceBus};
use super::hub::Settings;
use super::presence::{LeaveReason, Presence};
use crate::ids::{ClientId, ConnId, RoomId};
use crate::outgoing::{
    Events, Feed, FeedState, PageRequest, PositionEvent, Queue, SnapshotWalk, Start, Weight,
};
use crate::protocol::client::{Mode, Since};
use crate::protocol::envelope::RequestId;
use crate::protocol::page::PageBuilder;
use crate::protocol::{frame, server};
use crate::telemetry::metrics::ResumeOutcome;
use crate::time::UnixMillis;

/// Called when a join has been answered.
pub type JoinDone = Box<dyn FnOnce() + Send + Sync>;

/// A connection that wants to be in a room.
pub struct Join {
    /// Where its events go.
    pub queue: Arc<Queue>,
    /// Its identity.
    pub client: ClientId,
    /// Never announced (viewers of a public map).
    pub hidden: bool,
    /// It is in the room already: this join replaces the old one, whatever the limits say.
    pub again: bool,
    /// What it was granted.
    pub mode: Mode,
    /// The old gateway's flat form: a short answer, positions only.
    pub flat: bool,
    /// Where its view ended, if it resumes.
    pub since: Option<Since>,
    /// The request's id.
    pub id: Option<RequestId>,
    /// What to do after the answer is in the queue.
    pub done: JoinDone,
}

#[derive(Debug, Default)]
struct Members {
    presence: Presence,
    /// All connections in the room, hidden ones too.
    connections: FxHashMap<ConnId, Mode>,
    /// The room has been given up; whoever still finds it must look again.
    gone: bool,
    announcing: bool,
}

/// One active room.
pub struct Room {
    feed: Arc<Feed>,
    members: Mutex<Members>,
    /// A resume from a lower `seq` has missed what retention took.
    trimmed_to: AtomicU64,
    bus: Option<Arc<dyn PresenceBus>>,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("feed", &self.feed).finish_non_exhaustive()
    }
}

/// What a `room_joined` says.
pub(super) struct Told<'a> {
    pub(super) id: Option<&'a RequestId>,
    pub(super) mode: Mode,
    pub(super) flat: bool,
    pub(super) recovered: bool,
    pub(super) epoch: &'a str,
}

/// The room was given up while it was being looked for.
pub(super) struct Gone(pub(super) Join);

impl Room {
    pub(super) fn new(feed: Feed, trimmed_to: u64, bus: Option<Arc<dyn PresenceBus>>) -> Self {
        let mut members = Members::default();
        if bus.is_some() {
            members.presence = Presence::for_bus();
        }
        Self {
            feed: Arc::new(feed),
            members: Mutex::new(members),
            trimmed_to: AtomicU64::new(trimmed_to),
            bus,
        }
    }

    /// Takes over who is in the room by other instances, before anybody joins here. The
    /// lock over the question makes a later [`Room::claim`] the newer word.
    pub(super) fn seed(&self) {
        if let Some(bus) = &self.bus {
            let mut members = self.members.lock();
            let claimed = bus.claimed(self.id());
            members.presence.seed(claimed);
        }
    }

    /// Takes a change of what the bus claims. Returns whether it has to be announced.
    pub(super) fn claim(&self, claims: &Claims, announced: bool) -> bool {
        let mut members = self.members.lock();
        for (client, reason) in &claims.left {
            members.presence.disclaim(client, *reason);
        }
        for client in &claims.joined {
            members.presence.claim(client);
        }
        if !announced {
            members.presence.forget_left();
        }
        !members.gone && members.wants_announcing()
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> &RoomId {
        self.feed.room()
    }

    /// Its event stream.
    #[must_use]
    pub fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Connections in the room.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.members.lock().connections.len()
    }

    /// Lets a connection in: `room_joined` into its lane, then its seat. Returns whether
    /// presence has to be announced. `head`: the log's highest `seq`.
    pub(super) fn join(&self, join: Join, head: u64, settings: &Settings) -> Result<Joined, Gone> {
        let mut members = self.members.lock();
        if members.gone {
            return Err(Gone(join));
        }
        // A connection that ended while its room was loading must not stay behind as a
        // member: whoever comes second to this lock, its leave or this join, sees the other.
        if join.queue.is_closed() {
            return Ok(Joined { announce: false, resumed: None });
        }
        members.presence.show();
        if members.connections.insert(join.queue.conn(), join.mode).is_none() && !join.hidden {
            members.presence.join(&join.client, join.queue.conn());
        }
        let announce = members.wants_announcing();
        let epoch = self.feed.with(|state| state.epoch());
        let trimmed_to = self.trimmed_to.load(Ordering::Relaxed);
        let resumed = join.since.as_ref().map(|since| {
            if since.epoch != *epoch || since.seq > head {
                ResumeOutcome::Unknown
            } else if since.seq < trimmed_to {
                ResumeOutcome::TooOld
            } else {
                ResumeOutcome::Recovered
            }
        });
        let recovered = resumed == Some(ResumeOutcome::Recovered) && join.mode.subscribes();
        let resume = join.since.as_ref().filter(|_| recovered);
        self.feed.with(|state| {
            let told = Told {
                id: join.id.as_ref(),
                mode: join.mode,
                flat: join.flat,
                recovered,
                epoch: &epoch,
            };
            let (text, walk) = self.room_joined(&told, &members.presence, state, settings);
            join.queue.push(frame::text_frame(&text), Weight::Free);
            if join.mode.subscribes() {
                let events = if join.flat { Events::PositionsOnly } else { Events::All };
                let start = resume.map_or(Start::Head, |since| Start::After(since.seq));
                self.feed.subscribe(state, &join.queue, events, start, walk);
            }
        });
        (join.done)();
        Ok(Joined { announce, resumed })
    }

    /// Lets a connection whose replay failed go on from the head: `room_joined` again,
    /// without an id, and the snapshot is the truth.
    /// Nothing happens if the page `asked` is no longer waited for.
    pub(super) fn reset(
        &self,
        queue: &Queue,
        asked: PageRequest,
        told: &Told<'_>,
        settings: &Settings,
    ) {
        let mut members = self.members.lock();
        if !members.connections.contains_key(&queue.conn()) {
            return;
        }
        members.presence.show();
        self.feed.with(|state| {
            if !state.waits_for_page(queue.conn(), asked) {
                return;
            }
            let (text, walk) = self.room_joined(told, &members.presence, state, settings);
            queue.push(frame::text_frame(&text), Weight::Free);
            self.feed.reset(state, queue.conn(), walk);
        });
    }

    /// Starts over with what the log says now: every subscriber gets `room_joined` again,
    /// without an id, and nothing of before comes after it.
    pub(super) fn renew(
        &self,
        epoch: &Arc<str>,
        seq: u64,
        trimmed_to: u64,
        newest: &[PositionEvent],
        settings: &Settings,
    ) {
        let mut members = self.members.lock();
        self.trimmed_to.store(trimmed_to, Ordering::Relaxed);
        members.presence.show();
        self.feed.with(|state| {
            state.renew(epoch.clone(), seq, newest);
            for (queue, events) in state.subscribers() {
                let Some(mode) = members.connections.get(&queue.conn()).copied() else { continue };
                let flat = events == Events::PositionsOnly;
                let told = Told { id: None, mode, flat, recovered: false, epoch };
                let (text, walk) = self.room_joined(&told, &members.presence, state, settings);
                queue.push(frame::text_frame(&text), Weight::Free);
                self.feed.reset(state, queue.conn(), walk);
            }
        });
    }

    fn room_joined(
        &self,
        told: &Told<'_>,
        presence: &Presence,
        state: &FeedState,
        settings: &Settings,
    ) -> (String, Option<SnapshotWalk>) {
        let (id, room, seq) = (told.id, self.id(), state.last_seq());
        if told.flat {
            return (server::room_joined_flat(id, room, told.epoch, seq), None);
        }
        if !told.mode.subscribes() {
            return (server::room_joined_publish(id, room, told.epoch, seq), None);
        }
        let listed = presence.members(settings.presence_members).cloned().collect();
        let oldest = settings.oldest_fix(UnixMillis::now());
        let mut walk = SnapshotWalk::new(listed, state.head().index, oldest);
        let mut page = PageBuilder::room_joined(
            id,
            room,
            told.mode,
            told.epoch,
            seq,
            told.recovered,
            presence.len(),
            settings.max_frame_out,
        );
        let finished = walk.fill(&mut page, state.newest());
        (page.finish_more(!finished), (!finished).then_some(walk))
    }

    /// Counts a connection out. Returns whether the room is now empty and given up, and
    /// whether presence has to be announced.
    pub(super) fn leave(
        &self,
        conn: ConnId,
        client: &ClientId,
        hidden: bool,
        reason: LeaveReason,
        announced: bool,
    ) -> Left {
        self.feed.unsubscribe(conn);
        let mut members = self.members.lock();
        if members.connections.remove(&conn).is_some() && !hidden {
            members.presence.leave(client, reason);
        }
        if !announced {
            members.presence.forget_left();
        }
        members.gone = members.connections.is_empty();
        if members.gone {
            self.tell_bus(&mut members.presence);
        }
        Left { empty: members.gone, announce: !members.gone && members.wants_announcing() }
    }

    /// Gives the room up if nobody is in it.
    pub(super) fn give_up_if_empty(&self) -> bool {
        let mut members = self.members.lock();
        members.gone |= members.connections.is_empty();
        members.gone
    }

    /// Sends the collected presence changes.
    pub(super) fn announce(&self, settings: &Settings, wakes: &mut Vec<Waker>) {
        let mut members = self.members.lock();
        members.announcing = false;
        self.tell_bus(&mut members.presence);
        let announcements =
            members.presence.announce(self.id(), settings.presence_members, settings.max_frame_out);
        self.feed.with(|state| {
            for announcement in announcements {
                let frame = frame::text_frame(&announcement.text);
                state.append_other(frame, announcement.except, wakes);
            }
        });
    }

    /// Under the members' lock, so that the bus hears of changes in their order.
    fn tell_bus(&self, presence: &mut Presence) {
        if let Some(bus) = &self.bus
            && let Some(changes) = presence.take_local()
        {
            bus.changed(self.id(), changes);
        }
    }

    /// Appends a position and wakes who listens.
    pub(super) fn publish(&self, event: &PositionEvent, wakes: &mut Vec<Waker>) {
        self.feed.with(|state| state.append_position(event, wakes));
    }
}

impl Members {
    fn wants_announcing(&mut self) -> bool {
        let wants = !self.announcing && self.presence.has_changes();
        self.announcing |= wants;
        wants
    }
}

/// What a join led to.
pub(super) struct Joined {
    pub(super) announce: bool,
    /// What became of `since`, if there was one.
    pub(super) resumed: Option<ResumeOutcome>,
}

/// What a leave led to.
pub(super) struct Left {
    pub(super) empty: bool,
    pub(super) announce: bool,
}
