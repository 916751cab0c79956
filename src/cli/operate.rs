//! The admin port's calls, for people and for containers without a shell.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use hyper::http::Method;

use super::{ConfigArgs, USAGE, fail, http, say};

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
        Ok(answer) if answer.status.is_success() => ExitCode::SUCCESS,
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
