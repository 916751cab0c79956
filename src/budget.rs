//! The one check for every time budget in the program (plane.md, "Admission" 6).

use std::time::Duration;

/// The longest budget: 2147483647 ms, what a signed 32-bit timer of any client can hold.
pub const MAX_BUDGET: Duration = Duration::from_millis(2_147_483_647);

/// Why a time was refused as a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a time of 0 to 2147483647 ms")]
pub struct BadBudget;

/// A finite time of 0 to 2147483647 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Budget(Duration);

impl Budget {
    /// Takes `time` if it is a budget.
    ///
    /// # Errors
    /// [`BadBudget`] if it is longer than [`MAX_BUDGET`].
    pub fn new(time: Duration) -> Result<Self, BadBudget> {
        if time <= MAX_BUDGET { Ok(Self(time)) } else { Err(BadBudget) }
    }

    /// The time itself.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_inclusive() {
        assert!(Budget::new(Duration::ZERO).is_ok());
        assert!(Budget::new(MAX_BUDGET).is_ok());
        assert_eq!(Budget::new(MAX_BUDGET + Duration::from_nanos(1)), Err(BadBudget));
        assert_eq!(Budget::new(Duration::MAX), Err(BadBudget));
    }
}
