//! Who the connections of a simulation are: a given token, minted ones, or plain names.

use std::time::Duration;

use super::SimulateArgs;
use crate::auth::{Claims, Secret, Settings, mint};
use crate::client::{Builder, Client, ResendRefused};
use crate::time::UnixMillis;

/// How a simulated connection shows who it is.
pub(super) struct Identity {
    urls: Vec<String>,
    room: String,
    token: Option<String>,
    secret: Option<Settings>,
}

/// The observer's name.
const OBSERVER: &str = "simulate-observer";

impl Identity {
    pub(super) fn new(args: &SimulateArgs, room: &str) -> anyhow::Result<Self> {
        let from_env = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let secret = args.token_secret.clone().or_else(|| from_env("MILEPOST_TOKEN_SECRET"));
        let token = args.token.clone().or_else(|| from_env("MILEPOST_TOKEN"));
        let secret = secret
            .map(|secret| Settings { secret: Some(Secret::new(secret)), ..Settings::default() });
        let this = Self { urls: args.url.clone(), room: room.to_owned(), token, secret };
        // A secret that cannot sign is found here, not by a thousand vehicles.
        this.mint("check", false)?;
        Ok(this)
    }

    fn mint(&self, sub: &str, gateway: bool) -> anyhow::Result<Option<String>> {
        let Some(settings) = &self.secret else { return Ok(None) };
        let claims = Claims {
            sub: sub.to_owned(),
            publish: Some(vec![self.room.clone()]),
            subscribe: (sub == OBSERVER).then(|| vec![self.room.clone()]),
            vehicles: gateway.then(|| vec!["*".to_owned()]),
            hidden: sub == OBSERVER,
            issued_at: UnixMillis::now(),
            ttl: Some(Duration::from_secs(7 * 24 * 3600)),
            ..Claims::default()
        };
        Ok(Some(mint(settings, &claims)?))
    }

    fn builder(&self, name: &str, gateway: bool) -> anyhow::Result<Builder> {
        let mut builder = Client::builder();
        for url in &self.urls {
            builder = builder.endpoint(url);
        }
        Ok(match (self.mint(name, gateway)?, &self.token) {
            (Some(token), _) => builder.token(token),
            (None, Some(token)) => builder.token(token.as_str()),
            (None, None) => builder.client_id(name),
        })
    }

    pub(super) fn observer(&self) -> anyhow::Result<Builder> {
        self.builder(OBSERVER, false)
    }

    /// A publisher named `name`; as a gateway it publishes for other vehicles.
    pub(super) fn publisher(&self, name: &str, gateway: bool) -> anyhow::Result<Builder> {
        // A deploy is no failure of the fleet: what a draining server did not start goes to
        // the next one.
        let new_session_wait = Duration::from_secs(60);
        let resend = ResendRefused { max_resends: 10, new_session_wait };
        Ok(self.builder(name, gateway)?.resend_refused(Some(resend)))
    }

    /// Whether connections may publish for vehicles by other names than their own.
    pub(super) const fn names_vehicles(&self) -> bool {
        self.token.is_some()
    }
}
