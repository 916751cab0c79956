//! What a connection has taken from its queue and not yet handed to the kernel.
//!
//! Whole frames in order; only the first can be partly written, which is the one place
//! where nothing else may be put in between.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// How many frames one system call takes.
const MAX_SLICES: usize = 128;

/// Frames on their way into the socket.
#[derive(Debug, Default)]
pub struct Batch {
    frames: VecDeque<Bytes>,
    bytes: usize,
    front_started: bool,
    fed: u64,
}

impl Batch {
    /// Adds a whole frame.
    pub fn push(&mut self, frame: Bytes) {
        self.bytes += frame.len();
        self.fed += frame.len() as u64;
        self.frames.push_back(frame);
    }

    /// Frames not wholly written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether everything is written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Bytes not yet written.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All bytes ever pushed.
    #[must_use]
    pub fn fed(&self) -> u64 {
        self.fed
    }

    /// Fills `slices` with what is to be written next; returns how many are filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut filled = 0;
        for (slice, frame) in slices.iter_mut().zip(&self.frames) {
            *slice = IoSlice::new(frame);
            filled += 1;
        }
        filled
    }

    /// An array for [`Batch::slices`].
    #[must_use]
    pub fn empty_slices<'a>() -> [IoSlice<'a>; MAX_SLICES] {
        [IoSlice::new(&[]); MAX_SLICES]
    }

    /// Takes note that `written` bytes have left; returns how many frames that finished.
    pub fn advance(&mut self, mut written: usize) -> usize {
        self.bytes -= written;
        let mut finished = 0;
        while written > 0 {
            let Some(front) = self.frames.front_mut() else { break };
            if written >= front.len() {
                written -= front.len();
                self.frames.pop_front();
                self.front_started = false;
                finished += 1;
            } else {
                front.advance(written);
                self.front_started = true;
                written = 0;
            }
        }
        if self.frames.is_empty() && self.frames.capacity() > 16 {
            // An idle connection holds no buffer.
            self.frames = VecDeque::new();
        }
        finished
    }

    /// Drops all frames but one in progress; returns the frames and bytes dropped.
    pub fn drop_rest(&mut self) -> (usize, usize) {
        let keep = usize::from(self.front_started);
        let dropped = self.frames.len() - keep;
        let bytes: usize = self.frames.drain(keep..).map(|frame| frame.len()).sum();
        self.bytes -= bytes;
        self.fed -= bytes as u64;
        (dropped, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_in_progress_is_finished_before_anything_else() {
        let mut batch = Batch::default();
        batch.push(Bytes::from_static(b"aaaa"));
        batch.push(Bytes::from_static(b"bb"));
        batch.push(Bytes::from_static(b"c"));
        assert_eq!(batch.advance(1), 0);
        assert_eq!(batch.drop_rest(), (2, 3));
        assert_eq!(batch.bytes(), 3);
        batch.push(Bytes::from_static(b"close"));
        let mut slices = Batch::empty_slices();
        let filled = batch.slices(&mut slices);
        let joined: Vec<u8> = slices[..filled].iter().flat_map(|s| s.to_vec()).collect();
        assert_eq!(joined, b"aaaclose");
        assert_eq!(batch.advance(8), 2);
        assert!(batch.is_empty());
        assert_eq!(batch.fed(), 9);
    }

    #[test]
    fn untouched_frames_are_all_droppable() {
        let mut batch = Batch::default();
        batch.push(Bytes::from_static(b"aaaa"));
        assert_eq!(batch.drop_rest(), (1, 4));
        assert!(batch.is_empty());
    }
}
