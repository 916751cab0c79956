//! The integration tests: one binary, a module a topic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "clippy's allow-in-tests settings do not reach helper functions"
)]

mod crash;
mod deploy;
mod fleet;
mod floors;
mod harness;
mod past;
mod smoke;
