//! One upload: what its caller and the client's task tell each other, and its chunks.
//!
//! Knows no socket. An upload belongs to the session that has its first frame, and is
//! never sent again by itself (plane.md, "Classes").

use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::protocol::Kind;
use crate::protocol::client::MAX_CHUNK;

/// What of a frame is kept for `{"type":…,"id":…,"payload":{"positions":[…]}}`.
const ENVELOPE: usize = 128;

/// How far an upload is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Standing {
    /// The longest frame of the session that has its beginning, in bytes.
    pub(super) max_frame: Option<usize>,
    /// Chunks that are in the log.
    pub(super) committed: u64,
}

/// The task's side.
#[derive(Debug)]
pub(super) struct Upload {
    standing: watch::Sender<Standing>,
    turn: OwnedSemaphorePermit,
}

impl Upload {
    pub(super) fn new(turn: OwnedSemaphorePermit) -> (Self, watch::Receiver<Standing>) {
        let (standing, seen) = watch::channel(Standing::default());
        (Self { standing, turn }, seen)
    }

    pub(super) fn begun(&self, max_frame: usize) {
        self.standing.send_modify(|standing| standing.max_frame = Some(max_frame));
    }

    pub(super) fn committed(&self) {
        self.standing.send_modify(|standing| standing.committed += 1);
    }

    /// Whether something of it is in the log for certain.
    pub(super) fn has_run(&self) -> bool {
        self.standing.borrow().committed > 0
    }

    /// The turn, to be kept until the server is done with the upload.
    pub(super) fn into_turn(self) -> OwnedSemaphorePermit {
        self.turn
    }
}

/// A frame of the upload that began as `wire`.
pub(super) fn frame(kind: Kind, wire: i64, payload: &str) -> String {
    format!("{{\"type\":\"{}\",\"id\":{wire},\"payload\":{payload}}}", kind.name())
}

/// The positions of the next chunk.
#[derive(Debug)]
pub(super) struct Chunk {
    text: String,
    positions: usize,
    max: usize,
}

impl Chunk {
    /// An empty one for frames of at most `max_frame` bytes.
    pub(super) const fn new(max_frame: usize) -> Self {
        Self { text: String::new(), positions: 0, max: max_frame.saturating_sub(ENVELOPE) }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.positions == 0
    }

    /// Takes one more position; `false` if it has to wait for the next chunk.
    pub(super) fn push(&mut self, position: &str) -> bool {
        if self.positions == MAX_CHUNK || self.text.len() + 1 + position.len() > self.max {
            return false;
        }
        if self.positions > 0 {
            self.text.push(',');
        }
        self.text.push_str(position);
        self.positions += 1;
        true
    }

    /// The payload of what is in it; empty afterwards.
    pub(super) fn take(&mut self) -> String {
        self.positions = 0;
        format!("{{\"positions\":[{}]}}", std::mem::take(&mut self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_hold_500_positions_and_fit_their_frame() {
        let mut chunk = Chunk::new(64 << 10);
        let mut taken = 0;
        while chunk.push("{}") {
            taken += 1;
        }
        assert_eq!(taken, 500);
        let payload: serde_json::Value = serde_json::from_str(&chunk.take()).unwrap();
        assert_eq!(payload["positions"].as_array().unwrap().len(), 500);
        assert!(chunk.is_empty());

        let long = format!("{{\"note\":\"{}\"}}", "x".repeat(500));
        while chunk.push(&long) {}
        let text = frame(Kind::BackfillChunk, i64::MIN, &chunk.take());
        assert!(text.len() <= 64 << 10, "{}", text.len());
        assert!(text.len() > (64 << 10) - 800, "{}", text.len());
        assert!(!Chunk::new(400).push(&long));
    }
}
