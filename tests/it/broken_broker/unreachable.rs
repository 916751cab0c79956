//! The broker's packets are lost: no reset, no end of stream, nothing.

use super::scene::Scene;
use crate::fleet::Log;
use crate::harness::{Namespace, Server, nats};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_link_pauses_and_loses_nothing() {
    let namespace = Namespace::new();
    let broker = nats::within(&namespace);
    let urls = [broker.url_at(namespace.address(0)), broker.url_at(namespace.address(1))];
    let start = |url: &String| Server::builder().nats_at(url).set("limits.message_rate", 0).start();
    let scene = Scene::start(urls.iter().map(start).collect()).await;
    for link in 0..2 {
        namespace.cut(link);
    }
    scene.all_paused().await;
    for link in 0..2 {
        namespace.mend(link);
    }
    scene.all_resumed().await;
    scene.finish(async || Log::read_stream(&broker.url()).await).await;
}
