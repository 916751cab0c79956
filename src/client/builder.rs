//! How a client is set up: endpoints, identity, times.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::backoff::BackoffTimes;
use super::connector::{Connector, Endpoint, Tcp};
use super::error::Error;
use super::event::{Events, Phase, State};
use super::resend::{Policy, ResendRefused};
use super::task::{Settings, Task};
use super::{Client, EVENTS, MAX_UNANSWERED};

type TokenFuture = Pin<Box<dyn Future<Output = Result<String, Arc<str>>> + Send>>;

/// Where tokens come from.
#[derive(Clone, Default)]
pub(super) enum Token {
    #[default]
    None,
    Fixed(Arc<str>),
    Provider(Arc<dyn Fn() -> TokenFuture + Send + Sync>),
}

impl Token {
    /// A token for the next use, `None` if the client has no identity of its own.
    pub(super) async fn get(&self) -> Result<Option<Arc<str>>, Arc<str>> {
        match self {
            Self::None => Ok(None),
            Self::Fixed(token) => Ok(Some(token.clone())),
            Self::Provider(provider) => provider().await.map(|token| Some(token.into())),
        }
    }

    /// Whether asking again may give another one.
    pub(super) const fn can_change(&self) -> bool {
        matches!(self, Self::Provider(_))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Fixed(_) => "Fixed(…)",
            Self::Provider(_) => "Provider(…)",
        })
    }
}

/// Sets a [`Client`] up; see [`Client::builder`].
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Builder {
    endpoints: Vec<String>,
    token: Token,
    client_id: Option<Arc<str>>,
    resend: Option<ResendRefused>,
    keep_unacknowledged: Option<bool>,
    backoff: BackoffTimes,
    connect_timeout: Option<Duration>,
    seed: Option<u64>,
}

impl Builder {
    /// Adds a server; with several, the client moves to the next one where it can.
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoints.push(url.into());
        self
    }

    /// A token that never changes.
    pub fn token(mut self, token: impl Into<Arc<str>>) -> Self {
        self.token = Token::Fixed(token.into());
        self
    }

    /// Where to get a token: asked for every session, and when the server says that the
    /// token is about to expire.
    pub fn token_with<F, Fut, E>(mut self, provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, E>> + Send + 'static,
        E: fmt::Display,
    {
        self.token = Token::Provider(Arc::new(move || {
            let token = provider();
            Box::pin(async move { token.await.map_err(|error| error.to_string().into()) })
        }));
        self
    }

    /// The identity on a server without tokens (`auth.mode = none`).
    pub fn client_id(mut self, client_id: impl Into<Arc<str>>) -> Self {
        self.client_id = Some(client_id.into());
        self
    }

    /// Sends requests again that a draining server refused; off by default. Uploads and
    /// notifications are never sent again.
    pub const fn resend_refused(mut self, resend: Option<ResendRefused>) -> Self {
        self.resend = resend;
        self
    }

    /// Whether keyed positions whose connection died before the answer are sent again
    /// within the server's deduplication window; on by default. Off: their result is
    /// [`Error::UnknownOutcome`].
    pub const fn resend_keyed(mut self, on: bool) -> Self {
        self.keep_unacknowledged = Some(on);
        self
    }

    /// The waits between attempts to connect.
    pub const fn backoff(mut self, times: BackoffTimes) -> Self {
        self.backoff = times;
        self
    }

    /// How long an attempt may take from the first packet to `welcome`; 10 s by default.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Makes the jitter repeatable.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Connects; every endpoint is tried once. From then on the client reconnects by itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad URL or time, [`Error::Unauthorized`],
    /// [`Error::Connect`] if no endpoint answers.
    pub async fn connect(self) -> Result<(Client, Events), Error> {
        self.refuse_tls()?;
        self.connect_with(Tcp).await
    }

    /// As [`Builder::connect`], over streams from `connector`.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn connect_with<C: Connector>(self, connector: C) -> Result<(Client, Events), Error> {
        let (first, connected) = oneshot::channel();
        let pair = self.spawn(connector, Some(first))?;
        connected.await.unwrap_or(Err(Error::Closed))?;
        Ok(pair)
    }

    /// Starts a client that connects in the background, for as long as it takes. Needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad URL or time.
    pub fn start(self) -> Result<(Client, Events), Error> {
        self.refuse_tls()?;
        self.start_with(Tcp)
    }

    /// As [`Builder::start`], over streams from `connector`.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub fn start_with<C: Connector>(self, connector: C) -> Result<(Client, Events), Error> {
        self.spawn(connector, None)
    }

    fn refuse_tls(&self) -> Result<(), Error> {
        for url in &self.endpoints {
            if Endpoint::parse(url)?.is_secure() {
                let why = "wss:// needs a connector that speaks TLS: use connect_with";
                return Err(Error::Invalid(why.into()));
            }
        }
        Ok(())
    }

    fn spawn<C: Connector>(
        self,
        connector: C,
        first: Option<oneshot::Sender<Result<(), Error>>>,
    ) -> Result<(Client, Events), Error> {
        let endpoints: Vec<Endpoint> =
            self.endpoints.iter().map(|url| Endpoint::parse(url)).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(Error::Invalid("a client needs an endpoint".into()));
        }
        let policy = Policy::new(self.resend)
            .map_err(|error| Error::Invalid(format!("new_session_wait must be {error}")))?;
        let settings = Settings {
            endpoints,
            token: self.token,
            client_id: self.client_id,
            policy,
            resend_keyed: self.keep_unacknowledged.unwrap_or(true),
            backoff: self.backoff,
            connect_timeout: self.connect_timeout.unwrap_or(Duration::from_secs(10)),
            seed: self.seed,
        };
        let (commands, command_queue) = mpsc::unbounded_channel();
        let (event_queue, events) = mpsc::channel(EVENTS);
        let (state, state_watch) = watch::channel(State {
            phase: Phase::Connecting,
            session: None,
            endpoint: None,
            stale: true,
        });
        let task = Task::new(settings, connector, command_queue, event_queue, state, first);
        tokio::spawn(task.run());
        let permits = Arc::new(Semaphore::new(MAX_UNANSWERED));
        Ok((Client::new(commands, permits, state_watch), Events { receiver: events }))
    }
}
