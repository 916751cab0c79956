//! The admin port's calls, for people and for containers without a shell.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use hyper::http::Method;

use super::{ConfigArgs, USAGE, fail, http, say};
use crate::admin::Guard;

/// How often a drain is looked at.
const POLL: Duration = Duration::from_millis(500);

/// `milepost healthcheck`
#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// Ask for readiness instead of liveness
    #[arg(long)]
    ready: bool,
    /// The admin port [default: what the configuration says]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// `milepost quiesce`
#[derive(Debug, Args)]
pub(super) struct QuiesceArgs {
    /// Let work go on again
    #[arg(long)]
    resume: bool,
    /// Why, for readiness and the log
    #[arg(long, value_name = "TEXT", conflicts_with = "resume")]
    reason: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

/// What the operator's commands have in common.
#[derive(Debug, Args)]
pub(super) struct AdminArgs {
    /// The admin port [default: what the configuration says]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

fn base(url: Option<&str>, config: &ConfigArgs) -> Result<String> {
    match url {
        Some(url) => Ok(url.trim_end_matches('/').to_owned()),
        None => Ok(http::base_url(config.load()?.admin.listen)),
    }
}

/// Exits with 0 if the server is alive (or ready), else with 1.
pub(super) fn healthcheck(args: &HealthArgs) -> ExitCode {
    let path = if args.ready { "/readyz" } else { "/livez" };
    let base = match base(args.url.as_deref(), &args.config) {
        Ok(base) => base,
        Err(error) => return fail(USAGE, error),
    };
    match http::request(Method::GET, &format!("{base}{path}"), None) {
        Ok(answer) if answer.status.is_success() => {
            // Ready is silent; degraded is ready and worth a word.
            if answer.body.contains("\"degraded\"") {
                say(answer.body.trim());
            }
            ExitCode::SUCCESS
        }
        Ok(answer) => fail(1, answer.body.trim()),
        Err(error) => fail(1, format!("{error:#}")),
    }
}

/// Prints what `GET /status` says.
pub(super) fn status(args: &AdminArgs) -> ExitCode {
    let asked = || -> Result<String> {
        let base = base(args.url.as_deref(), &args.config)?;
        let answer = http::request(Method::GET, &format!("{base}/status"), None)?;
        if !answer.status.is_success() {
            bail!("{base}/status: {} {}", answer.status, answer.body.trim());
        }
        let status: serde_json::Value =
            serde_json::from_str(&answer.body).context("the answer is not JSON")?;
        Ok(serde_json::to_string_pretty(&status)?)
    };
    match asked() {
        Ok(text) => {
            say(text);
            ExitCode::SUCCESS
        }
        Err(error) => fail(1, format!("{error:#}")),
    }
}

/// `milepost drain`
#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// Clients to notice a second
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// Wait until no client is left, at most this long; then exit with 0
    #[arg(long, value_name = "TIME", value_parser = super::duration)]
    wait: Option<Duration>,
    /// Stop noticing clients and take new ones again
    #[arg(long, conflicts_with_all = ["rate", "wait"])]
    stop: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Evacuates the clients without stopping, at a rate.
pub(super) fn drain(args: &DrainArgs) -> ExitCode {
    if args.stop {
        return change(&args.admin, Method::DELETE, "/drain");
    }
    let begun = change(&args.admin, Method::POST, &format!("/drain?rate={}", args.rate));
    let Some(wait) = args.wait.filter(|_| begun == ExitCode::SUCCESS) else { return begun };
    match wait_until_empty(&args.admin, wait) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, format!("{error:#}")),
    }
}

/// For a preStop hook: what is left when the time is up is the shutdown's.
fn wait_until_empty(args: &AdminArgs, wait: Duration) -> Result<()> {
    let url = format!("{}/drain", base(args.url.as_deref(), &args.config)?);
    let began = tokio::time::Instant::now();
    loop {
        let answer = http::request(Method::GET, &url, None)?;
        let status: serde_json::Value =
            serde_json::from_str(&answer.body).context("the answer is not JSON")?;
        let clients = status["clients"].as_u64();
        // 409: the shutdown has begun and empties the server itself.
        if clients == Some(0) || clients.is_none() || began.elapsed() >= wait {
            return Ok(());
        }
        say(format_args!("{} clients left", clients.unwrap_or_default()));
        std::thread::sleep(POLL.min(wait.saturating_sub(began.elapsed())));
    }
}

/// Pauses the plane, or lets it go on.
pub(super) fn quiesce(args: &QuiesceArgs) -> ExitCode {
    let method = if args.resume { Method::DELETE } else { Method::POST };
    let query = args.reason.as_deref().map(|reason| format!("?reason={}", encoded(reason)));
    change(&args.admin, method, &format!("/quiesce{}", query.unwrap_or_default()))
}

/// Sends a call that changes something, with the configured token.
fn change(args: &AdminArgs, method: Method, path: &str) -> ExitCode {
    let called = || -> Result<String> {
        let config = args.config.load()?;
        let token = match (&config.admin.token, &config.admin.token_file) {
            (Some(token), _) => Some(token.expose().to_owned()),
            (None, Some(file)) => Some(Guard::read_token(file)?),
            (None, None) => None,
        };
        let base = base(args.url.as_deref(), &args.config)?;
        let answer = http::request(method, &format!("{base}{path}"), token.as_deref())?;
        if !answer.status.is_success() {
            bail!("{}: {}", answer.status, answer.body.trim());
        }
        Ok(answer.body)
    };
    match called() {
        Ok(text) => {
            say(text.trim());
            ExitCode::SUCCESS
        }
        Err(error) => fail(1, format!("{error:#}")),
    }
}

/// Percent-encodes everything but letters and digits.
fn encoded(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}
