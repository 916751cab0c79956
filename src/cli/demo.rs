//! `milepost demo`: the server on loopback with a fleet in it, what a newcomer runs first.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::simulate::{self, SimulateArgs};
use super::{ConfigArgs, USAGE, fail, say, serve};
use crate::config::{AuthMode, LogFormat};

/// What the demo shows.
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// How many vehicles (default: 30, or all of the trace)
    #[arg(long, value_name = "N")]
    vehicles: Option<usize>,
    /// Positions a second of each synthetic vehicle
    #[arg(long, value_name = "HZ", default_value_t = 1.0)]
    rate: f64,
    /// Replay this recording instead: one JSON object a line
    #[arg(long, value_name = "FILE.ndjson", conflicts_with = "rate")]
    trace: Option<PathBuf>,
    /// How many times as fast as recorded
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "trace")]
    speed: f64,
    #[command(flatten)]
    config: ConfigArgs,
}

const ROOM: &str = "demo";
const VEHICLES: usize = 30;

/// Runs the server and the fleet.
pub(super) fn run(args: &DemoArgs) -> ExitCode {
    let mut config = match args.config.load() {
        Ok(config) => config,
        Err(error) => return fail(USAGE, error),
    };
    // What nobody has set otherwise is made for looking at it.
    if config.sources.of("auth.mode").is_none() {
        config.auth.mode = AuthMode::None;
    }
    if config.sources.of("log.format").is_none() {
        config.log.format = LogFormat::Text;
    }
    let fleet = SimulateArgs {
        url: Vec::new(),
        room: Some(ROOM.to_owned()),
        vehicles: args.vehicles.or_else(|| args.trace.is_none().then_some(VEHICLES)),
        rate: args.rate,
        trace: args.trace.clone(),
        speed: args.speed,
        as_recorded: false,
        duration: None,
        keyed: true,
        gateway: false,
        token: None,
        token_secret: config.auth.secret.as_ref().map(|secret| secret.expose().to_owned()),
        seed: 1,
    };
    serve::run_with(config, args.config.clone(), |public| drive(public, fleet))
}

async fn drive(public: SocketAddr, mut fleet: SimulateArgs) {
    let url = format!("ws://{public}/ws");
    say(format_args!("milepost demo: open http://{public}/ in a browser"));
    say(format_args!("milepost demo: watch the fleet with `milepost watch --url {url} {ROOM}`"));
    fleet.url = vec![url];
    if let Err(error) = simulate::accompany(fleet).await {
        let error = format!("{error:#}");
        tracing::error!(event = "demo.fleet_failed", error, "the demo's fleet has stopped");
    }
}
