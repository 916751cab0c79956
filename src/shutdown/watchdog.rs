//! Ends the process when everything else fails: a plain OS thread that needs neither the
//! runtime nor a lock nor a reader of the log.
//!
//! It hears of the signal through its own pipe, so a wedged runtime cannot keep it from
//! being armed.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{exit, pipe};

use crate::telemetry::nonblocking;
use crate::time::UnixMillis;

/// What the coordinator may take beyond its last deadline before the watchdog acts.
pub const MARGIN: Duration = Duration::from_millis(120);

/// Arms the watchdog without a signal (the admin port).
#[derive(Debug, Clone)]
pub struct Watchdog(Arc<UnixStream>);

impl Watchdog {
    /// Starts the thread. `budget` is the time from the signal to the last deadline; the
    /// process ends [`MARGIN`] after it with exit code 1.
    ///
    /// # Errors
    /// What the system says when there is no pipe or thread to be had.
    pub fn start(budget: Duration, instance_id: &str) -> io::Result<Self> {
        let (mut hears, says) = UnixStream::pair()?;
        pipe::register(SIGTERM, says.try_clone()?)?;
        pipe::register(SIGINT, says.try_clone()?)?;
        // Made now: when it is needed there may be no memory to be had.
        let line = line(budget, instance_id);
        thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
            let mut byte = [0];
            while hears.read(&mut byte).is_err() {}
            thread::sleep(budget + MARGIN);
            let stdout = io::stdout();
            if nonblocking::write(stdout.as_fd(), line.as_bytes()).is_err() {
                let _ = nonblocking::write(io::stderr().as_fd(), line.as_bytes());
            }
            exit(1);
        })?;
        Ok(Self(Arc::new(says)))
    }

    /// Starts its clock now.
    pub fn arm(&self) {
        // A full pipe means that it is armed already.
        let _ = (&*self.0).write(&[1]);
    }
}

fn line(budget: Duration, instance_id: &str) -> String {
    let elapsed = u64::try_from((budget + MARGIN).as_millis()).unwrap_or(u64::MAX);
    let deadline = u64::try_from(budget.as_millis()).unwrap_or(u64::MAX);
    let line = serde_json::json!({
        "timestamp": UnixMillis::now(),
        "level": "ERROR",
        "message": "shutdown: force exit",
        "target": "milepost::shutdown::watchdog",
        "service": "milepost",
        "version": env!("CARGO_PKG_VERSION"),
        "instance_id": instance_id,
        "event": "shutdown.force_exit",
        "phase": "force_exit",
        "elapsed_ms": elapsed,
        "deadline_ms": deadline,
        "reason": "the process did not end by itself; ended by the watchdog",
        "exit_code": 1,
    });
    format!("{line}\n")
}
