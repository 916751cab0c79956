//! Puts the feeds' events in order where the server does not.
//!
//! A server before 2.9.16 gives an event its `seq` and republishes it in the publishing
//! client's own thread: with several publishers on a stream of one replica an event can be
//! overtaken on its way (nats-server 2.9.10 on two busy cores: one in 200, by up to 5 ms).
//! There, while more than one instance publishes, every event is held for a moment. What
//! comes later still makes its room start over: nothing is lost without a word. Each time
//! the moment gets longer, for starting over loads the broker, which makes it later still;
//! after a while without it gets shorter again.

use std::collections::BTreeMap;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::message::Event;

/// How long an event waits for those that it has overtaken, at least …
const HOLD: Duration = Duration::from_millis(20);
/// … and at most, on a broker that has far more to do than it can.
const LONGEST: Duration = Duration::from_millis(640);
/// After how long without one that came too late events wait half as long.
const CALM: Duration = Duration::from_secs(10);
/// How long after its last event an instance counts as a publisher.
const PUBLISHES: Duration = Duration::from_secs(60);
/// The first server that keeps the order.
const KEEPS_ORDER: [u64; 3] = [2, 9, 16];

/// Events on their way from the feeds to their rooms.
#[derive(Debug)]
pub(super) struct Order {
    needed: bool,
    hold: Duration,
    /// When the hold was changed, or the last event came too late.
    changed: Option<Instant>,
    publishers: FxHashMap<Box<str>, Instant>,
    held: BTreeMap<u64, (Instant, usize, Event)>,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            needed: false,
            hold: HOLD,
            changed: None,
            publishers: FxHashMap::default(),
            held: BTreeMap::new(),
        }
    }
}

impl Order {
    /// An event came although one after it had waited for it: they wait longer from now on.
    pub(super) fn too_late(&mut self, now: Instant) {
        // Those that were late together are one reason.
        if self.needed && self.changed.is_none_or(|at| now.duration_since(at) > self.hold) {
            self.hold = (self.hold * 2).min(LONGEST);
        }
        self.changed = Some(now);
    }

    /// Notes which server it is.
    pub(super) fn set_server(&mut self, version: &str, replicas: usize) {
        let mut parts = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
        let version = [(); 3].map(|()| parts.next().unwrap_or(0));
        self.needed = replicas == 1 && version < KEEPS_ORDER;
    }

    /// Takes an event in; gives it back if it need not wait.
    pub(super) fn take(&mut self, room: usize, event: Event, now: Instant) -> Option<Event> {
        if !self.needed {
            return Some(event);
        }
        match self.publishers.get_mut(&event.by) {
            Some(at) => *at = now,
            None => {
                self.publishers.retain(|_, at| now.duration_since(*at) < PUBLISHES);
                self.publishers.insert(event.by.clone(), now);
            }
        }
        if self.publishers.len() < 2 && self.held.is_empty() {
            return Some(event);
        }
        self.held.insert(event.seq, (now, room, event));
        None
    }

    /// When the next event has waited long enough.
    pub(super) fn due(&self) -> Option<Instant> {
        self.held.first_key_value().map(|(_, (since, ..))| *since + self.hold)
    }

    /// The next event that has waited long enough, in the stream's order.
    pub(super) fn next(&mut self, now: Instant) -> Option<(usize, Event)> {
        if self.hold > HOLD && self.changed.is_none_or(|at| now.duration_since(at) >= CALM) {
            self.hold /= 2;
            self.changed = Some(now);
        }
        if self.due()? > now {
            return None;
        }
        self.held.pop_first().map(|(_, (_, room, event))| (room, event))
    }

    /// All that wait, in the stream's order: something else puts them in order now.
    pub(super) fn all(&mut self) -> Vec<(usize, Event)> {
        let held = std::mem::take(&mut self.held);
        held.into_values().map(|(_, room, event)| (room, event)).collect()
    }

    /// Forgets the events of a room that is given up.
    pub(super) fn forget(&mut self, room: usize) {
        self.held.retain(|_, (_, of, _)| *of != room);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::VehicleId;
    use crate::room_log::nats::message::Kind;

    fn event(seq: u64, by: &str) -> Event {
        Event {
            kind: Kind::Live,
            vehicle: VehicleId::parse("v").unwrap(),
            seq,
            after: 0,
            id: "".into(),
            by: by.into(),
            stored_at: None,
            fix: None,
        }
    }

    #[test]
    fn an_overtaken_event_comes_first_and_one_publisher_never_waits() {
        let mut order = Order::default();
        order.set_server("2.9.10", 1);
        let start = Instant::now();
        assert!(order.take(0, event(1, "a"), start).is_some());
        assert!(order.take(0, event(4, "b"), start).is_none());
        let later = start + HOLD / 2;
        assert!(order.take(0, event(3, "a"), later).is_none());
        assert!(order.next(start + HOLD).is_none(), "3 has not waited long enough");
        let seqs = |order: &mut Order, now| {
            std::iter::from_fn(|| order.next(now)).map(|(_, e)| e.seq).collect::<Vec<_>>()
        };
        assert_eq!(seqs(&mut order, later + HOLD), [3, 4]);
        // Once the other one is silent nothing waits any more.
        let after = start + PUBLISHES * 2;
        assert!(order.take(0, event(5, "c"), after).is_some());
    }

    #[test]
    fn the_wait_grows_with_what_comes_too_late_and_shrinks_again() {
        let mut order = Order::default();
        order.set_server("2.9.10", 1);
        let start = Instant::now();
        for together in 0..5 {
            order.too_late(start + Duration::from_millis(together));
        }
        assert_eq!(order.hold, HOLD * 2);
        for late in 1..20 {
            order.too_late(start + LONGEST * 2 * late);
        }
        assert_eq!(order.hold, LONGEST);
        let mut now = start + LONGEST * 40;
        for _ in 0..10 {
            now += CALM;
            assert!(order.next(now).is_none());
        }
        assert_eq!(order.hold, HOLD);
    }

    #[test]
    fn servers_that_keep_the_order_are_trusted() {
        for (version, replicas) in [("2.9.16", 1), ("2.10.0-RC.1", 1), ("2.12.3", 1), ("2.9.10", 3)]
        {
            let mut order = Order::default();
            order.set_server(version, replicas);
            let now = Instant::now();
            assert!(order.take(0, event(2, "a"), now).is_some());
            assert!(order.take(0, event(1, "b"), now).is_some(), "{version}");
        }
    }
}
