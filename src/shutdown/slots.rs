//! When each client is to come back: even slots in random order, so that whoever takes
//! the clients over sees a steady rate (shutdown.md, phase 2).

use std::time::Duration;

/// How clients are spread.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// The first slot.
    pub min: Duration,
    /// No slot is later.
    pub max: Duration,
    /// Clients a second, as long as that fits.
    pub rate: u32,
}

/// The `reconnectIn` of `clients` clients, in the order in which they are to be given out.
#[must_use]
pub fn slots(clients: usize, spread: Spread) -> Vec<Duration> {
    let window = spread.max.saturating_sub(spread.min);
    let count = u32::try_from(clients).unwrap_or(u32::MAX).max(1);
    let even = Duration::from_secs(1) / spread.rate.max(1);
    let step = even.min(window / count);
    let mut slots: Vec<Duration> =
        (0..clients).map(|i| spread.min + step * u32::try_from(i).unwrap_or(u32::MAX)).collect();
    fastrand::shuffle(&mut slots);
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPREAD: Spread =
        Spread { min: Duration::from_secs(1), max: Duration::from_secs(10), rate: 2000 };

    #[test]
    fn every_client_has_its_own_slot_at_the_rate() {
        let mut slots = slots(5000, SPREAD);
        let shuffled = slots.clone();
        slots.sort_unstable();
        assert_ne!(slots, shuffled, "the order of connecting must not be the order of return");
        slots.dedup();
        assert_eq!(slots.len(), 5000);
        assert_eq!(slots[0], SPREAD.min);
        assert_eq!(slots[4999], Duration::from_secs(1) + Duration::from_micros(500) * 4999);
    }

    #[test]
    fn many_clients_are_squeezed_into_the_window() {
        let slots = slots(100_000, SPREAD);
        assert!(slots.iter().all(|slot| *slot >= SPREAD.min && *slot <= SPREAD.max));
        assert!(slots.iter().any(|slot| *slot > Duration::from_millis(9990)));
    }

    #[test]
    fn odd_settings_make_no_panic() {
        assert!(slots(0, SPREAD).is_empty());
        let spread = Spread { min: Duration::from_secs(3), max: Duration::from_secs(1), rate: 0 };
        assert_eq!(slots(2, spread), [Duration::from_secs(3); 2]);
    }
}
