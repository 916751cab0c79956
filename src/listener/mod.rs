//! The public port: accepts, shakes hands, and hands over to a connection task.
//!
//! It goes on accepting through the shutdown's first phase, only to refuse: what waits in
//! the kernel's accept queue gets an answer, and what is half-way through its handshake at
//! the phase's end is taken back from the HTTP library and refused too.

mod front;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Notify;

pub use front::{Body, Front, Origins, Pages, error, json, text};

use crate::connection::Connection;
use crate::phase::Phase;
use crate::telemetry::events::HandshakeRefused;
use crate::telemetry::metrics::RefusedBecause;
use crate::transport::Socket;
use front::{Accepted, raw_draining};

/// Connections that the kernel completes before they are accepted.
const BACKLOG: u32 = 4096;
/// The longest request head, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// The most header lines.
const MAX_HEADERS: usize = 64;
/// How long a refused client may go on sending before its socket is dropped.
const LINGER: Duration = Duration::from_secs(2);
/// After an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Binds the public port.
///
/// # Errors
/// The system's, with the address in the text.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let explain = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
    };
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(explain)?;
    socket.set_reuseaddr(true).map_err(explain)?;
    socket.bind(address).map_err(explain)?;
    socket.listen(BACKLOG).map_err(explain)
}

/// Handshakes that are not done, for the shutdown's early ends.
#[derive(Debug, Default)]
pub struct Handshakes {
    pending: AtomicUsize,
    changed: Notify,
}

impl Handshakes {
    /// How many there are.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Acquire)
    }

    /// Returns when there is none.
    pub async fn none(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.pending() == 0 {
                return;
            }
            changed.await;
        }
    }

    fn begin(self: &Arc<Self>) -> Pending {
        self.pending.fetch_add(1, Ordering::AcqRel);
        Pending(self.clone())
    }
}

struct Pending(Arc<Handshakes>);

impl Drop for Pending {
    fn drop(&mut self) {
        if self.0.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.changed.notify_waiters();
        }
    }
}

/// The public port, bound.
pub struct Listener {
    /// Where it listens.
    pub socket: TcpListener,
    /// The rules.
    pub front: Arc<Front>,
    /// `limits.handshake_timeout`.
    pub handshake_timeout: Duration,
    /// `outgoing.kernel_buffer`, in bytes.
    pub kernel_buffer: usize,
    /// Counts handshakes.
    pub handshakes: Arc<Handshakes>,
}

impl Listener {
    /// Accepts until the end of the shutdown's first phase.
    pub async fn run(self) {
        let this = Arc::new(self);
        let mut phase = this.front.services.phase.clone();
        loop {
            tokio::select! {
                biased;
                () = phase.reached(Phase::Notify) => break,
                accepted = this.socket.accept() => this.accepted(accepted).await,
            }
        }
        // What the kernel has completed already is not left to a reset.
        while let Some(accepted) = ready(this.socket.accept()).await {
            if accepted.is_err() {
                break;
            }
            this.accepted(accepted).await;
        }
    }

    async fn accepted(self: &Arc<Self>, accepted: io::Result<(tokio::net::TcpStream, SocketAddr)>) {
        match accepted {
            Ok((stream, _)) => {
                let pending = self.handshakes.begin();
                // An error means that the peer is gone already.
                if let Ok(socket) = Socket::new(stream, self.kernel_buffer) {
                    tokio::spawn(self.clone().shake_hands(socket, pending));
                }
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(event = "server.accept_failed", error = %error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    async fn shake_hands(self: Arc<Self>, socket: Socket, pending: Pending) {
        let accepted: Arc<Mutex<Option<Accepted>>> = Arc::default();
        let pending = Arc::new(Mutex::new(Some(pending)));
        let service = service_fn({
            let (this, accepted, socket) = (self.clone(), accepted.clone(), socket.clone());
            let pending = pending.clone();
            move |request| {
                let (response, upgraded) = this.front.respond(&socket, request);
                if upgraded.is_none() && !this.front.services.phase.get().refuses_upgrades() {
                    // A prober that keeps its connection is no pending handshake.
                    pending.lock().take();
                }
                *accepted.lock() = upgraded;
                std::future::ready(Ok::<_, Infallible>(response))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.handshake_timeout)
            // Who has sent its whole request and says so still gets its answer.
            .half_close(true)
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .serve_connection(TokioIo::new(socket.clone()), service)
            .with_upgrades();
        let mut phase = self.front.services.phase.clone();
        let over = {
            // Boxed, so that it is freed before the connection task exists.
            let mut connection = Box::pin(connection);
            tokio::select! {
                biased;
                result = connection.as_mut() => {
                    if result.is_err_and(|error| error.is_timeout()) {
                        HandshakeRefused {
                            reason: RefusedBecause::Timeout,
                            status: 408,
                            peer: &socket.peer(),
                        }
                        .emit(&self.front.services.metrics);
                    }
                    false
                }
                () = phase.reached(Phase::Notify) => true,
            }
        };
        if over {
            refuse_half_way(&socket).await;
            return;
        }
        let Some(accepted) = accepted.lock().take() else { return };
        self.hand_over(accepted).await;
        drop(pending);
    }

    async fn hand_over(&self, accepted: Accepted) {
        let Accepted { registered, entry, address, on_upgrade } = accepted;
        // Resolved already: the response has been written.
        let Ok(upgraded) = on_upgrade.await else { return };
        let Ok(parts) = upgraded.downcast::<TokioIo<Socket>>() else { return };
        let services = self.front.services.clone();
        let connection = Connection::new(registered, services, entry, address, &parts.read_buf);
        tokio::spawn(connection);
    }
}

/// Polls once.
async fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(future);
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match future.as_mut().poll(cx) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// Errors of accept(2) that concern the one connection only.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// Answers a handshake that is not complete, unless an answer has begun, and reads on so
/// that the answer is not destroyed by a reset.
async fn refuse_half_way(socket: &Socket) {
    let mut socket = socket.clone();
    if socket.written() == 0 && socket.write_all(&raw_draining()).await.is_err() {
        return;
    }
    socket.shutdown_write();
    let mut sink = [0; 1024];
    let read_on = async {
        while let Ok(read) = socket.read(&mut sink).await {
            if read == 0 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, read_on).await;
}
