//! What the kernel says about this process (proc(5)). Elsewhere than on Linux
//! there is no such file and no such metric.

use std::fs;

/// Figures of this process, read afresh each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessFigures {
    /// Resident memory in bytes.
    pub resident_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// How many may be open (the soft limit).
    pub max_fds: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
}

impl ProcessFigures {
    /// Reads them.
    #[must_use]
    pub fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        Self {
            resident_bytes: number_after(&status, "VmRSS:").map(|kib| kib * 1024),
            // The listing has a descriptor of its own.
            open_fds: fs::read_dir("/proc/self/fd")
                .ok()
                .and_then(|fds| u64::try_from(fds.count()).ok())
                .map(|fds| fds.saturating_sub(1)),
            max_fds: number_after(&limits, "Max open files"),
            threads: number_after(&status, "Threads:"),
        }
    }
}

fn number_after(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_running_process_has_figures() {
        let figures = ProcessFigures::read();
        assert!(figures.resident_bytes.unwrap() > 1 << 20);
        assert!(figures.threads.unwrap() >= 1);
        let open = figures.open_fds.unwrap();
        assert!(open >= 3 && open <= figures.max_fds.unwrap(), "{figures:?}");
    }
}
