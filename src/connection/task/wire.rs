//! The decoder's side of a socket: it reads from slices and writes into a buffer.

use std::io::{self, Read, Write};

/// Input for the decoder and what it wants to say.
pub(super) struct Wire<'i, 'c> {
    pub(super) input: &'i [u8],
    pub(super) control: &'c mut Vec<u8>,
}

impl Read for Wire<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.input.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.input.read(buf)
    }
}

impl Write for Wire<'_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.control.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
