//! A stop during a pause: held requests never started, held notifications wait for the
//! plane as long as there is time.

use serde_json::json;

use super::quiesce::{fix, notify, pause, resume, small, told};
use crate::harness::client::Seen;
use crate::harness::server::Builder;
use crate::harness::{Client, Server};

fn quick() -> Builder {
    small()
        .set("shutdown.stop_accepting", "50ms")
        .set("shutdown.notify", "150ms")
        .set("shutdown.drain", "1500ms")
        .set("shutdown.close", "3s")
}

async fn hold(server: &Server) -> (Client, Vec<u64>) {
    let mut client = Client::connect(server, "bus").await;
    client.join("r").await;
    pause(server);
    let mut ids = Vec::new();
    for tag in ["r1", "n1", "r2", "n2"] {
        if tag.starts_with('r') {
            ids.push(client.ask("location_update", fix(tag)).await);
        } else {
            notify(&mut client, tag).await;
        }
    }
    assert_eq!(client.request("ping", json!({})).await["type"], "pong");
    (client, ids)
}

async fn refused(client: &mut Client, ids: &[u64]) {
    assert_eq!(told(client).await["type"], "server_shutting_down");
    for id in ids {
        let answer = told(client).await;
        assert_eq!(answer["id"], *id, "{answer}");
        assert_eq!(answer["payload"]["code"], "SERVER_DRAINING", "{answer}");
        assert_eq!(answer["payload"]["retry"], "elsewhere");
    }
}

#[tokio::test]
async fn a_stop_in_a_pause_refuses_the_requests_and_counts_the_notifications() {
    let mut server = quick().start();
    let (mut client, ids) = hold(&server).await;
    server.terminate();
    refused(&mut client, &ids).await;
    let (rest, end) = client.see_to_end().await;
    assert_eq!(end, Seen::Close(1001, "server shutting down".to_owned()), "{rest:?}");
    assert_eq!(server.wait().code, Some(0));
    let lines = server.shutdown_lines();
    let last = lines.last().unwrap();
    assert_eq!(last["message"], "shutdown: complete", "{last}");
    assert_eq!(last["held_notifications_dropped"], 2, "{last}");
    assert_eq!(last["requests_refused"], 2, "{last}");
    assert_eq!(last["level"], "WARN", "something was lost");
}

#[tokio::test]
async fn notifications_are_handled_if_the_plane_opens_in_time() {
    let mut server = quick().start();
    let (mut client, ids) = hold(&server).await;
    server.terminate();
    refused(&mut client, &ids).await;
    server.wait_for("shutdown.drain");
    resume(&server);
    let (rest, end) = client.see_to_end().await;
    assert_eq!(end, Seen::Close(1001, "server shutting down".to_owned()), "{rest:?}");
    assert_eq!(server.wait().code, Some(0));
    let lines = server.shutdown_lines();
    let last = lines.last().unwrap();
    assert_eq!((&last["message"], &last["level"]), (&json!("shutdown: complete"), &json!("INFO")));
    assert_eq!(last["held_notifications_dropped"], 0, "{last}");

    let server = Server::builder().dir(server.into_dir()).start();
    let mut client = Client::connect(&server, "bus").await;
    client.join("r").await;
    let history = client.request("history", json!({ "roomId": "r" })).await;
    let tags: Vec<_> = history["payload"]["positions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|position| position["tag"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(tags, ["n1", "n2"], "in their order, and no refused request");
}
