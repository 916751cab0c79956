//! The broker fails under load, in every way that it can, and comes back: what vehicles
//! publish meanwhile is held and goes through in order, nothing acknowledged is lost or
//! doubled, and readiness and logs say what is going on.
//!
//! With the long pause of a minute: `MILEPOST_BROKER_FULL=1 cargo test --test it broken_broker`

mod cluster;
mod full;
mod scene;
mod stopped;
mod unreachable;
