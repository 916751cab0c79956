//! The npm client `ws` and the Python client `websockets` go through the main path; what
//! they print is judged here, the same for both.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::{folder, installed};
use crate::harness::{PATIENCE, Server};

const SECRET: &str = "a secret of the peers' tests, 32 bytes and more";

/// A running foreign client.
struct Peer {
    lines: Lines<BufReader<ChildStdout>>,
    child: Child,
}

impl Peer {
    fn start(mut command: Command, server: &Server) -> Self {
        let mut child = command
            .arg(format!("ws://{}/ws", server.public))
            .env("VEHICLE_TOKEN", token("bus-1"))
            .env("DISPATCHER_TOKEN", token("dispatcher"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}: run .ci/setup"));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { lines, child }
    }

    /// The next line, which has to be of this step.
    async fn step(&mut self, step: &str) -> Value {
        let line = timeout(PATIENCE, self.lines.next_line()).await.expect("the client hangs");
        let line = line.unwrap().unwrap_or_else(|| panic!("the client ended before {step:?}"));
        let seen: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(seen["step"], step, "{seen}");
        seen
    }

    async fn ended_well(&mut self) {
        let status = timeout(PATIENCE, self.child.wait()).await.expect("the client hangs");
        assert!(status.unwrap().success());
    }
}

/// A token from the command that users have.
fn token(sub: &str) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_milepost"))
        .args(["token", "--sub", sub])
        .env("MILEPOST_AUTH__SECRET", SECRET)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn server() -> Server {
    Server::builder()
        .set("auth.mode", "jwt")
        .set("auth.secret", SECRET)
        .set("room_log.path", ":memory:")
        // Both clients answer protocol pings by themselves; they have to be asked.
        .set("heartbeat.interval", "200ms")
        .set("heartbeat.timeout", "20s")
        .start()
}

/// Judges everything up to the stop; `vehicle_by` is how the vehicle's token came.
async fn main_path(peer: &mut Peer, vehicle_by: &str) {
    let refused = peer.step("refused").await;
    assert_eq!(refused["code"], 4001, "{refused}");
    assert_eq!(refused["reason"], "Invalid token");

    let vehicle = peer.step(vehicle_by).await;
    assert_eq!(vehicle["welcome"]["payload"]["clientId"], "bus-1", "{vehicle}");
    assert_eq!(vehicle["welcome"]["payload"]["protocol"], 1);
    assert_eq!(vehicle["extensions"], "", "permessage-deflate was offered, not taken");
    let dispatcher = peer.step("subprotocol").await;
    assert_eq!(dispatcher["welcome"]["payload"]["clientId"], "dispatcher", "{dispatcher}");
    assert_eq!(dispatcher["extensions"], "");
    assert_eq!(dispatcher["protocol"], "milepost.v1", "the token is not echoed");

    let joined = peer.step("joined").await;
    for client in ["dispatcher", "vehicle"] {
        assert_eq!(joined[client]["type"], "room_joined", "{joined}");
        assert_eq!(joined[client]["payload"]["roomId"], "north");
    }

    let mut last_seq = 0;
    for (step, latitude) in [("text", 60.1), ("binary", 60.2), ("fragmented", 60.3)] {
        let seen = peer.step(step).await;
        assert_eq!(seen["ack"]["type"], "ack", "{seen}");
        let seq = seen["ack"]["payload"]["rooms"]["north"].as_u64().unwrap();
        assert!(seq > last_seq, "{seen}");
        last_seq = seq;
        let event = &seen["event"];
        assert_eq!(event["isBinary"], false, "{seen}");
        assert_eq!(event["payload"]["seq"], seq, "{seen}");
        assert_eq!(event["payload"]["latitude"], latitude, "{seen}");
        assert_eq!(event["payload"]["clientId"], "bus-1");
        assert_eq!(event["payload"]["vehicleId"], "bus-1");
        if step == "fragmented" {
            assert_eq!(seen["pong"], "between", "a control frame may stand between fragments");
        }
    }
    assert_eq!(peer.step("pong").await["pong"], "are you there");

    let saw = peer.step("vehicle saw").await;
    assert_eq!(
        saw["types"],
        json!(["welcome", "room_joined", "ack", "ack", "ack", "pong"]),
        "never its own position"
    );
    peer.step("ready").await;
}

/// Judges what the two connections of the client see of the stop.
async fn stop(server: &mut Server, peer: &mut Peer) {
    server.terminate();
    for client in ["vehicle", "dispatcher"] {
        let end = peer.step("end").await;
        assert_eq!(end["client"], client, "{end}");
        assert_eq!(end["notice"]["payload"]["reason"], "shutdown");
        assert!(end["notice"]["payload"]["reconnectIn"].as_f64().unwrap() >= 1.0, "{end}");
        assert_eq!(end["code"], 1001, "{end}");
        assert_eq!(end["reason"], "server shutting down");
    }
    peer.ended_well().await;
    assert_eq!(server.wait().code, Some(0));
    let complete = server.shutdown_lines().pop().unwrap();
    assert_eq!(complete["acked"], 2, "both answered the close frame: {complete}");
}

#[tokio::test]
async fn the_npm_client_ws() {
    let mut server = server();
    installed("node_modules/ws");
    let mut command = Command::new("node");
    command.arg(folder().join("client.mjs"));
    let mut peer = Peer::start(command, &server);
    main_path(&mut peer, "query").await;
    stop(&mut server, &mut peer).await;
}

#[tokio::test]
async fn the_python_client_websockets() {
    let mut server = server();
    let mut command = Command::new(installed(".venv/bin/python"));
    command.arg(folder().join("client.py"));
    let mut peer = Peer::start(command, &server);
    main_path(&mut peer, "header").await;
    stop(&mut server, &mut peer).await;
}
