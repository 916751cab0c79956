//! The wire protocol, rule by rule, over real sockets.

mod envelope;
mod joining;
mod liveness;
mod presence;
mod publishing;
mod resume;
mod snapshot;

use serde_json::{Value, json};

/// A position with more fields.
fn position_with(more: Value) -> Value {
    let mut position = json!({ "latitude": 60.0, "longitude": 24.0 });
    for (name, value) in more.as_object().unwrap() {
        position[name] = value.clone();
    }
    position
}

/// Epoch milliseconds, `seconds` from now.
fn from_now(seconds: i64) -> i64 {
    jiff::Timestamp::now().as_millisecond() + seconds * 1000
}
