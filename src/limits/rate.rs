//! Rates: the token bucket of a connection, the server's handshake rate, and the
//! cap on error answers.
//!
//! The bucket is kept as a "theoretical arrival time" (GCRA, ATM Forum TM 4.1):
//! the same behaviour as counting tokens, without a refill and without floats.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A token bucket: `rate` a second on average, `burst` at once. 24 bytes.
#[derive(Debug, Clone)]
pub struct MessageRate {
    /// When the bucket is full again.
    full_at: Instant,
    /// Nanoseconds that one token takes to come back; 0: no limit.
    interval: u32,
    burst: u32,
}

impl MessageRate {
    /// A full bucket. A `rate` of 0 is no limit; a `burst` of 0 counts as 1, or
    /// nothing could ever pass.
    #[must_use]
    pub fn new(rate: u32, burst: u32, now: Instant) -> Self {
        let interval = 1_000_000_000_u32.checked_div(rate).unwrap_or(0);
        Self { full_at: now, interval, burst: burst.max(1) }
    }

    /// Takes one token.
    ///
    /// # Errors
    /// How long until there is one, if there is none now.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        if self.interval == 0 {
            return Ok(());
        }
        let interval = Duration::from_nanos(u64::from(self.interval));
        let slack = Duration::from_nanos(
            u64::from(self.interval) * u64::from(self.burst.saturating_sub(1)),
        );
        let ahead = self.full_at.saturating_duration_since(now);
        if ahead > slack {
            return Err(ahead - slack);
        }
        self.full_at = now + ahead + interval;
        Ok(())
    }
}

/// The handshakes that the whole server takes on in a second (`limits.handshake_rate`).
#[derive(Debug)]
pub struct HandshakeRate(Mutex<MessageRate>);

impl HandshakeRate {
    /// `rate` a second, with one second's worth at once; 0 is no limit.
    #[must_use]
    pub fn new(rate: u32, now: Instant) -> Self {
        Self(Mutex::new(MessageRate::new(rate, rate, now)))
    }

    /// Takes one handshake on.
    ///
    /// # Errors
    /// How long until there is room for one (`Retry-After`).
    pub fn take(&self, now: Instant) -> Result<(), Duration> {
        self.0.lock().take(now)
    }
}

/// The cap on error answers to notifications: at most 50 in each second, and the
/// next one that passes says how many did not (protocol.md, `error.suppressed`).
#[derive(Debug, Clone, Default)]
pub struct Suppressor {
    window: Option<Instant>,
    admitted: u32,
    suppressed: u32,
}

impl Suppressor {
    /// Errors to notifications that one connection gets in a second.
    pub const PER_SECOND: u32 = 50;

    /// Whether an error may be sent now; if so, how many were not since the last
    /// one that was.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        let fresh = self
            .window
            .is_none_or(|start| now.saturating_duration_since(start) >= Duration::from_secs(1));
        if fresh {
            self.window = Some(now);
            self.admitted = 0;
        }
        if self.admitted >= Self::PER_SECOND {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.admitted += 1;
        Some(u64::from(std::mem::take(&mut self.suppressed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_the_rate_holds() {
        let mut rate = MessageRate::new(100, 200, Instant::now());
        for message in 0..200 {
            assert_eq!(rate.take(Instant::now()), Ok(()), "{message}");
        }
        let wait = rate.take(Instant::now()).unwrap_err();
        assert_eq!(wait, Duration::from_millis(10));
        tokio::time::advance(wait - Duration::from_nanos(1)).await;
        assert!(rate.take(Instant::now()).is_err());
        tokio::time::advance(Duration::from_nanos(1)).await;
        assert_eq!(rate.take(Instant::now()), Ok(()));
        assert!(rate.take(Instant::now()).is_err());
        tokio::time::advance(SECOND).await;
        let passed = (0..1000).filter(|_| rate.take(Instant::now()).is_ok()).count();
        assert_eq!(passed, 100);
    }

    #[tokio::test(start_paused = true)]
    async fn no_limit_is_none_for_whoever_looked_at_the_clock_earlier_too() {
        let now = Instant::now();
        let mut rate = MessageRate::new(0, 0, now);
        assert_eq!(rate.take(now + SECOND), Ok(()));
        assert_eq!(rate.take(now), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_silence_saves_no_more_than_the_burst() {
        let mut rate = MessageRate::new(10, 5, Instant::now());
        tokio::time::advance(SECOND * 3600).await;
        assert_eq!((0..100).filter(|_| rate.take(Instant::now()).is_ok()).count(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn zero_is_no_limit_and_no_burst_still_lets_one_pass() {
        let mut off = MessageRate::new(0, 0, Instant::now());
        assert!((0..10_000).all(|_| off.take(Instant::now()).is_ok()));
        let mut one = MessageRate::new(1, 0, Instant::now());
        assert_eq!(one.take(Instant::now()), Ok(()));
        assert_eq!(one.take(Instant::now()), Err(SECOND));
    }

    #[test]
    fn a_bucket_is_small() {
        assert!(size_of::<MessageRate>() <= 24);
        assert!(size_of::<Suppressor>() <= 24);
    }

    #[tokio::test(start_paused = true)]
    async fn handshakes_have_one_rate_for_all() {
        let rate = HandshakeRate::new(4000, Instant::now());
        assert_eq!((0..5000).filter(|_| rate.take(Instant::now()).is_ok()).count(), 4000);
        assert_eq!(rate.take(Instant::now()), Err(Duration::from_micros(250)));
        tokio::time::advance(SECOND / 2).await;
        assert_eq!((0..5000).filter(|_| rate.take(Instant::now()).is_ok()).count(), 2000);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_are_capped_and_the_rest_is_counted() {
        let mut errors = Suppressor::default();
        for _ in 0..50 {
            assert_eq!(errors.admit(Instant::now()), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(errors.admit(Instant::now()), None);
        }
        tokio::time::advance(SECOND - Duration::from_nanos(1)).await;
        assert_eq!(errors.admit(Instant::now()), None);
        tokio::time::advance(Duration::from_nanos(1)).await;
        assert_eq!(errors.admit(Instant::now()), Some(8));
        assert_eq!(errors.admit(Instant::now()), Some(0));
    }
}
