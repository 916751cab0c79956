//! The one task of a client: it owns the sockets, the rooms and the requests, and sleeps
//! until the next of: a command, a frame, a session, a token, a deadline.
//!
//! Everything that is decided about sessions is in [`reconnect`](super::reconnect), about
//! messages in [`inbound`](super::inbound) and [`outbound`](super::outbound); here is the loop.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::backoff::{Backoff, BackoffTimes};
use super::builder::Token;
use super::connector::{Connector, Endpoint, Failure};
use super::error::Error;
use super::event::{Event, Phase, State};
use super::link::{Asked, Link, LinkEvent};
use super::requests::{Request, Requests};
use super::resend::Policy;
use super::rooms::{Room, Rooms, Waiter};
use super::upload;
use crate::ids::RoomId;
use crate::protocol::{Kind, Mode, Since};

/// What a handle asks for.
pub(super) enum Command {
    Join {
        room: RoomId,
        mode: Mode,
        since: Option<Since>,
        waiter: Waiter,
    },
    /// The room is not joined again.
    Forget(RoomId),
    Request(Request),
    /// A further frame of an upload: its type and payload.
    Upload(u64, Kind, String),
    Cancel(u64),
    Close(oneshot::Sender<()>),
}

/// What the builder decided.
pub(super) struct Settings {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) token: Token,
    pub(super) client_id: Option<Arc<str>>,
    pub(super) policy: Option<Policy>,
    pub(super) resend_keyed: bool,
    pub(super) backoff: BackoffTimes,
    pub(super) connect_timeout: Duration,
    pub(super) seed: Option<u64>,
}

pub(super) type Connecting<S> = Pin<Box<dyn Future<Output = Result<Box<Link<S>>, Failure>> + Send>>;
pub(super) type Refreshing =
    Pin<Box<dyn Future<Output = Result<Option<Arc<str>>, Arc<str>>> + Send>>;

/// A generation that is on its way out: a session with it will have to move again soon.
pub(super) struct Avoid {
    pub(super) generation: String,
    /// Further attempts to do better than a session of it.
    pub(super) tries: u32,
}

/// How the first attempt of `connect()` goes on.
pub(super) struct First {
    pub(super) reply: oneshot::Sender<Result<(), Error>>,
    pub(super) tried: usize,
}

pub(super) struct Task<C: Connector> {
    pub(super) settings: Settings,
    pub(super) connector: Arc<C>,
    commands: mpsc::UnboundedReceiver<Command>,
    events: Option<mpsc::Sender<Event>>,
    pub(super) pending: VecDeque<Event>,
    state: watch::Sender<State>,
    pub(super) first: Option<First>,

    pub(super) links: Vec<Box<Link<C::Io>>>,
    pub(super) current: Option<u64>,
    pub(super) connecting: Option<Connecting<C::Io>>,
    /// The endpoint of that attempt.
    pub(super) connecting_to: usize,
    pub(super) reconnect_at: Option<Instant>,
    /// The attempt is made for refused requests only.
    pub(super) for_resend: bool,
    pub(super) next_endpoint: usize,
    /// When each endpoint may be tried again.
    pub(super) not_before: Vec<Instant>,
    pub(super) backoff: Backoff,
    /// The generation of a server that stopped while others of another one were about.
    pub(super) avoid: Option<Avoid>,
    /// The generation that each endpoint showed last.
    pub(super) generations: Vec<Option<String>>,
    pub(super) refused_token: Option<Arc<str>>,
    pub(super) refreshing: Option<Refreshing>,
    pub(super) refresh_at: Option<Instant>,
    pub(super) unauthorized: bool,

    pub(super) rooms: Rooms,
    pub(super) requests: Requests,
    pub(super) next_wire: i64,
    pub(super) next_link: u64,
    /// A room or a session changed: look through what waits.
    pub(super) dirty: bool,
    had_session: bool,
    /// Set when the end has come, with what the rest fails with.
    pub(super) ended: Option<Error>,
    closers: Vec<oneshot::Sender<()>>,
}

enum Wake<S> {
    Command(Option<Command>),
    Link(u64, LinkEvent),
    Connected(Result<Box<Link<S>>, Failure>),
    Token(Result<Option<Arc<str>>, Arc<str>>),
    Room(bool),
    Timer,
}

impl<C: Connector> Task<C> {
    pub(super) fn new(
        settings: Settings,
        connector: C,
        commands: mpsc::UnboundedReceiver<Command>,
        events: mpsc::Sender<Event>,
        state: watch::Sender<State>,
        first: Option<oneshot::Sender<Result<(), Error>>>,
    ) -> Self {
        let now = Instant::now();
        Self {
            connector: Arc::new(connector),
            commands,
            events: Some(events),
            pending: VecDeque::new(),
            state,
            first: first.map(|reply| First { reply, tried: 0 }),
            links: Vec::new(),
            current: None,
            connecting: None,
            connecting_to: 0,
            reconnect_at: Some(now),
            for_resend: false,
            next_endpoint: 0,
            not_before: vec![now; settings.endpoints.len()],
            backoff: Backoff::new(settings.backoff, settings.seed),
            avoid: None,
            generations: vec![None; settings.endpoints.len()],
            refused_token: None,
            refreshing: None,
            refresh_at: None,
            unauthorized: false,
            rooms: Rooms::new(),
            requests: Requests::new(settings.policy, settings.resend_keyed),
            next_wire: 0,
            next_link: 0,
            dirty: false,
            had_session: false,
            ended: None,
            closers: Vec::new(),
            settings,
        }
    }

    pub(super) async fn run(mut self) {
        while self.ended.is_none() {
            let now = Instant::now();
            self.settle(now);
            match self.wake(now).await {
                Wake::Command(Some(command)) => self.command(command),
                Wake::Command(None) => self.ended = Some(Error::Closed),
                Wake::Link(link, event) => self.link_event(link, event),
                Wake::Connected(result) => self.connected(result),
                Wake::Token(result) => self.token_ready(result),
                Wake::Room(true) => {
                    self.deliver();
                    if self.pending.is_empty() {
                        // Nothing was read meanwhile: that silence was not the server's.
                        let now = Instant::now();
                        self.links.iter_mut().for_each(|link| link.excuse_silence(now));
                    }
                }
                Wake::Room(false) => {
                    self.events = None;
                    self.pending.clear();
                }
                Wake::Timer => self.timers(Instant::now()),
            }
        }
        self.end().await;
    }

    async fn wake(&mut self, now: Instant) -> Wake<C::Io> {
        let deadline = self.next_deadline(now);
        let reading = self.pending.is_empty();
        let Self { commands, links, connecting, refreshing, events, .. } = self;
        tokio::select! {
            command = commands.recv() => Wake::Command(command),
            (link, event) = std::future::poll_fn(|cx| poll_links(links, cx, reading)) => {
                Wake::Link(link, event)
            }
            result = maybe(connecting) => { *connecting = None; Wake::Connected(result) }
            result = maybe(refreshing) => { *refreshing = None; Wake::Token(result) }
            room = has_room(events.as_ref()), if !reading => Wake::Room(room),
            () = sleep_until(deadline) => Wake::Timer,
        }
    }

    /// Does what has become possible, and publishes the state.
    fn settle(&mut self, now: Instant) {
        self.schedule(now);
        if std::mem::take(&mut self.dirty) {
            self.join_rooms(now);
            self.flush_waiting(now);
            self.retire(now);
        }
        self.publish_state(now);
    }

    pub(super) fn link(&mut self, id: u64) -> Option<&mut Link<C::Io>> {
        self.links.iter_mut().map(|link| &mut **link).find(|link| link.id == id)
    }

    pub(super) fn current_link(&self) -> Option<&Link<C::Io>> {
        let id = self.current?;
        self.links.iter().map(|link| &**link).find(|link| link.id == id)
    }

    pub(super) fn emit(&mut self, event: Event) {
        if self.events.is_some() {
            self.pending.push_back(event);
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        while let Some(event) = self.pending.pop_front() {
            match self.events.as_ref().map(|events| events.try_send(event)) {
                Some(Ok(())) => {}
                Some(Err(mpsc::error::TrySendError::Full(event))) => {
                    self.pending.push_front(event);
                    return;
                }
                Some(Err(mpsc::error::TrySendError::Closed(_))) | None => {
                    self.events = None;
                    self.pending.clear();
                }
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Join { room, mode, since, waiter } => {
                let entry = self.rooms.entry(room).or_insert_with(|| Room::new(mode, None));
                if since.is_some() {
                    entry.cursor = since;
                }
                entry.mode = mode;
                entry.waiters.push(waiter);
                entry.link = None;
                entry.joining = None;
                entry.retry_at = None;
                self.dirty = true;
            }
            Command::Forget(room) => {
                if let Some(gone) = self.rooms.remove(&room) {
                    for waiter in gone.waiters {
                        let _ = waiter.reply.send(Err(Error::Closed));
                    }
                }
            }
            Command::Request(request) => {
                let key = request.key;
                self.requests.insert(request);
                self.try_send(key, Instant::now());
            }
            Command::Upload(key, kind, payload) => self.upload(key, kind, &payload),
            Command::Cancel(key) => self.cancel(key),
            Command::Close(done) => {
                self.closers.push(done);
                self.ended = Some(Error::Closed);
            }
        }
    }

    fn upload(&mut self, key: u64, kind: Kind, payload: &str) {
        if let Some((link, wire)) = self.requests.get(key).and_then(|request| request.sent_as)
            && let Some(link) = self.link(link)
        {
            link.tell(upload::frame(kind, wire, payload), None);
        }
    }

    fn cancel(&mut self, key: u64) {
        if let Some(request) = self.requests.cancel(key)
            && let Some((link, wire)) = request.sent_as
            && let Some(link) = self.link(link)
        {
            link.asked.remove(&wire);
            if let Some(upload) = request.upload {
                // What is committed stays; the server need not wait for more.
                link.tell(upload::frame(Kind::BackfillEnd, wire, "{}"), None);
                link.asked.insert(wire, Asked::Abandoned(upload.into_turn()));
            }
            self.dirty = true;
        }
        let waits_in = |room: &Room| room.waiters.iter().any(|waiter| waiter.key == key);
        let Some(name) = self.rooms.iter().find(|(_, room)| waits_in(room)).map(|(name, _)| name)
        else {
            return;
        };
        let name = name.clone();
        let Some(room) = self.rooms.get_mut(&name) else { return };
        room.waiters.retain(|waiter| waiter.key != key);
        if room.waiters.is_empty() && !room.established {
            // If the join is on its way its answer finds nobody, and is undone.
            self.rooms.remove(&name);
        }
    }

    fn publish_state(&mut self, now: Instant) {
        self.had_session |= self.current.is_some();
        let link = self.current_link();
        let stale = link.is_none_or(|link| {
            now >= link.heard_message + link.heartbeat() * 2
                || self.rooms.values().any(|room| room.link != Some(link.id))
        });
        let phase = match link {
            _ if self.ended.is_some() => Phase::Closed,
            Some(link) if link.takes_requests() => Phase::Connected,
            Some(_) => Phase::Draining,
            None if self.unauthorized => Phase::Unauthorized,
            None if self.had_session => Phase::Reconnecting,
            None => Phase::Connecting,
        };
        let state = State {
            phase,
            session: link.map(|link| link.session.clone()),
            endpoint: link.map(|link| link.shown.clone()),
            stale,
        };
        let changed = self.state.send_if_modified(|old| {
            let changed = *old != state;
            if changed {
                old.clone_from(&state);
            }
            changed
        });
        if changed {
            self.emit(Event::State(state));
        }
    }

    async fn end(mut self) {
        let error = self.ended.clone().unwrap_or(Error::Closed);
        self.connecting = None;
        self.refreshing = None;
        self.requests.end(&error);
        for (_, room) in std::mem::take(&mut self.rooms) {
            for waiter in room.waiters {
                let _ = waiter.reply.send(Err(error.clone()));
            }
        }
        if let Some(first) = self.first.take() {
            let _ = first.reply.send(Err(error));
        }
        self.current = None;
        self.publish_state(Instant::now());
        self.commands.close();
        self.events = None;
        let now = Instant::now();
        for link in &mut self.links {
            link.close(now);
        }
        // A close handshake, so that the server has no dead connection to find out about.
        let close = async {
            while !self.links.is_empty() {
                let links = &mut self.links;
                let (id, event) = std::future::poll_fn(|cx| poll_links(links, cx, true)).await;
                if matches!(event, LinkEvent::Ended | LinkEvent::Closed { code: 1006, .. }) {
                    self.links.retain(|link| link.id != id);
                }
            }
        };
        let _ = tokio::time::timeout(super::link::CLOSE_TIME, close).await;
        for closer in self.closers.drain(..) {
            let _ = closer.send(());
        }
    }
}

/// Polls every link; the first that has something wins.
fn poll_links<S>(
    links: &mut [Box<Link<S>>],
    cx: &mut Context<'_>,
    read: bool,
) -> Poll<(u64, LinkEvent)>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    for link in links {
        if let Poll::Ready(event) = link.poll(cx, read) {
            return Poll::Ready((link.id, event));
        }
    }
    Poll::Pending
}

async fn maybe<T>(future: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Waits until an event can be delivered: `false` if nobody will take any.
async fn has_room(events: Option<&mpsc::Sender<Event>>) -> bool {
    match events {
        Some(events) => events.reserve().await.is_ok(),
        None => false,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
