//! What the load benches share: a crowd of cheap WebSocket clients in one epoll loop, the
//! processes that they load, and the figures taken from `/proc`.
//!
//! The clients count frames and look for a marker in positions; they parse no JSON, so
//! that what is measured is the server. All figures are CPU time or ratios of one run:
//! wall time says little on a machine that does something else too.

#![allow(clippy::print_stdout)] // the figures
#![allow(dead_code, unreachable_pub, reason = "each bench uses its part")]

pub mod crowd;
pub mod process;
pub mod raw;
pub mod wire;

/// Any failure ends the bench with its text.
pub type Failed = Box<dyn std::error::Error>;

/// The middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The value below which `percent` of all lie.
pub fn percentile(values: &mut [u32], percent: usize) -> f64 {
    values.sort_unstable();
    let at = values.len().saturating_sub(1) * percent / 100;
    values.get(at).map_or(f64::NAN, |&value| f64::from(value))
}

/// What the command line asks for: the names of measures, or nothing for all.
pub fn wanted(name: &str) -> bool {
    let mut filters = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    filters.peek().is_none() || filters.any(|filter| name.contains(&filter))
}
