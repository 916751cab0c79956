//! Connections: one task owns one socket, and everything of its session.
//!
//! [`registry`] knows all of them, [`handle`] is what the rest of the process may ask of
//! one, `task` is the owner task, [`session`] and `handlers` react to messages.

pub mod handle;
mod handlers;
mod holding;
mod past;
pub mod registry;
pub mod services;
pub mod session;
mod task;
mod upload;

pub use handle::{Handle, Order, Progress};
pub use registry::{Registered, Registry, Tally, Terminated};
pub use services::{LogSlot, Services, Settings};
pub use session::Session;
pub use task::{Connection, Entry};
