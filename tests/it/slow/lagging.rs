//! A reader that is far slower than its room: it is told, gets the newest per vehicle, and
//! catches up; the others and the memory do not notice.

use serde_json::{Value, json};

use super::reader::{Reader, newest, positions};
use crate::harness::{Client, Server, admin};

const VEHICLES: u64 = 10;
const ROUNDS: u64 = 120;
const ROUND: u64 = 40;

fn fix(n: u64) -> Value {
    json!({ "roomId": "r", "vehicleId": format!("bus-{}", n % VEHICLES),
            "latitude": n as f64 / 1e6, "longitude": 1, "pad": "x".repeat(4000) })
}

/// A round of positions; returns when they are in the log, with the `seq` of the last.
async fn publish(publisher: &mut Client, from: u64) -> u64 {
    for n in from..from + ROUND - 1 {
        publisher.send(json!({ "type": "location_update", "payload": fix(n) })).await;
    }
    let ack = publisher.request("location_update", fix(from + ROUND - 1)).await;
    ack["payload"]["rooms"]["r"].as_u64().unwrap_or_else(|| panic!("{ack}"))
}

async fn read_until(client: &mut Client, seq: u64, into: &mut Vec<Value>) {
    loop {
        let message = client.recv().await;
        let last = message["payload"]["seq"] == seq && message["type"] == "location_update";
        into.push(message);
        if last {
            return;
        }
    }
}

fn resident_bytes(server: &Server) -> u64 {
    let path = format!("/proc/{}/statm", server.pid().as_raw_nonzero());
    let pages: u64 =
        std::fs::read_to_string(path).unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Who came and went, of the guests.
fn presence<'a>(messages: impl IntoIterator<Item = &'a Value>) -> Vec<(String, String)> {
    messages
        .into_iter()
        .filter_map(|message| {
            let kind = message["type"].as_str()?.strip_prefix("member_")?;
            let client = message["payload"]["clientId"].as_str()?;
            client.starts_with("guest").then(|| (kind.to_owned(), client.to_owned()))
        })
        .collect()
}

/// What is skipped is announced, counted, and superseded.
fn check_ladder(seen: &[Value], all: &[(u64, String)], from: u64) {
    let (mut at, mut lagging, mut skipped) = (from, false, 0_u64);
    for message in seen {
        let payload = &message["payload"];
        match message["type"].as_str().unwrap() {
            "location_update" => {
                let seq = payload["seq"].as_u64().unwrap();
                assert!(seq > at, "{seq} after {at}");
                let between = all.iter().filter(|(other, _)| *other > at && *other < seq).count();
                assert!(lagging || between == 0, "{between} skipped without a word before {seq}");
                skipped += between as u64;
                at = seq;
            }
            "lagging" => {
                assert!(!lagging);
                assert_eq!(payload["fromSeq"], at);
                assert_eq!((&payload["mode"], &payload["dropped"]), (&json!("newest"), &json!(0)));
                (lagging, skipped) = (true, 0);
            }
            "caught_up" => {
                assert!(lagging);
                assert_eq!((&payload["seq"], &payload["dropped"]), (&json!(at), &json!(skipped)));
                lagging = false;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_slow_reader_gets_the_newest_and_nobody_else_notices() {
    let server = Server::builder()
        .set("limits.message_rate", 0)
        .set("limits.max_position", "8KiB")
        .set("outgoing.kernel_buffer", "16KiB")
        .set("outgoing.slow_timeout", "120s")
        // The log's own caches are not the matter here.
        .set("room_log.path", ":memory:")
        .set("room_log.retention_bytes", "2MiB")
        .start();
    let mut publisher = Client::connect(&server, "publisher").await;
    let mut healthy = Client::connect(&server, "healthy").await;
    publisher.join("r").await;
    let from = healthy.join("r").await["seq"].as_u64().unwrap();
    let mut slow = Reader::join(&server, "slow", "r", false);
    let mut flat = Reader::join(&server, "flat", "r", true);

    let mut seen = Vec::new();
    let mut before = 0;
    for round in 0..ROUNDS {
        let last = publish(&mut publisher, round * ROUND).await;
        read_until(&mut healthy, last, &mut seen).await;
        slow.sip(512);
        flat.sip(512);
        if round == 10 {
            before = resident_bytes(&server);
        }
        if round % 40 == 20 {
            let mut guest = Client::connect(&server, &format!("guest-{round}")).await;
            guest.join("r").await;
            for kind in ["member_joined", "member_left"] {
                loop {
                    let message = healthy.recv().await;
                    let found = message["type"] == kind
                        && message["payload"]["clientId"] == format!("guest-{round}");
                    seen.push(message);
                    if found {
                        break;
                    }
                }
                if kind == "member_joined" {
                    guest.request("leave_room", json!({ "roomId": "r" })).await;
                }
            }
        }
    }
    let lagging = || admin::metric(&server, "milepost_lagging_connections");
    admin::until(lagging, |lagging| *lagging == 2.0);
    // What waits for one of them is a position per vehicle and what is on its way.
    let queue = admin::status(&server)["queues"]["maxBytes"].as_u64().unwrap();
    assert!(queue <= 256 * 1024, "{queue} bytes wait for one reader");
    let grown = resident_bytes(&server).saturating_sub(before);
    assert!(grown < 12 * 1024 * 1024, "{grown} bytes more for 18 MB published");

    // Both speed up.
    slow.read_until(|message| message["type"] == "caught_up");
    let last = publish(&mut publisher, ROUNDS * ROUND).await;
    read_until(&mut healthy, last, &mut seen).await;
    slow.read_until(|message| message["payload"]["seq"] == last);
    flat.read_until(|message| message["payload"]["seq"] == last);

    let all = positions(&seen);
    assert_eq!(all.len() as u64, (ROUNDS + 1) * ROUND, "the healthy one got everything");
    assert!(all.windows(2).all(|two| two[0].0 < two[1].0));
    assert!(admin::metric(&server, "milepost_ladder_steps_total{step=\"lagging\"}") >= 2.0);
    assert!(admin::metric(&server, "milepost_ladder_steps_total{step=\"caught_up\"}") >= 2.0);
    admin::until(lagging, |lagging| *lagging == 0.0);

    check_ladder(&slow.seen, &all, from);
    assert!(!slow.of_type("lagging").is_empty());
    assert!(positions(&slow.seen).len() < all.len() / 2, "most were superseded");
    assert_eq!(newest(&positions(&slow.seen)), newest(&all));
    assert_eq!(presence(&slow.seen), presence(&seen), "no other event is skipped");
    assert_eq!(presence(&seen).len(), 6);

    let flat_positions = positions(&flat.seen);
    assert!(flat_positions.windows(2).all(|two| two[0].0 < two[1].0));
    assert_eq!(newest(&flat_positions), newest(&all));
    for message in &flat.seen {
        let kind = message["type"].as_str().unwrap();
        assert!(
            ["welcome", "room_joined", "location_update", "frame"].contains(&kind),
            "{kind} to a flat join"
        );
    }
}
