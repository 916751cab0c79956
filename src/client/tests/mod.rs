//! The client against a server of a few lines, over streams in memory and a paused clock.

mod moves;
mod past;
mod resend;
mod session;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use super::{Builder, Client, Connector, Endpoint, Event, Events, Phase};

/// Hands the server's end of every stream to the test.
struct Net {
    accepted: mpsc::UnboundedSender<(u16, DuplexStream)>,
    _alive: Arc<()>,
    refuse: Arc<Mutex<VecDeque<io::ErrorKind>>>,
}

impl Connector for Net {
    type Io = DuplexStream;

    async fn connect(&self, endpoint: &Endpoint) -> io::Result<DuplexStream> {
        if let Some(kind) = self.refuse.lock().pop_front() {
            return Err(kind.into());
        }
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        self.accepted
            .send((endpoint.port(), theirs))
            .map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(ours)
    }
}

/// The servers' side of the net.
struct Servers {
    accepted: mpsc::UnboundedReceiver<(u16, DuplexStream)>,
    /// Shared with the connector: alone once the client's task is gone.
    alive: Arc<()>,
    refuse: Arc<Mutex<VecDeque<io::ErrorKind>>>,
    sessions: u32,
}

/// One session, seen from the server.
struct Session {
    socket: WebSocketStream<DuplexStream>,
    port: u16,
    uri: String,
    authorization: Option<String>,
    at: Instant,
}

fn net() -> (Net, Servers) {
    let (accepted, streams) = mpsc::unbounded_channel();
    let (alive, refuse) = (Arc::new(()), Arc::default());
    let net = Net { accepted, _alive: alive.clone(), refuse: Arc::clone(&refuse) };
    (net, Servers { accepted: streams, alive, refuse, sessions: 0 })
}

fn builder() -> Builder {
    Client::builder().endpoint("ws://one:1/ws").seed(42)
}

/// A client on its first session.
async fn connected(builder: Builder) -> (Client, Events, Servers, Session) {
    let (net, mut servers) = net();
    let (client, session) = tokio::join!(builder.connect_with(net), servers.welcome());
    let (client, events) = client.unwrap();
    (client, events, servers, session)
}

impl Servers {
    async fn stream(&mut self) -> (u16, DuplexStream) {
        self.accepted.recv().await.unwrap()
    }

    /// Takes the next connection up to the end of its handshake.
    async fn accept(&mut self) -> Session {
        let (port, stream) = self.stream().await;
        let mut seen = (String::new(), None);
        #[allow(clippy::result_large_err, reason = "the library's callback")]
        let see = |request: &Request, response: Response| {
            let authorization = request.headers().get("authorization");
            seen.0 = request.uri().to_string();
            seen.1 = authorization.map(|value| value.to_str().unwrap().to_owned());
            Ok(response)
        };
        let socket = accept_hdr_async(stream, see).await.unwrap();
        Session { socket, port, uri: seen.0, authorization: seen.1, at: Instant::now() }
    }

    /// Takes the next connection and welcomes it as session `s1`, `s2`, ….
    async fn welcome(&mut self) -> Session {
        self.sessions += 1;
        let name = format!("s{}", self.sessions);
        self.welcome_as(&name).await
    }

    async fn welcome_as(&mut self, session: &str) -> Session {
        self.welcome_with(session, json!({})).await
    }

    /// The same, of a server of `generation`.
    async fn welcome_of(&mut self, generation: &str) -> Session {
        self.sessions += 1;
        let name = format!("s{}", self.sessions);
        self.welcome_with(&name, json!({"generation": generation})).await
    }

    async fn welcome_with(&mut self, session: &str, more: Value) -> Session {
        let mut accepted = self.accept().await;
        let mut payload = json!({
            "sessionId": session, "clientId": "c", "instanceId": "i", "protocol": 1,
            "serverTime": "2026-01-01T00:00:00.000Z", "heartbeatMs": 20_000,
            "heartbeatTimeoutMs": 50_000, "maxFrameBytes": 65_536,
            "maxFrameOutBytes": 65_536, "maxPositionBytes": 512, "dedupWindowMs": 600_000
        });
        payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        accepted.say(json!({"type": "welcome", "payload": payload})).await;
        accepted
    }

    /// Whether nobody connects for `time`.
    async fn quiet_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.accepted.recv()).await.is_err()
    }

    /// Waits until the client's task, and its connector with it, is gone.
    async fn task_is_gone(&self) {
        tokio::time::timeout(Duration::from_secs(60), async {
            while Arc::strong_count(&self.alive) > 1 {
                tokio::time::advance(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap();
    }
}

impl Session {
    async fn say(&mut self, message: Value) {
        self.socket.send(Message::text(message.to_string())).await.unwrap();
    }

    /// The next message of the client; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Value> {
        loop {
            match self.socket.next().await? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
                Ok(Message::Close(_)) => {
                    // Drives the reply out.
                    let _ = self.socket.flush().await;
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    async fn expect(&mut self, kind: &str) -> Value {
        let message = tokio::time::timeout(Duration::from_secs(600), self.next()).await;
        let message = message.unwrap_or_else(|_| panic!("no {kind}")).unwrap();
        assert_eq!(message["type"], kind, "{message}");
        message
    }

    async fn silent_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.next()).await.is_err()
    }

    async fn answer(&mut self, request: &Value, kind: &str, payload: Value) {
        self.say(json!({"type": kind, "id": request["id"], "payload": payload})).await;
    }

    async fn refuse(&mut self, request: &Value, code: &str, retry: &str) {
        let mut payload = json!({"code": code, "number": -32_000, "message": "no", "retry": retry});
        if retry == "later" {
            payload["retryAfterMs"] = json!(500);
        }
        self.answer(request, "error", payload).await;
    }

    /// Answers the next join, which must be for `room`.
    async fn join(&mut self, room: &str, epoch: &str, seq: u64, recovered: bool) -> Value {
        let join = self.expect("join_room").await;
        assert_eq!(join["payload"]["roomId"], room);
        self.answer(
            &join,
            "room_joined",
            json!({
                "roomId": room, "mode": join["payload"]["mode"], "epoch": epoch, "seq": seq,
                "recovered": recovered, "members": [], "memberCount": 0, "positions": [],
                "more": false
            }),
        )
        .await;
        join
    }

    async fn event(&mut self, room: &str, seq: u64) {
        self.say(json!({"type": "location_update", "payload": {
            "roomId": room, "seq": seq, "clientId": "x", "vehicleId": "v", "latitude": 1.0,
            "longitude": 2.0, "timestamp": "2026-01-01T00:00:00.000Z",
            "receivedAt": "2026-01-01T00:00:00.000Z"
        }}))
        .await;
    }

    async fn ack(&mut self, request: &Value, room: &str, seq: u64) {
        self.answer(request, "ack", json!({"rooms": {room: seq}, "duplicate": false, "late": []}))
            .await;
    }

    /// A notice while others of generation "2" are about.
    async fn notice_of(&mut self, reconnect_in: f64, generation: &str) {
        self.say(json!({"type": "server_shutting_down", "payload": {
            "reconnectIn": reconnect_in, "closesInMs": 4900, "reason": "shutdown",
            "resume": true, "generation": generation, "newer": ["2"]
        }}))
        .await;
    }

    async fn notice(&mut self, reconnect_in: f64) {
        self.say(json!({"type": "server_shutting_down", "payload": {
            "reconnectIn": reconnect_in, "closesInMs": 4900, "reason": "shutdown", "resume": true
        }}))
        .await;
    }

    async fn close(&mut self, code: u16, reason: &str) {
        let frame = CloseFrame { code: code.into(), reason: reason.to_owned().into() };
        self.socket.send(Message::Close(Some(frame))).await.unwrap();
        while self.next().await.is_some() {}
    }
}

/// The sequence numbers of the next `count` positions.
async fn seqs(events: &mut Events, count: usize) -> Vec<u64> {
    let mut seqs = Vec::new();
    while seqs.len() < count {
        if let Event::Location(location) = events.next().await.unwrap() {
            seqs.push(location.seq);
        }
    }
    seqs
}

async fn until_phase(client: &Client, phase: Phase) {
    client.state().wait_for(|state| state.phase == phase).await.unwrap();
}
