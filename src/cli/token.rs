//! `milepost token`: mints a token from the configured secret.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{ConfigArgs, USAGE, fail, say};
use crate::auth::{Claims, mint};
use crate::server::token_settings;
use crate::time::UnixMillis;

/// What the token says. A token with any of the four lists gets nothing for the absent
/// ones.
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    /// The client id
    #[arg(long)]
    sub: String,
    /// A room pattern to publish to, `*` for any run of characters; may be repeated
    #[arg(long, value_name = "PATTERN")]
    publish: Option<Vec<String>>,
    /// A room pattern to subscribe to; may be repeated
    #[arg(long, value_name = "PATTERN")]
    subscribe: Option<Vec<String>>,
    /// A room pattern to read the history of; may be repeated
    #[arg(long, value_name = "PATTERN")]
    history: Option<Vec<String>>,
    /// A pattern of vehicles to publish for besides its own id; may be repeated
    #[arg(long, value_name = "PATTERN")]
    vehicles: Option<Vec<String>>,
    /// Never announced by presence
    #[arg(long)]
    hidden: bool,
    /// How long it is good for
    #[arg(long, default_value = "1h", value_parser = super::duration)]
    ttl: Duration,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Prints the token.
pub(super) fn run(args: &TokenArgs) -> ExitCode {
    let config = match args.config.load() {
        Ok(config) => config,
        Err(error) => return fail(USAGE, error),
    };
    let claims = Claims {
        sub: args.sub.clone(),
        publish: args.publish.clone(),
        subscribe: args.subscribe.clone(),
        history: args.history.clone(),
        vehicles: args.vehicles.clone(),
        hidden: args.hidden,
        issued_at: UnixMillis::now(),
        ttl: Some(args.ttl),
    };
    match mint(&token_settings(&config), &claims) {
        Ok(token) => {
            say(token);
            ExitCode::SUCCESS
        }
        Err(error) => fail(USAGE, error),
    }
}
