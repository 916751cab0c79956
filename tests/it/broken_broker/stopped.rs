//! The broker's process: killed and started again, stopped for a while, and a shutdown
//! while it does not answer.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::scene::Scene;
use crate::fleet::Log;
use crate::harness::{Client, NatsServer, Server, admin};

/// How long the broker is stopped (SIGSTOP) in the short form and in the full one.
const SHORT: Duration = Duration::from_secs(5);
const FULL: Duration = Duration::from_secs(60);

async fn two_instances(nats: &NatsServer) -> Scene {
    let start = || Server::builder().nats(nats).set("limits.message_rate", 0).start();
    Scene::start(vec![start(), start()]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_started_again() {
    let mut nats = NatsServer::start();
    let scene = two_instances(&nats).await;
    nats.kill();
    scene.all_paused().await;
    nats.restart();
    scene.all_resumed().await;
    scene.finish(async || Log::read_stream(&nats.url()).await).await;
}

/// Its connections stay open and nothing comes back over them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_for_a_while() {
    let full = std::env::var_os("MILEPOST_BROKER_FULL").is_some();
    let nats = NatsServer::start();
    let scene = two_instances(&nats).await;
    let stopped = Instant::now();
    nats.signal(Signal::STOP);
    scene.all_paused().await;
    let rest = if full { FULL } else { SHORT }.saturating_sub(stopped.elapsed());
    tokio::time::sleep(rest).await;
    nats.signal(Signal::CONT);
    scene.all_resumed().await;
    scene.finish(async || Log::read_stream(&nats.url()).await).await;
}

/// What does not fit the budgets is refused at once, and only that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_the_budgets_requests_are_refused_and_the_held_are_stored() {
    const HELD: u64 = 10;
    const SENT: u64 = 25;
    let nats = NatsServer::start();
    let server = Server::builder().nats(&nats).set("plane.max_held_requests", HELD).start();
    let mut client = Client::connect(&server, "vehicle").await;
    client.join("north").await;
    nats.signal(Signal::STOP);
    // Something has to be under way for the broker's silence to be seen.
    let first = client.ask("location_update", json!({ "latitude": 1, "longitude": 1 })).await;
    tokio::task::block_in_place(|| {
        server.wait_for_line(|line| line["event"] == "plane.paused" && line["hold"] == "broker")
    });
    let mut asked = Vec::new();
    for n in 0..SENT {
        let payload = json!({ "latitude": 2, "longitude": 2, "key": format!("k{n}"), "n": n });
        asked.push(client.ask("location_update", payload).await);
    }
    for id in &asked[HELD as usize..] {
        let refused = client.recv_where(|message| message["id"] == *id).await;
        assert_eq!(refused["payload"]["code"], "SERVER_BUSY", "{refused:#}");
        assert_eq!(refused["payload"]["retry"], "later", "{refused:#}");
    }
    nats.signal(Signal::CONT);
    let mut last = 0;
    for id in std::iter::once(&first).chain(&asked[..HELD as usize]) {
        let ack = client.recv_where(|message| message["id"] == *id).await;
        assert_eq!(ack["type"], "ack", "{ack:#}");
        let seq = ack["payload"]["rooms"]["north"].as_u64().unwrap();
        assert!(seq > last, "{seq} after {last}: not in the order in which they were sent");
        last = seq;
    }
    let resumed = tokio::task::block_in_place(|| {
        server.wait_for_line(|line| line["event"] == "plane.resumed" && line["hold"] == "broker")
    });
    assert_eq!((&resumed["held"], &resumed["refused"]), (&json!(HELD), &json!(SENT - HELD)));
}

/// A broker that does not answer does not hold the shutdown up past its budget.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_without_the_broker_keeps_its_bound() {
    let nats = NatsServer::start();
    let mut server = Server::builder().nats(&nats).start();
    let mut client = Client::connect(&server, "vehicle").await;
    client.join("north").await;
    nats.signal(Signal::STOP);
    client.ask("location_update", json!({ "latitude": 1, "longitude": 1 })).await;
    tokio::task::block_in_place(|| {
        server.wait_for_line(|line| line["event"] == "plane.paused" && line["hold"] == "broker")
    });
    assert_eq!(admin::status(&server)["holds"][0]["hold"], "broker");
    let signalled = server.terminate();
    let exit = tokio::task::block_in_place(|| server.wait());
    assert!(exit.at - signalled <= Duration::from_millis(5250), "{:?}", exit.at - signalled);
    assert_eq!(exit.code, Some(1), "{:#?}", server.shutdown_lines());
    let report = server.shutdown_lines().pop().unwrap();
    assert_eq!(report["message"], "shutdown: force exit", "{report:#}");
    assert_eq!(report["broker_flushed"], false, "{report:#}");
}
