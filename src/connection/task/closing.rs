//! Closing: our close frame behind what has to come first, and giving up.

use std::time::Duration;

use bytes::Bytes;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;

use super::end::End;
use super::wire::Wire;
use super::{Connection, Stage};
use crate::close::Close;
use crate::protocol::frame;
use crate::telemetry::metrics::LadderStep;

/// How long a close frame of ours waits for its answer, outside the shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl Connection {
    /// Puts our close frame behind what the connection has to get first, and reads on.
    pub(super) fn close(&mut self, close: Close, now: u64) {
        let queue = self.handle().queue.clone();
        if close == Close::ShuttingDown {
            if let Some(session) = &mut self.session {
                session.undo_joins();
                session.settle_held();
            }
            queue.take_lane(&mut self.batch);
            self.registered.set_closing();
        } else {
            // The notice of a shutdown that begins meanwhile is not worth a wait.
            queue.take_lane(&mut self.batch);
            self.set_close_deadline(now);
        }
        self.end_of_queue();
        if self.deaf {
            self.batch.push_own(frame::close_frame(close));
        } else {
            let reason = CloseFrame { code: close.code().into(), reason: close.reason().into() };
            self.control.clear();
            let mut wire = Wire { input: &[], control: &mut self.control };
            let _ = self.ws.close(&mut wire, Some(reason));
            self.batch.push_own(Bytes::from(std::mem::take(&mut self.control)));
        }
        self.stage = Stage::Closing(close);
    }

    pub(super) fn slow(&mut self, now: u64) {
        let dropped = self.batch.drop_rest();
        if let Some(tally) = self.registered.registry().tally_if_stopping() {
            tally.dropped(dropped);
        }
        self.services.metrics.ladder_steps.get(LadderStep::Closed).inc();
        self.close(Close::SlowConsumer, now);
    }

    /// Drops what still waits; from now on nothing is queued for this connection.
    pub(super) fn end_of_queue(&self) {
        let dropped = self.handle().queue.close();
        if let Some(tally) = self.registered.registry().tally_if_stopping() {
            tally.dropped(dropped);
        }
    }

    pub(super) fn set_close_deadline(&mut self, now: u64) {
        let deadline = now + u64::try_from(CLOSE_TIMEOUT.as_millis()).unwrap_or(0);
        self.close_deadline = Some(deadline);
        self.handle().wake_at(deadline);
    }

    /// Gives the socket up: the kernel forgets what it holds of it.
    pub(super) fn give_up(&mut self, end: End) {
        self.handle().socket.reset_on_drop();
        self.end = Some(end);
    }
}
