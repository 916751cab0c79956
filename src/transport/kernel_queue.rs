//! How much of what was written to a socket the peer's kernel has not acknowledged.
//!
//! The one place with `unsafe`: `ioctl(SIOCOUTQ)`, for which no safe wrapper exists in the
//! libraries used here (rustix 1.1 and nix 0.32 leave it to the caller).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes in the socket's send queue: sent and not acknowledged, or not sent (Linux,
/// tcp(7), `SIOCOUTQ`). The end-of-stream mark counts as one byte once it is queued.
///
/// # Errors
/// What the system call says, for instance on a socket that is not TCP.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for the borrow's lifetime, and TIOCOUTQ (the same
    // number as SIOCOUTQ) writes exactly one c_int to the address given, which outlives
    // the call.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, std::ptr::from_mut(&mut bytes)) };
    if result == 0 {
        Ok(u64::try_from(bytes).unwrap_or(0))
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Elsewhere the kernel's queue is not visible: what is written counts as arrived.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn unacknowledged(_socket: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(0)
}
