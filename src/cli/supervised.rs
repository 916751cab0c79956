//! The server's end of a supervisor's control socket, which is its standard input
//! (`milepost serve --supervised`, a hidden option of `milepost demo`).
//!
//! The server says once, as a line of JSON, where it listens. When the other end is closed,
//! however the supervisor ended, the server stops as on SIGTERM: it never outlives it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

/// What the server says when its ports are bound; it may still have to wait for the room
/// log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The public port.
    pub(super) public: SocketAddr,
    /// The admin port.
    pub(super) admin: SocketAddr,
    /// The instance's id, as in its log and `/health`.
    pub(super) instance: Arc<str>,
}

/// Says `hello`, and stops the process when the supervisor is gone.
///
/// # Errors
/// The system's, when standard input is no socket.
pub(super) fn start(hello: &Hello) -> io::Result<()> {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut line = serde_json::to_vec(hello)?;
    line.push(b'\n');
    socket.write_all(&line)?;
    socket.set_nonblocking(true)?;
    let mut socket = tokio::net::UnixStream::from_std(socket)?;
    tokio::spawn(async move {
        // Nothing is ever sent: this ends with the supervisor.
        let _ = socket.read(&mut [0]).await;
        tracing::warn!(event = "server.supervisor_gone", "the supervisor has gone");
        if let Err(error) = signal_hook::low_level::raise(signal_hook::consts::SIGTERM) {
            tracing::error!(event = "server.supervisor_gone", %error, "cannot stop");
        }
    });
    Ok(())
}
