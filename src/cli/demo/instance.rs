//! One server process of the demo: started, listened to, signalled, waited for.
//!
//! Its standard input is a socket to this process (supervised.rs), so that it says where it
//! listens, in every log format, and ends when this process does. It has a process group of
//! its own: a Ctrl-C in the terminal reaches it only through the supervisor.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hyper::http::{Method, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use crate::cli::http;
use crate::cli::supervised::Hello;

/// How long a server may take to bind its ports.
const START: Duration = Duration::from_secs(30);
/// How often a successor is asked whether it is ready.
const POLL: Duration = Duration::from_millis(20);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// The system did not start it.
    #[error("cannot start a server process: {0}")]
    Spawn(#[from] io::Error),
    /// It ended before it listened, and said why on stderr.
    #[error("the server process ended before it listened")]
    Ended(Option<ExitStatus>),
    /// It does not listen.
    #[error("the server process did not listen within {} s", START.as_secs())]
    Silent,
}

/// A server process; clones share it. It is killed when the runtime ends before it does.
#[derive(Debug, Clone)]
pub(super) struct Instance {
    pid: Option<u32>,
    signals: mpsc::UnboundedSender<Signal>,
    status: watch::Receiver<Option<ExitStatus>>,
}

impl Instance {
    /// Starts a process and returns its end of the control socket, to [`hello`] it.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn spawn(sets: &[String]) -> io::Result<(Self, UnixStream)> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--supervised"]);
        for set in sets {
            command.arg(set);
        }
        command.stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0).kill_on_drop(true);
        let child = command.spawn()?;
        // The command holds the other end of the socket as well.
        drop(command);
        let (signals, asked) = mpsc::unbounded_channel();
        let (ended, status) = watch::channel(None);
        let pid = child.id();
        tokio::spawn(keep(child, asked, ended));
        Ok((Self { pid, signals, status }, UnixStream::from_std(ours)?))
    }

    /// The process's id.
    pub(super) fn pid(&self) -> u32 {
        self.pid.unwrap_or_default()
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.status.borrow().is_some()
    }

    /// Sends a signal, unless it has ended.
    pub(super) fn signal(&self, signal: Signal) {
        // An error means that it has ended.
        let _ = self.signals.send(signal);
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) -> Option<ExitStatus> {
        let mut status = self.status.clone();
        status.wait_for(Option::is_some).await.ok().and_then(|status| *status)
    }
}

/// Owns the process: signals go only to one that has not been waited for, so never to
/// another that got its id.
async fn keep(
    mut child: Child,
    mut signals: mpsc::UnboundedReceiver<Signal>,
    ended: watch::Sender<Option<ExitStatus>>,
) {
    loop {
        tokio::select! {
            status = child.wait() => {
                match status {
                    Ok(status) => { ended.send_replace(Some(status)); }
                    Err(error) => tracing::error!(event = "demo.wait_failed", %error, "cannot wait for a server process"),
                }
                return;
            }
            Some(signal) = signals.recv() => {
                let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
                if let Some(pid) = pid.and_then(Pid::from_raw)
                    && let Err(error) = kill_process(pid, signal)
                {
                    tracing::warn!(event = "demo.signal_failed", %error, "cannot signal a server process");
                }
            }
        }
    }
}

/// Waits for what the server says of itself. The socket must be kept for as long as the
/// server is wanted.
///
/// # Errors
/// [`StartError`].
pub(super) async fn hello(
    instance: &Instance,
    socket: &mut BufReader<UnixStream>,
) -> Result<Hello, StartError> {
    let mut line = String::new();
    let read = tokio::time::timeout(START, socket.read_line(&mut line)).await;
    match read.map(|read| read.and_then(|_| Ok(serde_json::from_str(&line)?))) {
        Ok(Ok(hello)) => Ok(hello),
        Ok(Err(_)) => {
            instance.signal(Signal::TERM);
            Err(StartError::Ended(instance.ended().await))
        }
        Err(_) => {
            instance.signal(Signal::KILL);
            Err(StartError::Silent)
        }
    }
}

/// Returns when the server says that it is ready, or when it has ended.
pub(super) async fn ready(instance: &Instance, public: SocketAddr) -> bool {
    let url: Arc<str> = format!("{}/readyz", http::base_url(public)).into();
    let asked = async {
        loop {
            match http::send(Method::GET, &url, None).await {
                Ok(answer) if answer.status == StatusCode::OK => return true,
                _ => tokio::time::sleep(POLL).await,
            }
        }
    };
    tokio::select! {
        ready = asked => ready,
        _ = instance.ended() => false,
    }
}
