//! Who is let in, how many, and how fast.

use std::io::Write;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::harness::client::Seen;
use crate::harness::server::Builder;
use crate::harness::{Client, Server, raw};

/// Shakes hands with more header lines; the response's status, head and body.
fn handshake(server: &Server, more: &str) -> (u16, String, Value) {
    let mut stream = raw::connect(server.public);
    stream.write_all(raw::handshake_head("/ws", more).as_bytes()).unwrap();
    let head = raw::read_head(&mut stream).to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    std::io::Read::read_exact(&mut stream, &mut body).unwrap();
    (status, head, serde_json::from_slice(&body).unwrap_or_default())
}

fn retry_after(head: &str) -> u64 {
    let value = head.split("retry-after: ").nth(1).unwrap_or_else(|| panic!("{head}"));
    value.split("\r\n").next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_full_server_answers_503() {
    let server = Server::builder().set("server.max_connections", 2).start();
    let first = Client::connect(&server, "a").await;
    let _second = Client::connect(&server, "b").await;
    let (status, head, body) = handshake(&server, "");
    assert_eq!((status, &body["error"]), (503, &json!("SERVER_BUSY")), "{head}");
    assert!(body["message"].is_string());
    assert!((1..=60).contains(&retry_after(&head)), "{head}");
    assert!(!head.contains("connection: close"), "{head}");
    let line = server.wait_for("handshake.refused");
    assert_eq!(line["reason"], "server_full", "{line}");
    // Health is not a matter of places.
    let mut stream = raw::connect(server.public);
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(raw::read_head(&mut stream).starts_with("HTTP/1.1 200 "));
    first.close().await;
    server.wait_for("connection.closed");
    Client::connect(&server, "c").await;
}

#[tokio::test]
async fn above_the_handshake_rate_the_answer_is_503() {
    let server = Server::builder().set("limits.handshake_rate", 3).start();
    let answers: Vec<_> = (0..30).map(|_| handshake(&server, "")).collect();
    let refused: Vec<_> = answers.iter().filter(|(status, ..)| *status == 503).collect();
    assert!(answers.iter().filter(|(status, ..)| *status == 101).count() >= 3);
    assert!(!refused.is_empty(), "30 at once are above 3 a second");
    for (_, head, body) in refused {
        assert_eq!(body["error"], "SERVER_BUSY");
        assert!((1..=60).contains(&retry_after(head)), "{head}");
    }
    let line = server.wait_for("handshake.refused");
    assert_eq!(line["reason"], "handshake_rate", "{line}");
    assert_eq!(line["status"], 503, "{line}");
}

/// Behind a proxy on this machine.
fn behind_a_proxy() -> Builder {
    Server::builder().set("limits.trusted_proxies", r#"["127.0.0.0/8", "10.0.0.0/8"]"#)
}

async fn from(server: &Server, forwarded: &str) -> (Client, Seen) {
    let mut request = server.url("x").into_client_request().unwrap();
    request.headers_mut().insert("x-forwarded-for", forwarded.parse().unwrap());
    let mut client = Client::connect_without_welcome(request).await;
    let seen = client.see().await;
    (client, seen)
}

fn is_welcome(seen: &Seen) -> bool {
    matches!(seen, Seen::Message(message) if message["type"] == "welcome")
}

#[tokio::test]
async fn one_address_has_so_many_connections() {
    let server = behind_a_proxy().set("limits.connections_per_address", 2).start();
    let too_many = Seen::Close(4029, "Too many connections from this IP".to_owned());
    let (first, seen) = from(&server, "192.0.2.1").await;
    assert!(is_welcome(&seen));
    // From the right, skipping trusted ones; what the client wrote itself does not count.
    let (_second, seen) = from(&server, "203.0.113.9, 192.0.2.1, 10.1.2.3").await;
    assert!(is_welcome(&seen));
    for forwarded in ["192.0.2.1", "198.51.100.7, 192.0.2.1", "192.0.2.1:4711", "::ffff:192.0.2.1"]
    {
        assert_eq!(from(&server, forwarded).await.1, too_many, "{forwarded}");
    }
    let (_other, seen) = from(&server, "192.0.2.2").await;
    assert!(is_welcome(&seen), "another address");
    for _ in 0..4 {
        let proxy_itself = Client::connect_without_welcome(server.url("p")).await.see().await;
        assert!(is_welcome(&proxy_itself), "a proxy that names nobody is not limited");
    }
    // A place that is given back is free.
    first.close().await;
    server.wait_for_line(|l| l["event"] == "connection.closed");
    assert!(is_welcome(&from(&server, "192.0.2.1").await.1));
    // A household has one prefix.
    let mut six = Vec::new();
    for host in 1..=2 {
        six.push(from(&server, &format!("2001:db8:1:2::{host}")).await);
    }
    assert!(six.iter().all(|(_, seen)| is_welcome(seen)));
    assert_eq!(from(&server, "2001:db8:1:2:ffff::3").await.1, too_many);
    assert!(is_welcome(&from(&server, "2001:db8:1:3::1").await.1));
}

#[tokio::test]
async fn one_address_connects_so_often() {
    let server = behind_a_proxy().set("limits.connects_per_minute", 3).start();
    for _ in 0..3 {
        assert!(is_welcome(&from(&server, "192.0.2.1").await.1));
    }
    for _ in 0..12 {
        let too_often = Seen::Close(4029, "Connection rate limit exceeded".to_owned());
        assert_eq!(from(&server, "192.0.2.1").await.1, too_often);
    }
    assert!(is_welcome(&from(&server, "192.0.2.2").await.1));
    let line = server.wait_for("handshake.refused");
    assert_eq!(line["reason"], "connect_rate", "{line}");
    // One address makes up most of the refusals: the key to set is named.
    let warning = server.wait_for("limits.one_address");
    assert!(warning["message"].as_str().unwrap().contains("limits.trusted_proxies"), "{warning}");
}

#[tokio::test]
async fn whom_nobody_trusts_is_not_believed() {
    let server = Server::builder().set("limits.connections_per_address", 1).start();
    // A loopback peer is not limited, and says what it likes.
    let mut open = Vec::new();
    for _ in 0..5 {
        let (client, seen) = from(&server, "192.0.2.1").await;
        assert!(is_welcome(&seen));
        open.push(client);
    }
}

#[tokio::test]
async fn a_connection_is_in_so_many_rooms() {
    let server = Server::builder().set("limits.rooms_per_connection", 2).start();
    let mut client = Client::connect(&server, "a").await;
    client.join("one").await;
    client.join("two").await;
    let error =
        client.refused("join_room", json!({ "roomId": "three" }), "ROOM_LIMIT_EXCEEDED").await;
    assert_eq!((&error["number"], &error["retry"]), (&json!(-32013), &json!("later")));
    assert_eq!(error["roomId"], "three");
    assert!(error["retryAfterMs"].is_u64(), "{error}");
    client.join("two").await;
    client.request("leave_room", json!({ "roomId": "one" })).await;
    client.join("three").await;
}

#[tokio::test]
async fn a_room_has_so_many_members_and_the_server_so_many_rooms() {
    let server = Server::builder().set("limits.members_per_room", 2).set("limits.rooms", 2).start();
    let mut clients = Vec::new();
    for name in ["a", "b", "c"] {
        clients.push(Client::connect(&server, name).await);
    }
    clients[0].join("r").await;
    clients[1].join("r").await;
    let error = clients[2].refused("join_room", json!({ "roomId": "r" }), "ROOM_FULL").await;
    assert_eq!((&error["number"], &error["retry"]), (&json!(-32013), &json!("later")));
    assert_eq!(error["roomId"], "r");
    assert!(error["retryAfterMs"].is_u64(), "{error}");
    // Whoever is in may join again.
    clients[1].join("r").await;
    clients[2].join("second").await;
    let third = json!({ "roomId": "third" });
    let error = clients[2].refused("join_room", third.clone(), "ROOM_LIMIT_EXCEEDED").await;
    assert_eq!(error["roomId"], "third");
    // Empty rooms cost nothing.
    clients[2].request("leave_room", json!({ "roomId": "second" })).await;
    clients[2].join_with(third).await;
    clients[0].request("leave_room", json!({ "roomId": "r" })).await;
    clients[2].join("r").await;
}

#[test]
fn origins() {
    let origin =
        |server: &Server, origin: &str| handshake(server, &format!("Origin: {origin}\r\n"));
    // Without tokens only pages of this server (`Host: localhost`), or no page at all.
    let server = Server::start();
    assert_eq!(handshake(&server, "").0, 101);
    assert_eq!(origin(&server, "http://localhost").0, 101);
    for foreign in
        ["http://evil.example", "null", "http://localhost:1", "http://localhost.evil.example"]
    {
        let (status, _, body) = origin(&server, foreign);
        assert_eq!((status, &body["error"]), (403, &json!("FORBIDDEN")), "{foreign}");
    }
    // With tokens any.
    let server = Server::builder()
        .set("auth.mode", "jwt")
        .set("auth.secret", "long enough for a test of HS256!")
        .start();
    assert_eq!(origin(&server, "http://evil.example").0, 101);
    let server =
        Server::builder().set("server.allowed_origins", r#"["https://map.example"]"#).start();
    assert_eq!(origin(&server, "https://map.example").0, 101);
    assert_eq!(origin(&server, "https://map.example.evil").0, 403);
    assert_eq!(origin(&server, "http://map.example").0, 403);
    assert_eq!(origin(&server, "http://localhost").0, 403);
    assert_eq!(handshake(&server, "").0, 101);
    let server = Server::builder().set("server.allowed_origins", "[]").start();
    assert_eq!(origin(&server, "http://localhost").0, 403);
    assert_eq!(handshake(&server, "").0, 101);
}
