//! One instance of a test: a real hub, its connections, and each subscriber's view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::Mesh;
use crate::cluster::{Cluster, Settings};
use crate::ids::{ClientId, ConnId, RoomId};
use crate::outgoing::{Batch, Queue};
use crate::protocol::client::Mode;
use crate::room_log::{
    Append, HistoryError, HistoryPage, HistoryQuery, Page, ReadError, Release, RoomLog,
};
use crate::rooms::{self, Hub, Join, JoinProgress, LeaveReason};
use crate::telemetry::Metrics;

/// The reconnect_max of all sites.
pub(super) const RECONNECT_MAX: Duration = Duration::from_secs(3);

pub(super) fn room(name: &str) -> RoomId {
    RoomId::parse(name).unwrap()
}

pub(super) fn client(name: &str) -> ClientId {
    ClientId::parse(name).unwrap()
}

pub(super) fn settings(name: &str) -> Settings {
    Settings::new(name.into(), format!("gen-{name}").into(), RECONNECT_MAX)
}

/// A log of rooms in which nothing ever happened.
struct NoLog(Weak<Hub>);

impl RoomLog for NoLog {
    fn load_room(&self, room: RoomId) {
        if let Some(hub) = self.0.upgrade() {
            hub.activate(&room, 0, 0, Vec::new());
        }
    }

    fn append(&self, _: Append) {}
    fn unload_room(&self, _: RoomId) {}
    fn confirm_head(&self, _: RoomId) {}
    fn release(&self, _: Release) {}
    fn poke(&self) {}

    fn is_shared(&self) -> bool {
        true
    }

    fn epoch(&self) -> Arc<str> {
        "".into()
    }

    fn read(
        &self,
        _: RoomId,
        _: u64,
        _: u64,
        _: usize,
        _: bool,
    ) -> BoxFuture<'static, Result<Page, ReadError>> {
        std::future::pending().boxed()
    }

    fn history(&self, _: HistoryQuery) -> BoxFuture<'static, Result<HistoryPage, HistoryError>> {
        std::future::pending().boxed()
    }

    fn flush(&self) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
}

/// A connection in one room.
pub(super) struct Conn {
    pub(super) room: String,
    pub(super) client: String,
    pub(super) hidden: bool,
    queue: Arc<Queue>,
    batch: Batch,
    /// The members as this connection was told.
    view: BTreeSet<String>,
    count: u64,
    /// What it was told since the last look: type and reason, members or counts.
    pub(super) told: Vec<Value>,
}

/// One instance.
pub(super) struct Site {
    pub(super) name: String,
    pub(super) hub: Arc<Hub>,
    pub(super) cluster: Cluster,
    pub(super) conns: BTreeMap<u64, Conn>,
    announcer: JoinHandle<()>,
}

static NEXT_CONN: AtomicU64 = AtomicU64::new(1);

impl Site {
    pub(super) fn over(
        name: &str,
        listed: usize,
        start: impl FnOnce(&Arc<Hub>) -> Cluster,
    ) -> Self {
        let settings = rooms::Settings {
            rooms: 0,
            members_per_room: 0,
            presence_members: listed,
            max_frame_out: 65_536,
            tail_bytes: 16 << 20,
            replay_rest: 1000,
            newest_age: Duration::from_secs(60),
        };
        let (hub, announcer) = Hub::new(settings, Arc::new(Metrics::new(&Counter::default())));
        let announcer = tokio::spawn(announcer.run());
        hub.set_log(Arc::new(NoLog(Arc::downgrade(&hub))));
        let cluster = start(&hub);
        Self { name: name.to_owned(), hub, cluster, conns: BTreeMap::new(), announcer }
    }

    pub(super) fn start(mesh: &Mesh, settings: Settings) -> Self {
        Self::start_listing(mesh, settings, 1000)
    }

    pub(super) fn start_listing(mesh: &Mesh, settings: Settings, listed: usize) -> Self {
        let name = settings.instance.to_string();
        let wire = mesh.wire(&name);
        Self::over(&name, listed, |hub| Cluster::over(wire, None, hub, settings, || 0))
    }

    /// Lets a connection of `name` into a room; returns its number.
    pub(super) fn join(&mut self, name: &str, at: &str) -> u64 {
        self.join_as(name, at, false)
    }

    pub(super) fn join_as(&mut self, name: &str, at: &str, hidden: bool) -> u64 {
        let id = NEXT_CONN.fetch_add(1, Ordering::Relaxed);
        let queue = Arc::new(Queue::new(ConnId(id)));
        let join = Join {
            queue: queue.clone(),
            client: client(name),
            hidden,
            again: false,
            mode: Mode::Subscribe,
            flat: false,
            since: None,
            id: None,
            done: Box::new(|| {}),
        };
        let progress = self.hub.join(&room(at), join).unwrap();
        assert_ne!(progress, JoinProgress::Waiting { load: true }, "the bus comes first");
        let conn = Conn {
            room: at.to_owned(),
            client: name.to_owned(),
            hidden,
            queue,
            batch: Batch::default(),
            view: BTreeSet::new(),
            count: 0,
            told: Vec::new(),
        };
        self.conns.insert(id, conn);
        id
    }

    pub(super) fn leave(&mut self, id: u64, reason: LeaveReason) {
        let conn = self.conns.remove(&id).unwrap();
        let at = room(&conn.room);
        if self.hub.cancel(&at, ConnId(id)).is_none() {
            self.hub.leave(&at, ConnId(id), &client(&conn.client), conn.hidden, reason);
        }
    }

    /// Reads all that was sent to everybody here.
    pub(super) fn read(&mut self) {
        self.conns.values_mut().for_each(Conn::read);
    }

    /// What a connection was told since the last call: `type` or `type reason`, and whom.
    pub(super) fn told(&mut self, id: u64) -> Vec<(String, Vec<String>)> {
        let conn = self.conns.get_mut(&id).unwrap();
        conn.read();
        let told = std::mem::take(&mut conn.told);
        told.iter()
            .map(|message| {
                let payload = &message["payload"];
                let kind = message["type"].as_str().unwrap();
                let kind = match payload["reason"].as_str() {
                    Some(reason) => format!("{kind} {reason}"),
                    None => kind.to_owned(),
                };
                (kind, names(&payload["members"]))
            })
            .collect()
    }

    /// The members as a connection was told.
    pub(super) fn view(&mut self, id: u64) -> BTreeSet<String> {
        let conn = self.conns.get_mut(&id).unwrap();
        conn.read();
        conn.view.clone()
    }

    pub(super) fn member_count(&mut self, id: u64) -> u64 {
        let conn = self.conns.get_mut(&id).unwrap();
        conn.read();
        conn.count
    }

    /// The process is gone from one moment to the next.
    pub(super) fn kill(self, mesh: &Mesh) {
        mesh.remove(&self.name);
        self.announcer.abort();
    }

    /// The process has come to its end in good order.
    pub(super) async fn end(self, mesh: &Mesh) {
        assert!(self.cluster.leave(Duration::from_secs(1)).await);
        self.kill(mesh);
    }

    pub(super) fn abort(&self) {
        self.announcer.abort();
    }
}

impl Conn {
    fn read(&mut self) {
        loop {
            let taken = self.queue.take(&mut self.batch, usize::MAX, &mut Vec::new());
            taken.unwrap();
            let frames = self.batch.frames();
            if frames.is_empty() {
                return;
            }
            self.batch.advance(self.batch.bytes());
            self.queue.note_in_flight(&self.batch);
            for frame in frames {
                let header = match frame[1] {
                    126 => 4,
                    127 => 10,
                    _ => 2,
                };
                self.message(serde_json::from_slice(&frame[header..]).unwrap());
            }
        }
    }

    fn message(&mut self, message: Value) {
        let payload = &message["payload"];
        assert_eq!(payload["roomId"], self.room.as_str());
        let members = names(&payload["members"]);
        match message["type"].as_str().unwrap() {
            "room_joined" => {
                self.view = members.into_iter().collect();
                self.count = payload["memberCount"].as_u64().unwrap();
                return;
            }
            "snapshot" => return self.view.extend(members),
            "member_joined" => self.view.extend(members),
            "member_left" => self.view.retain(|member| !members.contains(member)),
            "members_changed" => self.count = payload["memberCount"].as_u64().unwrap(),
            other => panic!("{other}"),
        }
        self.told.push(message);
    }
}

fn names(list: &Value) -> Vec<String> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}
