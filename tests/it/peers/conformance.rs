//! The Autobahn cases, by kosoku, against milepost's own transport: a build that answers
//! every message with itself (`tests/peers/echo.rs`).
//!
//! Sections 12 and 13 are left out: permessage-deflate is not offered.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use super::installed;
use crate::harness::Server;

/// How many cases there are in sections 1 to 10.
const CASES: usize = 301;
/// Text that is no UTF-8, told at the frame's end instead of at the first bad byte: the
/// RFC leaves that open, and tungstenite decides a frame at a time.
const NON_STRICT: [&str; 2] = ["6.4.3", "6.4.4"];
/// What they observe is left open too: data after a close frame, closing codes that are
/// not registered.
const INFORMATIONAL: [&str; 3] = ["7.1.6", "7.13.1", "7.13.2"];
/// The suite takes seconds; its largest cases send 16 MiB there and back.
const SUITE_PATIENCE: Duration = Duration::from_secs(240);

/// Builds the echo server, or finds it built.
fn echo_server() -> PathBuf {
    // target/tmp is what cargo tells of the target folder.
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned();
    let output = std::process::Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--locked", "--features", "echo", "--bin", "milepost-echo"])
        .arg("--message-format=json-render-diagnostics")
        .arg("--target-dir")
        .arg(target)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "the echo server does not build");
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "milepost-echo")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo does not say where the echo server is")
}

#[tokio::test]
async fn the_autobahn_cases() {
    let kosoku = installed(".venv/bin/kosoku");
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let mut command = std::process::Command::new(echo_server());
    command.arg("serve").current_dir(dir.path()).stdin(Stdio::null());
    for set in [
        "auth.mode=none",
        "server.listen=127.0.0.1:0",
        "admin.listen=127.0.0.1:0",
        "room_log.path=:memory:",
        "limits.max_frame=16MiB",
        "outgoing.high_water=16MiB",
        "outgoing.max_bytes=64MiB",
        // On loopback a segment is as long as the default, and the kernel delays the
        // acknowledgement of a lone one.
        "outgoing.kernel_buffer=4MiB",
    ] {
        command.args(["--set", set]);
    }
    let server = Server::run(command, dir);

    let run = tokio::process::Command::new(kosoku)
        .args(["--exclude", "12.*", "--exclude", "13.*", "--parallelism", "4", "--outdir"])
        .arg(&report)
        .arg(server.public.to_string())
        .kill_on_drop(true)
        .output();
    let output = timeout(SUITE_PATIENCE, run).await.expect("kosoku hangs").unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let index = std::fs::read_to_string(report.join("index.json"))
        .unwrap_or_else(|error| panic!("no report: {error}: {told}"));
    let index: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_str(&index).unwrap();
    let cases = index.into_values().next().unwrap();

    let mut sections: BTreeMap<u32, BTreeMap<&str, u32>> = BTreeMap::new();
    for (case, result) in &cases {
        let section = case.split('.').next().unwrap().parse().unwrap();
        let behavior = result["behavior"].as_str().unwrap();
        *sections.entry(section).or_default().entry(behavior).or_default() += 1;
    }
    for (section, behaviors) in &sections {
        println!("section {section}: {behaviors:?}");
    }
    for (case, result) in &cases {
        for behavior in [&result["behavior"], &result["behaviorClose"]] {
            let behavior = behavior.as_str().unwrap();
            let expected = match behavior {
                "OK" => true,
                "NON-STRICT" => NON_STRICT.contains(&case.as_str()),
                "INFORMATIONAL" => INFORMATIONAL.contains(&case.as_str()),
                _ => false,
            };
            assert!(expected, "case {case}: {behavior}: {told}");
        }
    }
    assert_eq!(cases.len(), CASES, "{sections:?}");
    assert!(output.status.success(), "{told}");
}
