//! A nats-server of one's own for a test: a child process with JetStream on a free port
//! and a directory of its own. Included by path where it is needed, by the library's
//! tests and by the integration tests.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running server; it ends with this value.
pub struct NatsServer {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
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

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

impl NatsServer {
    /// Starts a server with JetStream.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts a server with these lines in its configuration.
    pub fn start_with(lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        loop {
            // Another process may take the port between the look and the bind.
            let port = free_port();
            let config = folder.path().join("nats.conf");
            let store = folder.path().join("store");
            let text = format!(
                "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\" }}\n{lines}\n",
                store.display()
            );
            std::fs::write(&config, text).unwrap();
            if let Some(child) = spawn(&config, port) {
                return Self { child, port, folder };
            }
        }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
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
        self.child = loop {
            if let Some(child) = spawn(&config, self.port) {
                break child;
            }
        };
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
fn spawn(config: &Path, port: u16) -> Option<Child> {
    let mut child = Command::new(program())
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
        if answers(port) {
            return Some(child);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a whole handshake succeeds; JetStream is up before the port is.
fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
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
