//! A TCP load balancer in front of several servers: haproxy as a child process, steered
//! through its runtime socket, with the servers' own readiness as its health check.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// The places for servers; more than a deploy ever has at once.
const SLOTS: usize = 8;

/// A running haproxy. It is killed when this is dropped.
pub struct Balancer {
    child: Child,
    /// Where clients connect.
    pub public: SocketAddr,
    socket: PathBuf,
    _dir: tempfile::TempDir,
    taken: [Option<SocketAddr>; SLOTS],
}

impl Balancer {
    /// A balancer without servers.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("haproxy.sock");
        let file = dir.path().join("haproxy.cfg");
        // haproxy cannot report a port that it chose itself: try until a free one holds.
        for _ in 0..10 {
            let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let public = probe.local_addr().unwrap();
            drop(probe);
            std::fs::write(&file, configuration(public, &socket)).unwrap();
            let mut child = Command::new(program())
                .arg("-q")
                .arg("-db")
                .arg("-f")
                .arg(&file)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let deadline = Instant::now() + PATIENCE;
            while child.try_wait().unwrap().is_none() {
                if UnixStream::connect(&socket).is_ok() {
                    return Self { child, public, socket, _dir: dir, taken: [None; SLOTS] };
                }
                assert!(Instant::now() < deadline, "haproxy did not open its socket");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        panic!("haproxy did not start: {}", file.display());
    }

    /// Takes a server in and waits until its health check has passed.
    pub fn add(&mut self, server: SocketAddr) {
        let slot = self.taken.iter().position(Option::is_none).unwrap();
        self.taken[slot] = Some(server);
        let name = format!("fleet/s{}", slot + 1);
        self.tell(&format!("set server {name} addr {} port {}", server.ip(), server.port()));
        self.tell(&format!("set server {name} state ready"));
        self.tell(&format!("enable health {name}"));
        let deadline = Instant::now() + PATIENCE;
        while !self.is_up(slot) {
            assert!(Instant::now() < deadline, "{}", self.tell("show servers state fleet"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Forgets a server; its connections go on.
    pub fn remove(&mut self, server: SocketAddr) {
        let slot = self.taken.iter().position(|taken| *taken == Some(server)).unwrap();
        self.taken[slot] = None;
        self.tell(&format!("set server fleet/s{} state maint", slot + 1));
    }

    /// Whether haproxy sends new connections to it: operational state 2 ("running") in the
    /// sixth column of `show servers state`.
    fn is_up(&self, slot: usize) -> bool {
        let name = format!("s{}", slot + 1);
        let states = self.tell("show servers state fleet");
        let line = states.lines().find(|line| line.split(' ').nth(3) == Some(&name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {states}"));
        line.split(' ').nth(5) == Some("2")
    }

    fn tell(&self, command: &str) -> String {
        let mut socket = UnixStream::connect(&self.socket).unwrap();
        socket.write_all(format!("{command}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(!answer.contains("Unknown") && !answer.contains("No such"), "{command}: {answer}");
        answer
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> PathBuf {
    let paths = std::env::var("PATH").unwrap_or_default();
    let paths = std::env::split_paths(&paths).chain([PathBuf::from("/usr/sbin")]);
    let found = paths.map(|folder| folder.join("haproxy")).find(|path| path.exists());
    found.expect("haproxy is not installed: run .ci/setup")
}

fn configuration(public: SocketAddr, socket: &Path) -> String {
    format!(
        "global
  stats socket {socket} level admin
  stats timeout 1m
  maxconn 4000
defaults
  mode tcp
  timeout connect 1s
  timeout client 2m
  timeout server 2m
  retries 3
  option redispatch 1
listen fleet
  bind {public}
  balance leastconn
  option httpchk GET /readyz
  default-server check inter 200ms fastinter 100ms downinter 100ms fall 1 rise 1
  server-template s 1-{SLOTS} 127.0.0.1:1 check disabled
",
        socket = socket.display()
    )
}
