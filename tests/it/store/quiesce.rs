//! A pause by the operator: what is held, refused, dropped, said, and given back.

use serde_json::{Value, json};

use crate::harness::server::Builder;
use crate::harness::{Client, Server, admin};

pub fn small() -> Builder {
    Server::builder()
        .set("limits.message_rate", 0)
        .set("plane.max_held_requests", 5)
        .set("plane.max_held_notifications", 3)
}

pub fn pause(server: &Server) {
    let (status, body) = admin::json(server.admin, "POST", "/quiesce?reason=maintenance");
    assert_eq!((status, &body["paused"]), (200, &json!(true)), "{body}");
}

pub fn resume(server: &Server) {
    let (status, body) = admin::json(server.admin, "DELETE", "/quiesce");
    assert_eq!((status, &body["paused"]), (200, &json!(false)), "{body}");
}

pub fn fix(tag: &str) -> Value {
    json!({ "roomId": "r", "latitude": 1, "longitude": tag.len(), "tag": tag })
}

pub async fn notify(client: &mut Client, tag: &str) {
    client.send(json!({ "type": "location_update", "payload": fix(tag) })).await;
}

/// The next message that is not about who is in the room.
pub async fn told(client: &mut Client) -> Value {
    let presence = |kind: &Value| kind.as_str().is_some_and(|kind| kind.starts_with("member_"));
    client.recv_where(|message| !presence(&message["type"])).await
}

async fn pong(client: &mut Client) {
    assert_eq!(client.request("ping", json!({})).await["type"], "pong");
}

/// What two connections hold, once the server has read all that was sent.
fn held(server: &Server, requests: u64, notifications: u64) {
    let held = &admin::status(server)["held"];
    assert_eq!(
        (&held["requests"], &held["notifications"]),
        (&json!(requests), &json!(notifications))
    );
    assert_eq!(held["bytes"].as_u64().unwrap() > 0, requests + notifications > 0, "{held}");
}

#[tokio::test]
async fn budgets_are_kept_and_the_flush_has_one_order() {
    let server = small().start();
    let mut client = Client::connect(&server, "bus").await;
    let mut watcher = Client::connect(&server, "watcher").await;
    client.join("r").await;
    watcher.join("r").await;
    pause(&server);
    for address in [server.admin, server.public] {
        let (status, body) = admin::json(address, "GET", "/readyz");
        assert_eq!((status, &body["reason"]), (503, &json!("operator")), "{body}");
        assert_eq!(body["detail"], "maintenance");
    }
    let paused =
        server.wait_for_line(|line| line["event"] == "plane.paused" && line["hold"] == "operator");
    assert_eq!((&paused["level"], &paused["reason"]), (&json!("WARN"), &json!("maintenance")));

    // n1 gives way to n4.
    let mut ids = Vec::new();
    for tag in ["r1", "n1", "r2", "n2", "n3", "n4", "r3", "r4", "r5"] {
        if tag.starts_with('r') {
            ids.push(client.ask("location_update", fix(tag)).await);
        } else {
            notify(&mut client, tag).await;
        }
    }
    pong(&mut client).await;
    held(&server, 5, 3);

    // Requests over the budget are refused at once, each once.
    let mut refused = Vec::new();
    for _ in 0..105 {
        refused.push(client.ask("location_update", fix("over")).await);
    }
    for id in refused {
        let answer = told(&mut client).await;
        assert_eq!((&answer["type"], &answer["id"]), (&json!("error"), &json!(id)), "{answer}");
        let error = &answer["payload"];
        assert_eq!((&error["code"], &error["number"]), (&json!("SERVER_BUSY"), &json!(-32000)));
        assert_eq!((&error["retry"], &error["type"]), (&json!("later"), &json!("location_update")));
        assert!(error["retryAfterMs"].as_u64().is_some(), "{error}");
        let text = error["message"].as_str().unwrap();
        assert!(text.contains('5') && text.contains("again"), "{text}");
    }
    // Neither kind crowds out the other; control passes.
    held(&server, 5, 3);
    let refresh = client.request("token_refresh", json!({ "token": "x" })).await;
    assert_ne!(refresh["payload"]["code"], "SERVER_BUSY", "{refresh}");
    held(&server, 5, 3);

    resume(&server);
    let dropped = told(&mut client).await;
    assert_eq!(dropped["type"], "notifications_dropped", "{dropped}");
    assert_eq!(dropped["payload"]["count"], 1);
    for id in ids {
        let ack = told(&mut client).await;
        assert_eq!((&ack["type"], &ack["id"]), (&json!("ack"), &json!(id)), "{ack}");
    }
    let mut tags = Vec::new();
    while tags.len() < 8 {
        let event = watcher.recv_type("location_update").await;
        tags.push(event["payload"]["tag"].as_str().unwrap().to_owned());
    }
    assert_eq!(tags, ["r1", "r2", "n2", "n3", "n4", "r3", "r4", "r5"]);
    held(&server, 0, 0);

    let warnings: Vec<Value> =
        server.lines().into_iter().filter(|line| line["event"] == "plane.refusing").collect();
    let counts: Vec<&Value> = warnings.iter().map(|line| &line["refused"]).collect();
    assert_eq!(counts, [1, 101]);
    for line in &warnings {
        assert_eq!(
            (&line["message"], &line["level"]),
            (&json!("plane: refusing requests"), &json!("WARN"))
        );
        assert_eq!(line["session_id"], client.welcome["sessionId"]);
    }
    let dropping = server.wait_for("plane.dropping");
    assert_eq!(
        (&dropping["message"], &dropping["dropped"]),
        (&json!("plane: dropping notifications"), &json!(1))
    );
    let resumed =
        server.wait_for_line(|line| line["event"] == "plane.resumed" && line["hold"] == "operator");
    assert!(resumed["duration_ms"].is_u64(), "{resumed}");
    let totals =
        ["held", "flushed", "refused", "dropped"].map(|name| resumed[name].as_u64().unwrap());
    assert_eq!(totals, [9, 8, 105, 1]);
    assert_eq!(admin::json(server.admin, "GET", "/readyz").0, 200);
    assert_eq!(admin::metric(&server, "milepost_plane_paused{hold=\"operator\"}"), 0.0);
}

#[tokio::test]
async fn floods_are_counted_anew_in_each_pause() {
    let server = small().start();
    let mut client = Client::connect(&server, "bus").await;
    client.join("r").await;
    for pause_number in 0..2 {
        pause(&server);
        for n in 0..105 {
            notify(&mut client, &format!("{pause_number}-{n}")).await;
        }
        pong(&mut client).await;
        held(&server, 0, 3);
        resume(&server);
        let dropped = told(&mut client).await;
        assert_eq!(dropped["type"], "notifications_dropped", "{dropped}");
        assert_eq!(dropped["payload"]["count"], 102);
        server.wait_for_line(|line| {
            line["event"] == "plane.resumed" && line["hold"] == "operator" && line["dropped"] == 102
        });
        // Behind the flush: what comes next is not held.
        assert_eq!(client.request("location_update", fix("next")).await["type"], "ack");
    }
    let lines = server.lines();
    let dropped: Vec<&Value> = lines
        .iter()
        .filter(|line| line["event"] == "plane.dropping")
        .map(|line| &line["dropped"])
        .collect();
    assert_eq!(dropped, [1, 101, 1, 101]);
}

#[tokio::test]
async fn joins_are_held_and_a_leave_does_not_overtake() {
    let server = small().start();
    let mut watcher = Client::connect(&server, "watcher").await;
    watcher.join("r").await;
    pause(&server);
    let mut client = Client::connect(&server, "bus").await;
    let join = client.ask("join_room", json!({ "roomId": "r" })).await;
    let publish = client.ask("location_update", fix("held")).await;
    let leave = client.ask("leave_room", json!({ "roomId": "r" })).await;
    let query = client.ask("positions", json!({ "roomId": "r" })).await;
    pong(&mut client).await;
    held(&server, 4, 0);
    resume(&server);
    let mut kinds = std::collections::BTreeMap::new();
    for _ in 0..4 {
        let answer = told(&mut client).await;
        kinds.insert(answer["id"].as_u64().unwrap(), answer);
    }
    assert_eq!(kinds[&join]["type"], "room_joined");
    assert_eq!(kinds[&publish]["type"], "ack");
    assert_eq!(kinds[&leave]["type"], "room_left");
    assert_eq!(kinds[&query]["payload"]["code"], "NOT_JOINED", "behind the leave");
}

#[tokio::test]
async fn what_a_connection_held_is_given_back_when_it_goes() {
    let server = small().start();
    let mut client = Client::connect(&server, "bus").await;
    client.join("r").await;
    pause(&server);
    for n in 0..3 {
        client.ask("location_update", fix(&n.to_string())).await;
        notify(&mut client, &n.to_string()).await;
    }
    pong(&mut client).await;
    held(&server, 3, 3);
    for (sample, value) in [("requests", 3.0), ("notifications", 3.0)] {
        admin::until(
            || admin::metric(&server, &format!("milepost_held_{sample}")),
            |metric| *metric == value,
        );
    }
    drop(client);
    let none = json!({ "requests": 0, "notifications": 0, "bytes": 0 });
    admin::until(|| admin::status(&server)["held"].clone(), |held| *held == none);
    admin::until(|| admin::metric(&server, "milepost_held_bytes"), |metric| *metric == 0.0);
    resume(&server);
    server.wait_for_line(|line| line["event"] == "plane.resumed" && line["hold"] == "operator");
}

#[tokio::test]
async fn bytes_are_bounded_for_a_connection_and_for_the_process() {
    let server = Server::builder()
        .set("limits.message_rate", 0)
        .set("plane.max_held_bytes_per_connection", "2KiB")
        .set("plane.max_held_bytes", "3KiB")
        .start();
    let mut clients = Vec::new();
    for n in 0..3 {
        let mut client = Client::connect(&server, &format!("bus-{n}")).await;
        client.join("r").await;
        clients.push(client);
    }
    pause(&server);
    let mut refused = [0; 3];
    for (client, refused) in clients.iter_mut().zip(&mut refused) {
        let ids = [client.ask("location_update", fix(&"x".repeat(400))).await];
        let mut all = ids.to_vec();
        for _ in 0..9 {
            all.push(client.ask("location_update", fix(&"x".repeat(400))).await);
        }
        let ping = client.ask("ping", json!({})).await;
        loop {
            let answer = client.recv_where(|message| !message["id"].is_null()).await;
            if answer["id"] == ping {
                break;
            }
            assert_eq!(answer["payload"]["code"], "SERVER_BUSY", "{answer}");
            assert!(all.iter().any(|id| answer["id"] == *id));
            *refused += 1;
        }
        let bytes = admin::status(&server)["held"]["bytes"].as_u64().unwrap();
        assert!(bytes <= 3 * 1024, "{bytes}");
    }
    assert!(refused[0] > 0 && refused[0] < 10, "the connection's own bound: {refused:?}");
    assert!(refused[1] > refused[0], "the process's bound: {refused:?}");
    assert_eq!(refused[2], 10, "{refused:?}");
}
