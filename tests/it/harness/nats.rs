//! Brokers for servers: three in a cluster, one in a network namespace; and how a server is
//! told of its broker.

use std::fmt::Write as _;

use super::Namespace;
use super::nats_server::{NatsServer, Options, free_port};
use super::server::Builder;

/// Starts a broker in a network namespace, on all of its addresses.
pub fn within(namespace: &Namespace) -> NatsServer {
    let under = ["ip", "netns", "exec", namespace.name()].map(str::to_owned).to_vec();
    let under = Some((under, namespace.address(0)));
    NatsServer::start_as(Options { under, ..Options::default() })
}

/// Three brokers in one cluster.
pub struct NatsCluster {
    nodes: Vec<NatsServer>,
}

impl NatsCluster {
    /// Starts all three and waits until JetStream has a leader of its own.
    pub fn start() -> Self {
        let ports: Vec<(u16, u16)> = (0..3).map(|_| (free_port(), free_port())).collect();
        let mut routes = String::new();
        for (_, cluster) in &ports {
            let _ = write!(routes, "\"nats://127.0.0.1:{cluster}\", ");
        }
        let start = |(number, (client, cluster)): (usize, &(u16, u16))| {
            let lines = format!(
                "server_name: node{number}\ncluster {{ name: fleet, listen: \
                 \"127.0.0.1:{cluster}\", routes: [{routes}] }}\n"
            );
            NatsServer::start_as(Options { lines, port: *client, ..Options::default() })
        };
        Self { nodes: ports.iter().enumerate().map(start).collect() }
    }

    /// All of them, as `nats.url` takes it.
    pub fn urls(&self) -> String {
        self.nodes.iter().map(NatsServer::url).collect::<Vec<_>>().join(",")
    }

    /// Kills the node that leads the stream.
    pub async fn kill_leader(&mut self) {
        let servers: Vec<async_nats::ServerAddr> =
            self.nodes.iter().map(|node| node.url().parse().unwrap()).collect();
        let client = async_nats::connect(servers).await.unwrap();
        let mut stream = async_nats::jetstream::new(client).get_stream("milepost").await.unwrap();
        let leader = stream.info().await.unwrap().cluster.as_ref().unwrap().leader.clone();
        let number: usize = leader.unwrap().strip_prefix("node").unwrap().parse().unwrap();
        self.nodes[number].kill();
    }
}

impl Builder {
    /// A server with this broker as its log.
    pub fn nats(self, nats: &NatsServer) -> Self {
        self.nats_at(&nats.url())
    }

    /// A server with the broker at `url` as its log.
    pub fn nats_at(self, url: &str) -> Self {
        self.set("room_log.engine", "nats").set("nats.url", url)
    }
}
