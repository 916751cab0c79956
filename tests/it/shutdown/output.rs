//! Nobody reads the log.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::peer::{Peer, notices};
use super::room_log_at;
use crate::harness::{PATIENCE, Server, raw};

/// A server whose stdout is a full pipe that nobody reads, and whose stderr is kept.
struct Mute {
    child: std::process::Child,
    address: std::net::SocketAddr,
    stdout: BufReader<ChildStdout>,
    dir: tempfile::TempDir,
}

impl Mute {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Server::builder()
            .command(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut address = None;
        let mut line = String::new();
        loop {
            line.clear();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "the log ended");
            let line: Value = serde_json::from_str(&line).unwrap();
            match line["event"].as_str() {
                Some("server.listening") => address = line["public"].as_str().map(str::to_owned),
                Some("server.ready") => break,
                _ => {}
            }
        }
        let address = address.unwrap().parse().unwrap();
        let this = Self { child, address, stdout, dir };
        this.fill();
        this
    }

    /// Connects and leaves until the pipe is full and stays so.
    fn fill(&self) {
        let deadline = Instant::now() + PATIENCE;
        let mut before = 0;
        loop {
            for _ in 0..50 {
                let mut stream = raw::connect(self.address);
                raw::upgrade(&mut stream, "/ws?clientId=passes-by");
            }
            let waiting = rustix::io::ioctl_fionread(self.stdout.get_ref()).unwrap();
            // Fifty clients bring more than the half that may be missing to the whole 64 KiB.
            if waiting > 32_000 && waiting == before {
                return;
            }
            before = waiting;
            assert!(Instant::now() < deadline, "the pipe does not fill: {waiting}");
        }
    }

    fn terminate(&self) -> Instant {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        Instant::now()
    }

    /// Waits for the end: exit code, time since `signalled`, and stderr.
    fn wait(&mut self, signalled: Instant) -> (Option<i32>, Duration, String) {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(signalled.elapsed() < PATIENCE, "the process hangs");
            std::thread::sleep(Duration::from_millis(2));
        };
        let took = signalled.elapsed();
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (status.code(), took, stderr)
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn messages(stderr: &str) -> Vec<String> {
    stderr
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|line| line["message"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn stdout_is_a_full_pipe_that_nobody_reads() {
    let mut server = Mute::start();
    let mut peer = Peer::connect_to(server.address, "a");
    peer.join("north");
    let signalled = server.terminate();
    assert_eq!(notices(&peer.leave_well()), 1);
    let (code, took, stderr) = server.wait(signalled);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(took <= super::BOUND, "{took:?}");
    assert_eq!(messages(&stderr), super::usual_lines(1), "{stderr}");
    let report: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
    super::assert_figures(&report, &[("drained", 1), ("acked", 1), ("exit_code", 0)]);
}

#[test]
fn a_full_pipe_and_a_store_that_hangs() {
    let mut server = Mute::start();
    let mut peer = Peer::connect_to(server.address, "a");
    peer.join("north");
    let held = room_log_at(server.dir.path());
    held.execute_batch("BEGIN EXCLUSIVE").unwrap();
    peer.send_bytes(&super::peer::notification("north", 1, 10)).unwrap();
    let signalled = server.terminate();
    assert_eq!(notices(&peer.leave_well()), 1);
    let (code, took, stderr) = server.wait(signalled);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(took <= super::BOUND, "{took:?}");
    let mut lines = super::usual_lines(1);
    lines[4] = "shutdown: force exit".to_owned();
    assert_eq!(messages(&stderr), lines, "{stderr}");
    let report: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
    super::assert_figures(&report, &[("acked", 1), ("exit_code", 1)]);
    assert_eq!(report["log_flushed"], false);
    drop(held);
}
