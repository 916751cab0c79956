//! The `milepost` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    milepost::cli::main()
}
