//! The lock that keeps a log file to one process: an exclusive `flock` on `FILE.lock`,
//! with the holder's process id inside (delivery.md, "Engines").
//!
//! The lock dies with its process, so nothing stale is ever left; the lock file itself
//! stays, because removing it would let two processes lock two files of one name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How often a held lock is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// The path that means: in memory, no file and no lock.
pub const MEMORY: &str = ":memory:";

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error(
        "{} is locked by {}: stop that process or give this one another room_log.path",
        .file.display(),
        .pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Held {
        /// The lock file.
        file: PathBuf,
        /// The holder, if it could be read.
        pid: Option<u32>,
    },
    /// The lock file cannot be made or locked.
    #[error("{} cannot be locked: {source}; room_log.path must be in a directory that this user may write to", .file.display())]
    Io {
        /// The lock file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The right to open a log file. Held by the engine until its file is closed.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// Holds the `flock`; `None` in memory.
    _file: Option<File>,
}

impl Lock {
    /// Waits at most `wait` for the lock on the log at `path`.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process still has it then, [`LockError::Io`] if
    /// the lock file cannot be used.
    pub async fn acquire(path: &Path, wait: Duration) -> Result<Self, LockError> {
        let deadline = Instant::now() + wait;
        loop {
            match Self::try_acquire(path) {
                Err(LockError::Held { .. }) if Instant::now() < deadline => sleep(RETRY).await,
                result => return result,
            }
        }
    }

    /// Takes the lock on the log at `path` if it is free.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub fn try_acquire(path: &Path) -> Result<Self, LockError> {
        if path == Path::new(MEMORY) {
            return Ok(Self { path: path.to_owned(), _file: None });
        }
        let unresolved = lock_file(path);
        let io = |source| LockError::Io { file: unresolved.clone(), source };
        let path = resolve(path).map_err(io)?;
        let name = lock_file(&path);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&name)
            .map_err(io)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0).map_err(io)?;
                file.rewind().map_err(io)?;
                writeln!(file, "{}", std::process::id()).map_err(io)?;
                Ok(Self { path, _file: Some(file) })
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let pid =
                    file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                Err(LockError::Held { file: name, pid })
            }
            Err(TryLockError::Error(source)) => Err(io(source)),
        }
    }

    /// The log file that this lock stands for; symbolic links are resolved.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the log is kept in memory only.
    #[must_use]
    pub fn in_memory(&self) -> bool {
        self.path == Path::new(MEMORY)
    }
}

fn lock_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// The one name of the file, so that two names for it share one lock. Makes its
/// directory if there is none.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    if let Ok(resolved) = path.canonicalize() {
        return Ok(resolved);
    }
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(folder)?;
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))?;
    Ok(folder.canonicalize()?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn is_exclusive_names_the_holder_and_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/room.db");
        let first = Lock::try_acquire(&path).unwrap();
        let error = Lock::acquire(&path, Duration::from_millis(30)).await.unwrap_err();
        assert!(
            matches!(&error, LockError::Held { file, pid }
                if file.ends_with("room.db.lock") && *pid == Some(std::process::id())),
            "{error}"
        );
        let waiter =
            tokio::spawn(async move { Lock::acquire(&path, Duration::from_secs(60)).await });
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        drop(first);
        waiter.await.unwrap().unwrap();
    }

    #[test]
    fn a_link_and_its_target_share_one_lock() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("room.db");
        fs::write(&target, "").unwrap();
        let link = folder.path().join("link.db");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let _held = Lock::try_acquire(&target).unwrap();
        assert!(matches!(Lock::try_acquire(&link), Err(LockError::Held { .. })));
    }

    #[test]
    fn a_file_for_a_directory_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let error = Lock::try_acquire(&folder.path().join("file/room.db")).unwrap_err();
        assert!(matches!(error, LockError::Io { .. }));
        assert!(error.to_string().contains("file/room.db.lock"), "{error}");
    }
}
