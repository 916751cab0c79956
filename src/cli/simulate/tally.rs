//! What became of every position of a simulation: sent, acknowledged, refused, seen.
//!
//! Every position carries a mark with its number, so that what the observer sees can be
//! held against what was acknowledged. One byte a position.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::client::{Acked, Error, Refused};

/// The extra field that carries the mark.
pub(super) const MARK: &str = "sim";

const EXPECTED: u8 = 1;
const SEEN: u8 = 2;
const EXCUSED: u8 = 4;
/// Seen in a snapshot: not missing, but its event may still come.
const SHOWN: u8 = 8;

/// Counts of a running simulation.
pub(super) struct Tally {
    run: String,
    sent: AtomicU64,
    reconnects: AtomicU64,
    inner: Mutex<Inner>,
    all_seen: Notify,
}

#[derive(Default)]
struct Inner {
    positions: Vec<u8>,
    acknowledged: u64,
    late: u64,
    duplicates: u64,
    missing: u64,
    doubled: u64,
    dropped: u64,
    refused: BTreeMap<String, u64>,
    failed: BTreeMap<&'static str, u64>,
    latencies: Latencies,
}

/// A histogram of times: 32 buckets an octave, so a value is right within about 3 %.
struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { buckets: vec![0; 64 * 32], count: 0, max: 0 }
    }
}

impl Latencies {
    fn bucket(micros: u64) -> usize {
        let micros = micros.max(32);
        let octave = 63 - micros.leading_zeros();
        let within = (micros >> (octave - 5)) & 31;
        (octave as usize) * 32 + usize::try_from(within).unwrap_or(0)
    }

    fn add(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get_mut(Self::bucket(micros)) {
            *bucket += 1;
        }
        self.count += 1;
        self.max = self.max.max(micros);
    }

    /// The time that `percent` of a hundred stay within.
    fn percentile(&self, percent: u64) -> Duration {
        let mut left = (self.count * percent).div_ceil(100);
        for (index, bucket) in self.buckets.iter().enumerate() {
            if left <= *bucket {
                let (octave, within) = (index / 32, index as u64 % 32);
                let top = ((33 + within) << octave) >> 5;
                return Duration::from_micros(top.min(self.max));
            }
            left -= bucket;
        }
        Duration::from_micros(self.max)
    }
}

impl Tally {
    pub(super) fn new() -> Self {
        // Of this run only: another simulator may be in the same room.
        let run = format!("{:08x}", fastrand::u32(..));
        Self {
            run,
            sent: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            inner: Mutex::default(),
            all_seen: Notify::new(),
        }
    }

    /// The number of the next position.
    pub(super) fn send(&self) -> u64 {
        self.sent.fetch_add(1, Ordering::Relaxed)
    }

    /// The mark of a position, also its key.
    pub(super) fn mark(&self, number: u64) -> String {
        format!("{}-{number}", self.run)
    }

    pub(super) fn acknowledged(&self, number: u64, ack: &Acked, keyed: bool, took: Duration) {
        let mut inner = self.inner.lock();
        inner.acknowledged += 1;
        inner.late += u64::from(!ack.late.is_empty());
        inner.duplicates += u64::from(ack.duplicate);
        inner.latencies.add(took);
        // A late fix is never sent. Of a duplicate without a key it was the other one that
        // was sent; with a key it is this one, stored at an earlier try.
        if ack.late.is_empty() && (keyed || !ack.duplicate) {
            inner.set(number, EXPECTED);
        }
    }

    pub(super) fn refused(&self, refused: &Refused) {
        let name = match &refused.field {
            Some(field) => format!("{} {field}", refused.code),
            None => refused.code.clone(),
        };
        *self.inner.lock().refused.entry(name).or_default() += 1 + refused.suppressed;
    }

    pub(super) fn failed(&self, error: &Error) {
        let name = match error {
            Error::Busy { .. } => "SERVER_BUSY",
            Error::Draining => "SERVER_DRAINING",
            Error::UnknownOutcome => "unknown outcome",
            Error::Unauthorized { .. } => "unauthorized",
            _ => "not sent",
        };
        *self.inner.lock().failed.entry(name).or_default() += 1;
    }

    pub(super) fn reconnected(&self) {
        self.reconnects.fetch_add(1, Ordering::Relaxed);
    }

    /// The observer got a position as an event (or, with `again`, in a snapshot, which
    /// repeats what may have come before and, on a resume, what is about to come).
    pub(super) fn saw(&self, mark: &str, again: bool) {
        let Some((run, number)) = mark.split_once('-') else { return };
        let Some(number) = number.parse().ok().filter(|_| run == self.run) else { return };
        if number >= self.sent.load(Ordering::Relaxed) {
            return;
        }
        let mut inner = self.inner.lock();
        if !again && inner.get(number) & SEEN != 0 {
            inner.doubled += 1;
            return;
        }
        inner.set(number, if again { SHOWN } else { SEEN });
        if inner.missing == 0 {
            self.all_seen.notify_waiters();
        }
    }

    /// The observer was told that its view is reset: what it has not seen is no loss.
    pub(super) fn reset(&self) {
        let sent = self.sent.load(Ordering::Relaxed);
        let mut inner = self.inner.lock();
        for number in 0..sent {
            if inner.get(number) & SEEN == 0 {
                inner.set(number, EXCUSED);
            }
        }
    }

    /// The observer was told that it missed `count` positions.
    pub(super) fn dropped(&self, count: u64) {
        self.inner.lock().dropped += count;
    }

    /// How many acknowledged positions the observer has not seen.
    pub(super) fn missing(&self) -> u64 {
        let inner = self.inner.lock();
        inner.missing.saturating_sub(inner.dropped)
    }

    /// Waits until nothing is missing. May miss a moment: use with a deadline.
    pub(super) async fn seen_all(&self) {
        let notified = self.all_seen.notified();
        if self.missing() > 0 {
            notified.await;
        }
    }

    /// Sent and acknowledged so far.
    pub(super) fn so_far(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.inner.lock().acknowledged)
    }

    pub(super) fn summary(&self, observed: bool) -> Summary {
        let inner = self.inner.lock();
        let mut refused = inner.refused.clone();
        for (name, count) in &inner.failed {
            *refused.entry((*name).to_owned()).or_default() += count;
        }
        Summary {
            sent: self.sent.load(Ordering::Relaxed),
            acknowledged: inner.acknowledged,
            late: inner.late,
            duplicates: inner.duplicates,
            refused,
            p50: inner.latencies.percentile(50),
            p99: inner.latencies.percentile(99),
            max: Duration::from_micros(inner.latencies.max),
            reconnects: self.reconnects.load(Ordering::Relaxed),
            observed,
            dropped: inner.dropped,
            lost: if observed { inner.missing.saturating_sub(inner.dropped) } else { 0 },
            doubled: inner.doubled,
        }
    }
}

impl Inner {
    fn get(&self, number: u64) -> u8 {
        usize::try_from(number).ok().and_then(|at| self.positions.get(at)).copied().unwrap_or(0)
    }

    fn set(&mut self, number: u64, bits: u8) {
        let Ok(at) = usize::try_from(number) else { return };
        if self.positions.len() <= at {
            self.positions.resize(at + 1, 0);
        }
        let before = self.positions[at];
        let after = before | bits;
        self.positions[at] = after;
        let missing = |bits: u8| bits & (EXPECTED | SEEN | EXCUSED | SHOWN) == EXPECTED;
        match (missing(before), missing(after)) {
            (false, true) => self.missing += 1,
            (true, false) => self.missing -= 1,
            _ => {}
        }
    }
}

/// The final report.
pub(super) struct Summary {
    sent: u64,
    acknowledged: u64,
    late: u64,
    duplicates: u64,
    refused: BTreeMap<String, u64>,
    p50: Duration,
    p99: Duration,
    max: Duration,
    reconnects: u64,
    observed: bool,
    dropped: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
        writeln!(f, "sent          {}", self.sent)?;
        writeln!(
            f,
            "acknowledged  {} ({} late, {} duplicate)",
            self.acknowledged, self.late, self.duplicates
        )?;
        writeln!(f, "refused       {}", self.refused.values().sum::<u64>())?;
        for (name, count) in &self.refused {
            writeln!(f, "              {count} {name}")?;
        }
        writeln!(
            f,
            "latency       p50 {}, p99 {}, max {}",
            ms(self.p50),
            ms(self.p99),
            ms(self.max)
        )?;
        writeln!(f, "reconnects    {}", self.reconnects)?;
        if !self.observed {
            return write!(f, "lost, doubled not checked: the token may not subscribe");
        }
        if self.dropped > 0 {
            writeln!(f, "merged        {} while the observer was told that it lags", self.dropped)?;
        }
        writeln!(f, "lost          {}", self.lost)?;
        write!(f, "doubled       {}", self.doubled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(duplicate: bool, late: bool) -> Acked {
        let late = if late { vec!["r".to_owned()] } else { Vec::new() };
        Acked { rooms: [("r".to_owned(), 1)].into(), duplicate, late }
    }

    const TOOK: Duration = Duration::from_millis(2);

    #[test]
    fn lost_and_doubled() {
        let tally = Tally::new();
        let marks: Vec<String> = (0..6).map(|_| tally.mark(tally.send())).collect();
        for (number, ack) in
            [ack(false, false), ack(false, false), ack(false, true), ack(true, false)]
                .iter()
                .enumerate()
        {
            tally.acknowledged(number as u64, ack, false, TOOK);
        }
        assert_eq!(tally.missing(), 2, "late and duplicate ones are not sent");
        tally.saw(&marks[0], false);
        tally.saw(&marks[0], true);
        assert_eq!((tally.missing(), tally.summary(true).doubled), (1, 0));
        tally.saw(&marks[0], false);
        tally.saw("other-0", false);
        let summary = tally.summary(true);
        assert_eq!((summary.lost, summary.doubled), (1, 1));
        // After a resume the snapshot comes first, then the events that were missed.
        tally.saw(&marks[1], true);
        tally.saw(&marks[1], false);
        assert_eq!((tally.missing(), tally.summary(true).doubled), (0, 1));
        // Seen before its answer came.
        tally.saw(&marks[4], false);
        tally.acknowledged(4, &ack(false, false), false, TOOK);
        // A repetition under the same key is this position itself.
        tally.acknowledged(5, &ack(true, false), true, TOOK);
        assert_eq!(tally.missing(), 1);
        tally.reset();
        assert_eq!(tally.summary(true).lost, 0);
    }

    #[test]
    fn percentiles_are_near() {
        let mut latencies = Latencies::default();
        for millis in 1..=1000 {
            latencies.add(Duration::from_millis(millis));
        }
        let near = |percent, millis: f64| {
            let found = latencies.percentile(percent).as_secs_f64() * 1000.0;
            assert!((found - millis).abs() <= millis * 0.04, "{percent}: {found}");
        };
        near(50, 500.0);
        near(99, 990.0);
        assert_eq!(latencies.percentile(100), Duration::from_secs(1));
        assert_eq!(Latencies::default().percentile(99), Duration::ZERO);
    }
}
