//! What a connection has taken from its queue and not yet handed to the kernel.
//!
//! Whole frames in order; only the first can be partly written, which is the one place
//! where nothing else may be put in between.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use super::queue::Backlog;

/// How many frames one system call takes.
const MAX_SLICES: usize = 128;

#[derive(Debug)]
struct Frame {
    bytes: Bytes,
    own: bool,
}

/// Frames on their way into the socket.
#[derive(Debug, Default)]
pub struct Batch {
    frames: VecDeque<Frame>,
    bytes: usize,
    front_started: bool,
    fed: u64,
}

impl Batch {
    /// Adds an event of a room.
    pub fn push(&mut self, frame: Bytes) {
        self.add(frame, false);
    }

    /// Adds a frame of the connection's own: an answer, control, a close.
    pub fn push_own(&mut self, frame: Bytes) {
        self.add(frame, true);
    }

    fn add(&mut self, bytes: Bytes, own: bool) {
        self.bytes += bytes.len();
        self.fed += bytes.len() as u64;
        self.frames.push_back(Frame { bytes, own });
    }

    /// Puts a frame ahead of all that wait, behind the one in progress (the notice).
    pub fn push_first(&mut self, frame: Bytes) {
        self.bytes += frame.len();
        self.fed += frame.len() as u64;
        let at = usize::from(self.front_started);
        self.frames.insert(at, Frame { bytes: frame, own: true });
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
            *slice = IoSlice::new(&frame.bytes);
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
            if written >= front.bytes.len() {
                written -= front.bytes.len();
                self.frames.pop_front();
                self.front_started = false;
                finished += 1;
            } else {
                front.bytes.advance(written);
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

    /// Drops all frames but the one in progress.
    pub fn drop_rest(&mut self) -> Backlog {
        self.retain(|_| false)
    }

    /// Drops the rooms' events, but for the frame in progress.
    pub fn drop_events(&mut self) -> Backlog {
        self.retain(|frame| frame.own)
    }

    /// The frames not wholly written, in order.
    #[cfg(test)]
    pub(crate) fn frames(&self) -> impl Iterator<Item = &Bytes> {
        self.frames.iter().map(|frame| &frame.bytes)
    }

    fn retain(&mut self, keep: impl Fn(&Frame) -> bool) -> Backlog {
        let mut dropped = Backlog::default();
        let mut in_progress = self.front_started;
        self.frames.retain(|frame| {
            let kept = std::mem::take(&mut in_progress) || keep(frame);
            if !kept {
                dropped.messages += 1;
                dropped.bytes += frame.bytes.len() as u64;
            }
            kept
        });
        self.bytes -= usize::try_from(dropped.bytes).unwrap_or(usize::MAX).min(self.bytes);
        self.fed -= dropped.bytes;
        dropped
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
        assert_eq!(batch.drop_rest(), Backlog { messages: 2, bytes: 3 });
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
    fn a_notice_goes_ahead_and_events_are_dropped_alone() {
        let mut batch = Batch::default();
        batch.push(Bytes::from_static(b"aaaa"));
        batch.push(Bytes::from_static(b"bb"));
        batch.push_own(Bytes::from_static(b"own"));
        batch.advance(1);
        batch.push_first(Bytes::from_static(b"notice"));
        assert_eq!(batch.drop_events(), Backlog { messages: 1, bytes: 2 });
        let mut slices = Batch::empty_slices();
        let filled = batch.slices(&mut slices);
        let joined: Vec<u8> = slices[..filled].iter().flat_map(|s| s.to_vec()).collect();
        assert_eq!(joined, b"aaanoticeown");
    }

    #[test]
    fn untouched_frames_are_all_droppable() {
        let mut batch = Batch::default();
        batch.push(Bytes::from_static(b"aaaa"));
        assert_eq!(batch.drop_rest(), Backlog { messages: 1, bytes: 4 });
        assert!(batch.is_empty());
    }
}
