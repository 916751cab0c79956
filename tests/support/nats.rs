//! A nats-server of one's own for a test: a child process with JetStream on a free port
//! and a directory of its own. Included by path where it is needed, by the library's
//! tests and by the integration tests.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How often a start is tried.
const ATTEMPTS: usize = 20;

/// A running server; it ends with this value.
pub struct NatsServer {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
    options: Options,
}

/// What is out of the ordinary about a server.
#[derive(Default)]
pub struct Options {
    /// Further lines of its configuration.
    pub lines: String,
    /// Its port; 0: a free one.
    pub port: u16,
    /// Where it keeps its streams, if not in its own directory.
    pub store: Option<PathBuf>,
    /// The command that runs it, such as `ip netns exec NAME`, and the address under which
    /// it is reached then: it listens on all.
    pub under: Option<(Vec<String>, Ipv4Addr)>,
}

impl Options {
    fn address(&self) -> Ipv4Addr {
        self.under.as_ref().map_or(Ipv4Addr::LOCALHOST, |(_, address)| *address)
    }
}

/// The program; a test that needs it fails without it.
pub fn program() -> PathBuf {
    let places = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&places)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|place| place.join("nats-server"))
        .find(|path| path.is_file())
        .expect("nats-server is missing: run .ci/setup, which installs it")
}

pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

impl NatsServer {
    /// Starts a server with JetStream.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts a server with these lines in its configuration.
    pub fn start_with(lines: &str) -> Self {
        Self::start_as(Options { lines: lines.to_owned(), ..Options::default() })
    }

    /// Starts a server.
    pub fn start_as(options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = options.store.clone().unwrap_or_else(|| folder.path().join("store"));
        let listen = if options.under.is_some() { "0.0.0.0" } else { "127.0.0.1" };
        // Another process may take the port between the look and the bind.
        let started = (0..ATTEMPTS).find_map(|_| {
            let port = if options.port == 0 { free_port() } else { options.port };
            let text = format!(
                "listen: \"{listen}:{port}\"\njetstream {{ store_dir: \"{}\" }}\n{}\n",
                store.display(),
                options.lines
            );
            let config = folder.path().join("nats.conf");
            std::fs::write(&config, text).unwrap();
            Some((spawn(&config, port, &options)?, port))
        });
        let (child, port) = started.expect("nats-server does not start");
        Self { child, port, folder, options }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        self.url_at(self.options.address())
    }

    /// Where it listens, for those who reach it under another address.
    pub fn url_at(&self, address: Ipv4Addr) -> String {
        format!("nats://{address}:{}", self.port)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its directory: `store` holds the streams.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills it (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its port and directory.
    pub fn restart(&mut self) {
        self.kill();
        let config = self.folder.path().join("nats.conf");
        // The port may still be held by connections that end.
        let started = (0..ATTEMPTS).find_map(|_| spawn(&config, self.port, &self.options));
        self.child = started.expect("nats-server does not start again");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `None`: it ended instead of answering.
fn spawn(config: &Path, port: u16, options: &Options) -> Option<Child> {
    let mut command = match &options.under {
        None => Command::new(program()),
        Some((under, _)) => {
            let mut command = Command::new(&under[0]);
            command.args(&under[1..]).arg(program());
            command
        }
    };
    let mut child = command
        .arg("--config")
        .arg(config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    loop {
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        if answers(SocketAddr::from((options.address(), port))) {
            return Some(child);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a whole handshake succeeds; JetStream is up before the port is.
fn answers(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
    if stream.write_all(b"CONNECT {}\r\nPING\r\n").is_err() {
        return false;
    }
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    // A server that wants to know who asks refuses this one, which is an answer too.
    while !text.windows(4).any(|part| part == b"PONG" || part == b"-ERR") {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return false,
            Ok(read) => text.extend_from_slice(&buffer[..read]),
        }
    }
    true
}
