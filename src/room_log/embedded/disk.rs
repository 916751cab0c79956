//! How much room a file's disk has left.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The bytes that an unprivileged process may still write to the disk of `path`.
#[allow(unsafe_code)]
pub(super) fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `path` is a C string that outlives the call, `stat` is writable and of the
    // type that statvfs(3) fills; all its bytes are initialised (zeroed) beforehand.
    let stat = unsafe {
        if libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        stat.assume_init()
    };
    #[allow(clippy::unnecessary_cast, trivial_numeric_casts)] // their width depends on the platform
    Ok((stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_disk_and_says_when_it_cannot() {
        assert!(free_bytes(Path::new("/")).is_ok());
        assert!(free_bytes(Path::new("/no/such/path")).is_err());
    }
}
