//! The echo server that the protocol test suite (kosoku, the Autobahn cases) runs against.
//!
//! The suite needs a server that answers every message with itself, and milepost does not.
//! A separate echo server would test somebody else's transport. So this is milepost itself,
//! command line and all, built with the feature `echo`: listener, handshake, connection
//! task, decoder, outgoing queue, batches and close are the shipped code, and only where a
//! message would go to the session it goes back to the sender (`cfg!(feature = "echo")` in
//! `src/connection/task.rs`, twice). Without the feature the compiler removes both; the
//! shipped binary has no such path, flag or setting.

use std::process::ExitCode;

fn main() -> ExitCode {
    milepost::cli::main()
}
