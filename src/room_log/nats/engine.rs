//! The engine's task: takes commands, what the rooms' feeds bring, the broker's answers
//! and what the readers found, and keeps all state in one place.
//!
//! Of the feeds it takes all that is ready and applies it by `seq`, so that events keep
//! their order across rooms too. It never waits for the broker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures_util::stream::{Abortable, FusedStream, SelectAll};
use futures_util::{Stream, StreamExt};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use slab::Slab;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};

use super::Settings;
use super::api::{Api, ApiError};
use super::feed::Later;
use super::health::Health;
use super::jobs::{Found, Jobs};
use super::order::Order;
use super::publish::Pending;
use super::reader::Reader;
use super::room::{Phase, Room};
use super::stream::StreamError;
use crate::broker::{LinkState, subject};
use crate::ids::{ConnId, RoomId, fresh_id};
use crate::room_log::{Append, Committed, LogEvent, Release};
use crate::telemetry::Metrics;

/// How often timeouts are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a room that nobody needs any more is still listened to.
pub(super) const LINGER: Duration =
    if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(2) };
/// Events of the feeds that are applied at once.
const TAKEN_AT_ONCE: usize = 4096;

/// What the handle asks for.
pub(super) enum Command {
    Append(Append),
    Load(RoomId),
    Unload(RoomId),
    Head(RoomId),
    Release(Release),
    Flush(oneshot::Sender<()>),
    Poke,
    Close(oneshot::Sender<()>),
}

/// A room's feed: its messages, with the number of the room.
pub(super) struct RoomFeed {
    pub(super) room: usize,
    pub(super) subscriber: Subscriber,
}

impl Stream for RoomFeed {
    type Item = (usize, Message);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let room = self.room;
        self.subscriber.poll_next_unpin(cx).map(|next| next.map(|message| (room, message)))
    }
}

/// The events for the channel, neighbours of one kind together.
pub(super) struct Out {
    sender: mpsc::UnboundedSender<LogEvent>,
    held: Option<LogEvent>,
}

impl Out {
    pub(super) fn committed(&mut self, one: Committed) {
        match &mut self.held {
            Some(LogEvent::Committed(batch)) => batch.push(one),
            _ => self.send(LogEvent::Committed(vec![one])),
        }
    }

    pub(super) fn arrived(&mut self, one: Committed) {
        match &mut self.held {
            Some(LogEvent::Arrived(batch)) => batch.push(one),
            _ => self.send(LogEvent::Arrived(vec![one])),
        }
    }

    pub(super) fn answered(&mut self, one: Committed) {
        match &mut self.held {
            Some(LogEvent::Answered(batch)) => batch.push(one),
            _ => self.send(LogEvent::Answered(vec![one])),
        }
    }

    pub(super) fn send(&mut self, event: LogEvent) {
        self.flush();
        self.held = Some(event);
    }

    fn flush(&mut self) {
        if let Some(event) = self.held.take() {
            // Without a consumer the process is ending.
            let _ = self.sender.send(event);
        }
    }
}

/// All that the task owns.
pub(super) struct Engine {
    pub(super) api: Api,
    pub(super) settings: Settings,
    /// This run of this instance.
    pub(super) id: Arc<str>,
    pub(super) epoch: Arc<RwLock<Arc<str>>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) out: Out,
    pub(super) jobs: Jobs,
    pub(super) health: Health,
    pub(super) rooms: Slab<Room>,
    pub(super) by_name: FxHashMap<RoomId, usize>,
    pub(super) feeds: SelectAll<Abortable<RoomFeed>>,
    /// Appends that are not done, by their number.
    pub(super) pending: BTreeMap<u64, Pending>,
    pub(super) next: u64,
    /// Appends that have not started yet, per sender in their order.
    pub(super) senders: FxHashMap<ConnId, VecDeque<u64>>,
    /// Senders whose next append may be able to start.
    pub(super) due: VecDeque<ConnId>,
    /// Parts that are to be published (again), in their order.
    pub(super) again: BTreeSet<(u64, usize)>,
    /// What is under way, by its message id.
    pub(super) under_way: FxHashMap<Box<str>, (u64, usize)>,
    /// What is under way, oldest first, with the number of the attempt.
    pub(super) sent: VecDeque<(Instant, u64, usize, u32)>,
    pub(super) inbox: String,
    /// Rooms in which something waits to be heard, since when.
    pub(super) awaiting: VecDeque<(Instant, usize)>,
    /// Uploads' ends that are being looked up.
    pub(super) releasing: usize,
    pub(super) later: Vec<Later>,
    /// Rooms whose load or fill failed.
    pub(super) unread: Vec<usize>,
    /// What was heard and is not in order yet.
    pub(super) order: Order,
    /// The connection that the feeds were last heard on.
    pub(super) heard_generation: u64,
    /// Loads and fills so far.
    pub(super) works: u64,
    #[cfg(test)]
    pub(super) losing: Arc<std::sync::atomic::AtomicUsize>,
    /// Room numbers of rooms to check, in turn.
    pub(super) check_next: usize,
    pub(super) check_at: Instant,
    commands: mpsc::UnboundedReceiver<Command>,
    found: mpsc::UnboundedReceiver<Found>,
    answers: Subscriber,
    flushes: Vec<(u64, oneshot::Sender<()>)>,
    closing: Option<oneshot::Sender<()>>,
}

impl Engine {
    pub(super) async fn new(
        api: Api,
        reader: Reader,
        settings: Settings,
        metrics: Arc<Metrics>,
        events: mpsc::UnboundedSender<LogEvent>,
        commands: mpsc::UnboundedReceiver<Command>,
        epoch: Arc<RwLock<Arc<str>>>,
    ) -> Result<Self, StreamError> {
        let client = api.link.client();
        let inbox = client.new_inbox();
        let answers = client.subscribe(format!("{inbox}.>")).await.map_err(|error| {
            StreamError::Unavailable {
                urls: api.link.urls().to_owned(),
                stream: api.subjects.stream().to_owned(),
                text: error.to_string(),
            }
        })?;
        let (sender, found) = mpsc::unbounded_channel();
        let generation = api.link.generation();
        let mut order = Order::default();
        order.set_server(&client.server_info().version, settings.replicas);
        let health = Health::new(&api.link);
        let jobs = Jobs::new(api.clone(), reader, settings.clone(), sender);
        Ok(Self {
            api,
            settings,
            id: fresh_id(),
            epoch,
            metrics,
            out: Out { sender: events, held: None },
            jobs,
            health,
            rooms: Slab::new(),
            by_name: FxHashMap::default(),
            feeds: SelectAll::new(),
            pending: BTreeMap::new(),
            next: 1,
            senders: FxHashMap::default(),
            due: VecDeque::new(),
            again: BTreeSet::new(),
            under_way: FxHashMap::default(),
            sent: VecDeque::new(),
            inbox,
            awaiting: VecDeque::new(),
            releasing: 0,
            later: Vec::new(),
            unread: Vec::new(),
            order,
            heard_generation: generation,
            works: 0,
            #[cfg(test)]
            losing: Arc::default(),
            check_next: 0,
            check_at: Instant::now(),
            commands,
            found,
            answers,
            flushes: Vec::new(),
            closing: None,
        })
    }

    /// Works until closed, or until the handle is gone.
    pub(super) async fn run(mut self) {
        let mut link = self.api.link.state();
        let mut dropped = self.api.link.dropped();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut messages = Vec::new();
        self.metrics.broker_connected.set(1);
        let mut linked = true;
        loop {
            let feeding = !self.feeds.is_terminated();
            let due = self.order.due();
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => break,
                },
                next = self.feeds.next(), if feeding => messages.extend(next),
                answer = self.answers.next(), if linked => match answer {
                    Some(answer) => self.answer(&answer),
                    None => linked = false,
                },
                found = self.found.recv() => if let Some(found) = found { self.found(found) },
                changed = link.changed(), if linked => {
                    let state = link.borrow_and_update().clone();
                    linked = changed.is_ok() && state != LinkState::Closed;
                    self.link_changed(if linked { &state } else { &LinkState::Closed });
                }
                Ok(()) = dropped.changed(), if linked => self.start_all_over(),
                _ = ticks.tick() => self.tick(),
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
            self.take_ready(&mut messages).await;
            self.pump();
            self.settle();
            self.out.flush();
            if self.closing.is_some() && self.pending.is_empty() && self.releasing == 0 {
                break;
            }
        }
        self.metrics.broker_connected.set(0);
        self.metrics.broker_lag.set(0);
        if let Some(closed) = self.closing.take() {
            self.commands.close();
            self.out.send(LogEvent::Closed);
            self.out.flush();
            let _ = closed.send(());
        }
    }

    /// Takes what is ready of everything and applies the feeds' part of it by `seq`.
    async fn take_ready(&mut self, messages: &mut Vec<(usize, Message)>) {
        // Unconstrained: tokio's budget would make a feed look empty that is not, and a
        // later event of another feed would overtake what it holds.
        tokio::task::unconstrained(std::future::poll_fn(|cx| {
            while messages.len() < TAKEN_AT_ONCE
                && let Poll::Ready(Some(next)) = self.feeds.poll_next_unpin(cx)
            {
                messages.push(next);
            }
            self.heard(messages);
            let mut answered = 0;
            while answered < TAKEN_AT_ONCE
                && let Poll::Ready(Some(answer)) = self.answers.poll_next_unpin(cx)
            {
                self.answer(&answer);
                answered += 1;
            }
            let mut commanded = 0;
            while commanded < TAKEN_AT_ONCE
                && let Ok(command) = self.commands.try_recv()
            {
                self.command(command);
                commanded += 1;
            }
            Poll::Ready(())
        }))
        .await;
    }

    fn command(&mut self, command: Command) {
        if self.closing.is_some() && !matches!(command, Command::Poke) {
            return;
        }
        match command {
            Command::Append(append) => self.append(append, None),
            Command::Load(room) => {
                let number = self.room(&room);
                let before = self.next;
                let room = &mut self.rooms[number];
                room.wanted = true;
                room.loads.push_back(before);
                self.see_to(number);
            }
            Command::Unload(room) => {
                if let Some(number) = self.by_name.get(&room).copied() {
                    let room = &mut self.rooms[number];
                    room.wanted = !room.loads.is_empty();
                    room.reported &= room.wanted;
                    room.idle_since = Instant::now();
                }
            }
            Command::Head(room) => {
                let number = self.room(&room);
                self.jobs.head(room, self.rooms[number].token.clone());
            }
            Command::Release(release) => self.release(release),
            Command::Flush(done) => self.flushes.push((self.next, done)),
            Command::Poke => self.health.try_now(),
            Command::Close(done) => self.closing = Some(done),
        }
    }

    /// The number of a room, which is listened to from now on.
    pub(super) fn room(&mut self, name: &RoomId) -> usize {
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        let token = subject::encode(name.as_str());
        let window = i64::try_from(self.settings.dedup_window.as_millis()).unwrap_or(i64::MAX);
        let number = self.rooms.insert(Room::new(name.clone(), token, window));
        self.by_name.insert(name.clone(), number);
        self.see_to(number);
        number
    }

    /// Starts what a room needs next.
    pub(super) fn see_to(&mut self, number: usize) {
        let Some(room) = self.rooms.get_mut(number) else { return };
        if room.working || !self.health.can_read() {
            return;
        }
        if room.phase == Phase::Live && room.can_report() {
            room.phase = Phase::Loading;
        }
        match room.phase {
            Phase::Live => {}
            Phase::Loading => {
                room.working = true;
                self.works += 1;
                room.work = self.works;
                let listen = room.subscription.is_none();
                self.jobs.load(number, room.work, room.token.clone(), listen);
            }
            Phase::Filling => {
                room.working = true;
                self.works += 1;
                room.work = self.works;
                self.jobs.fill(number, room.work, room.token.clone(), room.upto);
            }
        }
    }

    /// Lets go of rooms that nobody needs.
    pub(super) fn sweep(&mut self) {
        let now = Instant::now();
        let idle: Vec<usize> = self
            .rooms
            .iter()
            .filter(|(_, room)| room.is_idle() && !room.working)
            .filter(|(_, room)| now.duration_since(room.idle_since) >= LINGER)
            .map(|(number, _)| number)
            .collect();
        for number in idle {
            let room = self.rooms.remove(number);
            self.by_name.remove(&room.id);
            self.order.forget(number);
            if let Some(subscription) = room.subscription {
                subscription.abort();
            }
        }
    }

    /// Ends the flushes that are due and tells the metrics.
    fn settle(&mut self) {
        let first = self.pending.first_key_value().map_or(u64::MAX, |(number, _)| *number);
        self.flushes.retain_mut(|(before, done)| {
            let waits = first < *before || self.releasing > 0;
            if !waits {
                let (gone, _) = oneshot::channel();
                let _ = std::mem::replace(done, gone).send(());
            }
            waits
        });
        let lag = i64::try_from(self.under_way.len()).unwrap_or(i64::MAX);
        self.metrics.broker_lag.set(lag);
    }

    /// Loses an event of a feed on purpose.
    #[cfg(test)]
    pub(super) fn loses(&self, _event: &super::message::Event) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        self.losing.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    pub(super) fn failed(&mut self, error: &ApiError) {
        let failure = self.api.failure(error);
        self.health.lost(&failure.text);
    }
}
