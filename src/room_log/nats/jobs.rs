//! What is read for the engine: loads, fills, windows, checks. Each job is a task of its
//! own that brings one [`Found`]; only so many run at a time.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use tokio::sync::{Semaphore, mpsc};

use super::Settings;
use super::api::{Api, ApiError, StreamInfo};
use super::message::{Event, Fix, Kind};
use super::reader::{From, Reader};
use super::stream::{self, StreamError};
use crate::ids::{RoomId, VehicleId};
use crate::room_log::Release;
use crate::time::UnixMillis;

/// Jobs at a time, beside those for the stream itself.
const AT_ONCE: usize = 16;
/// How many missed events are read and applied at a time.
const FILL: usize = 4096;
/// How long a subscription may take.
const LISTEN_WITHIN: Duration = Duration::from_secs(3);

/// What a room is loaded from.
pub(super) struct Loaded {
    pub(super) head: u64,
    pub(super) first: u64,
    /// The newest position of each vehicle.
    pub(super) newest: Vec<Event>,
    /// The last late event of each vehicle that has one, and when it was stored.
    pub(super) late: Vec<(VehicleId, u64, Option<i64>)>,
}

/// Events that were missed.
pub(super) struct Filled {
    /// The stream's highest `seq` before reading.
    pub(super) head: u64,
    pub(super) events: Vec<Event>,
    /// There are more of them.
    pub(super) more: bool,
}

/// What a job brings.
pub(super) enum Found {
    Listening {
        room: usize,
        subscriber: Subscriber,
    },
    Load {
        room: usize,
        work: u64,
        result: Result<Loaded, ApiError>,
    },
    Fill {
        room: usize,
        work: u64,
        result: Result<Filled, ApiError>,
    },
    Window {
        room: usize,
        number: u64,
        part: usize,
        vehicle: VehicleId,
        result: Result<Vec<Event>, ApiError>,
    },
    Head {
        room: RoomId,
        result: Result<(u64, u64), ApiError>,
    },
    Check {
        room: usize,
        work: u64,
        last: Result<u64, ApiError>,
    },
    Released {
        release: Release,
        result: Result<Option<(VehicleId, Fix)>, ApiError>,
    },
    Stream(Result<StreamInfo, StreamError>),
}

pub(super) struct Jobs {
    api: Api,
    reader: Reader,
    settings: Settings,
    found: mpsc::UnboundedSender<Found>,
    permits: Arc<Semaphore>,
}

impl Jobs {
    pub(super) fn new(
        api: Api,
        reader: Reader,
        settings: Settings,
        found: mpsc::UnboundedSender<Found>,
    ) -> Self {
        Self { api, reader, settings, found, permits: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    fn start(&self, job: impl Future<Output = Found> + Send + 'static) {
        let (permits, found) = (self.permits.clone(), self.found.clone());
        tokio::spawn(async move {
            let _permit = permits.acquire().await;
            // Without the engine nobody waits for it.
            let _ = found.send(job.await);
        });
    }

    /// Listens to a room, and reads the last events of its vehicles.
    pub(super) fn load(&self, room: usize, work: u64, token: String, listen: bool) {
        let (api, reader, found) = (self.api.clone(), self.reader.clone(), self.found.clone());
        self.start(async move {
            let result = async {
                if listen {
                    let feed = api.subjects.feed(&token);
                    let subscribed =
                        tokio::time::timeout(LISTEN_WITHIN, api.link.client().subscribe(feed));
                    let Ok(Ok(subscriber)) = subscribed.await else {
                        return Err(ApiError::NoAnswer);
                    };
                    let _ = found.send(Found::Listening { room, subscriber });
                }
                // After the subscription, on the same connection: what comes behind this
                // answer's `seq` is heard.
                let state = api.info().await?.state;
                let (mut newest, mut late) = (Vec::new(), Vec::new());
                let take = |seq: u64, event: Option<Event>| {
                    if let Some(event) = event.filter(|_| seq <= state.last_seq) {
                        match event.kind {
                            Kind::Live => newest.push(event),
                            Kind::Late => late.push((event.vehicle, seq, event.stored_at)),
                        }
                    }
                    true
                };
                reader.scan(&api.subjects.room(&token), From::LastPerSubject, take).await?;
                Ok(Loaded { head: state.last_seq, first: state.first_seq, newest, late })
            };
            Found::Load { room, work, result: result.await }
        });
    }

    /// Reads what came after `upto`.
    pub(super) fn fill(&self, room: usize, work: u64, token: String, upto: u64) {
        let (api, reader) = (self.api.clone(), self.reader.clone());
        self.start(async move {
            let result = async {
                let filter = api.subjects.room(&token);
                let head = api.info().await?.state.last_seq;
                let mut filled = Filled { head, events: Vec::new(), more: false };
                if api.last_of(&filter).await?.is_some_and(|last| last.seq > upto) {
                    let take = |_: u64, event: Option<Event>| {
                        filled.events.extend(event);
                        filled.more = filled.events.len() >= FILL;
                        !filled.more
                    };
                    reader.scan(&filter, From::Seq(upto + 1), take).await?;
                }
                Ok(filled)
            };
            Found::Fill { room, work, result: result.await }
        });
    }

    /// Reads what of a vehicle was stored within the window.
    pub(super) fn window(
        &self,
        room: usize,
        number: u64,
        part: usize,
        vehicle: VehicleId,
        subject: String,
        since: i64,
    ) {
        let reader = self.reader.clone();
        self.start(async move {
            let mut events = Vec::new();
            let take = |_: u64, event: Option<Event>| {
                events.extend(event);
                true
            };
            let scanned = reader.scan(&subject, From::Time(since), take).await;
            Found::Window { room, number, part, vehicle, result: scanned.map(|()| events) }
        });
    }

    /// Asks how far the stream and the room are.
    pub(super) fn head(&self, room: RoomId, token: String) {
        let api = self.api.clone();
        self.start(async move {
            let result = async {
                let head = api.info().await?.state.last_seq;
                let last = api.last_of(&api.subjects.room(&token)).await?;
                Ok((head, last.map_or(0, |last| last.seq)))
            };
            Found::Head { room, result: result.await }
        });
    }

    /// Asks how far the room is.
    pub(super) fn check(&self, room: usize, work: u64, token: &str) {
        let api = self.api.clone();
        let subject = api.subjects.room(token);
        self.start(async move {
            let last = api.last_of(&subject).await.map(|last| last.map_or(0, |last| last.seq));
            Found::Check { room, work, last }
        });
    }

    /// Reads an upload's position, if it is one that has not gone live.
    pub(super) fn released(&self, release: Release, token: &str) {
        let api = self.api.clone();
        let prefix = api.subjects.of(Kind::Late, token, "");
        self.start(async move {
            let result = api.message(release.seq).await.map(|found| {
                let (subject, payload) = found?;
                let vehicle = crate::broker::subject::decode(subject.strip_prefix(&prefix)?)?;
                let fix = Fix::parse(&payload).filter(|fix| fix.quiet)?;
                Some((VehicleId::parse(&vehicle).ok()?, fix))
            });
            Found::Released { release, result }
        });
    }

    /// Looks at the stream itself.
    pub(super) fn stream(&self) {
        let (api, settings, found) = (self.api.clone(), self.settings.clone(), self.found.clone());
        tokio::spawn(async move {
            let _ = found.send(Found::Stream(stream::ensure(&api, &settings).await));
        });
    }
}

/// The time as milliseconds since 1970.
pub(super) fn now() -> i64 {
    UnixMillis::now().get()
}
