//! The phase of the process: the one value that everyone may read and only the
//! shutdown coordinator writes (architecture.md, "One way for the data").

use std::fmt;

use tokio::sync::watch;

/// Where the process is in its life. Phases only ever advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Phase {
    /// Everything works.
    #[default]
    Running,
    /// Readiness is already 503; everything else works (`shutdown.lame_duck`).
    LameDuck,
    /// New upgrades are refused.
    StopAccepting,
    /// Everyone has been told; new requests are refused.
    Notify,
    /// Outgoing queues and admitted requests finish.
    Drain,
    /// Close frames are out; peers' last words are read.
    Close,
    /// The budget is used up.
    ForceExit,
    /// All is done.
    Complete,
}

impl Phase {
    /// All phases in their order, for metrics.
    pub const ALL: [Self; 8] = [
        Self::Running,
        Self::LameDuck,
        Self::StopAccepting,
        Self::Notify,
        Self::Drain,
        Self::Close,
        Self::ForceExit,
        Self::Complete,
    ];

    /// The name in logs, status and metrics (shutdown.md, "The log contract").
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::LameDuck => "lame_duck",
            Self::StopAccepting => "stop_accepting",
            Self::Notify => "notify",
            Self::Drain => "drain",
            Self::Close => "close",
            Self::ForceExit => "force_exit",
            Self::Complete => "complete",
        }
    }

    /// Whether upgrades are refused.
    #[must_use]
    pub fn refuses_upgrades(self) -> bool {
        self >= Self::StopAccepting
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads the phase and waits for changes. Cheap to clone; everyone may hold one.
#[derive(Debug, Clone)]
pub struct PhaseWatch(watch::Receiver<Phase>);

impl PhaseWatch {
    /// The phase now.
    #[must_use]
    pub fn get(&self) -> Phase {
        *self.0.borrow()
    }

    /// Returns when the phase is `phase` or later, or when the process is past
    /// announcing phases.
    pub async fn reached(&mut self, phase: Phase) {
        // An error means that the setter is gone: the process ends.
        let _ = self.0.wait_for(|now| *now >= phase).await;
    }
}

/// Writes the phase. Owned by the shutdown coordinator alone.
#[derive(Debug)]
pub struct PhaseSetter(watch::Sender<Phase>);

impl PhaseSetter {
    /// Advances to `phase`; going back is ignored.
    pub fn advance(&self, phase: Phase) {
        self.0.send_if_modified(|now| {
            let later = phase > *now;
            if later {
                *now = phase;
            }
            later
        });
    }

    /// The phase now.
    #[must_use]
    pub fn get(&self) -> Phase {
        *self.0.borrow()
    }
}

/// A new phase in [`Phase::Running`].
#[must_use]
pub fn channel() -> (PhaseSetter, PhaseWatch) {
    let (sender, receiver) = watch::channel(Phase::Running);
    (PhaseSetter(sender), PhaseWatch(receiver))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_never_go_back() {
        let (setter, watch) = channel();
        setter.advance(Phase::Drain);
        setter.advance(Phase::Notify);
        assert_eq!(watch.get(), Phase::Drain);
    }
}
