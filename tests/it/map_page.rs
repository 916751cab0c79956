//! The live map in a real Chromium: `tests/browser`, one Node process for all its tests.
//!
//! In full (a tab in the background for a minute, a network that is dead for half a minute,
//! ten minutes of memory, five thousand vehicles): `tests/browser/README.md`.

use std::path::Path;
use std::process::Command;

#[test]
fn the_map_page_in_chromium() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    for needed in [&*folder.join("node_modules/.installed.json"), Path::new("/usr/bin/chromium")] {
        assert!(needed.exists(), "{} is missing: run .ci/setup", needed.display());
    }
    let mut command = Command::new("node");
    command
        .args(["--test-reporter=spec", "main.mjs"])
        .current_dir(&folder)
        .env("MILEPOST_BINARY", env!("CARGO_BIN_EXE_milepost"));
    let output = command.output().unwrap_or_else(|error| panic!("node: {error}: run .ci/setup"));
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{stderr}");
    assert!(said.contains("fail 0"), "{said}\n{stderr}");
}
