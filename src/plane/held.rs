//! What one connection holds while the plane is paused: raw frames in two deques, stamped
//! with one arrival number. Counts are their lengths; the flush is a two-way merge that
//! pops one item at a time, so that its caller can ask the gate again in between.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Plane;
use crate::outgoing::Queue;

/// A warning is logged for the first of a flood and every hundredth after it.
const EVERY: u64 = 100;

/// What a held frame takes besides its text, in bytes: its place in the deque, the
/// allocator's share, and its id among those in use. It counts, or a flood of tiny frames
/// would take several times the budget.
const OVERHEAD: usize = 128;

fn cost(text: &str) -> usize {
    text.len() + OVERHEAD
}

/// A held frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Item {
    /// A request: it is answered whatever happens.
    Request(Box<str>),
    /// A notification: the newest ones are kept.
    Notification(Box<str>),
}

/// What became of a frame that was to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It is held (a notification perhaps in the place of older ones).
    Held,
    /// The request is over a budget: answer it with `SERVER_BUSY`, which says how many of
    /// this connection's requests wait.
    Refused {
        /// Requests held.
        waiting: usize,
    },
    /// The notification itself had to go: there was no older one to give way.
    Dropped,
}

/// One connection's held frames. Dropping it gives everything back.
#[derive(Debug)]
pub struct Held {
    plane: Arc<Plane>,
    requests: VecDeque<(u64, Box<str>)>,
    notifications: VecDeque<(u64, Box<str>)>,
    arrivals: u64,
    bytes: usize,
    refused: u64,
    dropped: u64,
    /// How often the plane had opened when this began to wait for it to open.
    waits: Option<u64>,
}

impl Held {
    /// Nothing held.
    #[must_use]
    pub fn new(plane: Arc<Plane>) -> Self {
        Self {
            plane,
            requests: VecDeque::new(),
            notifications: VecDeque::new(),
            arrivals: 0,
            bytes: 0,
            refused: 0,
            dropped: 0,
            waits: None,
        }
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.notifications.is_empty()
    }

    /// Requests held.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Notifications held.
    #[must_use]
    pub fn notifications(&self) -> usize {
        self.notifications.len()
    }

    /// Bytes that what is held takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Asks to be woken when the plane opens.
    pub fn wait(&mut self, queue: &Arc<Queue>) {
        if self.waits.is_none() {
            self.waits = Some(self.plane.wait(queue));
        }
    }

    /// Whether the plane has opened since this began to wait, even if it is paused again.
    #[must_use]
    pub fn has_reopened(&self) -> bool {
        let openings = self.plane.openings.load(Ordering::Acquire);
        self.plane.is_open() || self.waits.is_some_and(|before| before != openings)
    }

    /// Whether another frame of up to `frame` bytes might not find room.
    #[must_use]
    pub fn is_full(&self, frame: usize) -> bool {
        let frame = frame + OVERHEAD;
        let budgets = &self.plane.budgets;
        self.requests.len() >= budgets.requests
            || self.notifications.len() >= budgets.notifications
            || self.bytes + frame > budgets.bytes_per_connection
            || self.plane.held_bytes.load(Ordering::Acquire) + frame > budgets.bytes
    }

    /// The arrival number of what was held last.
    #[must_use]
    pub fn last_arrival(&self) -> u64 {
        self.arrivals
    }

    /// Holds a request, if the budgets allow it.
    pub fn request(&mut self, text: &str, session_id: &str) -> Kept {
        let fits = self.requests.len() < self.plane.budgets.requests
            && self.bytes + cost(text) <= self.plane.budgets.bytes_per_connection
            && self.plane.take_bytes(cost(text));
        if !fits {
            let waiting = self.requests.len();
            self.refused += 1;
            self.plane.totals.refused.fetch_add(1, Ordering::Relaxed);
            if self.refused % EVERY == 1 {
                tracing::warn!(
                    event = "plane.refusing",
                    session_id,
                    refused = self.refused,
                    waiting = waiting as u64,
                    "plane: refusing requests"
                );
            }
            return Kept::Refused { waiting };
        }
        self.bytes += cost(text);
        self.plane.held_requests.fetch_add(1, Ordering::AcqRel);
        let arrival = self.arrive();
        self.requests.push_back((arrival, text.into()));
        Kept::Held
    }

    /// Holds a notification; the oldest ones give way to it.
    pub fn notification(&mut self, text: &str, session_id: &str) -> Kept {
        let budgets = self.plane.budgets;
        let mut fits = false;
        loop {
            if self.notifications.len() < budgets.notifications
                && self.bytes + cost(text) <= budgets.bytes_per_connection
                && self.plane.take_bytes(cost(text))
            {
                fits = true;
                break;
            }
            let Some((_, oldest)) = self.notifications.pop_front() else { break };
            self.give_back(&oldest);
            self.plane.held_notifications.fetch_sub(1, Ordering::AcqRel);
            self.count_dropped(session_id);
        }
        if !fits {
            self.count_dropped(session_id);
            return Kept::Dropped;
        }
        self.bytes += cost(text);
        self.plane.held_notifications.fetch_add(1, Ordering::AcqRel);
        let arrival = self.arrive();
        self.notifications.push_back((arrival, text.into()));
        Kept::Held
    }

    fn arrive(&mut self) -> u64 {
        self.plane.totals.held.fetch_add(1, Ordering::Relaxed);
        self.arrivals += 1;
        self.arrivals
    }

    fn count_dropped(&mut self, session_id: &str) {
        self.dropped += 1;
        self.plane.totals.dropped.fetch_add(1, Ordering::Relaxed);
        self.plane.metrics.held_notifications_dropped.inc();
        if self.dropped % EVERY == 1 {
            tracing::warn!(
                event = "plane.dropping",
                session_id,
                dropped = self.dropped,
                "plane: dropping notifications"
            );
        }
    }

    fn give_back(&mut self, text: &str) {
        self.bytes -= cost(text);
        self.plane.give_back_bytes(cost(text));
    }

    /// Takes out what arrived first.
    pub fn pop(&mut self) -> Option<Item> {
        let request_first = match (self.requests.front(), self.notifications.front()) {
            (Some((request, _)), Some((notification, _))) => request < notification,
            (request, _) => request.is_some(),
        };
        if request_first { self.pop_request() } else { self.pop_notification() }
    }

    /// Takes out the oldest request.
    pub fn pop_request(&mut self) -> Option<Item> {
        let (_, text) = self.requests.pop_front()?;
        self.give_back(&text);
        self.plane.held_requests.fetch_sub(1, Ordering::AcqRel);
        self.plane.totals.flushed.fetch_add(1, Ordering::Relaxed);
        self.plane.flushed_some();
        Some(Item::Request(text))
    }

    /// Takes out the requests that are not to be kept, in their order: they are answered
    /// without having been handled.
    pub fn take_requests(&mut self, keep: impl Fn(&str) -> bool) -> Vec<Box<str>> {
        let (kept, taken): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.requests).into_iter().partition(|(_, text)| keep(text));
        self.requests = kept;
        taken.into_iter().map(|(_, text)| self.refused_late(text)).collect()
    }

    /// Throws away the requests with these arrival numbers, which ascend.
    pub fn discard(&mut self, arrivals: &[u64]) {
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.requests)
            .into_iter()
            .partition(|(arrival, _)| arrivals.binary_search(arrival).is_ok());
        self.requests = kept;
        for (_, text) in gone {
            self.refused_late(text);
        }
    }

    fn refused_late(&mut self, text: Box<str>) -> Box<str> {
        self.give_back(&text);
        self.plane.held_requests.fetch_sub(1, Ordering::AcqRel);
        self.plane.totals.refused.fetch_add(1, Ordering::Relaxed);
        self.plane.flushed_some();
        text
    }

    fn pop_notification(&mut self) -> Option<Item> {
        let (_, text) = self.notifications.pop_front()?;
        self.give_back(&text);
        self.plane.held_notifications.fetch_sub(1, Ordering::AcqRel);
        self.plane.totals.flushed.fetch_add(1, Ordering::Relaxed);
        self.plane.flushed_some();
        Some(Item::Notification(text))
    }

    /// The pause is over: starts the counts again and says how many notifications were
    /// dropped in it.
    pub fn resumed(&mut self) -> u64 {
        self.waits = None;
        self.refused = 0;
        std::mem::take(&mut self.dropped)
    }

    /// Gives up what is held; returns how many notifications that loses.
    pub fn give_up(&mut self) -> usize {
        let notifications = self.notifications.len();
        let all = (self.requests.len() + notifications) as u64;
        self.plane.totals.dropped.fetch_add(all, Ordering::Relaxed);
        self.plane.metrics.held_notifications_dropped.inc_by(notifications as u64);
        self.plane.held_requests.fetch_sub(self.requests.len(), Ordering::AcqRel);
        self.plane.held_notifications.fetch_sub(notifications, Ordering::AcqRel);
        self.plane.give_back_bytes(self.bytes);
        self.bytes = 0;
        self.requests = VecDeque::new();
        self.notifications = VecDeque::new();
        self.plane.flushed_some();
        notifications
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ConnId;
    use crate::plane::{Budgets, Hold};
    use crate::telemetry::Metrics;
    use prometheus_client::metrics::counter::Counter;

    fn plane(budgets: Budgets) -> Arc<Plane> {
        Arc::new(Plane::new(budgets, Arc::new(Metrics::new(&Counter::default()))))
    }

    const SMALL: Budgets =
        Budgets { requests: 3, notifications: 2, bytes_per_connection: 10_000, bytes: 20_000 };

    /// A text that takes `bytes`.
    fn text(letter: &str, bytes: usize) -> String {
        letter.repeat(bytes - OVERHEAD)
    }

    fn texts(held: &mut Held) -> Vec<String> {
        std::iter::from_fn(|| held.pop())
            .map(|item| match item {
                Item::Request(text) | Item::Notification(text) => text.into(),
            })
            .collect()
    }

    #[test]
    fn counts_are_apart_and_the_order_is_one() {
        let mut held = Held::new(plane(SMALL));
        for (request, text) in
            [(true, "r1"), (false, "n1"), (true, "r2"), (false, "n2"), (false, "n3"), (true, "r3")]
        {
            let kept = if request { held.request(text, "s") } else { held.notification(text, "s") };
            assert_eq!(kept, Kept::Held, "{text}");
        }
        assert_eq!(held.request("r4", "s"), Kept::Refused { waiting: 3 });
        assert_eq!(texts(&mut held), ["r1", "r2", "n2", "n3", "r3"], "n1 gave way");
        assert_eq!(held.resumed(), 1);
        assert_eq!(held.resumed(), 0);
    }

    #[test]
    fn bytes_bound_a_connection_and_the_process() {
        let plane = plane(Budgets { requests: 100, notifications: 100, ..SMALL });
        let mut first = Held::new(plane.clone());
        assert_eq!(first.request(&text("x", 9000), "s"), Kept::Held);
        assert_eq!(first.request(&text("x", 1010), "s"), Kept::Refused { waiting: 1 });
        assert_eq!(first.notification(&text("n", 600), "s"), Kept::Held);
        assert_eq!(first.notification(&text("m", 600), "s"), Kept::Held, "n gave way");
        assert_eq!(first.notification(&text("o", 1010), "s"), Kept::Dropped);
        let mut second = Held::new(plane.clone());
        assert_eq!(second.request(&text("x", 10_000), "s"), Kept::Held);
        assert_eq!(second.bytes(), 10_000);
        let mut third = Held::new(plane.clone());
        assert_eq!(third.request(&text("x", 2000), "s"), Kept::Refused { waiting: 0 });
        drop(second);
        assert_eq!(third.request(&text("x", 2000), "s"), Kept::Held, "bytes were given back");
        drop((first, third));
        assert_eq!(plane.held(), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_hold_opens_the_plane_and_wakes_who_waits() {
        let plane = plane(SMALL);
        assert!(plane.hold(Hold::Operator, "maintenance"));
        assert!(!plane.hold(Hold::Operator, "longer maintenance"));
        assert!(plane.hold(Hold::Store, "disk full"));
        let queue = Arc::new(Queue::new(ConnId(1)));
        let mut held = Held::new(plane.clone());
        let seen = queue.signals();
        held.wait(&queue);
        assert!(plane.release(Hold::Operator));
        assert!(!plane.is_open());
        assert_eq!(queue.signals(), seen, "not woken yet");
        assert_eq!(plane.holds(), [(Hold::Store, "disk full".to_owned())]);
        assert!(plane.release(Hold::Store));
        assert!(!plane.release(Hold::Store));
        assert!(plane.is_open());
        assert_ne!(queue.signals(), seen, "woken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_follows_at_once_is_waited_for_too() {
        let plane = plane(SMALL);
        plane.hold(Hold::Operator, "first");
        let queue = Arc::new(Queue::new(ConnId(1)));
        let mut held = Held::new(plane.clone());
        for text in ["n1", "n2", "n3"] {
            held.notification(text, "s");
        }
        held.wait(&queue);
        assert!(!held.has_reopened());
        // The connection has no turn in between.
        plane.release(Hold::Operator);
        plane.hold(Hold::Operator, "second");
        assert!(held.has_reopened());
        assert_eq!(held.resumed(), 1, "the first pause's count ends with it");
        held.wait(&queue);
        assert!(!held.has_reopened());
        let seen = queue.signals();
        plane.release(Hold::Operator);
        assert_ne!(queue.signals(), seen, "woken by the second opening");
        assert_eq!(texts(&mut held), ["n2", "n3"]);
    }

    #[test]
    fn requests_are_taken_out_of_the_middle() {
        let plane = plane(Budgets { requests: 9, ..SMALL });
        let mut held = Held::new(plane.clone());
        let mut arrivals = Vec::new();
        for text in ["a1", "b1", "a2", "b2", "c1"] {
            held.request(text, "s");
            if text.starts_with('b') {
                arrivals.push(held.last_arrival());
            }
        }
        held.notification("n", "s");
        held.discard(&arrivals);
        assert_eq!(plane.held(), (3, 1, 7 + 4 * OVERHEAD));
        let taken = held.take_requests(|text| text == "a2");
        assert_eq!(taken.iter().map(|text| &**text).collect::<Vec<_>>(), ["a1", "c1"]);
        assert_eq!(texts(&mut held), ["a2", "n"]);
        assert_eq!(plane.held(), (0, 0, 0));
    }

    #[test]
    fn full_is_said_before_a_frame_has_no_room() {
        let plane = plane(SMALL);
        let mut held = Held::new(plane.clone());
        assert!(!held.is_full(10_000 - OVERHEAD));
        assert!(held.is_full(10_001 - OVERHEAD), "the connection's bytes");
        held.request(&text("x", 1000), "s");
        assert!(!held.is_full(9000 - OVERHEAD));
        let others = [10_000, 5000].map(|bytes| {
            let mut other = Held::new(plane.clone());
            other.request(&text("x", bytes), "s");
            other
        });
        assert!(!held.is_full(4000 - OVERHEAD));
        assert!(held.is_full(4001 - OVERHEAD), "the process's bytes");
        drop(others);
        held.notification("n", "s");
        held.notification("n", "s");
        assert!(held.is_full(1), "notifications");
        while held.pop().is_some() {}
        for _ in 0..3 {
            assert!(!held.is_full(1));
            held.request("r", "s");
        }
        assert!(held.is_full(1), "requests");
    }
}
