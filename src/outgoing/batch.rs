//! What a connection has taken from its queue and not yet handed to the kernel.
//!
//! Whole frames in order; only the first can be partly written, which is the one place
//! where nothing else may be put in between.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};

use super::queue::Backlog;

/// How many pieces one system call takes.
const MAX_SLICES: usize = 64;

/// Frames that follow each other in a room, joined once for all who get just these.
#[derive(Debug, Clone)]
pub struct Run {
    bytes: Bytes,
    /// Where each frame ends.
    ends: Arc<[u32]>,
}

impl Run {
    /// Joins `frames`, which are `bytes` long in all.
    pub fn join<'a>(frames: impl Iterator<Item = &'a Bytes>, bytes: usize) -> Self {
        let mut joined = BytesMut::with_capacity(bytes);
        let mut ends = Vec::new();
        for frame in frames {
            joined.extend_from_slice(frame);
            ends.push(u32::try_from(joined.len()).unwrap_or(u32::MAX));
        }
        Self { bytes: joined.freeze(), ends: ends.into() }
    }
}

/// What is not written of a frame, or of a run of frames.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    own: bool,
    ends: Option<Arc<[u32]>>,
}

impl Piece {
    fn one(bytes: Bytes, own: bool) -> Self {
        Self { bytes, own, ends: None }
    }

    /// The ends of the frames that are not wholly written, and how far the run is written.
    fn rest_of_run(&self) -> Option<(&[u32], u32)> {
        let ends = self.ends.as_deref()?;
        let written = ends.last()? - u32::try_from(self.bytes.len()).ok()?;
        Some((&ends[ends.partition_point(|&end| end <= written)..], written))
    }

    fn frames(&self) -> usize {
        self.rest_of_run().map_or(1, |(rest, _)| rest.len())
    }

    /// Takes the frame in progress off a run.
    fn split_first(&mut self) -> Option<Self> {
        let (rest, written) = self.rest_of_run()?;
        let (&first, rest) = rest.split_first()?;
        let rest: Arc<[u32]> = rest.iter().map(|end| end - first).collect();
        let len = usize::try_from(first - written).ok()?;
        self.ends = Some(rest);
        Some(Self::one(self.bytes.split_to(len), self.own))
    }
}

/// Frames on their way into the socket.
#[derive(Debug, Default)]
pub struct Batch {
    pieces: VecDeque<Piece>,
    frames: usize,
    bytes: usize,
    front_started: bool,
    fed: u64,
}

impl Batch {
    /// Adds an event of a room.
    pub fn push(&mut self, frame: Bytes) {
        self.add(Piece::one(frame, false), 1);
    }

    /// Adds events of a room that follow each other.
    pub fn push_run(&mut self, run: Run) {
        let frames = run.ends.len();
        self.add(Piece { bytes: run.bytes, own: false, ends: Some(run.ends) }, frames);
    }

    /// Adds a frame of the connection's own: an answer, control, a close.
    pub fn push_own(&mut self, frame: Bytes) {
        self.add(Piece::one(frame, true), 1);
    }

    fn add(&mut self, piece: Piece, frames: usize) {
        self.bytes += piece.bytes.len();
        self.fed += piece.bytes.len() as u64;
        self.frames += frames;
        self.pieces.push_back(piece);
    }

    /// Puts a frame ahead of all that wait, behind the one in progress (the notice).
    pub fn push_first(&mut self, frame: Bytes) {
        self.split_front();
        self.bytes += frame.len();
        self.fed += frame.len() as u64;
        self.frames += 1;
        let at = usize::from(self.front_started);
        self.pieces.insert(at, Piece::one(frame, true));
    }

    /// Makes the frame in progress, if there is one, a piece of its own.
    fn split_front(&mut self) {
        if self.front_started
            && let Some(front) = self.pieces.front_mut()
            && let Some(first) = front.split_first()
        {
            if front.bytes.is_empty() {
                self.pieces.pop_front();
            }
            self.pieces.push_front(first);
        }
    }

    /// Frames not wholly written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames
    }

    /// Whether everything is written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
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
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(&piece.bytes);
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
            let Some(front) = self.pieces.front_mut() else { break };
            let before = front.frames();
            if written >= front.bytes.len() {
                written -= front.bytes.len();
                self.pieces.pop_front();
                self.front_started = false;
                finished += before;
            } else {
                front.bytes.advance(written);
                written = 0;
                finished += before - front.frames();
                let ends = front.ends.as_deref().unwrap_or_default();
                let at = front.rest_of_run().map(|(_, at)| at);
                self.front_started = at.is_none_or(|at| ends.binary_search(&at).is_err());
            }
        }
        self.frames -= finished;
        if self.pieces.is_empty() && self.pieces.capacity() > 4 {
            // An idle connection holds no more than the least.
            self.pieces = VecDeque::new();
        }
        finished
    }

    /// Drops all frames but the one in progress.
    pub fn drop_rest(&mut self) -> Backlog {
        self.retain(|_| false)
    }

    /// Drops the rooms' events, but for the frame in progress.
    pub fn drop_events(&mut self) -> Backlog {
        self.retain(|piece| piece.own)
    }

    fn retain(&mut self, keep: impl Fn(&Piece) -> bool) -> Backlog {
        self.split_front();
        let mut dropped = Backlog::default();
        let mut in_progress = self.front_started;
        self.pieces.retain(|piece| {
            let kept = std::mem::take(&mut in_progress) || keep(piece);
            if !kept {
                dropped.messages += piece.frames() as u64;
                dropped.bytes += piece.bytes.len() as u64;
            }
            kept
        });
        self.frames -= usize::try_from(dropped.messages).unwrap_or(usize::MAX).min(self.frames);
        self.bytes -= usize::try_from(dropped.bytes).unwrap_or(usize::MAX).min(self.bytes);
        self.fed -= dropped.bytes;
        dropped
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;
    use crate::ids::{ConnId, RoomId};
    use crate::outgoing::{Events, Feed, Queue, Start};
    use crate::telemetry::Metrics;

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

    fn written(batch: &Batch) -> Vec<u8> {
        let mut slices = Batch::empty_slices();
        let filled = batch.slices(&mut slices);
        slices[..filled].iter().flat_map(|s| s.to_vec()).collect()
    }

    #[test]
    fn a_run_is_cut_between_its_frames_only() {
        let frames = [&b"aaaa"[..], b"bb", b"ccc"].map(Bytes::from_static);
        for taken in 0..9 {
            let mut batch = Batch::default();
            batch.push_run(Run::join(frames.iter(), 9));
            batch.push_own(Bytes::from_static(b"own"));
            assert_eq!((batch.len(), batch.bytes()), (4, 12));
            let finished = batch.advance(taken);
            assert_eq!(finished, [4, 6, 9].iter().filter(|&&end| end <= taken).count());
            assert_eq!(batch.len(), 4 - finished);
            batch.push_first(Bytes::from_static(b"N"));
            let end = [0, 4, 6, 9].into_iter().find(|&end| end >= taken).unwrap_or(9);
            let all = &b"aaaabbccc"[..];
            let want = [&all[taken..end], b"N", &all[end..], b"own"].concat();
            assert_eq!(written(&batch), want, "{taken} taken");
            let left = [0, 4, 6].iter().filter(|&&start| start >= end).count();
            let dropped = Backlog { messages: left as u64, bytes: (9 - end) as u64 };
            assert_eq!(batch.drop_events(), dropped, "{taken} taken");
            assert_eq!(written(&batch), [&all[taken..end], b"N", b"own"].concat());
            let rest = batch.bytes();
            assert_eq!(batch.advance(rest), batch_frames(taken, end) + 2);
            assert_eq!((batch.len(), batch.bytes()), (0, 0));
        }
    }

    fn batch_frames(taken: usize, end: usize) -> usize {
        usize::from(taken < end)
    }

    #[test]
    fn a_burst_is_joined_for_those_who_read_just_it() {
        let room = RoomId::parse("r").unwrap();
        let metrics = Arc::new(Metrics::new(&Counter::default()));
        let feed = Feed::new(room, "e".into(), 0, Vec::new(), 1 << 20, 1 << 16, metrics);
        let feed = Arc::new(feed);
        let queues: Vec<_> = (0..5).map(|n| Arc::new(Queue::new(ConnId(n)))).collect();
        feed.with(|state| {
            for queue in &queues {
                feed.subscribe(state, queue, Events::All, Start::Head, None);
            }
        });
        let append = |text: &'static str, sender| {
            let frame = Bytes::from_static(text.as_bytes());
            feed.with(|state| state.append_other(frame, Some(ConnId(sender)), &mut Vec::new()));
        };
        let take = |queue: &Queue| {
            let mut batch = Batch::default();
            queue.take(&mut batch, 1 << 16, &mut Vec::new()).unwrap();
            (batch.len(), batch.pieces.len(), String::from_utf8(written(&batch)).unwrap())
        };
        append("a", 9);
        append("bb", 0);
        append("ccc", 9);
        assert_eq!(take(&queues[1]), (3, 3, "abbccc".to_owned()));
        assert_eq!(take(&queues[2]), (3, 1, "abbccc".to_owned()));
        assert_eq!(take(&queues[0]), (2, 2, "accc".to_owned()), "its own is left out");
        assert_eq!(take(&queues[3]), (3, 1, "abbccc".to_owned()));
        append("d", 9);
        append("e", 9);
        assert_eq!(take(&queues[1]), (2, 2, "de".to_owned()));
        assert_eq!(take(&queues[4]), (5, 5, "abbcccde".to_owned()), "who lags is by himself");
        assert_eq!(take(&queues[2]), (2, 2, "de".to_owned()));
        assert_eq!(take(&queues[3]), (2, 1, "de".to_owned()));
        assert_eq!(take(&queues[0]), (2, 1, "de".to_owned()));
        assert!(queues.iter().all(|queue| queue.is_empty()));
    }
}
