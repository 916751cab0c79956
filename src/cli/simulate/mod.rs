//! `milepost simulate`: a fleet, synthetic or from a recording, through the client library.
//!
//! One connection a vehicle, or one for all; an observer in every room checks that what was
//! acknowledged arrives, once. Ends with a report, and with an error if something did not.

mod fleet;
mod identity;
mod report;
mod route;
mod tally;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::Instant;

use self::fleet::Fleet;
use self::identity::Identity;
use self::tally::Tally;
use super::trace::Trace;

/// What `milepost simulate` does.
#[derive(Debug, Clone, Args)]
pub struct SimulateArgs {
    /// The server; several take turns
    #[arg(long, required = true, value_name = "URL")]
    pub url: Vec<String>,
    /// The room to publish to (default: demo, or the name of the trace)
    #[arg(long)]
    pub room: Option<String>,
    /// How many vehicles (default: 100, or all of the trace)
    #[arg(long, value_name = "N")]
    pub vehicles: Option<usize>,
    /// Positions a second of each synthetic vehicle
    #[arg(long, value_name = "HZ", default_value_t = 1.0)]
    pub rate: f64,
    /// Replay this recording: one JSON object a line
    #[arg(long, value_name = "FILE.ndjson", conflicts_with = "rate")]
    pub trace: Option<PathBuf>,
    /// How many times as fast as recorded
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "trace")]
    pub speed: f64,
    /// Keep the recorded times instead of shifting them to now
    #[arg(long, requires = "trace")]
    pub as_recorded: bool,
    /// Stop after this many seconds (default: the trace's end, or never)
    #[arg(long, value_name = "S")]
    pub duration: Option<f64>,
    /// Give every position an idempotency key
    #[arg(long)]
    pub keyed: bool,
    /// One connection for all vehicles
    #[arg(long)]
    pub gateway: bool,
    /// The token of all connections (also MILEPOST_TOKEN)
    #[arg(long, conflicts_with = "token_secret")]
    pub token: Option<String>,
    /// Mint a token for each vehicle from this shared secret (also MILEPOST_TOKEN_SECRET)
    #[arg(long, value_name = "SECRET")]
    pub token_secret: Option<String>,
    /// Makes routes and jitter repeatable
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// How long the observer waits, after the last acknowledgement, for what is on its way.
const SETTLE: Duration = Duration::from_secs(10);

/// Runs the fleet until its end, `--duration`, or Ctrl-C.
///
/// # Errors
/// Bad arguments, no connection at the start, or positions that were lost or doubled.
pub async fn run(args: SimulateArgs) -> anyhow::Result<()> {
    anyhow::ensure!(args.rate > 0.0 && args.rate <= 1000.0, "--rate must be over 0, at most 1000");
    anyhow::ensure!(args.speed > 0.0 && args.speed.is_finite(), "--speed must be over 0");
    let duration = args
        .duration
        .map(Duration::try_from_secs_f64)
        .transpose()
        .map_err(|error| anyhow::anyhow!("--duration: {error}"))?;
    let trace = match &args.trace {
        Some(path) => Some(Trace::read(path)?.first_vehicles(args.vehicles)),
        None => None,
    };
    let room = match (&args.room, &args.trace) {
        (Some(room), _) => room.clone(),
        (None, Some(path)) => {
            path.file_stem().map_or("demo".into(), |stem| stem.to_string_lossy().into_owned())
        }
        (None, None) => "demo".to_owned(),
    };
    let identity = Identity::new(&args, &room)?;
    let tally = Arc::new(Tally::new());
    let (stop, stopped) = watch::channel(false);
    let observer = report::observe(&identity, &room, tally.clone()).await?;
    let fleet = Fleet { room: room.into(), tally: tally.clone(), identity, args, stopped };

    let running = async {
        match trace {
            Some(trace) => fleet.replay(trace, false).await,
            None => fleet.drive().await,
        }
    };
    let limits = async {
        tokio::select! {
            () = interrupted() => {}
            () = sleep(duration) => {}
        }
        // Vehicles stop here, but wait for what they have sent.
        let _ = stop.send(true);
        std::future::pending::<()>().await;
    };
    let progress = report::progress(&tally, duration, std::io::stderr().is_terminal());
    let result = tokio::select! {
        result = running => result,
        () = limits => Ok(()),
        () = progress => Ok(()),
    };
    let deadline = Instant::now() + SETTLE;
    while tally.missing() > 0 && Instant::now() < deadline && observer.is_some() {
        tokio::select! {
            () = tally.seen_all() => {}
            () = tokio::time::sleep_until(deadline) => {}
        }
    }
    let summary = tally.summary(observer.is_some());
    if let Some(observer) = observer {
        observer.close().await;
    }
    super::say(&summary);
    result?;
    anyhow::ensure!(
        summary.lost == 0 && summary.doubled == 0,
        "{} positions were lost and {} doubled",
        summary.lost,
        summary.doubled
    );
    Ok(())
}

/// Drives a fleet for as long as this is polled, a recording again and again: no observer,
/// no report.
///
/// # Errors
/// Bad arguments.
pub(super) async fn accompany(args: SimulateArgs, trace: Option<Trace>) -> anyhow::Result<()> {
    let room: String = args.room.clone().unwrap_or_else(|| "demo".to_owned());
    let identity = Identity::new(&args, &room)?;
    // Its sender lives as long as this does: nobody stops the fleet.
    let (_stop, stopped) = watch::channel(false);
    let tally = Arc::new(Tally::new());
    let fleet = Fleet { room: room.into(), tally, identity, args, stopped };
    match trace {
        Some(trace) => fleet.replay(trace, true).await,
        None => fleet.drive().await,
    }
}

async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

/// Ctrl-C or SIGTERM.
async fn interrupted() {
    let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
    match signal_hook_tokio::Signals::new(signals) {
        Ok(mut signals) => {
            signals.next().await;
        }
        // Without a handler the signal ends the process in its own way.
        Err(_) => std::future::pending().await,
    }
}

/// The distinct vehicles of a trace, in their order.
fn distinct<'a>(ids: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    ids.filter(|id| seen.insert(*id)).collect()
}
