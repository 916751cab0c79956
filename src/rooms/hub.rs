//! All rooms of this process. A room exists while somebody is in it.
//!
//! What the log has committed comes in through [`Hub::publish`] and [`Hub::activate`], in
//! the log's order and from one task; joins and leaves come from the connections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::bus::{Claims, PresenceBus};
use super::presence::LeaveReason;
use super::room::{Gone, Join, Room};
use crate::ids::{ClientId, ConnId, RoomId};
use crate::outgoing::{Bounds, Feed, PositionEvent};
use crate::room_log::RoomLog;
use crate::telemetry::Metrics;
use crate::time::UnixMillis;

/// How long presence changes of a room are collected before they are announced.
pub const PRESENCE_COLLECTED_FOR: Duration = Duration::from_millis(100);

/// The limits of rooms.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `limits.rooms`; 0: no limit.
    pub rooms: usize,
    /// `limits.members_per_room`; 0: no limit.
    pub members_per_room: usize,
    /// `limits.presence_members`.
    pub presence_members: usize,
    /// `limits.max_frame_out`, in bytes.
    pub max_frame_out: usize,
    /// How much of a room's events is kept for cursors and resumes, in bytes.
    pub tail_bytes: usize,
    /// A replay becomes a part of the outgoing queue when at most this much of it is left,
    /// in bytes.
    pub replay_rest: usize,
    /// `room_log.newest_age`.
    pub newest_age: Duration,
}

impl Settings {
    /// The oldest fix that still counts as a vehicle's newest at `now`.
    #[must_use]
    pub fn oldest_fix(&self, now: UnixMillis) -> UnixMillis {
        now.plus(-i64::try_from(self.newest_age.as_millis()).unwrap_or(i64::MAX))
    }
}

/// Why a join was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinRefused {
    /// `limits.members_per_room` of that room.
    RoomFull(usize),
    /// `limits.rooms` of the server.
    TooManyRooms(usize),
}

/// How a join goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinProgress {
    /// Answered.
    Answered,
    /// The room is being loaded from the log; it will be answered then.
    Waiting {
        /// The caller has to ask the log for the room.
        load: bool,
    },
}

enum Place {
    Loading(Vec<Join>),
    Active(Arc<Room>),
}

/// All rooms.
pub struct Hub {
    places: RwLock<FxHashMap<RoomId, Place>>,
    settings: Settings,
    metrics: Arc<Metrics>,
    epoch: RwLock<Arc<str>>,
    head: AtomicU64,
    log: OnceLock<Arc<dyn RoomLog>>,
    /// Joins that wait until the log has said how far it is.
    unconfirmed: Mutex<FxHashMap<RoomId, Vec<Join>>>,
    announced: AtomicBool,
    bus: OnceLock<Arc<dyn PresenceBus>>,
    announcements: mpsc::UnboundedSender<(Instant, Arc<Room>)>,
}

/// Announces presence changes when their time has come. Spawn [`Announcer::run`].
pub struct Announcer {
    hub: Arc<Hub>,
    due: mpsc::UnboundedReceiver<(Instant, Arc<Room>)>,
}

impl Announcer {
    /// Runs until the hub is gone.
    pub async fn run(mut self) {
        let mut wakes = Vec::new();
        while let Some((when, room)) = self.due.recv().await {
            tokio::time::sleep_until(when).await;
            room.announce(&self.hub.settings, &mut wakes);
            wakes.drain(..).for_each(Waker::wake);
        }
    }
}

impl Hub {
    /// No rooms yet, and no log: [`Hub::set_epoch`] follows when it is open.
    #[must_use]
    pub fn new(settings: Settings, metrics: Arc<Metrics>) -> (Arc<Self>, Announcer) {
        let (announcements, due) = mpsc::unbounded_channel();
        let hub = Arc::new(Self {
            places: RwLock::default(),
            settings,
            metrics,
            epoch: RwLock::new("".into()),
            head: AtomicU64::new(0),
            log: OnceLock::new(),
            unconfirmed: Mutex::default(),
            announced: AtomicBool::new(true),
            bus: OnceLock::new(),
            announcements,
        });
        let announcer = Announcer { hub: hub.clone(), due };
        (hub, announcer)
    }

    /// Lets a connection into a room, at once if the room is active.
    ///
    /// # Errors
    /// [`JoinRefused`] with the limit that is reached; nothing has changed then.
    pub fn join(&self, room: &RoomId, mut join: Join) -> Result<JoinProgress, JoinRefused> {
        loop {
            if let Some(active) = self.get(room) {
                let limit = self.settings.members_per_room;
                if limit > 0 && !join.again && active.connections() >= limit {
                    return Err(JoinRefused::RoomFull(limit));
                }
                if self.is_ahead(&join)
                    && let Some(log) = self.log.get()
                {
                    self.unconfirmed.lock().entry(room.clone()).or_default().push(join);
                    log.confirm_head(room.clone());
                    return Ok(JoinProgress::Waiting { load: false });
                }
                match self.join_active(&active, join) {
                    Ok(()) => return Ok(JoinProgress::Answered),
                    // Its last member left meanwhile: look again.
                    Err(Gone(again)) => join = again,
                }
                continue;
            }
            let mut places = self.places.write();
            let limit = self.settings.rooms;
            if limit > 0 && places.len() >= limit && !places.contains_key(room) {
                return Err(JoinRefused::TooManyRooms(limit));
            }
            match places.get_mut(room) {
                None => {
                    places.insert(room.clone(), Place::Loading(vec![join]));
                    return Ok(JoinProgress::Waiting { load: !self.opened(room) });
                }
                Some(Place::Loading(waiting)) => {
                    let limit = self.settings.members_per_room;
                    if limit > 0 && waiting.len() >= limit {
                        return Err(JoinRefused::RoomFull(limit));
                    }
                    waiting.push(join);
                    return Ok(JoinProgress::Waiting { load: false });
                }
                // Activated between the two locks.
                Some(Place::Active(_)) => {}
            }
        }
    }

    /// Tells the bus of a room; whether there is one, which then says when the room is to be
    /// loaded.
    fn opened(&self, room: &RoomId) -> bool {
        let bus = self.bus.get();
        if let Some(bus) = bus {
            bus.opened(room);
        }
        bus.is_some()
    }

    fn load(&self, room: &RoomId) {
        if let Some(log) = self.log.get() {
            log.load_room(room.clone());
        }
    }

    /// The bus knows who is in `room` elsewhere: it can be loaded, so that its first members
    /// are shown everybody.
    pub fn presence_known(&self, room: &RoomId) {
        let waits = matches!(self.places.read().get(room), Some(Place::Loading(_)));
        if waits {
            self.load(room);
        }
    }

    fn join_active(&self, room: &Arc<Room>, join: Join) -> Result<(), Gone> {
        let joined = room.join(join, self.head(), &self.settings)?;
        if joined.announce {
            self.announce_later(room);
        }
        if let Some(outcome) = joined.resumed {
            self.metrics.resumes.get(outcome).inc();
        }
        Ok(())
    }

    fn announce_later(&self, room: &Arc<Room>) {
        let when = Instant::now() + PRESENCE_COLLECTED_FOR;
        // The announcer outlives the hub's users; if it is gone, the process ends.
        let _ = self.announcements.send((when, room.clone()));
    }

    /// Takes a join back that still waits for its room. Returns it, so that it can be
    /// answered otherwise; `None` if it has been answered already.
    pub fn cancel(&self, room: &RoomId, conn: ConnId) -> Option<Join> {
        let take = |waiting: &mut Vec<Join>| {
            let at = waiting.iter().position(|join| join.queue.conn() == conn)?;
            Some(waiting.remove(at))
        };
        if let Some(join) = self.unconfirmed.lock().get_mut(room).and_then(take) {
            return Some(join);
        }
        match self.places.write().get_mut(room) {
            Some(Place::Loading(waiting)) => take(waiting),
            _ => None,
        }
    }

    /// Lets a connection out of a room.
    pub fn leave(
        &self,
        room: &RoomId,
        conn: ConnId,
        client: &ClientId,
        hidden: bool,
        reason: LeaveReason,
    ) {
        let Some(active) = self.get(room) else { return };
        let announced = self.announced.load(Ordering::Relaxed);
        let left = active.leave(conn, client, hidden, reason, announced);
        if left.announce {
            self.announce_later(&active);
        }
        if left.empty {
            self.forget(&active);
        }
    }

    fn forget(&self, room: &Arc<Room>) {
        let mut places = self.places.write();
        if let Some(Place::Active(found)) = places.get(room.id())
            && Arc::ptr_eq(found, room)
        {
            places.remove(room.id());
            if let Some(bus) = self.bus.get() {
                bus.closed(room.id());
            }
            // Under the lock: whoever asks the log for the room again does it afterwards.
            if let Some(log) = self.log.get() {
                log.unload_room(room.id().clone());
            }
        }
    }

    /// Makes a room active once the log has loaded it, and answers the joins that waited.
    /// If it is active, what was known of it is no more (another epoch, or the log missed
    /// something): all who subscribe to it start over.
    pub fn activate(&self, room: &RoomId, seq: u64, trimmed_to: u64, newest: Vec<PositionEvent>) {
        if let Some(active) = self.get(room) {
            active.renew(&self.epoch(), seq, trimmed_to, &newest, &self.settings);
            return;
        }
        let Settings { tail_bytes, replay_rest, max_frame_out, .. } = self.settings;
        let bounds = Bounds { tail_bytes, replay_rest, max_frame_out };
        let feed = Feed::new(room.clone(), self.epoch(), seq, newest, bounds, self.metrics.clone());
        let active = Arc::new(Room::new(feed, trimmed_to, self.bus.get().cloned()));
        let waiting = {
            let mut places = self.places.write();
            match places.get_mut(room) {
                Some(place @ Place::Loading(_)) => {
                    active.seed();
                    match std::mem::replace(place, Place::Active(active.clone())) {
                        Place::Loading(waiting) => waiting,
                        Place::Active(_) => Vec::new(),
                    }
                }
                _ => return,
            }
        };
        for join in waiting {
            // It cannot be gone: nobody has left it yet.
            let _ = self.join_active(&active, join);
        }
        if active.give_up_if_empty() {
            self.forget(&active);
        }
    }

    /// Tells `bus` about the rooms from now on. To be called before the first join; a second
    /// bus is not taken.
    pub fn set_bus(&self, bus: Arc<dyn PresenceBus>) {
        let _ = self.bus.set(bus);
    }

    /// Takes a change of what the bus claims in `room`.
    pub fn claim(&self, room: &RoomId, claims: &Claims) {
        let Some(active) = self.get(room) else { return };
        if active.claim(claims, self.announced.load(Ordering::Relaxed)) {
            self.announce_later(&active);
        }
    }

    /// Sends a committed position to those who are in `room`. Wakers are added to `wakes`.
    pub fn publish(&self, room: &RoomId, event: &PositionEvent, wakes: &mut Vec<Waker>) {
        if let Some(active) = self.get(room) {
            active.publish(event, wakes);
        }
    }

    /// Notes the epoch and the head that a room was loaded with. Another epoch has a head of
    /// its own.
    pub(super) fn set_log_state(&self, epoch: Arc<str>, seq: u64) {
        if *self.epoch() == *epoch {
            self.set_head(seq);
        } else {
            self.set_epoch(epoch);
            self.head.store(seq, Ordering::Release);
        }
    }

    /// Notes that the log has been asked how far it is, and lets those in who waited for it.
    pub(super) fn confirmed(&self, room: &RoomId, seq: u64) {
        self.set_head(seq);
        let waiting = self.unconfirmed.lock().remove(room).unwrap_or_default();
        for join in waiting {
            self.join_confirmed(room, join);
        }
    }

    fn join_confirmed(&self, room: &RoomId, mut join: Join) {
        loop {
            if let Some(active) = self.get(room) {
                match self.join_active(&active, join) {
                    Ok(()) => return,
                    Err(Gone(again)) => join = again,
                }
                continue;
            }
            let mut places = self.places.write();
            match places.get_mut(room) {
                Some(Place::Active(_)) => continue,
                Some(Place::Loading(waiting)) => waiting.push(join),
                None => {
                    places.insert(room.clone(), Place::Loading(vec![join]));
                    if !self.opened(room) {
                        self.load(room);
                    }
                }
            }
            return;
        }
    }

    /// Whether a join resumes from behind what is known here, where another instance may
    /// just have been faster.
    fn is_ahead(&self, join: &Join) -> bool {
        join.since.as_ref().is_some_and(|since| {
            since.seq > self.head()
                && since.epoch == *self.epoch()
                && self.log.get().is_some_and(|log| log.is_shared())
        })
    }

    /// Notes how far the log is.
    pub fn set_head(&self, seq: u64) {
        self.head.fetch_max(seq, Ordering::Release);
    }

    /// The store's highest `seq` that has been distributed.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Notes the log, when it is open.
    pub fn set_log(&self, log: Arc<dyn RoomLog>) {
        self.set_epoch(log.epoch());
        // There is one log in a process' life.
        let _ = self.log.set(log);
    }

    /// Notes the log's epoch.
    pub fn set_epoch(&self, epoch: Arc<str>) {
        *self.epoch.write() = epoch;
    }

    /// The log's epoch.
    #[must_use]
    pub fn epoch(&self) -> Arc<str> {
        self.epoch.read().clone()
    }

    /// The active room of that name.
    #[must_use]
    pub fn get(&self, room: &RoomId) -> Option<Arc<Room>> {
        match self.places.read().get(room) {
            Some(Place::Active(active)) => Some(active.clone()),
            _ => None,
        }
    }

    /// Stops announcing who leaves: everybody does, and nobody here is to hear it
    /// (shutdown.md).
    pub fn stop_announcing(&self) {
        self.announced.store(false, Ordering::Relaxed);
        if let Some(bus) = self.bus.get() {
            bus.stopping();
        }
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Active rooms and the connections in them.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let places = self.places.read();
        let members = places
            .values()
            .map(|place| match place {
                Place::Active(room) => room.connections(),
                Place::Loading(_) => 0,
            })
            .sum();
        (places.len(), members)
    }

    /// Forgets vehicles whose last fix is too old, in all rooms.
    pub fn expire(&self, now: UnixMillis) {
        let oldest = self.settings.oldest_fix(now);
        for room in self.active() {
            room.feed().with(|state| state.expire(oldest));
        }
    }

    /// Connections that lag in a room, summed over the rooms.
    #[must_use]
    pub fn lagging(&self) -> usize {
        self.active().iter().map(|room| room.feed().with(|state| state.lagging())).sum()
    }

    fn active(&self) -> Vec<Arc<Room>> {
        let active = |place: &Place| match place {
            Place::Active(room) => Some(room.clone()),
            Place::Loading(_) => None,
        };
        self.places.read().values().filter_map(active).collect()
    }
}
