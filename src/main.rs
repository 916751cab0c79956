//! The `milepost` binary.

fn main() {}
