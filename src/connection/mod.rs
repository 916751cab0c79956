//! Connections: one task owns one socket, and everything of its session.
//!
//! [`registry`] knows all of them, [`handle`] is what the rest of the process may ask of
//! one, [`task`] is the owner task, [`session`] and [`handlers`] react to messages.

pub mod handle;
mod handlers;
pub mod registry;
pub mod services;
pub mod session;
mod task;

pub use handle::{Handle, Order, Progress};
pub use registry::{Registered, Registry, Tally, Terminated};
pub use services::{Services, Settings};
pub use session::Session;
pub use task::{Connection, Entry};
