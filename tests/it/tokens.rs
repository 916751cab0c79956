//! Tokens over real sockets: where they are found, what they allow, and when they end.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;

use crate::harness::client::{Seen, position};
use crate::harness::server::Builder;
use crate::harness::{Client, Server};

const SECRET: &str = "a secret of the tests, long enough for HS256";

fn builder() -> Builder {
    Server::builder().set("auth.mode", "jwt").set("auth.secret", SECRET).set("auth.leeway", "0s")
}

fn sign(secret: &str, claims: &Value) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes()).unwrap();
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &key).unwrap()
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// A token of `sub` with more claims, good for an hour.
fn token(sub: &str, more: Value) -> String {
    let mut claims = json!({ "sub": sub, "exp": now() + 3600 });
    for (name, value) in more.as_object().unwrap() {
        claims[name] = value.clone();
    }
    sign(SECRET, &claims)
}

fn request(server: &Server, token: &str) -> Request {
    let mut request = format!("ws://{}/ws", server.public).into_client_request().unwrap();
    let value = format!("Bearer {token}").parse().unwrap();
    request.headers_mut().insert("authorization", value);
    request
}

async fn connect(server: &Server, token: &str) -> Client {
    Client::connect_to(request(server, token)).await
}

async fn refused(request: impl IntoClientRequest + Unpin) -> Seen {
    Client::connect_without_welcome(request).await.see().await
}

fn closed(reason: &str) -> Seen {
    Seen::Close(4001, reason.to_owned())
}

#[tokio::test]
async fn a_token_is_found_in_three_places_in_this_order() {
    let server = builder().start();
    let (header, offered, query) =
        (token("header", json!({})), token("offered", json!({})), token("query", json!({})));
    let url = format!("ws://{}/ws?token={query}&clientId=nobody", server.public);
    let client = Client::connect_to(url.clone()).await;
    assert_eq!(client.welcome["clientId"], "query");

    let mut request = url.clone().into_client_request().unwrap();
    let value = format!("milepost.v1, bearer.{offered}");
    request.headers_mut().insert("sec-websocket-protocol", value.parse().unwrap());
    let client = Client::connect_to(request.clone()).await;
    assert_eq!(client.welcome["clientId"], "offered");

    let value = format!("Bearer {header}");
    request.headers_mut().insert("authorization", value.parse().unwrap());
    let client = Client::connect_to(request.clone()).await;
    assert_eq!(client.welcome["clientId"], "header");

    // The first one counts, also when it is wrong.
    request.headers_mut().insert("authorization", "Bearer nonsense".parse().unwrap());
    assert_eq!(refused(request).await, closed("Invalid token"));
}

#[tokio::test]
async fn each_bad_token_has_its_reason() {
    let server = builder().start();
    let url = format!("ws://{}/ws?clientId=anyone", server.public);
    assert_eq!(refused(url.clone()).await, closed("Authentication token is missing"));
    let hour = 3600;
    let unsigned = |header: &str| {
        use base64::Engine as _;
        let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
        let claims = json!({ "sub": "a", "exp": now() + hour }).to_string();
        format!("{}.{}.", encode(header), encode(&claims))
    };
    for (what, token, reason) in [
        ("no token", "nonsense".to_owned(), "Invalid token"),
        ("dots", "..".to_owned(), "Invalid token"),
        ("100 KB would not fit, 8 KB do", "x".repeat(8 << 10), "Invalid token"),
        (
            "another secret",
            sign("another secret", &json!({ "sub": "a", "exp": now() + hour })),
            "Invalid token",
        ),
        ("alg none", unsigned(r#"{"alg":"none","typ":"JWT"}"#), "Invalid token"),
        ("alg None", unsigned(r#"{"alg":"None"}"#), "Invalid token"),
        ("alg RS256", unsigned(r#"{"alg":"RS256"}"#), "Invalid token"),
        ("no sub", sign(SECRET, &json!({ "exp": now() + hour })), "Invalid token"),
        ("an empty sub", token("", json!({})), "Invalid token"),
        ("a sub with a line end", token("a\nb", json!({})), "Invalid token"),
        ("a sub of 129 letters", token(&"x".repeat(129), json!({})), "Invalid token"),
        (
            "a number as sub",
            sign(SECRET, &json!({ "sub": 5, "exp": now() + hour })),
            "Invalid token",
        ),
        ("no exp", sign(SECRET, &json!({ "sub": "a" })), "Invalid token"),
        ("rooms that are no list", token("a", json!({ "publish": "r" })), "Invalid token"),
        ("expired", token("a", json!({ "exp": now() - 10 })), "Token has expired"),
        ("not yet", token("a", json!({ "nbf": now() + hour })), "Token not yet valid"),
    ] {
        assert_eq!(refused(request(&server, &token)).await, closed(reason), "{what}");
    }
    // The old gateway's claim.
    let old = sign(SECRET, &json!({ "clientId": "old", "exp": now() + hour }));
    assert_eq!(connect(&server, &old).await.welcome["clientId"], "old");
}

#[tokio::test]
async fn a_token_gives_what_it_names_and_no_more() {
    let server = builder().start();
    let lists = json!({ "publish": ["fleet-*", "both"], "subscribe": ["both", "view-*"], "vehicles": ["van-*"] });
    let mut client = connect(&server, &token("a", lists)).await;
    for (room, asked, granted) in [
        ("both", "both", Some("both")),
        ("fleet-1", "both", Some("publish")),
        ("view-1", "both", Some("subscribe")),
        ("fleet-2", "subscribe", None),
        ("view-2", "publish", None),
        ("elsewhere", "both", None),
        ("view", "subscribe", None),
    ] {
        let payload = json!({ "roomId": room, "mode": asked });
        match granted {
            Some(mode) => {
                let joined = client.join_with(payload).await;
                assert_eq!(joined["payload"]["mode"], mode, "{room}: {joined}");
            }
            None => {
                let error = client.refused("join_room", payload, "FORBIDDEN").await;
                assert_eq!((&error["roomId"], &error["number"]), (&json!(room), &json!(-32011)));
            }
        }
    }
    // Its own vehicle and those it names.
    let vehicle = |name: &str| {
        let mut position = position(1.0, 2.0);
        position["vehicleId"] = json!(name);
        position["roomId"] = json!("both");
        position
    };
    client.publish(vehicle("a")).await;
    client.publish(vehicle("van-7")).await;
    client.refused("location_update", vehicle("bus-1"), "FORBIDDEN").await;
    client.refused("location_update", vehicle("van"), "FORBIDDEN").await;
    client.refused("positions", json!({ "roomId": "fleet-1" }), "FORBIDDEN").await;
    client.refused("history", json!({ "roomId": "both" }), "FORBIDDEN").await;

    // A token without lists may do what `auth.default_access` says.
    let mut all = connect(&server, &token("b", json!({}))).await;
    all.join("anything").await;
    drop(all);
    let strict = builder().set("auth.default_access", "none").start();
    let mut none = connect(&strict, &token("b", json!({}))).await;
    none.refused("join_room", json!({ "roomId": "anything" }), "FORBIDDEN").await;
}

#[tokio::test]
async fn a_hidden_viewer_is_never_announced() {
    let server = builder().start();
    let mut watcher = connect(&server, &token("watcher", json!({}))).await;
    watcher.join("r").await;
    let mut hidden = connect(&server, &token("hidden", json!({ "hidden": true }))).await;
    let joined = hidden.join("r").await;
    assert_eq!(joined["members"], json!(["watcher"]));
    assert_eq!(joined["memberCount"], 1);
    hidden.request("leave_room", json!({ "roomId": "r" })).await;
    hidden.join("r").await;
    hidden.close().await;
    let mut third = connect(&server, &token("third", json!({}))).await;
    assert_eq!(third.join("r").await["members"], json!(["third", "watcher"]));
    loop {
        let change =
            watcher.recv_where(|m| m["type"].as_str().unwrap().starts_with("member")).await;
        assert!(!change.to_string().contains("hidden"), "{change}");
        if change.to_string().contains("third") {
            break;
        }
    }
}

#[tokio::test]
async fn a_token_ends_with_a_warning_and_a_close() {
    let server = builder().start();
    let exp = now() + 2;
    let mut client = connect(&server, &token("a", json!({ "exp": exp }))).await;
    // Less than the time of the warning is left, so it is the next message.
    let warning = client.recv().await;
    assert_eq!(warning["type"], "token_expiring", "{warning}");
    let at: jiff::Timestamp = warning["payload"]["expiresAt"].as_str().unwrap().parse().unwrap();
    assert_eq!(at.as_second(), exp);
    assert!(
        warning["payload"]["inMs"].as_i64().is_some_and(|ms| (0..=2000).contains(&ms)),
        "{warning}"
    );
    assert_eq!(client.see().await, closed("Token has expired"));
    assert!(jiff::Timestamp::now().as_second() >= exp, "not before its time");

    let lenient = builder().set("auth.expiry", "at_connect").start();
    let mut client = connect(&lenient, &token("a", json!({ "exp": now() + 2 }))).await;
    assert_eq!(client.until_pong().await, [] as [Value; 0], "no warning");
}

#[tokio::test]
async fn a_refreshed_token_goes_on() {
    let server = builder().start();
    let mut client = connect(&server, &token("a", json!({ "exp": now() + 3 }))).await;
    client.recv_type("token_expiring").await;
    for room in ["keep", "lose", "halve"] {
        client.join(room).await;
    }
    for bad in [
        token("b", json!({})),
        token("a", json!({ "exp": now() - 60 })),
        sign("another secret", &json!({ "sub": "a", "exp": now() + 60 })),
        "nonsense".to_owned(),
    ] {
        let error = client.refused("token_refresh", json!({ "token": bad }), "AUTH_FAILED").await;
        assert_eq!((&error["number"], &error["retry"]), (&json!(-32012), &json!("never")));
        assert!(!error.to_string().contains(&bad) || bad == "nonsense", "{error}");
    }
    let exp = now() + 3600;
    let lists = json!({ "exp": exp, "publish": ["keep"], "subscribe": ["keep", "halve"] });
    // The flat form of the old gateway.
    client.send(json!({ "type": "token_refresh", "id": "t", "token": token("a", lists) })).await;
    let ok = client.recv_where(|m| m["id"] == "t").await;
    assert_eq!(ok["type"], "token_refresh_ok", "{ok}");
    assert_eq!(ok["payload"]["clientId"], "a");
    let at: jiff::Timestamp = ok["payload"]["expiresAt"].as_str().unwrap().parse().unwrap();
    assert_eq!(at.as_second(), exp);
    // What the new token does not allow is left at once; `halve` it still may watch.
    let left =
        client.recv_where(|m| m["type"] == "room_left" && m["payload"]["roomId"] == "lose").await;
    assert_eq!(
        left,
        json!({ "type": "room_left", "payload": { "roomId": "lose", "reason": "forbidden" } })
    );
    client.refused("positions", json!({ "roomId": "lose" }), "NOT_JOINED").await;
    let mut update = position(1.0, 2.0);
    update["roomId"] = json!("keep");
    client.publish(update.clone()).await;
    update["roomId"] = json!("halve");
    let error = client.request("location_update", update).await;
    assert!(
        ["FORBIDDEN", "NOT_JOINED"].iter().any(|code| error["payload"]["code"] == *code),
        "{error}"
    );
    // Past the first token's end the connection is there.
    while now() <= exp - 3600 + 4 {
        client.until_pong().await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    client.until_pong().await;
}

#[tokio::test]
async fn a_refresh_without_tokens_is_an_answer_too() {
    let server = Server::start();
    let mut client = Client::connect(&server, "a").await;
    let answer = client.request("token_refresh", json!({ "token": "whatever" })).await;
    assert!(["token_refresh_ok", "error"].iter().any(|kind| answer["type"] == *kind), "{answer}");
    client.until_pong().await;
}

#[tokio::test]
async fn no_token_stands_in_any_log_line() {
    let mut server = builder().set("log.level", "trace").start();
    let good = token("a", json!({}));
    let url = format!("ws://{}/ws?token={good}&secretquery=1", server.public);
    let mut client = Client::connect_to(url).await;
    client.request("token_refresh", json!({ "token": good })).await;
    client.join("room-in-the-payload").await;
    client.publish(json!({ "latitude": 12.3456789, "longitude": 1, "note": "payloadnote" })).await;
    client.send_text("{payloadgarbage").await;
    client.recv_type("error").await;
    let bad = sign("another secret", &json!({ "sub": "a", "exp": now() + 60 }));
    refused(request(&server, &bad)).await;
    let url = format!("ws://{}/ws?token={bad}&secretquery=1", server.public);
    refused(url).await;
    let mut offered = format!("ws://{}/ws", server.public).into_client_request().unwrap();
    let value = format!("bearer.{bad}, milepost.v1");
    offered.headers_mut().insert("sec-websocket-protocol", value.parse().unwrap());
    refused(offered).await;
    client.close().await;
    server.terminate();
    server.wait();
    let lines = server.all_lines();
    assert!(lines.iter().any(|line| line["event"] == "connection.closed"));
    for line in lines {
        let line = line.to_string();
        for secret in
            [&good, &bad, SECRET, "secretquery", "payloadnote", "payloadgarbage", "12.3456789"]
        {
            assert!(!line.contains(secret), "{line}");
        }
        // Nor the parts of a token.
        for part in good.split('.').skip(1).chain(bad.split('.').skip(1)) {
            assert!(!line.contains(part), "{line}");
        }
    }
}
