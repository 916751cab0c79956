//! The integration tests: one binary, a module a topic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy's allow-in-tests settings do not reach helper functions"
)]

mod admission;
mod bad_input;
mod container;
mod control_frames;
mod drain;
mod floors;
mod harness;
mod limits;
mod old_gateway;
mod past;
mod peers;
mod plane;
mod protocol;
mod shutdown;
mod smoke;
mod tokens;
