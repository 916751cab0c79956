//! A NATS server with JetStream as a child process: on a free port, with a directory of its
//! own, ended by its process id. Three of them make a cluster.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::server::Builder as ServerBuilder;
use super::{Namespace, PATIENCE};

/// A running broker. It is killed when this is dropped.
pub struct Nats {
    child: Child,
    port: u16,
    file: PathBuf,
    within: Option<(String, Ipv4Addr)>,
    _dir: tempfile::TempDir,
}

/// A broker to be started.
#[derive(Default)]
pub struct Builder {
    store: Option<PathBuf>,
    within: Option<(String, Ipv4Addr)>,
    extra: String,
    port: Option<u16>,
}

impl Builder {
    /// Where it keeps its streams; by default in a directory of its own.
    pub fn store(mut self, store: &Path) -> Self {
        self.store = Some(store.to_owned());
        self
    }

    /// Runs it in a network namespace, on all of its addresses.
    pub fn within(mut self, namespace: &Namespace) -> Self {
        self.within = Some((namespace.name().to_owned(), namespace.address(0)));
        self
    }

    /// Further lines of its configuration.
    pub fn extra(mut self, lines: &str) -> Self {
        self.extra.push_str(lines);
        self
    }

    fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Starts it and waits until it takes connections.
    pub fn start(self) -> Nats {
        let dir = tempfile::tempdir().unwrap();
        let store = self.store.unwrap_or_else(|| dir.path().join("store"));
        let file = dir.path().join("nats.conf");
        // A fixed port, so that it is the same after a restart.
        let port = self.port.unwrap_or_else(free_port);
        let listen = if self.within.is_some() { "0.0.0.0" } else { "127.0.0.1" };
        let configuration = format!(
            "listen: \"{listen}:{port}\"\njetstream {{ store_dir: {:?} }}\n{}",
            store, self.extra
        );
        std::fs::write(&file, configuration).unwrap();
        let child = run(&file, self.within.as_ref());
        let mut nats = Nats { child, port, file, within: self.within, _dir: dir };
        nats.wait_until_up();
        nats
    }
}

impl Nats {
    /// One on a free port.
    pub fn start() -> Self {
        Self::builder().start()
    }

    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Where clients connect.
    pub fn url(&self) -> String {
        self.url_at(self.within.as_ref().map_or(Ipv4Addr::LOCALHOST, |(_, address)| *address))
    }

    /// Where clients connect that reach it under another address.
    pub fn url_at(&self, address: Ipv4Addr) -> String {
        format!("nats://{address}:{}", self.port)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub fn wait(&mut self) {
        self.child.wait().unwrap();
    }

    /// Starts it again on the same port and directory; it has ended.
    pub fn restart(&mut self) {
        self.child = run(&self.file, self.within.as_ref());
        self.wait_until_up();
    }

    fn wait_until_up(&mut self) {
        let address = self.within.as_ref().map_or(Ipv4Addr::LOCALHOST, |(_, address)| *address);
        let address = SocketAddr::new(IpAddr::V4(address), self.port);
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("nats-server ended with {status}: {}", self.file.display());
            }
            assert!(Instant::now() < deadline, "nats-server does not take connections");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three brokers in one cluster.
pub struct NatsCluster {
    nodes: Vec<Nats>,
}

impl NatsCluster {
    /// Starts all three and waits until JetStream has a leader of its own.
    pub fn start() -> Self {
        let ports: Vec<(u16, u16)> = (0..3).map(|_| (free_port(), free_port())).collect();
        let mut routes = String::new();
        for (_, cluster) in &ports {
            let _ = write!(routes, "\"nats://127.0.0.1:{cluster}\" ");
        }
        let start = |(number, (client, cluster)): (usize, &(u16, u16))| {
            let extra = format!(
                "server_name: node{number}\ncluster {{ name: fleet, listen: \
                 \"127.0.0.1:{cluster}\", routes: [{routes}] }}\n"
            );
            Nats::builder().port(*client).extra(&extra).start()
        };
        Self { nodes: ports.iter().enumerate().map(start).collect() }
    }

    /// All of them, as `nats.url` takes it.
    pub fn urls(&self) -> String {
        self.nodes.iter().map(Nats::url).collect::<Vec<_>>().join(",")
    }

    /// Kills the node that leads the stream.
    pub async fn kill_leader(&mut self) {
        let servers: Vec<async_nats::ServerAddr> =
            self.nodes.iter().map(|node| node.url().parse().unwrap()).collect();
        let client = async_nats::connect(servers).await.unwrap();
        let mut stream = async_nats::jetstream::new(client).get_stream("milepost").await.unwrap();
        let leader = stream.info().await.unwrap().cluster.as_ref().unwrap().leader.clone();
        let number: usize = leader.unwrap().strip_prefix("node").unwrap().parse().unwrap();
        self.nodes[number].signal(Signal::KILL);
        self.nodes[number].wait();
    }
}

impl ServerBuilder {
    /// A server with this broker as its log.
    pub fn nats(self, nats: &Nats) -> Self {
        self.nats_at(&nats.url())
    }

    /// A server with the broker at `url` as its log.
    pub fn nats_at(self, url: &str) -> Self {
        self.set("room_log.engine", "nats").set("nats.url", url)
    }
}

fn free_port() -> u16 {
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    probe.local_addr().unwrap().port()
}

fn run(file: &Path, within: Option<&(String, Ipv4Addr)>) -> Child {
    let mut command = match within {
        None => Command::new(program()),
        Some((namespace, _)) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(program());
            command
        }
    };
    command.arg("-c").arg(file).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().unwrap()
}

fn program() -> PathBuf {
    let paths = std::env::var("PATH").unwrap_or_default();
    let paths = std::env::split_paths(&paths).chain([PathBuf::from("/usr/sbin")]);
    let found = paths.map(|folder| folder.join("nats-server")).find(|path| path.exists());
    found.expect("nats-server is not installed: run .ci/setup")
}
