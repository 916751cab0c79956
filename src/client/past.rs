//! The past of a room: reading it (`history`) and adding to it (`backfill`).

use std::pin::pin;
use std::time::Duration;

use futures_util::stream::try_unfold;
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::handle::{Client, GiveUp, room_id, unexpected};
use super::requests::Request;
use super::resend::Resends;
use super::task::Command;
use super::upload::{Chunk, Standing, Upload};
use super::{BackfillResult, Error, History};
use crate::protocol::{Kind, ServerMessage};
use crate::time::UnixMillis;

/// Chunks of an upload that are not in the log yet.
const UNCOMMITTED: u64 = 2;
/// How long positions wait for more of them before they go as a short chunk.
const LINGER: Duration = Duration::from_secs(1);

/// What of a room's past is wanted; by default all of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HistoryQuery {
    /// Only this vehicle's.
    pub vehicle: Option<String>,
    /// Fixes from this time on.
    pub from: Option<UnixMillis>,
    /// Fixes up to this time.
    pub to: Option<UnixMillis>,
    /// The most positions on one page, 1 to 10,000; 500 if absent. A page also ends at the
    /// size of a frame.
    pub limit: Option<u32>,
    /// Goes on after the page that gave it, with everything else unchanged.
    pub cursor: Option<String>,
}

impl HistoryQuery {
    fn payload(&self, room: &str) -> Box<str> {
        let mut payload = Map::new();
        payload.insert("roomId".to_owned(), room.into());
        let time = |time: Option<UnixMillis>| time.map(|time| Value::from(time.get()));
        let members = [
            ("vehicleId", self.vehicle.as_deref().map(Value::from)),
            ("from", time(self.from)),
            ("to", time(self.to)),
            ("limit", self.limit.map(Value::from)),
            ("cursor", self.cursor.as_deref().map(Value::from)),
        ];
        for (name, value) in members {
            if let Some(value) = value {
                payload.insert(name.to_owned(), value);
            }
        }
        Value::Object(payload).to_string().into()
    }
}

impl Client {
    /// One page of a room's past, by time of the fix, oldest first. The room must be
    /// joined. Where the page has a `cursor` there is more.
    ///
    /// # Errors
    /// What the server says.
    pub async fn history(&self, room: &str, query: &HistoryQuery) -> Result<History, Error> {
        let room = room_id(room)?;
        let payload = query.payload(room.as_str());
        match self.request(Kind::History, false, payload, vec![room], false).await? {
            Some(ServerMessage::History(page)) => Ok(page),
            other => Err(unexpected(other)),
        }
    }

    /// The pages of a room's past, each asked for when it is wanted. Ends with the last
    /// page, or after an error; the `cursor` of the last good page leads on from there.
    ///
    /// ```no_run
    /// use futures_util::TryStreamExt;
    /// use milepost::client::{Client, Error, HistoryQuery};
    ///
    /// # async fn run(client: Client) -> Result<(), Error> {
    /// let query = HistoryQuery { vehicle: Some("bus-7".into()), ..HistoryQuery::default() };
    /// let mut pages = std::pin::pin!(client.history_pages("north", query));
    /// while let Some(page) = pages.try_next().await? {
    ///     for position in page.positions {
    ///         println!("{} {}", position.latitude, position.longitude);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn history_pages(
        &self,
        room: &str,
        query: HistoryQuery,
    ) -> impl Stream<Item = Result<History, Error>> + Send + 'static {
        let start = (self.clone(), room.to_owned(), Some(query));
        try_unfold(start, |(client, room, query)| async move {
            let Some(mut query) = query else { return Ok(None) };
            let page = client.history(&room, &query).await?;
            query.cursor.clone_from(&page.cursor);
            let next = query.cursor.is_some().then_some(query);
            Ok(Some((page, (client, room, next))))
        })
    }

    /// Uploads past positions to a room that is joined for publishing, and waits until
    /// the log holds them. They are history only; of each vehicle the newest goes out live,
    /// at the end. `vehicle` is whose they are where they do not say it themselves.
    ///
    /// Positions are taken from the stream only as fast as the server commits them. Uploads
    /// of one client take turns. A refused position does not stop the others: it is listed
    /// in the result, by its index in the whole upload. If the stream gives nothing for
    /// longer than the server's `limits.upload_idle`, the server ends the upload: then the
    /// result has a `reason`, and the rest of the stream was not sent.
    ///
    /// Never sent again by itself. What was uploaded before is found in the log and
    /// counted as a duplicate, so the caller may repeat all of it; for that every position
    /// needs its `timestamp`. Dropped, the upload ends with what was sent.
    ///
    /// ```no_run
    /// use milepost::client::{Client, Error, Fix};
    ///
    /// # async fn run(client: Client, recorded: Vec<Fix>) -> Result<(), Error> {
    /// let upload = || client.backfill("north", None, futures_util::stream::iter(&recorded));
    /// let mut result = upload().await;
    /// while let Err(Error::UnknownOutcome | Error::Draining) = result {
    ///     result = upload().await;
    /// }
    /// let result = result?;
    /// println!("{} new, {} known", result.accepted, result.duplicates);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the server says to the whole upload; [`Error::Draining`]: nothing of it ran;
    /// [`Error::UnknownOutcome`]: the connection died in its middle, some of it may be in
    /// the log; [`Error::Invalid`] for a position that is no object or fits no frame.
    pub async fn backfill<S>(
        &self,
        room: &str,
        vehicle: Option<&str>,
        positions: S,
    ) -> Result<BackfillResult, Error>
    where
        S: Stream,
        S::Item: Serialize,
    {
        let room = room_id(room)?;
        let payload = match vehicle {
            Some(vehicle) => serde_json::json!({ "roomId": room.as_str(), "vehicleId": vehicle }),
            None => serde_json::json!({ "roomId": room.as_str() }),
        };
        let turn = self.uploads.clone().acquire_owned().await.map_err(|_| Error::Closed)?;
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| Error::Closed)?;
        let key = self.key();
        let (upload, standing) = Upload::new(turn);
        let (reply, mut answer) = oneshot::channel();
        self.command(Command::Request(Request {
            key,
            kind: Kind::BackfillBegin,
            notification: false,
            payload: payload.to_string().into(),
            rooms: vec![room],
            keyed: false,
            reply,
            permit,
            sent_as: None,
            first_sent: None,
            resends: Resends::default(),
            unknown: false,
            upload: Some(upload),
        }))?;
        let mut give_up = GiveUp { commands: &self.commands, key, armed: true };
        let result = tokio::select! {
            // An upload may end before its stream: refused, cut off, idle.
            biased;
            result = &mut answer => result,
            fed = self.feed(key, standing, positions) => {
                fed?;
                answer.await
            }
        };
        give_up.armed = false;
        match result.unwrap_or(Err(Error::Closed))? {
            Some(ServerMessage::BackfillResult(result)) => Ok(result),
            other => Err(unexpected(other)),
        }
    }

    /// Sends the chunks and the end of an upload.
    async fn feed<S>(
        &self,
        key: u64,
        mut standing: watch::Receiver<Standing>,
        positions: S,
    ) -> Result<(), Error>
    where
        S: Stream,
        S::Item: Serialize,
    {
        let begun = until(&mut standing, |standing| standing.max_frame.is_some()).await;
        let mut chunk = Chunk::new(begun.max_frame.unwrap_or_default());
        let mut sent = 0;
        let mut index: u64 = 0;
        let mut positions = pin!(positions);
        let mut full_by = Instant::now();
        loop {
            let next = if chunk.is_empty() {
                let next = positions.next().await;
                full_by = Instant::now() + LINGER;
                next
            } else {
                match tokio::time::timeout_at(full_by, positions.next()).await {
                    Ok(next) => next,
                    Err(_) => {
                        self.send_chunk(key, &mut standing, &mut sent, &mut chunk).await?;
                        continue;
                    }
                }
            };
            let Some(position) = next else { break };
            let text = serde_json::to_string(&position)
                .map_err(|error| Error::Invalid(format!("position {index}: {error}")))?;
            if !text.starts_with('{') {
                let why = format!("position {index} must serialize to an object");
                return Err(Error::Invalid(why));
            }
            if !chunk.push(&text) {
                if !chunk.is_empty() {
                    self.send_chunk(key, &mut standing, &mut sent, &mut chunk).await?;
                }
                full_by = Instant::now() + LINGER;
                if !chunk.push(&text) {
                    let why = format!("position {index} is longer than the server's frames");
                    return Err(Error::Invalid(why));
                }
            }
            index += 1;
        }
        if !chunk.is_empty() {
            self.send_chunk(key, &mut standing, &mut sent, &mut chunk).await?;
        }
        self.command(Command::Upload(key, Kind::BackfillEnd, "{}".to_owned()))
    }

    async fn send_chunk(
        &self,
        key: u64,
        standing: &mut watch::Receiver<Standing>,
        sent: &mut u64,
        chunk: &mut Chunk,
    ) -> Result<(), Error> {
        until(standing, |standing| *sent < standing.committed + UNCOMMITTED).await;
        *sent += 1;
        self.command(Command::Upload(key, Kind::BackfillChunk, chunk.take()))
    }
}

/// Waits for `wanted`; for ever once the upload is over, whose result is there then.
async fn until(
    standing: &mut watch::Receiver<Standing>,
    wanted: impl FnMut(&Standing) -> bool,
) -> Standing {
    match standing.wait_for(wanted).await.map(|standing| *standing) {
        Ok(standing) => standing,
        Err(_) => std::future::pending().await,
    }
}
