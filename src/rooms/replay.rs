//! Reads missed events from the log, a page at a time, when a subscriber's socket has taken
//! the page before.

use std::sync::Arc;

use super::encode::encode_stored;
use super::hub::Hub;
use super::room::Told;
use crate::outgoing::{Feed, PageRequest, Queue};
use crate::protocol::client::Mode;
use crate::room_log::RoomLog;

/// About how much of a replay is in memory for one subscriber, in bytes.
const PAGE_BYTES: usize = 64 * 1024;

/// A subscriber that replays.
pub struct Replayer {
    /// Its queue.
    pub queue: Arc<Queue>,
    /// The room's stream.
    pub feed: Arc<Feed>,
    /// How it joined.
    pub mode: Mode,
    /// Whether it joined in the old gateway's flat form.
    pub flat: bool,
}

impl Replayer {
    /// Reads the page and gives it to the subscriber. Where that cannot be done any more
    /// (retention was faster, the store cannot be read) it is reset, never left with a gap.
    pub async fn read(self, hub: Arc<Hub>, log: Arc<dyn RoomLog>, asked: PageRequest) {
        let room = self.feed.room().clone();
        match log.read(room.clone(), asked.after, asked.up_to, PAGE_BYTES, true).await {
            Ok(page) => {
                let events = page
                    .events
                    .iter()
                    .map(|stored| (stored.seq, encode_stored(&room, stored).frame))
                    .collect();
                self.feed.page_read(self.queue.conn(), asked, events, page.next);
            }
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(event = "resume.reset", error, "a resume became a reset");
                if let Some(active) = hub.get(&room) {
                    let epoch = hub.epoch();
                    let told = Told {
                        id: None,
                        mode: self.mode,
                        flat: self.flat,
                        recovered: false,
                        epoch: &epoch,
                    };
                    active.reset(&self.queue, asked, &told, hub.settings());
                }
            }
        }
    }
}
