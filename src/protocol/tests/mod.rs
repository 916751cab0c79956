//! Tests that need several files of the floor at once.

mod client;
mod envelope;
mod error;
mod position;
mod server;

use std::time::Duration;

use super::position::{ExtraFields, PositionRules};
use crate::time::UnixMillis;

fn now() -> UnixMillis {
    UnixMillis::parse_rfc3339("2024-01-16T18:33:20Z").unwrap()
}

fn rules() -> PositionRules {
    PositionRules {
        max_position: 512,
        max_future_skew: Duration::from_secs(30),
        accept_null_island: false,
        extra_fields: ExtraFields::Pass,
    }
}
