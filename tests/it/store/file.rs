//! A log file that cannot be used: the start fails with a text that says which and why.

use std::process::Stdio;

use crate::harness::{Server, Tmpfs, admin};

/// Starts a server on `path`, which must fail: its exit code and all that it said.
fn fails(path: &std::path::Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Server::builder()
        .set("room_log.path", path.display())
        .command(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let status = admin::until(|| child.try_wait().unwrap(), Option::is_some).unwrap();
    assert_eq!(status.code(), Some(1));
    let text = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert!(text.contains(&path.display().to_string()), "the file is not named: {text}");
    text
}

/// A log that a server has made.
fn made(dir: &std::path::Path) -> std::path::PathBuf {
    let path = dir.join("room.db");
    let mut server = Server::builder().set("room_log.path", path.display()).start();
    server.terminate();
    assert_eq!(server.wait().code, Some(0));
    path
}

#[test]
fn what_is_no_database_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("room.db");
    std::fs::write(&path, "this is a letter, not a database. ".repeat(500)).unwrap();
    let text = fails(&path);
    assert!(text.contains("not a readable database") && text.contains("backup"), "{text}");
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("this is a letter"), "untouched");
}

#[test]
fn a_damaged_database_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = made(dir.path());
    // All of it into the one file; then the damage, behind its header.
    rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() > 8192, "{} bytes", bytes.len());
    bytes[100..].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    let text = fails(&path);
    assert!(text.contains("not a readable database"), "{text}");
}

#[test]
fn a_newer_schema_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = made(dir.path());
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(connection);
    let text = fails(&path);
    assert!(text.contains("schema version 99") && text.contains("newer"), "{text}");
}

#[test]
fn another_programs_database_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("room.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE cats (name TEXT)").unwrap();
    drop(connection);
    let text = fails(&path);
    assert!(text.contains("not a room log"), "{text}");
}

#[test]
fn a_read_only_directory_stops_the_start() {
    let disk = Tmpfs::mount(4 << 20);
    let new = disk.path().join("new.db");
    let path = made(disk.path());
    disk.make_read_only();
    for path in [new, path] {
        let text = fails(&path);
        assert!(text.contains("write"), "{text}");
    }
}
