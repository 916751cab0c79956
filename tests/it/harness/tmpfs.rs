//! A small file system of its own for a test, which needs root.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted tmpfs. It is unmounted when this is dropped; declare it before the server
/// that uses it, so that the server ends first.
pub struct Tmpfs {
    dir: tempfile::TempDir,
}

impl Tmpfs {
    /// Mounts one of `size` bytes.
    pub fn mount(size: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        run(&["mount", "-t", "tmpfs", "-o", &format!("size={size}"), "milepost-test"], dir.path());
        Self { dir }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Makes it read-only.
    pub fn make_read_only(&self) {
        run(&["mount", "-o", "remount,ro"], self.path());
    }

    /// Takes all the room that is left. The room comes back when the file is removed.
    pub fn fill(&self) -> PathBuf {
        let path = self.path().join("filler");
        let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        fill(&mut file);
        path
    }
}

fn fill(file: &mut File) {
    for block in [64 * 1024, 4096, 1] {
        let zeros = vec![0; block];
        while file.write_all(&zeros).is_ok() {}
    }
}

fn run(command: &[&str], path: &Path) {
    let status = Command::new(command[0]).args(&command[1..]).arg(path).status();
    let worked = status.as_ref().is_ok_and(std::process::ExitStatus::success);
    assert!(worked, "{command:?} {} needs root and mount(8): {status:?}", path.display());
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazy, in case the server is still ending.
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
    }
}
