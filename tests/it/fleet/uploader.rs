//! A vehicle out of a tunnel: it uploads past fixes, and starts the whole upload again
//! after a crash, until it has its result.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::link::{End, Incoming, Joined};
use super::{Link, number};

/// Positions of one upload.
const UPLOAD: u64 = 200;
/// Positions of one chunk.
const CHUNK: u64 = 40;

/// A vehicle that uploads.
pub struct Uploader {
    /// Its number, the upper part of those of its positions.
    pub index: u64,
    /// Its room.
    pub room: String,
    /// Uploads with a result: all their positions are in the log.
    pub finished: u64,
    /// Positions of the current upload that a `backfill_progress` has confirmed.
    pub confirmed: u64,
    /// Uploads that were started again.
    pub restarted: u64,
    /// Positions that the server recognised, over all repetitions.
    pub duplicates: u64,
    started: bool,
    base: u64,
}

impl Uploader {
    pub fn new(index: u64, room: &str, base: u64) -> Self {
        Self {
            index,
            room: room.to_owned(),
            finished: 0,
            confirmed: 0,
            restarted: 0,
            duplicates: 0,
            started: false,
            base,
        }
    }

    /// The numbers that must be in the log.
    pub fn must_hold(&self) -> impl Iterator<Item = u64> {
        (0..self.finished * UPLOAD + self.confirmed).map(|serial| number(self.index, serial))
    }

    /// Uploads on one connection until it ends or, once `finish` is set, the current upload
    /// has its result.
    pub async fn session(&mut self, address: SocketAddr, finish: &AtomicBool) -> End {
        let Some(mut link) = Link::open(address, &format!("uploader-{}", self.index)).await else {
            return End::Lost(None);
        };
        if let Joined::Ended { come_back } =
            link.join_to_publish(std::slice::from_ref(&self.room)).await
        {
            return End::Lost(come_back);
        }
        while self.started || !finish.load(Ordering::Relaxed) {
            self.restarted += u64::from(self.started);
            self.started = true;
            if !self.upload(&mut link).await {
                return End::Lost(None);
            }
            self.started = false;
        }
        link.close().await;
        End::Finished
    }

    /// One attempt at the current upload; `false` if the connection ended before its result.
    async fn upload(&mut self, link: &mut Link) -> bool {
        let id = self.finished;
        let begin =
            json!({ "type": "backfill_begin", "id": id, "payload": { "roomId": self.room } });
        link.send_all(vec![begin]).await;
        let first = self.finished * UPLOAD;
        let known = self.confirmed;
        for chunk in 0..UPLOAD / CHUNK {
            let serials = first + chunk * CHUNK..first + (chunk + 1) * CHUNK;
            let positions: Vec<Value> = serials.map(|serial| self.position(serial)).collect();
            let payload = json!({ "positions": positions });
            link.send_all(vec![json!({ "type": "backfill_chunk", "id": id, "payload": payload })])
                .await;
            let Some(Incoming { kind, payload, .. }) = link.next().await else { return false };
            assert_eq!(kind, "backfill_progress", "{payload:?}");
            let committed = (chunk + 1) * CHUNK;
            assert_eq!(payload.accepted + payload.duplicates, committed);
            assert!(
                payload.duplicates >= known.min(committed),
                "{known} of this upload were committed before the crash: {payload:?}"
            );
            self.confirmed = self.confirmed.max(committed);
        }
        link.send_all(vec![json!({ "type": "backfill_end", "id": id })]).await;
        let Some(Incoming { kind, payload, .. }) = link.next().await else { return false };
        assert_eq!(kind, "backfill_result", "{payload:?}");
        assert_eq!(payload.accepted + payload.duplicates, UPLOAD);
        assert_eq!(payload.rejected_total, 0);
        self.duplicates += payload.duplicates;
        self.finished += 1;
        self.confirmed = 0;
        true
    }

    fn position(&self, serial: u64) -> Value {
        json!({
            "latitude": 50.0 + (serial % 1000) as f64 / 1000.0,
            "longitude": 20.0,
            "timestamp": self.base + serial,
            "n": number(self.index, serial),
        })
    }
}
