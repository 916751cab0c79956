//! One shared connection to the broker.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::connection::State;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, HeaderMap, Request, ServerAddr};
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::watch::{Hint, Watcher};
use super::{BrokerError, LinkState, Settings};

/// The client pings after this long without a word from the server and gives the
/// connection up at the third ping without an answer.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How long a server may take from the connection to its first answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Attempts to reconnect are this much further apart each time …
const RECONNECT_STEP: Duration = Duration::from_millis(100);
/// … up to this.
const RECONNECT_CAP: Duration = Duration::from_secs(1);
/// How many commands wait for the client's task.
const CAPACITY: usize = 16 * 1024;
/// How many messages wait for one subscriber. What is over it is dropped, so it is far
/// more than a reader that lives leaves waiting; memory is taken as they come.
const UNREAD: usize = 1 << 20;

/// A shared connection. Cheap to clone; it ends with [`Link::close`] or the last clone.
#[derive(Clone)]
pub struct Link(Arc<Shared>);

struct Shared {
    client: Client,
    urls: Arc<str>,
    settings: Settings,
    state: watch::Receiver<LinkState>,
    closing: watch::Sender<LinkState>,
    dropped: watch::Receiver<u64>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("urls", &self.0.urls)
            .field("state", &*self.0.state.borrow())
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Connects to one of the servers, and goes on reconnecting by itself from then on.
    ///
    /// # Errors
    /// [`BrokerError`] if a URL or the credentials file is wrong, the servers refuse this
    /// client, or none answers within a few seconds.
    pub async fn connect(settings: Settings) -> Result<Self, BrokerError> {
        let addrs: Vec<ServerAddr> =
            settings.urls.iter().map(|url| parse(url)).collect::<Result<_, _>>()?;
        let urls: Arc<str> = addrs.iter().map(shown).collect::<Vec<_>>().join(", ").into();
        if addrs.is_empty() {
            return Err(BrokerError::Url { url: String::new(), text: "it is empty".to_owned() });
        }
        let (hint, hints) = mpsc::unbounded_channel();
        let options = ConnectOptions::new()
            .name(format!("milepost {}", settings.instance))
            .ping_interval(PING_EVERY)
            .connection_timeout(CONNECT_WITHIN)
            .client_capacity(CAPACITY)
            .subscription_capacity(UNREAD)
            .reconnect_delay_callback(delay)
            .event_callback(move |event| {
                // The watcher ends with the link.
                let _ = hint.send(Hint::of(&event));
                std::future::ready(())
            });
        let options = match &settings.credentials_file {
            None => options,
            Some(file) => options.credentials_file(file).await.map_err(|error| {
                BrokerError::Credentials { file: file.clone(), text: error.to_string() }
            })?,
        };
        let client = options.connect(addrs).await.map_err(|error| {
            let urls = urls.to_string();
            let text = chain(&error);
            match error.kind() {
                ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                    BrokerError::Refused { urls, text }
                }
                _ => BrokerError::Unreachable { urls, text },
            }
        })?;
        let (dropping, dropped) = watch::channel(0);
        let (states, state) = watch::channel(LinkState::Up { generation: 1 });
        let watcher = Watcher {
            client: client.clone(),
            urls: urls.clone(),
            state: states.clone(),
            dropped: dropping,
            hints,
        };
        tokio::spawn(watcher.run());
        let shared = Shared { client, urls, settings, state, closing: states, dropped };
        Ok(Self(Arc::new(shared)))
    }

    /// The client, for subscriptions and requests.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// What it was connected with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// The servers of the configuration, without passwords; for people.
    #[must_use]
    pub fn urls(&self) -> &str {
        &self.0.urls
    }

    /// How the link is, from now on.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.0.state.clone()
    }

    /// The number of connections there were so far. A message of a new connection is never
    /// received before this has counted it.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.client.statistics().connects.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Counts how often a subscription of this link is known to have dropped messages,
    /// because its reader was too slow. A hint: it may miss some.
    #[must_use]
    pub fn dropped(&self) -> watch::Receiver<u64> {
        self.0.dropped.clone()
    }

    /// Hands a message to the connection, if there is one now, without waiting. `true`
    /// says no more than that: only an answer shows that the broker has it, because what
    /// is under way when a connection ends is lost.
    #[must_use]
    pub fn publish(
        &self,
        subject: String,
        reply: Option<String>,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> bool {
        if self.0.client.connection_state() != State::Connected {
            return false;
        }
        let client = &self.0.client;
        let headers = headers.unwrap_or_default();
        // A full queue is a connection that does not take anything; and tokio's budget
        // must not be mistaken for it.
        let sent = match reply {
            Some(reply) => tokio::task::unconstrained(
                client.publish_with_reply_and_headers(subject, reply, headers, payload),
            )
            .now_or_never(),
            None => {
                tokio::task::unconstrained(client.publish_with_headers(subject, headers, payload))
                    .now_or_never()
            }
        };
        matches!(sent, Some(Ok(())))
    }

    /// Whether the server has taken everything sent before, and answered within `limit`.
    pub async fn round_trip(&self, limit: Duration) -> bool {
        round_trip(self.0.client.clone(), limit).await
    }

    /// Waits until the server has everything, ends all subscriptions and the connection.
    /// Returns whether that was done by `deadline`.
    pub async fn close(&self, deadline: Instant) -> bool {
        let flushed = self.round_trip(deadline.saturating_duration_since(Instant::now())).await;
        self.0.closing.send_replace(LinkState::Closed);
        let client = self.0.client.clone();
        // async-nats 0.51: `drain` returns at once. The client has ended when it takes no
        // command any more.
        let ended = tokio::time::timeout_at(deadline, async move {
            if client.drain().await.is_ok() {
                while client.flush().await.is_ok() {
                    tokio::task::yield_now().await;
                }
            }
        });
        ended.await.is_ok() && flushed
    }
}

/// Asks a subject that nobody listens to: the server itself answers that, after all that
/// it was sent before. async-nats 0.51: `flush` ends when the kernel has the bytes.
pub(super) async fn round_trip(client: Client, limit: Duration) -> bool {
    if client.connection_state() != State::Connected {
        return false;
    }
    let request = Request::new().timeout(Some(limit));
    match client.send_request(client.new_inbox(), request).await {
        Ok(_) => true,
        Err(error) => error.kind() == RequestErrorKind::NoResponders,
    }
}

fn delay(attempt: usize) -> Duration {
    let steps = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
    RECONNECT_STEP.saturating_mul(steps).min(RECONNECT_CAP)
}

fn parse(url: &str) -> Result<ServerAddr, BrokerError> {
    let bad = |text: String| {
        let tail = url.rsplit_once('@').map_or(url, |(_, tail)| tail);
        BrokerError::Url { url: tail.to_owned(), text }
    };
    let addr: ServerAddr = url.parse().map_err(|error: std::io::Error| bad(error.to_string()))?;
    match addr.scheme() {
        "nats" | "tls" => Ok(addr),
        other => Err(bad(format!("the scheme `{other}` is not supported"))),
    }
}

/// A server without user and password.
fn shown(addr: &ServerAddr) -> String {
    format!("{}://{}:{}", addr.scheme(), addr.host(), addr.port())
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
