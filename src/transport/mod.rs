//! The transport: the socket and what the kernel holds of it.

pub mod kernel_queue;
mod socket;
pub mod upgrade;

pub use socket::Socket;
