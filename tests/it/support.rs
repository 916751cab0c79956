//! What the library's own tests use too.

#[allow(dead_code, reason = "each of them uses its part")]
#[path = "../support/nats.rs"]
pub mod nats;
