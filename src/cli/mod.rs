//! The commands of the one binary (operation.md). Flags are defined once, here; help is
//! generated from them.

pub mod check;
mod demo;
mod http;
mod operate;
mod serve;
pub mod simulate;
mod supervised;
mod token;
mod trace;
pub mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError};

/// Bad usage or configuration.
pub const USAGE: u8 = 2;

/// A WebSocket server for live fleet tracking.
#[derive(Debug, Parser)]
#[command(name = "milepost", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server; without a file with safe local defaults
    Serve(serve::ServeArgs),
    /// Run the server on loopback with a fleet in it, and restart it under you: what to try first
    Demo(demo::DemoArgs),
    /// Drive a fleet, synthetic or recorded, and check that nothing is lost or doubled
    Simulate(simulate::SimulateArgs),
    /// Print the events of rooms, one JSON object a line
    Watch(watch::WatchArgs),
    /// Mint a token from the configured secret (development, tests)
    Token(token::TokenArgs),
    /// Validate the configuration and say what would run
    Check(ConfigArgs),
    /// Exit with 0 if the server is alive (with --ready: ready), else with 1
    Healthcheck(operate::HealthArgs),
    /// Show what the server is doing
    Status(operate::AdminArgs),
    /// Evacuate the clients at a rate, without stopping
    Drain(operate::DrainArgs),
    /// Pause all work on the room log (requests are held), or resume it
    Quiesce(operate::QuiesceArgs),
}

/// Where the configuration comes from: a file, then MILEPOST_SECTION__KEY, then --set.
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    /// TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override one key
    #[arg(long, value_name = "section.key=value")]
    set: Vec<String>,
}

impl ConfigArgs {
    /// Loads the configuration, without judging it as a whole.
    ///
    /// # Errors
    /// [`ConfigError`] names the file and line, the variable or the flag.
    pub fn load(&self) -> Result<Config, ConfigError> {
        Config::load(self.config.as_deref(), std::env::vars(), &self.set)
    }
}

/// Parses the command line and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Simulate(args) => run_async(simulate::run(args)),
        Command::Watch(args) => run_async(watch::run(args)),
        Command::Token(args) => token::run(&args),
        Command::Check(args) => run_check(&args),
        Command::Healthcheck(args) => operate::healthcheck(&args),
        Command::Status(args) => operate::status(&args),
        Command::Drain(args) => operate::drain(&args),
        Command::Quiesce(args) => operate::quiesce(&args),
    }
}

/// Reads a time on the command line.
fn duration(text: &str) -> Result<std::time::Duration, String> {
    crate::config::units::parse_duration(text)
        .ok_or_else(|| "a time such as 30s, 10m or 24h".to_owned())
}

/// Prints an error as people expect it and returns the exit code.
#[allow(clippy::print_stderr, reason = "what went wrong goes to stderr")]
fn fail(code: u8, error: impl std::fmt::Display) -> ExitCode {
    eprintln!("milepost: {error}");
    ExitCode::from(code)
}

/// Prints a command's result.
fn say(text: impl std::fmt::Display) {
    use std::io::Write;
    // A reader that has gone (`milepost check | head`) is no error.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Runs a command that is a client.
fn run_async(command: impl Future<Output = anyhow::Result<()>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, format_args!("{error:#}")),
    }
}

fn run_check(args: &ConfigArgs) -> ExitCode {
    let config = match args.load().and_then(|config| config.validate().map(|()| config)) {
        Ok(config) => config,
        Err(error) => return fail(USAGE, error),
    };
    say(check::report(&config).trim_end());
    let missing = check::missing_files(&config);
    if missing.is_empty() { ExitCode::SUCCESS } else { fail(USAGE, missing.join("\n")) }
}
