//! `milepost serve`: sets the process up, runs the server, and leaves with the exit code
//! of its shutdown.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::mpsc;
use tracing::metadata::LevelFilter;

use super::{ConfigArgs, USAGE, check, fail, supervised};
use crate::config::{Config, LogFormat};
use crate::ids::fresh_id;
use crate::server::{Context, Server, StartError};
use crate::shutdown::{self, Outcome, Watchdog, signals};
use crate::telemetry::logs::{self, parse_level};
use crate::telemetry::{Format, LogSettings, Metrics, Sink};
use crate::web::Site;

/// The last lines get at least this long, also when the shutdown's budget is used up.
const LAST_WORDS: Duration = Duration::from_millis(30);

/// What `milepost serve` takes.
#[derive(Debug, Clone, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// A supervisor holds the other end of the socket that is standard input
    #[arg(long, hide = true)]
    supervised: bool,
}

/// Runs the server.
pub(super) fn run(args: &ServeArgs) -> ExitCode {
    let config = match args.config.load() {
        Ok(config) => config,
        Err(error) => return fail(USAGE, error),
    };
    if let Err(error) = config.validate() {
        return fail(USAGE, error);
    }
    let missing = check::missing_files(&config);
    if !missing.is_empty() {
        return fail(USAGE, missing.join("\n"));
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, format!("cannot start: {error}")),
    };
    let sink = match Sink::stdout() {
        Ok(sink) => sink,
        Err(error) => return fail(1, format!("cannot write logs to stdout: {error}")),
    };
    match runtime.block_on(serve(config, args.clone(), sink.clone())) {
        Ok(outcome) => leave(&outcome, &sink),
        Err(error) => {
            tracing::error!(event = "server.start_failed", error = %error, "cannot start");
            let _ = sink.flush(Duration::from_secs(1));
            let code = fail(1, error);
            // The admin port's thread and the log's are still there; nothing waits for them.
            drop(runtime);
            code
        }
    }
}

async fn serve(config: Config, args: ServeArgs, sink: Sink) -> Result<Outcome, StartError> {
    let instance_id = fresh_id();
    let log = log_settings(&config, "milepost", instance_id.clone());
    let metrics = Arc::new(Metrics::new(sink.dropped()));
    let log_level = logs::init(log, sink).map_err(std::io::Error::other)?;
    raise_descriptor_limit(config.server.max_connections);

    // Before anything is started: a signal during start-up is not lost.
    let (triggers, received) = mpsc::unbounded_channel();
    let budget = config.shutdown.lame_duck + config.shutdown.close;
    let watchdog = Watchdog::start(budget, &instance_id)?;
    let reload = Arc::new(parking_lot::Mutex::new(None::<Box<dyn Fn() + Send>>));
    let on_reload = reload.clone();
    signals::install(triggers.clone(), move || {
        if let Some(reload) = &*on_reload.lock() {
            reload();
        }
    })?;
    let site = Site::new(&config.server).in_demo(args.supervised);
    let context = Context {
        instance_id: instance_id.clone(),
        metrics,
        log_level: Some(log_level.clone()),
        pages: Arc::new(site),
        triggers,
        watchdog: Some(watchdog),
    };
    let server = Server::bind(config, context)?;
    let auth = server.authenticator();
    *reload.lock() = Some(Box::new(move || {
        match auth.reload() {
            Ok(()) => tracing::info!(event = "auth.reloaded", "keys reloaded"),
            Err(error) => {
                let error = error.to_string();
                tracing::error!(event = "auth.reload_failed", error, "keys not reloaded");
            }
        }
        match args.config.load() {
            Ok(config) => log_level.set_level(level(&config)),
            Err(error) => {
                let error = error.to_string();
                tracing::error!(event = "config.reload_failed", error, "log level not reloaded");
            }
        }
    }));
    if args.supervised {
        let (public, admin) = server.addresses()?;
        supervised::start(&supervised::Hello { public, admin, instance: instance_id })?;
    }
    server.run(received).await
}

/// How a process of `service` logs.
pub(super) fn log_settings(
    config: &Config,
    service: &'static str,
    instance_id: Arc<str>,
) -> LogSettings {
    LogSettings {
        format: match config.log.format {
            LogFormat::Json => Format::Json,
            LogFormat::Text => Format::Text,
            LogFormat::Ecs => Format::Ecs,
            LogFormat::Gcp => Format::Gcp,
            LogFormat::Datadog => Format::Datadog,
        },
        level: level(config),
        service: service.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        instance_id,
    }
}

fn level(config: &Config) -> LevelFilter {
    parse_level(config.log.level.name()).unwrap_or(LevelFilter::INFO)
}

/// Gets the last lines out and ends the process.
fn leave(outcome: &Outcome, sink: &Sink) -> ! {
    if !sink.flush(outcome.left.max(LAST_WORDS)) {
        sink.drain_to_stderr();
    }
    shutdown::exit(outcome.report.exit_code)
}

/// Takes as many descriptors as the system gives, and warns if that is not enough.
pub(super) fn raise_descriptor_limit(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        // Best effort: what is had is looked at below.
        let _ =
            setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    let have = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let need = connections as u64 + 64;
    if have < need {
        tracing::warn!(
            event = "server.few_descriptors",
            have,
            need,
            "the limit of open files is below server.max_connections"
        );
    }
}
