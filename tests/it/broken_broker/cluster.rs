//! A broker of three nodes loses the one that leads the stream.

use super::scene::Scene;
use crate::fleet::Log;
use crate::harness::{NatsCluster, Server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_killed() {
    let mut nats = NatsCluster::start();
    let start = || {
        Server::builder()
            .set("room_log.engine", "nats")
            .set("nats.url", nats.urls())
            .set("nats.replicas", 3)
            .set("limits.message_rate", 0)
            .start()
    };
    let scene = Scene::start(vec![start(), start()]).await;
    nats.kill_leader().await;
    // Another one leads after an election; who pauses for it, and whether, is a matter of
    // moments.
    scene.all_at_work().await;
    scene.finish(async || Log::read_stream(&nats.urls()).await).await;
}
