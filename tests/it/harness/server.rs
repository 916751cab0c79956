//! The real binary as a child process with its own directory, ports and log.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::PATIENCE;

/// A server process. It is killed when this is dropped.
pub struct Server {
    child: Child,
    /// The public port.
    pub public: SocketAddr,
    /// The admin port.
    pub admin: SocketAddr,
    dir: tempfile::TempDir,
    log: Arc<Log>,
}

/// How a server process ended.
#[derive(Debug)]
pub struct Exit {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// When it was seen to have ended.
    pub at: Instant,
}

#[derive(Default)]
struct Log {
    lines: Mutex<(Vec<Value>, bool)>,
    more: Condvar,
}

/// Settings of a server to be started.
pub struct Builder {
    sets: Vec<String>,
    command: Option<(PathBuf, Vec<String>)>,
    dir: Option<tempfile::TempDir>,
    env: Vec<(String, String)>,
}

impl Builder {
    /// `--set key=value`
    pub fn set(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        self.sets.push(format!("{key}={value}"));
        self
    }

    /// An environment variable.
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Runs the server under another command, such as `ip netns exec NAME`.
    pub fn under(mut self, program: &str, args: &[&str]) -> Self {
        self.command = Some((program.into(), args.iter().map(|arg| (*arg).to_owned()).collect()));
        self
    }

    /// Uses the directory (and so the room log) of a server that has ended.
    pub fn dir(mut self, dir: tempfile::TempDir) -> Self {
        self.dir = Some(dir);
        self
    }

    /// The command line, without starting it; stdout and stderr are the caller's to set.
    pub fn command(&self, dir: &Path) -> Command {
        let binary = env!("CARGO_BIN_EXE_milepost");
        let mut command = match &self.command {
            None => Command::new(binary),
            Some((program, args)) => {
                let mut command = Command::new(program);
                command.args(args).arg(binary);
                command
            }
        };
        command.arg("serve").current_dir(dir).stdin(Stdio::null());
        // Settings of the tests themselves, or of whoever runs them, are none of the server's.
        for (key, _) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("MILEPOST_") {
                command.env_remove(key);
            }
        }
        for set in &self.sets {
            command.arg("--set").arg(set);
        }
        for (key, value) in &self.env {
            command.env(key, value);
        }
        command
    }

    /// Starts the server and waits until it is ready.
    pub fn start(self) -> Server {
        let server = self.spawn();
        server.wait_for("server.ready");
        server
    }

    /// Starts the server and waits only until its ports are open.
    pub fn spawn(mut self) -> Server {
        let dir = self.dir.take().unwrap_or_else(|| tempfile::tempdir().unwrap());
        let command = self.command(dir.path());
        Server::run(command, dir)
    }
}

impl Log {
    fn collect(&self, stdout: std::process::ChildStdout) {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { break };
            let value = serde_json::from_str(&line)
                .unwrap_or_else(|error| panic!("a log line is not JSON: {error}: {line}"));
            self.lines.lock().unwrap().0.push(value);
            self.more.notify_all();
        }
        self.lines.lock().unwrap().1 = true;
        self.more.notify_all();
    }

    fn wait_for(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.lines.lock().unwrap();
        loop {
            if let Some(line) = lines.0.iter().find(|line| wanted(line)) {
                return line.clone();
            }
            assert!(!lines.1, "the log ended before the line came: {:#?}", lines.0);
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the line did not come: {:#?}", lines.0);
            lines = self.more.wait_timeout(lines, left).unwrap().0;
        }
    }
}

impl Server {
    /// A server on free loopback ports, with `auth.mode = "none"` and its own directory.
    pub fn builder() -> Builder {
        Builder { sets: Vec::new(), command: None, dir: None, env: Vec::new() }
            .set("server.listen", "127.0.0.1:0")
            .set("admin.listen", "127.0.0.1:0")
            .set("auth.mode", "none")
    }

    /// A started server with the defaults of [`Server::builder`].
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// The WebSocket address for an identity.
    pub fn url(&self, client_id: &str) -> String {
        format!("ws://{}/ws?clientId={client_id}", self.public)
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal and returns when that was.
    pub fn signal(&self, signal: Signal) -> Instant {
        let at = Instant::now();
        kill_process(self.pid(), signal).unwrap();
        at
    }

    /// Sends SIGTERM and returns when that was.
    pub fn terminate(&self) -> Instant {
        self.signal(Signal::TERM)
    }

    /// Waits for the process to end.
    pub fn wait(&mut self) -> Exit {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // std has no wait with a limit; the exit is looked for often enough for the
            // 250 ms tolerance of the shutdown's bound.
            if let Some(status) = self.child.try_wait().unwrap() {
                return Exit { code: status.code(), at: Instant::now() };
            }
            assert!(Instant::now() < deadline, "the process did not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for a log line with this event and returns it.
    pub fn wait_for(&self, event: &str) -> Value {
        self.log.wait_for(|line| line["event"] == event)
    }

    /// Waits for a log line that satisfies `wanted`.
    pub fn wait_for_line(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        self.log.wait_for(wanted)
    }

    /// All log lines until now; all there will ever be once the process has ended.
    pub fn lines(&self) -> Vec<Value> {
        self.log.lines.lock().unwrap().0.clone()
    }

    /// All log lines of a process that has ended.
    pub fn all_lines(&self) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.log.lines.lock().unwrap();
        while !lines.1 {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the log did not end");
            lines = self.log.more.wait_timeout(lines, left).unwrap().0;
        }
        lines.0.clone()
    }

    /// The shutdown's lines of a process that has ended.
    pub fn shutdown_lines(&self) -> Vec<Value> {
        self.all_lines()
            .into_iter()
            .filter(|line| {
                line["event"].as_str().is_some_and(|event| event.starts_with("shutdown."))
            })
            .collect()
    }

    /// The messages of the shutdown's lines, in order.
    pub fn shutdown_messages(&self) -> Vec<String> {
        self.shutdown_lines()
            .iter()
            .map(|line| line["message"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The server's directory, for a successor; the process has ended or is killed.
    pub fn into_dir(mut self) -> tempfile::TempDir {
        let _ = self.child.kill();
        let _ = self.child.wait();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }

    /// The server's directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Runs any command that is a server and waits until its ports are open.
    pub fn run(mut command: Command, dir: tempfile::TempDir) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let log = Arc::new(Log::default());
        let stdout = child.stdout.take().unwrap();
        let collecting = log.clone();
        std::thread::spawn(move || collecting.collect(stdout));
        let listening = log.wait_for(|line| line["event"] == "server.listening");
        let port = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
        Self { child, public: port("public"), admin: port("admin"), dir, log }
    }
}
