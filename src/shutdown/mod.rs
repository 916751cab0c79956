//! The five-phase shutdown (shutdown.md): one coordinator, one `t0`, absolute deadlines
//! from it, one budget.
//!
//! [`signals`] says when, [`Coordinator`] runs the phases over the registry of
//! connections, [`watchdog`] ends the process if that fails, [`report`] says what became
//! of everything. Nothing here touches a socket: connections carry out orders. Who may
//! take the clients over is behind [`Others`]; with somebody there they are served on
//! until they have gone.

mod coordinator;
pub mod evacuation;
mod handover;
mod lines;
pub mod others;
pub mod report;
pub mod signals;
pub mod slots;
pub mod watchdog;

#[cfg(test)]
mod tests;

pub use coordinator::{Coordinator, Deadlines, Outcome, Returns, Status};
pub use evacuation::Evacuation;
pub use others::{Others, OthersSlot};
pub use report::Report;
pub use signals::{Trigger, TriggerSender};
pub use watchdog::Watchdog;

/// Ends the process at once. `std::process::exit` would run exit handlers and lock stdout,
/// and hang on a full pipe.
pub fn exit(code: i32) -> ! {
    signal_hook::low_level::exit(code)
}
