//! The integration tests: one binary, a module a topic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "clippy's allow-in-tests settings do not reach helper functions"
)]

mod bad_input;
mod container;
mod control_frames;
mod crash;
mod dashboards;
mod deploy;
mod drain;
mod fleet;
mod floors;
mod harness;
mod limits;
mod old_gateway;
mod past;
mod peers;
mod protocol;
mod shutdown;
mod smoke;
mod tokens;
