//! Reads out of the stream: short-lived consumers, a bounded number at a time.
//!
//! A consumer is deleted when its reader is done; one whose deletion was lost goes by
//! itself. Never one per client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::api::{ANSWER_WITHIN, Api, ApiError};
use super::message::{Delivered, Event};
use crate::broker::subject;
use crate::ids::RoomId;
use crate::room_log::{
    EVENT_OVERHEAD, HistoryError, HistoryPage, HistoryQuery, Page, ReadError, StoreFailure,
    StoredPosition,
};
use crate::time::UnixMillis;

/// Consumers at a time.
const AT_ONCE: usize = 8;
/// Events asked for at a time.
const BATCH: usize = 256;
/// When the server removes a consumer that nobody uses.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);
/// How far the clocks of instances, broker and vehicles may be apart: an event is stored
/// at most this long before the time of its fix.
const SKEW_MS: i64 = 600_000;

/// Where a reader begins.
#[derive(Debug, Clone, Copy)]
pub(super) enum From {
    /// With this `seq`.
    Seq(u64),
    /// With what was stored at this time, milliseconds since 1970.
    Time(i64),
    /// With the last event of each subject.
    LastPerSubject,
}

/// Reads, a bounded number at a time.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    api: Api,
    permits: Arc<Semaphore>,
}

impl Reader {
    pub(super) fn new(api: Api) -> Self {
        Self { api, permits: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Hands the events on `filter` to `take`, ascending, until the last one that there is
    /// now, or `take` has enough.
    pub(super) async fn scan(
        &self,
        filter: &str,
        from: From,
        mut take: impl FnMut(u64, Option<Event>) -> bool,
    ) -> Result<(), ApiError> {
        let _permit = self.permits.acquire().await.map_err(|_| ApiError::NoAnswer)?;
        let Some(last) = self.api.last_of(filter).await? else { return Ok(()) };
        let nothing = match from {
            From::Seq(seq) => last.seq < seq,
            From::Time(at) => last.stored_at < at,
            From::LastPerSubject => false,
        };
        if nothing {
            return Ok(());
        }
        let name = self.create(filter, from).await?;
        let result = self.pull(&name, last.seq, &mut take).await;
        let method = format!("$JS.API.CONSUMER.DELETE.{}.{name}", self.api.subjects.stream());
        // If it does not arrive the server removes the consumer by itself.
        let _ = self.api.link.publish(method, None, None, bytes::Bytes::new());
        result
    }

    async fn create(&self, filter: &str, from: From) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Created {
            name: String,
            config: Value,
        }
        let mut config = json!({
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subject": filter,
            "inactive_threshold": u64::try_from(FORGOTTEN_AFTER.as_nanos()).unwrap_or(u64::MAX >> 1),
            "mem_storage": true,
            "num_replicas": 1,
        });
        match from {
            From::Seq(seq) => {
                config["deliver_policy"] = json!("by_start_sequence");
                config["opt_start_seq"] = json!(seq.max(1));
            }
            From::Time(at) => {
                let at = UnixMillis::new(at.max(0)).ok_or(ApiError::Garbled)?;
                config["deliver_policy"] = json!("by_start_time");
                config["opt_start_time"] = json!(at.to_string());
            }
            From::LastPerSubject => config["deliver_policy"] = json!("last_per_subject"),
        }
        let stream = self.api.subjects.stream();
        let body = json!({ "stream_name": stream, "config": config });
        let created: Created = self.api.call(&format!("CONSUMER.CREATE.{stream}"), &body).await?;
        // Servers drop what they do not know without a word.
        if created.config["filter_subject"] != config["filter_subject"]
            || created.config["deliver_policy"] != config["deliver_policy"]
        {
            return Err(ApiError::Garbled);
        }
        Ok(created.name)
    }

    /// Pulls until `end`. The server's counts of what is pending are not to be relied on
    /// (2.9.10, with a wildcard in the filter), so neither is its word that there is nothing.
    async fn pull(
        &self,
        name: &str,
        end: u64,
        take: &mut impl FnMut(u64, Option<Event>) -> bool,
    ) -> Result<(), ApiError> {
        let client = self.api.link.client();
        let inbox = client.new_inbox();
        let mut answers = client.subscribe(inbox.clone()).await.map_err(|_| ApiError::NoAnswer)?;
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{name}", self.api.subjects.stream());
        let expires = u64::try_from(ANSWER_WITHIN.as_nanos()).unwrap_or(u64::MAX >> 1);
        let body = json!({ "batch": BATCH, "expires": expires }).to_string();
        let limit = ANSWER_WITHIN * 2;
        loop {
            if !self.api.link.publish(next.clone(), Some(inbox.clone()), None, body.clone().into())
            {
                return Err(ApiError::NoAnswer);
            }
            for _ in 0..BATCH {
                let answer = tokio::time::timeout(limit, answers.next()).await;
                let Ok(Some(message)) = answer else { return Err(ApiError::NoAnswer) };
                match message.status.map(|status| status.as_u16()) {
                    None => {}
                    Some(503) => return Err(ApiError::NoResponder),
                    // The end has not come: retention took it meanwhile, or the server has
                    // lost the consumer. The caller tries again.
                    Some(_) => return Err(ApiError::NoAnswer),
                }
                let Some(Delivered { event, seq }) = Delivered::parse(&self.api.subjects, &message)
                else {
                    return Err(ApiError::Garbled);
                };
                if !take(seq, event) || seq >= end {
                    return Ok(());
                }
            }
        }
    }

    /// The `seq` up to which retention has taken events.
    pub(super) async fn trimmed_to(&self) -> Result<u64, ApiError> {
        Ok(self.api.info().await?.state.first_seq.saturating_sub(1))
    }

    fn failed(&self, error: &ApiError) -> StoreFailure {
        self.api.failure(error)
    }

    /// A page of the events after `after_seq`.
    pub(super) async fn page(
        &self,
        room: &RoomId,
        after_seq: u64,
        up_to_seq: u64,
        max_bytes: usize,
        live_only: bool,
    ) -> Result<Page, ReadError> {
        let room = subject::encode(room.as_str());
        let subjects = &self.api.subjects;
        let filter = if live_only { subjects.live(&room) } else { subjects.room(&room) };
        let mut page = Page { events: Vec::new(), next: None };
        let mut bytes = 0;
        let take = |seq: u64, event: Option<Event>| {
            if seq > up_to_seq {
                return false;
            }
            let Some(stored) = event.and_then(Event::into_stored) else { return true };
            bytes += size(&stored);
            if bytes > max_bytes
                && let Some(last) = page.events.last()
            {
                let last: &StoredPosition = last;
                page.next = Some(last.seq);
                return false;
            }
            page.events.push(stored);
            seq < up_to_seq
        };
        let scanned = self.scan(&filter, From::Seq(after_seq.saturating_add(1)), take).await;
        scanned.map_err(|error| self.failed(&error))?;
        // After reading: what retention took meanwhile would be missing in between.
        let trimmed_to = self.trimmed_to().await.map_err(|error| self.failed(&error))?;
        if after_seq < trimmed_to {
            return Err(ReadError::Trimmed { trimmed_to });
        }
        Ok(page)
    }

    /// A page of history. The stream is ordered by storing, not by the time of the fix, so
    /// it is read from where the page can begin to its end; only a page is held.
    pub(super) async fn history(&self, query: &HistoryQuery) -> Result<HistoryPage, HistoryError> {
        let after = match query.cursor.as_deref().map(Place::parse) {
            None => None,
            Some(Some(place)) => Some(place),
            Some(None) => return Err(HistoryError::BadCursor),
        };
        let room = subject::encode(query.room.as_str());
        let subjects = &self.api.subjects;
        let filter = match &query.vehicle {
            Some(vehicle) => subjects.vehicle(&room, &subject::encode(vehicle.as_str())),
            None => subjects.room(&room),
        };
        let earliest = query.from.map(UnixMillis::get).max(after.as_ref().map(|place| place.fix));
        let from = earliest.map_or(From::Seq(1), |fix| From::Time(fix.saturating_sub(SKEW_MS)));
        let mut held = Held::new(query.limit.max(1), query.max_bytes);
        let take = |_: u64, event: Option<Event>| {
            let Some(event) = event else { return true };
            let moved_from = event.moved_from();
            let Some(stored) = event.into_stored() else { return true };
            let place = Place {
                fix: stored.fix.get(),
                vehicle: stored.vehicle.as_str().into(),
                seq: stored.seq,
            };
            if let Some(seq) = moved_from {
                held.remove(Place { seq, ..place.clone() });
            }
            let wanted = query.from.is_none_or(|from| stored.fix >= from)
                && query.to.is_none_or(|to| stored.fix <= to)
                && after.as_ref().is_none_or(|after| place > *after);
            if wanted {
                held.put(place, stored);
            }
            true
        };
        let scanned = self.scan(&filter, from, take).await;
        scanned.map_err(|error| self.failed(&error))?;
        Ok(held.page())
    }
}

fn size(position: &StoredPosition) -> usize {
    position.body.len()
        + position.vehicle.as_str().len()
        + position.client.as_str().len()
        + EVENT_OVERHEAD
}

/// A place in history.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    fix: i64,
    vehicle: Box<str>,
    seq: u64,
}

impl Place {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let fix = parts.next()?.parse().ok()?;
        let seq = parts.next()?.parse().ok()?;
        Some(Self { fix, vehicle: subject::decode(parts.next()?)?.into(), seq })
    }

    fn cursor(&self) -> Box<str> {
        format!("{}.{}.{}", self.fix, self.seq, subject::encode(&self.vehicle)).into()
    }
}

/// The first positions of what was seen so far, as many as a page takes.
struct Held {
    limit: usize,
    max_bytes: usize,
    bytes: usize,
    positions: BTreeMap<Place, StoredPosition>,
    /// The first one that did not fit: nothing behind it may come before it.
    end: Option<Place>,
    /// The last one that was taken out again.
    removed: Option<Place>,
}

impl Held {
    fn new(limit: usize, max_bytes: usize) -> Self {
        Self { limit, max_bytes, bytes: 0, positions: BTreeMap::new(), end: None, removed: None }
    }

    fn put(&mut self, place: Place, position: StoredPosition) {
        if self.end.as_ref().is_some_and(|end| place > *end) {
            return;
        }
        self.bytes += size(&position);
        self.positions.insert(place, position);
        while self.positions.len() > 1
            && (self.positions.len() > self.limit || self.bytes > self.max_bytes)
        {
            if let Some((place, last)) = self.positions.pop_last() {
                self.bytes -= size(&last);
                self.end = Some(place);
            }
        }
    }

    /// Takes one out that has moved to another place.
    fn remove(&mut self, place: Place) {
        if let Some(position) = self.positions.remove(&place) {
            self.bytes -= size(&position);
            self.removed = self.removed.take().max(Some(place));
        }
    }

    fn page(self) -> HistoryPage {
        let last = self.positions.last_key_value().map(|(place, _)| place);
        let cursor = self.end.as_ref().and_then(|end| {
            let removed = self.removed.as_ref().filter(|place| *place < end);
            last.max(removed).map(Place::cursor)
        });
        HistoryPage { events: self.positions.into_values().collect(), cursor }
    }
}
