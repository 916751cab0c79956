//! The browser client's own tests, which Node runs (`tests/web`), against this build.

use std::path::Path;
use std::process::Command;

/// Runs one file of tests and shows what it says if it fails.
fn node(file: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/web");
    let packages = folder.join("node_modules/.package-lock.json");
    assert!(packages.exists(), "tests/web/node_modules is missing: run .ci/setup");
    let output = Command::new("node")
        .args(["--test", "--test-reporter=spec", file])
        .current_dir(folder)
        .env("MILEPOST_BIN", env!("CARGO_BIN_EXE_milepost"))
        .output()
        .unwrap_or_else(|error| panic!("node: {error}: run .ci/setup"));
    assert!(
        output.status.success(),
        "{file}:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}

#[test]
fn its_rules() {
    node("pure.test.js");
}

#[test]
fn against_the_server() {
    node("server.test.js");
}

#[test]
fn in_other_processes() {
    node("process.test.js");
}

#[test]
fn what_the_live_map_shows() {
    node("fleet.test.js");
}
