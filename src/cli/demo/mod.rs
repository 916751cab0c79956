//! `milepost demo`: a server with a fleet in it that can be restarted while somebody looks,
//! what a newcomer runs first.
//!
//! This process owns the ports, like a balancer ([`front`]), drives the fleet ([`fleet`])
//! through them like anybody else, and runs the server as child processes
//! ([`supervisor`], [`instance`]): `milepost serve` on ports of their own, all on one room
//! log. "Deploy now" is `POST /demo/deploy`. The room log is a temporary one unless a place
//! is configured, so that the demo leaves nothing behind.

mod fleet;
mod front;
mod instance;
mod state;
mod supervisor;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use self::fleet::RECORDINGS;
use self::front::Front;
use self::instance::StartError;
use self::state::StateSender;
use self::supervisor::Supervisor;
use super::simulate::{self, SimulateArgs};
use super::trace::Trace;
use super::{ConfigArgs, USAGE, check, fail, http, say, serve};
use crate::config::Config;
use crate::ids::fresh_id;
use crate::listener::bind;
use crate::telemetry::Sink;
use crate::telemetry::logs;

/// What the demo shows.
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// How many vehicles (default: 30, or all of the trace)
    #[arg(long, value_name = "N")]
    vehicles: Option<usize>,
    /// Positions a second of each synthetic vehicle
    #[arg(long, value_name = "HZ", default_value_t = 1.0)]
    rate: f64,
    /// Replay this recording, again and again, instead of all else: one JSON object a line
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
/// The last bytes of the processes get at least this long to the clients, and the last log
/// lines out.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A directory that is removed in the end.
struct TempDir(PathBuf);

impl TempDir {
    fn create() -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let name = format!("milepost-demo-{}", fresh_id());
        let path = std::env::temp_dir().join(name);
        // Nobody else is to read or prepare it.
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Nobody can do anything about it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What nobody has set otherwise is made for looking at it.
fn defaults(given: &Config, log: Option<&Path>) -> Vec<String> {
    let log = log.map(|folder| folder.join("milepost.db").display().to_string());
    [
        ("auth.mode", Some("none")),
        ("log.format", Some("text")),
        ("room_log.path", log.as_deref()),
        // The successor waits for as long as its predecessor may take to stop.
        ("room_log.lock_wait", Some("60s")),
        // It is there before the old process stops: nobody has to wait for it.
        ("shutdown.reconnect_min", Some("0s")),
    ]
    .into_iter()
    .filter(|(key, _)| given.sources.of(key).is_none())
    .filter_map(|(key, value)| Some(format!("{key}={}", value?)))
    .collect()
}

/// The arguments of the server processes, which listen where only this process looks.
fn arguments(config: &ConfigArgs, has_metrics_port: bool) -> Vec<String> {
    let mut sets = config.set.clone();
    sets.extend(["server.listen=127.0.0.1:0".to_owned(), "admin.listen=127.0.0.1:0".to_owned()]);
    if has_metrics_port {
        sets.push("admin.metrics_listen=127.0.0.1:0".to_owned());
    }
    let file = config.config.iter().map(|file| format!("--config={}", file.display()));
    file.chain(sets.into_iter().map(|set| format!("--set={set}"))).collect()
}

/// Runs the demo.
pub(super) fn run(args: &DemoArgs) -> ExitCode {
    let given = match args.config.load() {
        Ok(config) => config,
        Err(error) => return fail(USAGE, error),
    };
    let folder = match given.sources.of("room_log.path") {
        Some(_) => None,
        None => match TempDir::create() {
            Ok(folder) => Some(folder),
            Err(error) => return fail(1, format_args!("no temporary directory: {error}")),
        },
    };
    let mut sources = args.config.clone();
    sources.set.extend(defaults(&given, folder.as_ref().map(|folder| &*folder.0)));
    let config = match sources.load().and_then(|config| config.validate().map(|()| config)) {
        Ok(config) => config,
        Err(error) => return fail(USAGE, error),
    };
    let missing = check::missing_files(&config);
    if !missing.is_empty() {
        return fail(USAGE, missing.join("\n"));
    }
    let admin = &config.admin;
    if !admin.listen.ip().is_loopback() && admin.token.is_none() && admin.token_file.is_none() {
        let text = "admin.listen: the demo passes the admin port on, so beyond loopback it \
                    needs admin.token";
        return fail(USAGE, text);
    }
    let trace = match args.trace.as_deref().map(Trace::read).transpose() {
        Ok(trace) => trace.map(|trace| trace.first_vehicles(args.vehicles)),
        Err(error) => return fail(USAGE, format_args!("--trace: {error:#}")),
    };
    let children = arguments(&sources, admin.metrics_listen.is_some());
    let demo = Demo { fleets: fleets(args, &config, trace), children, config };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, format_args!("cannot start: {error}")),
    };
    let sink = match Sink::stdout() {
        Ok(sink) => sink,
        Err(error) => return fail(1, format_args!("cannot write logs to stdout: {error}")),
    };
    let code = runtime.block_on(demo.run(sink.clone()));
    drop(folder);
    if !sink.flush(LAST_WORDS) {
        sink.drain_to_stderr();
    }
    // Nothing waits for tasks that pass bytes on.
    runtime.shutdown_background();
    code
}

/// A room and who moves in it.
struct Fleet {
    room: &'static str,
    title: String,
    attribution: Option<&'static str>,
    args: SimulateArgs,
    trace: Option<Trace>,
}

fn fleets(args: &DemoArgs, config: &Config, trace: Option<Trace>) -> Vec<Fleet> {
    let simulate = |room: &str, gateway| SimulateArgs {
        url: Vec::new(),
        room: Some(room.to_owned()),
        vehicles: Some(args.vehicles.unwrap_or(VEHICLES)),
        rate: args.rate,
        trace: None,
        speed: args.speed,
        as_recorded: false,
        duration: None,
        keyed: true,
        gateway,
        token: None,
        token_secret: config.auth.secret.as_ref().map(|secret| secret.expose().to_owned()),
        seed: 1,
    };
    let own = |title: String, trace| Fleet {
        room: ROOM,
        title,
        attribution: None,
        args: simulate(ROOM, false),
        trace,
    };
    if let Some(trace) = trace {
        return vec![own("the recording".to_owned(), Some(trace))];
    }
    let count = args.vehicles.unwrap_or(VEHICLES);
    let mut fleets = vec![own(format!("{count} synthetic vehicles"), None)];
    for recording in &RECORDINGS {
        match recording.trace() {
            Ok(trace) => fleets.push(Fleet {
                room: recording.room,
                title: recording.title.to_owned(),
                attribution: Some(recording.attribution),
                args: simulate(recording.room, true),
                trace: Some(trace),
            }),
            // The demo is none the less one without it.
            Err(error) => say(format_args!("milepost demo: {error:#}")),
        }
    }
    fleets
}

struct Demo {
    config: Config,
    /// The arguments of the server processes.
    children: Vec<String>,
    fleets: Vec<Fleet>,
}

impl Demo {
    async fn run(self, sink: Sink) -> ExitCode {
        let log = serve::log_settings(&self.config, "milepost-demo", fresh_id());
        if let Err(error) = logs::init(log, sink) {
            return fail(1, error);
        }
        serve::raise_descriptor_limit(2 * self.config.server.max_connections);
        let ports = [
            ("server.listen", self.config.server.listen),
            ("admin.listen", self.config.admin.listen),
        ];
        let mut listeners = Vec::new();
        for (key, address) in ports {
            match bind(address) {
                Ok(listener) => listeners.push(listener),
                Err(error) => return fail(1, format_args!("{key}: {error}")),
            }
        }
        let (Some(admin), Some(public)) = (listeners.pop(), listeners.pop()) else {
            return ExitCode::FAILURE;
        };
        let rooms: Vec<&'static str> = self.fleets.iter().map(|fleet| fleet.room).collect();
        let state = StateSender::new(&rooms);
        let (supervisor, mut stop) = match Supervisor::new(self.children, state.clone()) {
            Ok(made) => made,
            Err(error) => return fail(1, error),
        };
        let tunnels = TaskTracker::new();
        let front = Front { state, deploys: supervisor.deploys(), tunnels: tunnels.clone() };
        let fleets = self.fleets;
        // Not dropped before the processes have ended: they would take it for this one's end.
        let running = supervisor.run(move || open(front, public, admin, fleets));
        tokio::pin!(running);
        let signal = tokio::select! {
            biased;
            signal = stop.asked() => signal,
            result = &mut running => match result {
                Err(StartError::Ended(status)) => {
                    // It has said why.
                    let code = status.and_then(|status| status.code()).unwrap_or(1);
                    return u8::try_from(code).unwrap_or(1).into();
                }
                Err(error) => return fail(1, error),
                Ok(()) => return ExitCode::SUCCESS,
            },
        };
        let code = stop.all_ended(signal).await;
        // What they said last is still on its way to the clients.
        tunnels.close();
        let _ = tokio::time::timeout(LAST_WORDS, tunnels.wait()).await;
        code
    }
}

/// Opens the ports to everybody, says so, and lets the fleet in.
fn open(front: Front, public: TcpListener, admin: TcpListener, fleets: Vec<Fleet>) {
    let Ok(address) = public.local_addr() else { return };
    let base = http::base_url(address);
    let url = format!("{}/ws", base.replacen("http", "ws", 1));
    welcome(&base, &url, &fleets);
    tokio::spawn(front.clone().run(public));
    tokio::spawn(front.run_admin(admin));
    for Fleet { room, mut args, trace, .. } in fleets {
        args.url = vec![url.clone()];
        tokio::spawn(async move {
            if let Err(error) = simulate::accompany(args, trace).await {
                let error = format!("{error:#}");
                tracing::error!(event = "demo.fleet_failed", error, room, "a fleet has stopped");
            }
        });
    }
}

fn welcome(base: &str, url: &str, fleets: &[Fleet]) {
    let rooms: Vec<String> =
        fleets.iter().map(|fleet| format!("{} ({})", fleet.room, fleet.title)).collect();
    let thanks: Vec<&str> = fleets.iter().filter_map(|fleet| fleet.attribution).collect();
    let mut lines = vec![
        format!("open {base}/ in a browser"),
        format!("rooms: {}", rooms.join(", ")),
        "restart the server under it and watch nothing happen: press \"deploy now\" on the page,"
            .to_owned(),
        format!("or send `curl -X POST {base}/demo/deploy`"),
        format!("watch the fleet with `milepost watch --url {url} {ROOM}`"),
        "Ctrl-C ends it".to_owned(),
    ];
    if !thanks.is_empty() {
        lines.push(format!("recordings: {}", thanks.join("; ")));
    }
    for line in lines {
        say(format_args!("milepost demo: {line}"));
    }
}
