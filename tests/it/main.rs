//! The integration tests: one binary, a module a topic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "clippy's allow-in-tests settings do not reach helper functions"
)]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "these tests watch real processes by the real clock, mostly from plain threads"
)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::must_use_candidate,
    reason = "a helper that is wrong fails its test"
)]
#![allow(unreachable_pub, reason = "`pub` says what the modules share")]

mod admin;
mod admission;
mod bad_input;
mod broken_broker;
mod browser_client;
mod client;
mod commands;
mod container;
mod control_frames;
mod crash;
mod dashboards;
mod demo;
mod deploy;
mod drain;
mod fleet;
mod floors;
#[allow(dead_code, reason = "what tests may need, not only what they need today")]
mod harness;
mod limits;
mod map_page;
mod old_gateway;
mod past;
mod peers;
mod plane;
mod protocol;
mod rolling;
mod several;
mod shutdown;
mod slow;
mod smoke;
mod store;
mod tokens;
mod traces;
