//! The transport: the socket and what the kernel holds of it.

pub mod kernel_queue;
mod socket;

pub use socket::Socket;
