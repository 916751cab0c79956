//! The integration tests: one binary, a module a topic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy's allow-in-tests settings do not reach helper functions"
)]

mod floors;
mod harness;
mod past;
mod slow;
mod smoke;
mod store;
