//! A WebSocket client that says what it sees, message by message.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::{PATIENCE, Server};

/// A connected client.
pub struct Client {
    ws: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// The `welcome` payload.
    pub welcome: Value,
    next_id: u64,
}

/// What comes from the server.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// A message.
    Message(Value),
    /// A close frame.
    Close(u16, String),
    /// The end of the stream without a close frame.
    End,
}

impl Client {
    /// Connects as `client_id` and reads the welcome.
    pub async fn connect(server: &Server, client_id: &str) -> Self {
        Self::connect_to(&server.url(client_id)).await
    }

    /// Connects to a URL (or request) and reads the welcome.
    pub async fn connect_to(request: impl IntoClientRequest + Unpin) -> Self {
        let mut client = Self::connect_without_welcome(request).await;
        let welcome = client.recv().await;
        assert_eq!(welcome["type"], "welcome", "{welcome}");
        client.welcome = welcome["payload"].clone();
        client
    }

    /// Connects without reading anything.
    pub async fn connect_without_welcome(request: impl IntoClientRequest + Unpin) -> Self {
        let connecting = tokio_tungstenite::connect_async(request);
        let (ws, _) = timeout(PATIENCE, connecting).await.expect("no handshake").unwrap();
        Self { ws, welcome: Value::Null, next_id: 1 }
    }

    /// Sends a message.
    pub async fn send(&mut self, message: Value) {
        self.send_text(message.to_string()).await;
    }

    /// Sends a text frame.
    pub async fn send_text(&mut self, text: impl Into<String>) {
        self.ws.send(Message::text(text.into())).await.unwrap();
    }

    /// Sends any frame; an error (the server is gone) is returned.
    pub async fn send_raw(
        &mut self,
        message: Message,
    ) -> Result<(), tokio_tungstenite::tungstenite::Error> {
        self.ws.send(message).await
    }

    /// Sends a request with a fresh id and returns that id.
    pub async fn ask(&mut self, kind: &str, payload: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(json!({ "type": kind, "id": id, "payload": payload })).await;
        id
    }

    /// Sends a request and returns its answer; events in between are skipped.
    pub async fn request(&mut self, kind: &str, payload: Value) -> Value {
        let id = self.ask(kind, payload).await;
        self.recv_where(|message| message["id"] == id).await
    }

    /// Joins a room and returns the payload of `room_joined`.
    pub async fn join(&mut self, room: &str) -> Value {
        let answer = self.request("join_room", json!({ "roomId": room })).await;
        assert_eq!(answer["type"], "room_joined", "{answer}");
        answer["payload"].clone()
    }

    /// The next message; anything else is a failure.
    pub async fn recv(&mut self) -> Value {
        match self.see().await {
            Seen::Message(message) => message,
            other => panic!("a message was expected, there came {other:?}"),
        }
    }

    /// The next message of a type, skipping others.
    pub async fn recv_type(&mut self, kind: &str) -> Value {
        self.recv_where(|message| message["type"] == kind).await
    }

    /// The next message that satisfies `wanted`, skipping others.
    pub async fn recv_where(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.recv().await;
            if wanted(&message) {
                return message;
            }
        }
    }

    /// The next thing that comes (pings and pongs aside).
    pub async fn see(&mut self) -> Seen {
        // Pings do not prolong it.
        let deadline = Instant::now() + PATIENCE;
        loop {
            let next = timeout_at(deadline, self.ws.next()).await.expect("nothing came");
            return match next {
                None | Some(Err(_)) => Seen::End,
                Some(Ok(Message::Text(text))) => {
                    Seen::Message(serde_json::from_str(&text).unwrap())
                }
                Some(Ok(Message::Close(frame))) => {
                    // tungstenite 0.30 only queues its answer.
                    let _ = self.ws.flush().await;
                    match frame {
                        Some(frame) => Seen::Close(frame.code.into(), frame.reason.to_string()),
                        None => Seen::Close(1005, String::new()),
                    }
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Ok(other)) => panic!("unexpected frame {other:?}"),
            };
        }
    }

    /// Everything that comes until the close frame or the end, and that.
    pub async fn see_to_end(&mut self) -> (Vec<Value>, Seen) {
        let mut messages = Vec::new();
        loop {
            match self.see().await {
                Seen::Message(message) => messages.push(message),
                end => return (messages, end),
            }
        }
    }

    /// Whether nothing comes within `time`.
    pub async fn is_quiet_for(&mut self, time: Duration) -> bool {
        timeout(time, self.ws.next()).await.is_err()
    }

    /// Closes with 1000 and reads to the end.
    pub async fn close(mut self) {
        let _ = self.ws.close(None).await;
        while let Some(Ok(_)) = self.ws.next().await {}
    }
}

/// A position as a payload.
pub fn position(latitude: f64, longitude: f64) -> Value {
    json!({ "latitude": latitude, "longitude": longitude })
}

impl Client {
    /// Joins with any payload and returns the whole answer.
    pub async fn join_with(&mut self, payload: Value) -> Value {
        self.request("join_room", payload).await
    }

    /// A request that has to fail with `code`; returns the error's payload.
    pub async fn refused(&mut self, kind: &str, payload: Value, code: &str) -> Value {
        let answer = self.request(kind, payload).await;
        assert_eq!(answer["type"], "error", "{answer}");
        assert_eq!(answer["payload"]["code"], code, "{answer}");
        answer["payload"].clone()
    }

    /// A position that has to be acknowledged; returns the payload of the `ack`.
    pub async fn publish(&mut self, payload: Value) -> Value {
        let answer = self.request("location_update", payload).await;
        assert_eq!(answer["type"], "ack", "{answer}");
        answer["payload"].clone()
    }

    /// The next message and its size in bytes.
    pub async fn recv_sized(&mut self) -> (Value, usize) {
        loop {
            match timeout(PATIENCE, self.ws.next()).await.expect("nothing came") {
                Some(Ok(Message::Text(text))) => {
                    return (serde_json::from_str(&text).unwrap(), text.len());
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => panic!("a message was expected, there came {other:?}"),
            }
        }
    }

    /// All messages until the answer to a ping, which is not among them. What the server
    /// had queued before is then here.
    pub async fn until_pong(&mut self) -> Vec<Value> {
        let id = self.ask("ping", json!({})).await;
        let mut messages = Vec::new();
        loop {
            let message = self.recv().await;
            if message["id"] == id {
                return messages;
            }
            messages.push(message);
        }
    }
}
