//! Admission of requests (plane.md, "Admission"): what is registered before anything runs
//! for it, so that a drain that starts in between still waits for it.
//!
//! A request is an [`Admitted`] from then on. It ends by being answered; if a handler
//! loses it, its drop answers `INTERNAL`. Only this module makes `SERVER_DRAINING`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use crate::outgoing::{Queue, Weight};
use crate::protocol::envelope::{Class, Envelope, RequestId};
use crate::protocol::error::{HandlerError, Refusal, WireError};
use crate::protocol::{Kind, frame, server};

/// Requests of all connections since the start, for the shutdown's report.
#[derive(Debug, Default)]
pub struct Totals {
    /// Admitted rpcs and uploads answered while draining.
    pub completed_draining: AtomicU64,
    /// Requests refused with `SERVER_DRAINING`.
    pub refused: AtomicU64,
}

/// The requests of one connection.
#[derive(Debug)]
pub struct Requests {
    queue: Arc<Queue>,
    totals: Arc<Totals>,
    draining: AtomicBool,
    /// Admitted rpcs and uploads without an answer. Subscriptions do not count.
    pending: AtomicUsize,
    /// Ids of requests that are answered later than in their own handler.
    open: Mutex<FxHashSet<RequestId>>,
}

impl Requests {
    /// No requests yet.
    #[must_use]
    pub fn new(queue: Arc<Queue>, totals: Arc<Totals>) -> Self {
        Self {
            queue,
            totals,
            draining: AtomicBool::new(false),
            pending: AtomicUsize::new(0),
            open: Mutex::default(),
        }
    }

    /// From now on new requests are refused.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether new requests are refused.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Admitted rpcs and uploads that have no answer yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Acquire)
    }

    /// Registers a request, or says why it is not started.
    ///
    /// # Errors
    /// [`NotAdmitted`]; nothing ran for the request and nothing was spent.
    pub fn admit(self: &Arc<Self>, envelope: &Envelope<'_>) -> Result<Admitted, NotAdmitted> {
        if let Some(id) = &envelope.id
            && self.open.lock().contains(id)
        {
            return Err(NotAdmitted::IdInUse);
        }
        // Count first, look second: a drain that begins in between waits for this one or
        // this one sees the drain.
        let counts = matches!(envelope.class(), Class::Rpc | Class::Upload);
        if counts {
            self.pending.fetch_add(1, Ordering::AcqRel);
        }
        if self.is_draining() {
            if counts {
                self.pending.fetch_sub(1, Ordering::AcqRel);
            }
            return Err(NotAdmitted::Draining);
        }
        Ok(Admitted {
            requests: self.clone(),
            id: envelope.id.clone(),
            kind: envelope.kind,
            counts,
            kept: false,
            answered: false,
        })
    }

    /// Takes an id for a request that is held; `false` if it is in use.
    #[must_use]
    pub fn reserve(&self, id: &RequestId) -> bool {
        self.open.lock().insert(id.clone())
    }

    /// Gives the id of a held request back, so that it can be admitted.
    pub fn release_id(&self, id: &RequestId) {
        self.open.lock().remove(id);
    }

    /// Refuses a request that did not start.
    pub fn refuse(&self, id: Option<&RequestId>, kind: Kind, room: Option<&str>) {
        self.totals.refused.fetch_add(1, Ordering::Relaxed);
        self.say_refused(Refusal::ServerDraining, id, kind, room);
    }

    /// Refuses a request that is over the plane's budget; `waiting` are held.
    pub fn busy(&self, waiting: usize, id: Option<&RequestId>, kind: Kind, room: Option<&str>) {
        self.say_refused(Refusal::ServerBusy { waiting }, id, kind, room);
    }

    fn say_refused(
        &self,
        refusal: Refusal,
        id: Option<&RequestId>,
        kind: Kind,
        room: Option<&str>,
    ) {
        let mut error = WireError::from(refusal);
        if let Some(room) = room {
            error = error.with_room(room);
        }
        let text = server::error(id, Some(kind.name()), &error, None);
        self.queue.push(frame::text_frame(&text), Weight::Free);
    }
}

/// Why a request was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The connection drains.
    Draining,
    /// A request with this id is still unanswered.
    IdInUse,
}

/// A request that was registered and will be answered exactly once.
#[derive(Debug)]
pub struct Admitted {
    requests: Arc<Requests>,
    id: Option<RequestId>,
    kind: Kind,
    counts: bool,
    kept: bool,
    answered: bool,
}

impl Admitted {
    /// The request's id.
    #[must_use]
    pub fn id(&self) -> Option<&RequestId> {
        self.id.as_ref()
    }

    /// Keeps the request open beyond its handler: its id stays in use until the answer.
    #[must_use]
    pub fn keep(mut self) -> Self {
        if let Some(id) = &self.id {
            self.kept = self.requests.open.lock().insert(id.clone());
        }
        self
    }

    /// The message that its error is about, where that is a later one of the request.
    #[must_use]
    pub fn of(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Hands the answer to the outgoing queue; the request is done then.
    pub fn answer(mut self, text: &str) {
        self.finish(text);
    }

    /// Answers with an error.
    pub fn fail(mut self, error: HandlerError, room: Option<&str>) {
        let error = match room {
            Some(room) => error.with_room(room),
            None => error,
        };
        let text = server::error(self.id(), Some(self.kind.name()), error.wire(), None);
        self.finish(&text);
    }

    /// Takes note that the answer has been put into the queue by someone else.
    pub fn answered_elsewhere(mut self) {
        self.release();
    }

    /// Undoes a subscription that still waits: it never started.
    pub fn undo(mut self, room: &str) {
        self.requests.refuse(self.id.as_ref(), self.kind, Some(room));
        self.release();
    }

    fn finish(&mut self, text: &str) {
        let weight = if self.counts { Weight::Counts } else { Weight::Free };
        self.requests.queue.push(frame::text_frame(text), weight);
        self.release();
    }

    fn release(&mut self) {
        self.answered = true;
        if self.kept
            && let Some(id) = &self.id
        {
            self.requests.open.lock().remove(id);
        }
        if self.counts {
            if self.requests.is_draining() {
                self.requests.totals.completed_draining.fetch_add(1, Ordering::Relaxed);
            }
            self.requests.pending.fetch_sub(1, Ordering::AcqRel);
            // The drain may wait for exactly this.
            self.requests.queue.wake();
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if !self.answered {
            // A handler lost it (or panicked): the client still gets its one answer.
            let error = HandlerError::internal();
            let text = server::error(self.id(), Some(self.kind.name()), error.wire(), None);
            self.finish(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ConnId;
    use crate::outgoing::Batch;

    fn requests() -> Arc<Requests> {
        let queue = Arc::new(Queue::new(ConnId(1)));
        Arc::new(Requests::new(queue, Arc::default()))
    }

    fn sent(requests: &Requests) -> Vec<String> {
        let mut batch = Batch::default();
        requests.queue.take(&mut batch, usize::MAX, &mut Vec::new()).unwrap();
        let mut texts = Vec::new();
        let mut slices = Batch::empty_slices();
        let filled = batch.slices(&mut slices);
        for slice in &slices[..filled] {
            let payload = slice.iter().position(|b| *b == b'{').unwrap();
            texts.push(String::from_utf8(slice[payload..].to_vec()).unwrap());
        }
        texts
    }

    fn envelope(text: &str) -> Envelope<'_> {
        Envelope::parse(text).unwrap()
    }

    const LEAVE: &str = r#"{"type":"leave_room","id":1,"payload":{"roomId":"a"}}"#;
    const JOIN: &str = r#"{"type":"join_room","id":2,"payload":{"roomId":"a"}}"#;

    #[test]
    fn a_lost_request_is_answered_internal_and_done() {
        let requests = requests();
        let admitted = requests.admit(&envelope(LEAVE)).unwrap();
        assert_eq!(requests.pending(), 1);
        drop(admitted);
        assert_eq!(requests.pending(), 0);
        assert!(sent(&requests)[0].contains("INTERNAL"));
    }

    #[test]
    fn an_id_is_in_use_until_its_answer() {
        let requests = requests();
        let kept = requests.admit(&envelope(LEAVE)).unwrap().keep();
        assert_eq!(requests.admit(&envelope(LEAVE)).err(), Some(NotAdmitted::IdInUse));
        kept.answer("{}");
        assert!(requests.admit(&envelope(LEAVE)).is_ok());
    }

    #[test]
    fn draining_refuses_and_counts_nothing() {
        let requests = requests();
        let before = requests.admit(&envelope(LEAVE)).unwrap();
        requests.drain();
        assert_eq!(requests.admit(&envelope(LEAVE)).err(), Some(NotAdmitted::Draining));
        assert_eq!(requests.pending(), 1, "only the admitted one is waited for");
        before.answer("{}");
        assert_eq!(requests.pending(), 0);
        assert_eq!(requests.totals.completed_draining.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn subscriptions_are_not_waited_for() {
        let requests = requests();
        let join = requests.admit(&envelope(JOIN)).unwrap();
        assert_eq!(requests.pending(), 0);
        join.undo("a");
        assert!(sent(&requests)[0].contains("SERVER_DRAINING"));
    }
}
