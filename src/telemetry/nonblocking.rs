//! Last words: a write that never waits for its reader, on any kind of descriptor.
//!
//! Setting `O_NONBLOCK` on a standard stream would change it for every process that
//! shares it (a shell's terminal), so the descriptor itself is left as it is.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc;
use std::time::Duration;

/// How long the last resort may take, in which a thread writes and may hang.
const LAST_RESORT: Duration = Duration::from_millis(50);

/// Writes what the other end takes at once and returns how much that was.
///
/// # Errors
/// What the system said; [`io::ErrorKind::WouldBlock`] if nothing was taken.
pub fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let own = fd.try_clone_to_owned()?;
    // A socket (journald hands one out) takes the flag for one call.
    let socket = socket2::Socket::from(own);
    match socket.send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => {}
        outcome => return outcome,
    }
    // A pipe, terminal or file: opened anew, it has flags of its own.
    let anew = OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    match anew {
        Ok(mut file) => some_of(&mut file, bytes),
        // A container's stream may belong to another user, or there is no /proc.
        Err(_) => aside(OwnedFd::from(socket), bytes),
    }
}

/// As much as goes: a pipe with little room refuses a whole line of up to 4 KiB but
/// takes a part of a longer text.
fn some_of(file: &mut File, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => break,
            Ok(n) => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if written > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Lets a thread do it, which stays behind if it hangs.
fn aside(fd: OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    let (sender, receiver) = mpsc::channel();
    let bytes = bytes.to_vec();
    std::thread::Builder::new().name("last-words".into()).spawn(move || {
        let _ = sender.send(File::from(fd).write_all(&bytes).map(|()| bytes.len()));
    })?;
    receiver.recv_timeout(LAST_RESORT).unwrap_or_else(|_| Err(io::ErrorKind::WouldBlock.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    #[test]
    fn a_full_pipe_is_left_alone() {
        let (mut reader, writer) = io::pipe().unwrap();
        assert_eq!(write(writer.as_fd(), b"one\n").unwrap(), 4);
        let taken = write(writer.as_fd(), &vec![b'x'; 1 << 20]).unwrap();
        assert!(taken > 0 && taken < 1 << 20, "{taken}");
        let error = write(writer.as_fd(), b"two\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(writer);
        let mut text = Vec::new();
        reader.read_to_end(&mut text).unwrap();
        assert_eq!(text.len(), 4 + taken);
    }

    #[test]
    fn a_full_socket_is_left_alone() {
        let (writer, _reader) = std::os::unix::net::UnixStream::pair().unwrap();
        while write(writer.as_fd(), &[b'x'; 65536]).is_ok() {}
        let error = write(writer.as_fd(), &[b'x'; 65536]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_last_resort_returns_too() {
        let (_reader, writer) = io::pipe().unwrap();
        let fd = writer.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(aside(fd, b"one\n").unwrap(), 4);
        let fd = writer.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(aside(fd, &vec![b'x'; 1 << 20]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_file_is_appended_to() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before\n").unwrap();
        assert_eq!(write(file.as_fd(), b"after\n").unwrap(), 6);
        let mut text = String::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before\nafter\n");
    }
}
