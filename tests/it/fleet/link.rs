//! One WebSocket connection of the fleet: what comes in is read into the few fields that
//! the fleet looks at, and every way to end is an end, not a failure of the test.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::harness::PATIENCE;

/// A connection whose `welcome` has come.
pub struct Link {
    ws: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

/// A message of the server.
#[derive(Debug, Deserialize)]
pub struct Incoming {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The request that it answers.
    #[serde(default)]
    pub id: Option<u64>,
    /// Its payload.
    #[serde(default)]
    pub payload: Payload,
}

/// The fields of all payloads that the fleet looks at.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Payload {
    /// The room.
    pub room_id: String,
    /// The place in the log.
    pub seq: u64,
    /// The position's number.
    pub n: Option<u64>,
    /// `ack`: the place in each room.
    pub rooms: FxHashMap<String, u64>,
    /// `ack`: whether every room had it.
    pub duplicate: bool,
    /// `ack`: the rooms in which it is late.
    pub late: Vec<String>,
    /// `room_joined`: the log's epoch.
    pub epoch: String,
    /// `room_joined`: whether all that was missed follows.
    pub recovered: bool,
    /// `lagging`, `caught_up`: events passed over.
    pub dropped: u64,
    /// `lagging`: where it began.
    pub from_seq: u64,
    /// `backfill_…`: newly stored.
    pub accepted: u64,
    /// `backfill_…`: already there.
    pub duplicates: u64,
    /// `backfill_result`: refused.
    pub rejected_total: u64,
    /// `error`: which.
    pub code: String,
    /// `error`: the text.
    pub message: String,
    /// `server_shutting_down`: seconds until it may come back.
    pub reconnect_in: f64,
}

impl Payload {
    /// `server_shutting_down`, just received: when it may come back.
    pub fn come_back(&self) -> Instant {
        Instant::now() + Duration::from_secs_f64(self.reconnect_in)
    }
}

impl Link {
    /// Connects as `client_id` and reads the welcome. `None`: the server is not there, does
    /// not take clients, or went away meanwhile.
    pub async fn open(address: SocketAddr, client_id: &str) -> Option<Self> {
        let url = format!("ws://{address}/ws?clientId={client_id}");
        let config = WebSocketConfig::default().read_buffer_size(16 << 10);
        let connecting = tokio_tungstenite::connect_async_with_config(url, Some(config), true);
        let connected = tokio::time::timeout(PATIENCE, connecting).await;
        let (ws, _) = connected.expect("the handshake hangs").ok()?;
        let mut link = Self { ws };
        let welcome = link.next().await?;
        assert_eq!(welcome.kind, "welcome");
        Some(link)
    }

    /// The next message; `None` once the connection has ended, however it did. May be
    /// cancelled without losing one.
    pub async fn next(&mut self) -> Option<Incoming> {
        loop {
            match self.ws.next().await? {
                Ok(Message::Text(text)) => {
                    let read = serde_json::from_str(&text);
                    return Some(read.unwrap_or_else(|error| panic!("{error}: {text}")));
                }
                Ok(Message::Close(_)) => {
                    // tungstenite only queues its answer.
                    let _ = self.ws.flush().await;
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// Hands messages to the socket together; that the connection has ended is told by
    /// [`Link::next`].
    pub async fn send_all(&mut self, messages: Vec<Value>) {
        for message in messages {
            if self.ws.feed(Message::text(message.to_string())).await.is_err() {
                return;
            }
        }
        let _ = self.ws.flush().await;
    }

    /// Joins rooms for publishing and waits for the answers.
    pub async fn join_to_publish(&mut self, rooms: &[String]) -> Joined {
        let join =
            |room| json!({ "type": "join_room", "payload": { "roomId": room, "mode": "publish" } });
        self.send_all(rooms.iter().map(join).collect()).await;
        let mut come_back = None;
        let mut left = rooms.len();
        while left > 0 {
            let Some(Incoming { kind, payload, .. }) = self.next().await else {
                return Joined::Ended { come_back };
            };
            match kind.as_str() {
                "room_joined" => left -= 1,
                "server_shutting_down" => come_back = Some(payload.come_back()),
                "error" if payload.code == "SERVER_DRAINING" => {}
                other => panic!("unexpected {other}: {payload:?}"),
            }
        }
        Joined::All { come_back }
    }

    /// Closes from this side and reads to the end.
    pub async fn close(mut self) {
        let _ = self.ws.close(None).await;
        while self.next().await.is_some() {}
    }
}

/// What became of the joins. `come_back` is there if the server's notice of its end
/// came meanwhile.
pub enum Joined {
    /// All rooms are joined.
    All { come_back: Option<Instant> },
    /// The connection ended first.
    Ended { come_back: Option<Instant> },
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum End {
    /// All that was to be done is done.
    Finished,
    /// The connection ended; with the time from which the notice lets it come back.
    Lost(Option<Instant>),
}
