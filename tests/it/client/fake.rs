//! A server of a few lines that does what the real one does only in trouble.

use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{WebSocketStream, accept_async};

use crate::harness::PATIENCE;

/// A listener on a free port.
pub struct Fake {
    listener: TcpListener,
    pub address: SocketAddr,
    sessions: u32,
}

impl Fake {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self { listener, address, sessions: 0 }
    }

    /// The next connection, bare.
    pub async fn stream(&self) -> TcpStream {
        timeout(PATIENCE, self.listener.accept()).await.expect("nobody came").unwrap().0
    }

    /// Answers the next handshake with an HTTP response.
    pub async fn answer(&self, response: &str) {
        let mut stream = self.stream().await;
        let mut head = [0; 4096];
        assert!(stream.read(&mut head).await.unwrap() > 0);
        stream.write_all(response.as_bytes()).await.unwrap();
    }

    /// Takes the next connection up to its welcome.
    pub async fn welcome(&mut self) -> Session {
        let socket = accept_async(self.stream().await).await.unwrap();
        self.sessions += 1;
        let mut session = Session { socket };
        session
            .say(json!({ "type": "welcome", "payload": {
                "sessionId": format!("s{}", self.sessions), "clientId": "c", "instanceId": "i",
                "protocol": 1, "serverTime": "2026-01-01T00:00:00.000Z", "heartbeatMs": 20_000,
                "heartbeatTimeoutMs": 50_000, "maxFrameBytes": 65_536,
                "maxFrameOutBytes": 65_536, "maxPositionBytes": 512, "dedupWindowMs": 600_000
            } }))
            .await;
        session
    }
}

/// One session.
pub struct Session {
    socket: WebSocketStream<TcpStream>,
}

impl Session {
    pub async fn say(&mut self, message: Value) {
        self.socket.send(Message::text(message.to_string())).await.unwrap();
    }

    /// The next message, which is of this type.
    pub async fn expect(&mut self, kind: &str) -> Value {
        loop {
            let next = timeout(PATIENCE, self.socket.next()).await;
            match next.unwrap_or_else(|_| panic!("no {kind}")).unwrap().unwrap() {
                Message::Text(text) => {
                    let message: Value = serde_json::from_str(&text).unwrap();
                    assert_eq!(message["type"], kind, "{message}");
                    return message;
                }
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{kind} was expected, there came {other:?}"),
            }
        }
    }

    /// Takes a join and answers it; returns its payload.
    pub async fn join(&mut self, seq: u64, recovered: bool) -> Value {
        let join = self.expect("join_room").await;
        self.say(json!({ "type": "room_joined", "id": join["id"], "payload": {
            "roomId": join["payload"]["roomId"], "mode": "both", "epoch": "e", "seq": seq,
            "recovered": recovered, "members": [], "memberCount": 0, "positions": [],
            "more": false
        } }))
        .await;
        join["payload"].clone()
    }

    pub async fn event(&mut self, seq: u64) {
        self.say(json!({ "type": "location_update", "payload": {
            "roomId": "r", "seq": seq, "clientId": "x", "vehicleId": "v", "latitude": 1.0,
            "longitude": 2.0, "timestamp": "2026-01-01T00:00:00.000Z",
            "receivedAt": "2026-01-01T00:00:00.000Z"
        } }))
        .await;
    }

    /// Closes and reads to the end.
    pub async fn close(mut self, code: u16, reason: &str) {
        let frame = CloseFrame { code: code.into(), reason: reason.to_owned().into() };
        self.socket.send(Message::Close(Some(frame))).await.unwrap();
        timeout(PATIENCE, async { while let Some(Ok(_)) = self.socket.next().await {} })
            .await
            .expect("the close was not answered");
    }
}
