//! When to try again: full jitter over a doubling ceiling (protocol.md, "Close codes").

use std::time::Duration;

/// The times between attempts to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffTimes {
    /// The ceiling of the first wait; 1 s by default.
    pub first: Duration,
    /// The largest ceiling; 60 s by default. Also what a refusal that says "a minute"
    /// waits at least.
    pub cap: Duration,
}

impl Default for BackoffTimes {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), cap: Duration::from_secs(60) }
    }
}

/// One client's backoff. Each wait is drawn evenly between nothing and a ceiling that
/// doubles, so that clients that were lost together do not come back together.
#[derive(Debug)]
pub(super) struct Backoff {
    times: BackoffTimes,
    failures: u32,
    rng: fastrand::Rng,
}

impl Backoff {
    pub(super) fn new(times: BackoffTimes, seed: Option<u64>) -> Self {
        let rng = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Self { times, failures: 0, rng }
    }

    /// The ceiling of the next wait.
    pub(super) fn ceiling(&self) -> Duration {
        let doubled = 2_u32.checked_pow(self.failures).unwrap_or(u32::MAX);
        self.times.first.saturating_mul(doubled).min(self.times.cap)
    }

    /// The wait before the next attempt, counted as a failure.
    pub(super) fn next(&mut self) -> Duration {
        let wait = self.up_to(self.ceiling());
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// No wait for the first attempt, then as [`Backoff::next`].
    pub(super) fn at_once(&mut self) -> Duration {
        if self.failures > 0 {
            return self.next();
        }
        self.failures = 1;
        Duration::ZERO
    }

    /// The wait of a refusal that says "a minute", jitter on top.
    pub(super) fn a_minute(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let cap = self.times.cap;
        cap.saturating_add(self.up_to(cap / 4))
    }

    /// An even draw from nothing to `most`.
    pub(super) fn up_to(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.rng.f64())
    }

    /// A spread of one first wait, for attempts that are nobody's failure.
    pub(super) fn spread(&mut self) -> Duration {
        self.up_to(self.times.first)
    }

    /// A session has ended after `lasted`: one that outlived the wait it cost clears the
    /// count.
    pub(super) fn session_lasted(&mut self, lasted: Duration) {
        if lasted >= self.ceiling() {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backoff(seed: u64) -> Backoff {
        Backoff::new(BackoffTimes::default(), Some(seed))
    }

    #[test]
    fn waits_fill_a_doubling_range_up_to_the_cap() {
        let mut longest = [Duration::ZERO; 9];
        let mut shortest = [Duration::MAX; 9];
        for seed in 0..400 {
            let mut one = backoff(seed);
            for step in 0..9 {
                let wait = one.next();
                longest[step] = longest[step].max(wait);
                shortest[step] = shortest[step].min(wait);
            }
        }
        for step in 0..9 {
            let ceiling = Duration::from_secs(1 << step).min(Duration::from_secs(60));
            assert!(longest[step] <= ceiling, "{step}: {:?}", longest[step]);
            assert!(longest[step] > ceiling.mul_f64(0.9), "{step}: {:?}", longest[step]);
            assert!(shortest[step] < ceiling.mul_f64(0.1), "{step}: {:?}", shortest[step]);
        }
    }

    #[test]
    fn at_once_is_once() {
        let mut one = backoff(7);
        assert_eq!(one.at_once(), Duration::ZERO);
        assert!(one.at_once() > Duration::ZERO);
    }

    #[test]
    fn a_session_must_outlive_its_wait_to_clear_the_count() {
        let mut one = backoff(7);
        for _ in 0..3 {
            one.next();
        }
        one.session_lasted(Duration::from_secs(7));
        assert_eq!(one.ceiling(), Duration::from_secs(8));
        one.session_lasted(Duration::from_secs(8));
        assert_eq!(one.ceiling(), Duration::from_secs(1));
    }

    #[test]
    fn a_minute_is_at_least_that() {
        for seed in 0..50 {
            let wait = backoff(seed).a_minute();
            assert!((Duration::from_secs(60)..=Duration::from_secs(75)).contains(&wait));
        }
    }
}
