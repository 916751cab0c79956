//! A TCP socket that is shared by its owner task and by whoever samples it, and that
//! counts what was written to it.
//!
//! Sharing lets a handshake that did not finish in time be taken back from the HTTP
//! library, and lets the drain sample the kernel's queue without waking the owner.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::kernel_queue;

#[derive(Debug)]
struct Inner {
    stream: TcpStream,
    written: AtomicU64,
    peer: SocketAddr,
}

/// A shared TCP socket.
#[derive(Debug, Clone)]
pub struct Socket(Arc<Inner>);

impl Socket {
    /// Takes an accepted stream: no delay, and at most about `kernel_buffer` bytes that
    /// the kernel has not sent yet (0: the system's default).
    ///
    /// # Errors
    /// When the peer is gone already.
    pub fn new(stream: TcpStream, kernel_buffer: usize) -> io::Result<Self> {
        let peer = stream.peer_addr()?;
        stream.set_nodelay(true)?;
        if kernel_buffer > 0 {
            cap_kernel_buffer(&stream, kernel_buffer)?;
        }
        Ok(Self(Arc::new(Inner { stream, written: AtomicU64::new(0), peer })))
    }

    /// The other end.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// Bytes written since accept.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    /// Bytes written that the peer's kernel has not acknowledged; 0 if that cannot be told.
    #[must_use]
    pub fn unacknowledged(&self) -> u64 {
        kernel_queue::unacknowledged(self.0.stream.as_fd()).unwrap_or(0)
    }

    /// Bytes written since accept that the peer's kernel has acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.written().saturating_sub(self.unacknowledged())
    }

    /// Makes the next drop of the last owner a reset: the kernel forgets what it holds.
    pub fn reset_on_drop(&self) {
        // Only best effort is wanted: the socket is given up anyway.
        let _ = socket2::SockRef::from(&self.0.stream).set_linger(Some(Duration::ZERO));
    }

    /// Ends the sending direction (FIN behind all that was written).
    pub fn shutdown_write(&self) {
        let _ = socket2::SockRef::from(&self.0.stream).shutdown(std::net::Shutdown::Write);
    }

    /// Reads what there is.
    pub fn poll_read_into(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.stream.poll_read_ready(cx))?;
            match self.0.stream.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    /// Writes as much of `slices` as the kernel takes.
    pub fn poll_write_slices(
        &self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.stream.poll_write_ready(cx))?;
            match self.0.stream.try_write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(written) => {
                    self.0.written.fetch_add(written as u64, Ordering::Relaxed);
                    return Poll::Ready(Ok(written));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// Bounds what is written and not sent yet. Not the send buffer as a whole: that would
/// bound what is on its way too, and with a delayed acknowledgement for every 64 KiB a
/// fast client gets no more than 1.6 MB/s.
#[cfg(target_os = "linux")]
fn cap_kernel_buffer(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(bytes)
}

/// Bounds what is written and not acknowledged yet.
#[cfg(not(target_os = "linux"))]
fn cap_kernel_buffer(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    socket2::SockRef::from(stream).set_send_buffer_size(bytes)
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(self.poll_read_into(cx, buf.initialize_unfilled()))?;
        buf.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_slices(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_slices(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shutdown_write();
        Poll::Ready(Ok(()))
    }
}
