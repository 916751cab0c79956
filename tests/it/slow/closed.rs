//! A reader that reads nothing at all: closed with 4008, and back with `since`.

use serde_json::json;

use super::reader::{Reader, positions};
use crate::harness::{Client, Server, admin};

#[tokio::test]
async fn one_that_reads_nothing_is_closed_and_comes_back_complete() {
    let server = Server::builder()
        .set("limits.message_rate", 0)
        .set("outgoing.kernel_buffer", "16KiB")
        .set("outgoing.slow_timeout", "2s")
        .start();
    let mut publisher = Client::connect(&server, "publisher").await;
    let mut healthy = Client::connect(&server, "healthy").await;
    publisher.join("r").await;
    healthy.join("r").await;
    let stuck = Reader::join(&server, "stuck", "r", false);
    let joined = stuck.of_type("room_joined")[0]["payload"].clone();

    let closed = |line: &serde_json::Value| {
        line["event"] == "connection.closed" && line["client_id"] == "stuck"
    };
    let mut seen = Vec::new();
    let line = loop {
        let mut last = json!(null);
        for n in 0..50 {
            let fix =
                json!({ "latitude": f64::from(n) / 1e3, "longitude": 2, "pad": "x".repeat(300) });
            if n < 49 {
                publisher.send(json!({ "type": "location_update", "payload": fix })).await;
            } else {
                let ack = publisher.request("location_update", fix).await;
                last = ack["payload"]["rooms"]["r"].clone();
            }
        }
        loop {
            let message = healthy.recv().await;
            let done = message["payload"]["seq"] == last;
            seen.push(message);
            if done {
                break;
            }
        }
        if let Some(line) = server.lines().into_iter().find(closed) {
            break line;
        }
    };
    assert_eq!((&line["code"], &line["reason"]), (&json!(4008), &json!("slow consumer")), "{line}");
    assert_eq!(line["initiator"], "server");
    assert!(line["duration_ms"].as_u64().unwrap() >= 2000, "{line}");
    assert_eq!(admin::metric(&server, "milepost_connections_closed_total{code=\"4008\"}"), 1.0);
    assert_eq!(admin::metric(&server, "milepost_ladder_steps_total{step=\"closed\"}"), 1.0);

    let all = positions(&seen);
    let mut back = Client::connect(&server, "stuck").await;
    let since = json!({ "epoch": joined["epoch"], "seq": joined["seq"] });
    let again = back.request("join_room", json!({ "roomId": "r", "since": since })).await;
    assert_eq!(again["payload"]["recovered"], true, "{again}");
    let mut got = Vec::new();
    while got.last() != all.last() {
        got.extend(positions([&back.recv().await]));
    }
    assert_eq!(got, all, "all that was missed, in order and once");
    drop(stuck);
}
