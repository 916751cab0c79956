//! The admin drain: a paced evacuation without stopping, and a shutdown in its middle.

use std::io::{Read, Write};
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::harness::client::Seen;
use crate::harness::{Client, Server, raw};

/// A call on the admin port: status and body.
fn call(admin: SocketAddr, method: &str, path: &str) -> (u16, Value) {
    let mut stream = raw::connect(admin);
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn a_drain_notices_at_its_rate_and_can_be_called_off() {
    let mut server = Server::start();
    let mut first = Client::connect(&server, "a").await;
    let mut second = Client::connect(&server, "b").await;
    first.join("r").await;
    second.join("r").await;

    let (status, body) = call(server.admin, "POST", "/drain?rate=0");
    assert_eq!((status, &body["error"]), (400, &json!("VALIDATION_ERROR")));
    let (status, body) = call(server.admin, "POST", "/drain?rate=1");
    assert_eq!((status, &body["draining"]), (200, &json!(true)));

    // Whoever was picked hears of it, is refused, drained and closed; then the other.
    let mut ends = Vec::new();
    for client in [&mut first, &mut second] {
        let notice = client.recv_type("server_shutting_down").await;
        assert_eq!(notice["payload"]["reason"], "drain");
        assert_eq!(notice["payload"]["closesInMs"], 3500);
        assert!(notice["payload"]["reconnectIn"].as_f64().unwrap() >= 1.0);
        let (_, end) = client.see_to_end().await;
        ends.push(end);
    }
    assert_eq!(ends, vec![Seen::Close(1001, "server shutting down".to_owned()); 2]);

    let (status, ready) = call(server.admin, "GET", "/readyz");
    assert_eq!((status, &ready["reason"]), (503, &json!("drain")));
    let mut late = raw::connect(server.public);
    let head = raw::upgrade(&mut late, "/ws?clientId=c");
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert!(head.to_lowercase().contains("retry-after"), "{head}");

    let (status, body) = call(server.admin, "DELETE", "/drain");
    assert_eq!((status, &body["draining"]), (200, &json!(false)));
    assert_eq!(call(server.admin, "GET", "/readyz").0, 200);
    let mut third = Client::connect(&server, "c").await;
    third.join("r").await;
    assert_eq!(third.request("ping", json!({})).await["type"], "pong");
    server.terminate();
    let (_, end) = third.see_to_end().await;
    assert_eq!(end, Seen::Close(1001, "server shutting down".to_owned()));
    assert_eq!(server.wait().code, Some(0));
}

#[tokio::test]
async fn a_shutdown_takes_a_drain_over_without_a_second_notice() {
    let mut server = Server::start();
    let mut noticed = Client::connect(&server, "a").await;
    let (status, _) = call(server.admin, "POST", "/drain?rate=1");
    assert_eq!(status, 200);
    let notice = noticed.recv_type("server_shutting_down").await;
    assert_eq!(notice["payload"]["reason"], "drain");
    server.terminate();
    let (rest, end) = noticed.see_to_end().await;
    assert!(rest.iter().all(|message| message["type"] != "server_shutting_down"), "{rest:?}");
    assert_eq!(end, Seen::Close(1001, "server shutting down".to_owned()));
    assert_eq!(server.wait().code, Some(0));
}

#[tokio::test]
async fn requests_of_those_not_yet_noticed_run() {
    let server = Server::start();
    let mut clients = Vec::new();
    for n in 0..3 {
        let mut client = Client::connect(&server, &format!("c{n}")).await;
        client.join("r").await;
        clients.push(client);
    }
    assert_eq!(call(server.admin, "POST", "/drain?rate=1").0, 200);
    // At one a second at most one of them has been noticed by now.
    let mut answered = 0;
    for client in &mut clients {
        let answer = client.request("positions", json!({ "roomId": "r" })).await;
        answered += usize::from(answer["type"] == "positions");
    }
    assert!(answered >= 2, "{answered}");
}
