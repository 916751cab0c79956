//! The processes under load, and what the kernel says of them.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Failed;

const PATIENCE: Duration = Duration::from_secs(10);

/// A server in a process of its own.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
    pub name: &'static str,
    pub address: SocketAddr,
    _folder: Option<tempfile::TempDir>,
}

impl Process {
    /// `milepost serve` as in production, with a room log on disk; what would refuse a load
    /// that comes from one address and one sender at full speed is off.
    pub fn milepost(settings: &[&str]) -> Result<Self, Failed> {
        let folder = tempfile::tempdir()?;
        let log: PathBuf = folder.path().join("log.db");
        let mut command = Command::new(env!("CARGO_BIN_EXE_milepost"));
        command.arg("serve");
        for setting in [
            "server.listen=127.0.0.1:0",
            "admin.listen=127.0.0.1:0",
            "auth.mode=none",
            "limits.message_rate=0",
            "limits.handshake_rate=0",
            &format!("room_log.path={}", log.display()),
        ]
        .iter()
        .chain(settings)
        {
            command.args(["--set", setting]);
        }
        Self::start("milepost", command, Some(folder), |line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let listening = line["event"] == "server.listening";
            listening.then(|| line["public"].as_str()?.parse().ok()).flatten()
        })
    }

    /// The loop of [`super::raw`], whose events are `frame` bytes long.
    pub fn raw(frame: usize) -> Result<Self, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(format!("--raw={frame}"));
        Self::start("raw", command, None, |line| {
            Some(SocketAddr::from((Ipv4Addr::LOCALHOST, line.trim().parse().ok()?)))
        })
    }

    fn start(
        name: &'static str,
        mut command: Command,
        folder: Option<tempfile::TempDir>,
        address: impl Fn(&str) -> Option<SocketAddr>,
    ) -> Result<Self, Failed> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let address = loop {
            let mut line = String::new();
            if output.read_line(&mut line)? == 0 {
                return Err(format!("{name} did not start").into());
            }
            if let Some(address) = address(&line) {
                break address;
            }
        };
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let kept = lines.clone();
        // Only the shutdown's lines are kept, but all are read, as a collector of logs would.
        let reader = std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if line.contains("\"shutdown.") {
                    kept.lock().push(line);
                }
            }
        });
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, lines, reader: Some(reader), name, address, _folder: folder })
    }

    /// CPU time used until now by all its threads, what the kernel does for it included.
    pub fn cpu(&self) -> Result<Duration, Failed> {
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let stat = std::fs::read_to_string(task?.path().join("schedstat"))?;
            nanos += stat.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Private memory in bytes: what the process costs the machine (kernel memory aside).
    pub fn memory(&self) -> Result<u64, Failed> {
        let path = format!("/proc/{}/smaps_rollup", self.child.id());
        let rollup = std::fs::read_to_string(path)?;
        let kilobytes = rollup
            .lines()
            .filter(|line| line.starts_with("Private_"))
            .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        Ok(kilobytes.sum::<u64>() * 1024)
    }

    /// Tells it to stop: a SIGTERM, or the end of its input for the raw loop.
    pub fn stop(&mut self) -> Result<(), Failed> {
        if self.name == "raw" {
            self.stdin = None;
        } else {
            let pid = i32::try_from(self.child.id())?;
            let pid = rustix::process::Pid::from_raw(pid).ok_or("no pid")?;
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        Ok(())
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Result<bool, Failed> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// A number in the last line of the log that has it.
    pub fn logged(&mut self, field: &str) -> Option<f64> {
        if let Some(reader) = self.reader.take() {
            // It ends with the process.
            let _ = reader.join();
        }
        let lines = self.lines.lock();
        let mut found = lines.iter().rev().filter_map(|line| {
            serde_json::from_str::<serde_json::Value>(line).ok()?.get(field)?.as_f64()
        });
        found.next()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let start = Instant::now();
        let _ = self.stop();
        while start.elapsed() < PATIENCE && matches!(self.ended(), Ok(false)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
