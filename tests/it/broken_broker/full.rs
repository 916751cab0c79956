//! The broker's disk is full.

use super::scene::Scene;
use crate::fleet::Log;
use crate::harness::nats_server::Options;
use crate::harness::{NatsServer, Server, Tmpfs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_pauses_and_loses_nothing() {
    let disk = Tmpfs::mount(48 << 20);
    let mut nats =
        NatsServer::start_as(Options { store: Some(disk.path().to_owned()), ..Options::default() });
    let start = || {
        // The broker sets that much aside, and refuses a stream for which it has no room.
        let server = Server::builder().nats(&nats).set("room_log.retention_bytes", "16MiB");
        server.set("limits.message_rate", 0).start()
    };
    let scene = Scene::start(vec![start(), start()]).await;
    let filler = disk.fill();
    scene.all_paused().await;
    std::fs::remove_file(filler).unwrap();
    // nats-server 2.9.10 turns JetStream off when its disk is full, until it is restarted.
    nats.restart();
    scene.all_resumed().await;
    scene.finish(async || Log::read_stream(&nats.url()).await).await;
}
