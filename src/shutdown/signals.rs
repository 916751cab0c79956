//! What asks the process to stop or to reload: signals, and the admin port.
//!
//! The handlers come from signal-hook-tokio; they are installed before anything else is
//! started, so that a signal during start-up is not lost.

use std::fmt;
use std::io;
use std::sync::Arc;

use futures_util::StreamExt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;
use tokio::sync::mpsc;

/// What asked for the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// SIGTERM, what orchestrators send.
    Sigterm,
    /// SIGINT, Ctrl-C.
    Sigint,
    /// `POST /shutdown` on the admin port.
    Admin,
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sigterm => "SIGTERM",
            Self::Sigint => "SIGINT",
            Self::Admin => "admin",
        })
    }
}

/// Where triggers go; the admin port has one too.
pub type TriggerSender = mpsc::UnboundedSender<Trigger>;

/// Installs the handlers and passes signals on, for as long as the process lives: the
/// stream is never dropped, or the default action would come back.
///
/// # Errors
/// What the system says when the handlers cannot be installed.
pub fn install(
    triggers: TriggerSender,
    reload: impl Fn() + Send + Sync + 'static,
) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let reload = Arc::new(reload);
    tokio::spawn(async move {
        while let Some(signal) = signals.next().await {
            let trigger = match signal {
                SIGTERM => Trigger::Sigterm,
                SIGINT => Trigger::Sigint,
                _ => {
                    // It reads files: a disk that hangs must not keep the next signal waiting.
                    let reload = reload.clone();
                    tokio::task::spawn_blocking(move || reload());
                    continue;
                }
            };
            // An error means that the coordinator is gone: the process ends.
            let _ = triggers.send(trigger);
        }
    });
    Ok(())
}
