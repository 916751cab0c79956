//! What users of the Node gateway that milepost replaces rely on: its vehicles' firmware
//! and its dashboards connect unchanged.

use std::io::Write;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::harness::client::{Seen, position};
use crate::harness::{Client, Server, raw};

const SECRET: &str = "the old gateway's JWT_SECRET, still in use";

/// A server that knows the old gateway's secret.
fn server() -> Server {
    Server::builder()
        .set("auth.mode", "jwt")
        .set("auth.secret", SECRET)
        .set("room_log.path", ":memory:")
        .start()
}

fn url(server: &Server, token: &str) -> String {
    format!("ws://{}/?token={token}", server.public)
}

/// Signs claims as the old gateway's token service did.
fn signed(secret: &str, claims: &Value) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes()).unwrap();
    encode(&Header::default(), claims, &key).unwrap()
}

/// Seconds since 1970, `offset` from now.
fn seconds(offset: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap() + offset
}

fn token(client_id: &str) -> String {
    signed(SECRET, &json!({ "sub": client_id, "exp": seconds(3600) }))
}

async fn connect(server: &Server, client_id: &str) -> Client {
    Client::connect_to(url(server, &token(client_id))).await
}

/// Everything that comes before the answer to a `ping` sent now.
async fn seen_until_pong(client: &mut Client) -> Vec<Value> {
    client.send(json!({ "type": "ping", "id": "barrier" })).await;
    let mut seen = Vec::new();
    loop {
        let message = client.recv().await;
        if message["id"] == "barrier" {
            assert_eq!(message["type"], "pong", "{message}");
            return seen;
        }
        seen.push(message);
    }
}

fn types(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(|message| message["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_token_in_the_query_names_the_client() {
    let server = server();
    let by_sub = connect(&server, "bus-1").await;
    assert_eq!(by_sub.welcome["clientId"], "bus-1");
    let claims = json!({ "clientId": "bus-7", "exp": seconds(3600) });
    let by_client_id = Client::connect_to(url(&server, &signed(SECRET, &claims))).await;
    assert_eq!(by_client_id.welcome["clientId"], "bus-7");
    let claims = json!({ "sub": "bus-8", "clientId": "x", "exp": seconds(3600) });
    let by_both = Client::connect_to(url(&server, &signed(SECRET, &claims))).await;
    assert_eq!(by_both.welcome["clientId"], "bus-8");
}

#[tokio::test]
async fn a_token_of_the_token_command_is_accepted() {
    let server = server();
    let output = Command::new(env!("CARGO_BIN_EXE_milepost"))
        .args(["token", "--sub", "bus-1", "--ttl", "5m"])
        .env("MILEPOST_AUTH__SECRET", SECRET)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let token = String::from_utf8(output.stdout).unwrap();
    let client = Client::connect_to(url(&server, token.trim())).await;
    assert_eq!(client.welcome["clientId"], "bus-1");
}

#[tokio::test]
async fn a_refusal_is_a_close_code_with_the_old_texts() {
    let server = server();
    let exp = seconds(3600);
    let cases = [
        (None, "Authentication token is missing"),
        (Some("nonsense".to_owned()), "Invalid token"),
        (
            Some(signed("another secret of enough bytes", &json!({ "sub": "a", "exp": exp }))),
            "Invalid token",
        ),
        (Some(signed(SECRET, &json!({ "exp": exp }))), "Invalid token"),
        (
            Some(signed(SECRET, &json!({ "sub": "a", "exp": exp, "nbf": seconds(600) }))),
            "Token not yet valid",
        ),
        (Some(signed(SECRET, &json!({ "sub": "a", "exp": seconds(-600) }))), "Token has expired"),
    ];
    for (token, reason) in cases {
        let address = match &token {
            Some(token) => url(&server, token),
            None => format!("ws://{}/", server.public),
        };
        let mut client = Client::connect_without_welcome(address).await;
        assert_eq!(client.see().await, Seen::Close(4001, reason.to_owned()), "{token:?}");
    }
}

#[tokio::test]
async fn a_flat_join_gets_positions_and_nothing_else() {
    let server = server();
    let mut tracker = connect(&server, "old-tracker").await;
    tracker.send(json!({ "type": "join_room", "roomId": "north" })).await;
    let joined = tracker.recv().await;
    assert_eq!(joined["type"], "room_joined", "{joined}");
    assert!(joined.get("id").is_none(), "{joined}");
    let payload = joined["payload"].as_object().unwrap();
    assert_eq!(payload.keys().collect::<Vec<_>>(), ["epoch", "roomId", "seq"], "{joined}");
    assert_eq!(payload["roomId"], "north");

    let mut observer = connect(&server, "observer").await;
    observer.join("north").await;
    let mut bus = connect(&server, "bus-1").await;
    bus.join("north").await;
    // Who joined in the usual way is told of all three. A member that leaves at once would
    // never be announced.
    observer
        .recv_where(|message| {
            message["type"] == "member_joined" && message.to_string().contains("bus-1")
        })
        .await;
    bus.request("location_update", position(60.1, 24.1)).await;
    bus.request("leave_room", json!({ "roomId": "north" })).await;
    for kind in ["location_update", "member_left"] {
        observer.recv_type(kind).await;
    }

    let seen = seen_until_pong(&mut tracker).await;
    assert_eq!(types(&seen), ["location_update"], "{seen:?}");
    assert_eq!(seen[0]["payload"]["clientId"], "bus-1");
    assert_eq!(seen[0]["payload"]["latitude"], 60.1);

    tracker.send(json!({ "type": "leave_room", "roomId": "north" })).await;
    let left = tracker.recv().await;
    assert_eq!(left["type"], "room_left", "{left}");
}

#[tokio::test]
async fn acknowledgements_of_clients_are_ignored() {
    let server = server();
    let mut client = connect(&server, "dashboard").await;
    client.send(json!({ "type": "ack", "seq": 17 })).await;
    client.send(json!({ "type": "nack", "payload": { "seq": 18 } })).await;
    assert_eq!(seen_until_pong(&mut client).await, [] as [Value; 0]);
    // With an id it is a request, and every request is answered.
    let answer = client.request("ack", json!({})).await;
    assert_eq!(answer["payload"]["code"], "UNKNOWN_TYPE", "{answer}");
}

#[tokio::test]
async fn reconnect_is_answered_with_a_gap() {
    let server = server();
    let mut bus = connect(&server, "bus-1").await;
    bus.join("north").await;
    let ack = bus.request("location_update", position(60.1, 24.1)).await;
    let seq = ack["payload"]["rooms"]["north"].clone();
    let mut dashboard = connect(&server, "dashboard").await;
    dashboard.send(json!({ "type": "reconnect", "roomId": "north", "fromSeq": 3 })).await;
    let gap = dashboard.recv().await;
    assert_eq!(
        gap,
        json!({ "type": "replay_gap", "roomId": "north", "fromSeq": 3, "currentSeq": seq })
    );
}

#[tokio::test]
async fn the_sender_does_not_get_its_own_position() {
    let server = server();
    let mut bus = connect(&server, "bus-1").await;
    let mut second_screen = connect(&server, "bus-1").await;
    let mut dashboard = connect(&server, "dashboard").await;
    for client in [&mut bus, &mut second_screen, &mut dashboard] {
        client.join("north").await;
    }
    seen_until_pong(&mut bus).await;
    // As old firmware sends it: no id, so no ack either.
    bus.send(json!({ "type": "location_update", "payload": position(60.1, 24.1) })).await;
    for client in [&mut second_screen, &mut dashboard] {
        let event = client.recv_type("location_update").await;
        assert_eq!(event["payload"]["vehicleId"], "bus-1", "{event}");
    }
    assert_eq!(seen_until_pong(&mut bus).await, [] as [Value; 0]);
}

#[tokio::test]
async fn the_shutdown_notice_says_when_to_come_back_in_seconds() {
    let mut server = server();
    let mut bus = connect(&server, "bus-1").await;
    server.terminate();
    let notice = bus.recv().await;
    assert_eq!(notice["type"], "server_shutting_down", "{notice}");
    let seconds = notice["payload"]["reconnectIn"].as_f64().unwrap();
    assert!((1.0..=10.0).contains(&seconds), "{notice}");
    assert_eq!(bus.see().await, Seen::Close(1001, "server shutting down".to_owned()));
    assert_eq!(server.wait().code, Some(0));
}

#[tokio::test]
async fn health_checks_are_at_the_old_paths() {
    let server = server();
    let _bus = connect(&server, "bus-1").await;
    for path in ["/health", "/healthz", "/readyz"] {
        let mut stream = raw::connect(server.public);
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let head = raw::read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {head}");
        let (body, end) = raw::read_to_end(&mut stream);
        end.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["clients"], 1, "{path}: {body}");
        let word = if path == "/readyz" { "ready" } else { "ok" };
        assert_eq!(body["status"], word, "{path}: {body}");
    }
}

#[tokio::test]
async fn a_second_socket_of_the_same_client_takes_the_rooms_over() {
    let server = server();
    let mut dashboard = connect(&server, "dashboard").await;
    dashboard.join("north").await;
    let mut first = connect(&server, "bus-1").await;
    first.join("north").await;
    let mut second = connect(&server, "bus-1").await;
    second.join("north").await;
    let session = first.welcome["sessionId"].clone();
    first.close().await;
    server.wait_for_line(|line| {
        line["event"] == "connection.closed" && line["session_id"] == session
    });

    // Presence goes out in order: whatever the close caused comes before this.
    let mut other = connect(&server, "bus-2").await;
    other.join("north").await;
    other.request("location_update", position(60.2, 24.2)).await;
    let mut joins = Vec::new();
    while !joins.contains(&json!("bus-2")) {
        let message = dashboard.recv().await;
        assert_ne!(message["type"], "member_left", "{message}");
        if message["type"] == "member_joined" {
            joins.extend(message["payload"]["members"].as_array().unwrap().clone());
        }
    }
    // What changes at about the same time is one announcement, its own joining included.
    joins.retain(|member| member != "dashboard");
    joins.sort_by_key(ToString::to_string);
    assert_eq!(joins, ["bus-1", "bus-2"], "bus-1 joined once");
    assert_eq!(second.recv_type("location_update").await["payload"]["clientId"], "bus-2");
    assert!(!types(&seen_until_pong(&mut dashboard).await).contains(&"member_left"));

    // Only the last one's end is the member's.
    second.close().await;
    let left = dashboard.recv_type("member_left").await;
    assert_eq!(left["payload"]["clientId"], "bus-1", "{left}");
}
