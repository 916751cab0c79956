//! The broker goes away under running instances: they hold, say so and stay in service,
//! and nothing that was acknowledged is lost.

use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::{instances, know, numbered, on, positions};
use crate::harness::nats::NatsServer;
use crate::harness::{Client, Server, admin};

fn readyz(server: &Server) -> (u16, serde_json::Value) {
    admin::json(server.admin, "GET", "/readyz")
}

#[tokio::test]
async fn while_the_broker_is_away_positions_wait() {
    let mut nats = NatsServer::start();
    let servers = instances(&nats, 2);
    let mut publisher = Client::connect(&servers[0], "van").await;
    publisher.join("r").await;
    let mut watcher = Client::connect(&servers[1], "desk").await;
    watcher.join("r").await;
    publisher.publish(numbered(1)).await;
    assert_eq!(positions(&mut watcher, 1).await[0].0, 1);

    nats.kill();
    let (status, body) =
        admin::until(|| readyz(&servers[0]), |(_, body)| body["status"] != "ready");
    assert_eq!((status, &body["status"]), (200, &json!("degraded")), "{body}");
    assert_eq!((&body["reason"], &body["phase"]), (&json!("broker"), &json!("running")));
    assert!(body["detail"].as_str().unwrap().contains(&nats.url()), "{body}");
    assert_eq!(admin::json(servers[0].public, "GET", "/readyz").0, 200);
    let paused = "milepost_plane_paused{hold=\"broker\"}";
    assert_eq!(admin::metric(&servers[0], paused), 1.0);
    let failing = servers[0].wait_for("room_log.failing");
    let message = failing["message"].as_str().unwrap();
    assert!(message.contains("broker") && !message.contains("cannot write"), "{failing}");
    assert!(failing["error"].as_str().unwrap().contains(&nats.url()), "{failing}");
    // The commands say it as well; it is no reason to be restarted.
    let url = format!("http://{}", servers[0].admin);
    let output = Command::new(env!("CARGO_BIN_EXE_milepost"))
        .args(["healthcheck", "--ready", "--url", &url])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("degraded"));
    let status = admin::status(&servers[0]);
    assert_eq!(
        (&status["readiness"], &status["holds"][0]["hold"]),
        (&json!("degraded"), &json!("broker"))
    );

    let mut asked = Vec::new();
    for n in 2..=5 {
        asked.push(publisher.ask("location_update", numbered(n)).await);
    }
    assert!(publisher.until_pong().await.is_empty(), "nothing is acknowledged");
    admin::until(
        || admin::status(&servers[0])["held"]["requests"].as_u64(),
        |n| n.is_some_and(|n| n > 0),
    );
    nats.restart();
    for id in asked {
        let ack = publisher.recv_where(|message| message["id"] == id).await;
        assert_eq!(ack["type"], "ack", "{ack}");
    }
    let heard: Vec<u64> = positions(&mut watcher, 4).await.iter().map(|(n, _)| *n).collect();
    assert_eq!(heard, [2, 3, 4, 5]);
    assert_eq!(admin::until(|| readyz(&servers[0]), |(_, body)| body["status"] == "ready").0, 200);
    servers[0].wait_for("room_log.recovered");
    assert_eq!(admin::metric(&servers[0], paused), 0.0);
    // Nobody is taken for lost because of it.
    know(&servers[0], 1);
    let lines = servers[0].lines();
    assert!(lines.iter().all(|line| line["event"] != "cluster.instance_lost"), "{lines:#?}");
}

#[tokio::test]
async fn a_stop_without_the_broker_does_not_claim_to_have_flushed_it() {
    let mut nats = NatsServer::start();
    let mut server = on(&nats).start();
    let mut client = Client::connect(&server, "van").await;
    client.join("r").await;
    nats.kill();
    admin::until(|| readyz(&server).1["status"].clone(), |status| status == "degraded");
    // Held: it never started, and is refused.
    let id = client.ask("location_update", numbered(1)).await;
    let signalled = server.terminate();
    let refused = client.recv_where(|message| message["id"] == id).await;
    assert_eq!(refused["payload"]["code"], "SERVER_DRAINING", "{refused}");
    let exit = server.wait();
    assert_eq!(exit.code, Some(1), "{:#?}", server.shutdown_lines());
    assert!(exit.at - signalled <= Duration::from_millis(5250));
    let lines = server.shutdown_lines();
    let last = lines.last().unwrap();
    assert_eq!(
        (&last["event"], &last["broker_flushed"]),
        (&json!("shutdown.force_exit"), &json!(false))
    );
}
