//! A small fleet of light clients that live through crashes and deploys: publishers that
//! repeat what was not acknowledged, subscribers that resume, an uploader that starts
//! again, and the audit that compares what they saw with the log's file.
//!
//! Every position carries its own number (`n`), unique over the whole test, so that "lost"
//! and "doubled" are facts and not statistics.

pub mod audit;
pub mod library;
pub mod link;
pub mod progress;
pub mod publisher;
mod stream;
pub mod subscriber;
pub mod uploader;

pub use audit::Log;
pub use link::{End, Link};
pub use progress::Progress;
pub use publisher::{Pace, Publisher, Style};
pub use subscriber::{SENTINEL, Subscriber};
pub use uploader::Uploader;

/// The part of a number that counts one publisher's positions.
const SERIAL_BITS: u32 = 32;

/// The number of the `serial`th position of publisher `index`.
pub fn number(index: u64, serial: u64) -> u64 {
    (index << SERIAL_BITS) | serial
}

/// Which of its publisher's positions a number is.
pub fn serial(number: u64) -> u64 {
    number & ((1 << SERIAL_BITS) - 1)
}

/// The publisher of a number.
pub fn publisher_of(number: u64) -> u64 {
    number >> SERIAL_BITS
}

/// Milliseconds since 1970.
pub fn now_millis() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_millis() as u64
}
