//! Foreign WebSocket implementations against the real binary.
//!
//! Their programs are in `tests/peers`; `.ci/setup` installs what they need.

mod clients;
mod conformance;

use std::path::{Path, PathBuf};

/// The folder of the foreign programs.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers")
}

/// A path that `.ci/setup` makes.
fn installed(path: &str) -> PathBuf {
    let path = folder().join(path);
    assert!(path.exists(), "{} is missing: run .ci/setup", path.display());
    path
}
