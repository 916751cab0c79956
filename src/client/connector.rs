//! From an endpoint's URL to a session: byte stream, WebSocket handshake, `welcome`.
//!
//! The byte stream comes from a [`Connector`], so that tests run over memory and users can
//! bring TLS or a proxy. Nothing here decides when to try again.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::header::{AUTHORIZATION, RETRY_AFTER};
use tokio_tungstenite::tungstenite::http::{HeaderValue, Uri};
use tokio_tungstenite::tungstenite::{self, protocol::WebSocketConfig};

use super::builder::Token;
use super::error::Error;
use super::link::Link;

/// Opens byte streams to servers.
pub trait Connector: Send + Sync + 'static {
    /// The stream.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Connects to `endpoint`; for `wss` that includes TLS.
    ///
    /// # Errors
    /// What the system says.
    fn connect(&self, endpoint: &Endpoint) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

/// Plain TCP, for `ws` URLs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Connector for Tcp {
    type Io = TcpStream;

    async fn connect(&self, endpoint: &Endpoint) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((endpoint.host(), endpoint.port())).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// The URL of a server: `ws://host:port/path`, or `wss` with a [`Connector`] that can.
#[derive(Debug, Clone)]
pub struct Endpoint {
    uri: Uri,
    host: Box<str>,
    port: u16,
    secure: bool,
    shown: Arc<str>,
}

impl Endpoint {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none of `ws` or `wss` with a host.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Invalid(format!("the endpoint's URL {why}"));
        let uri: Uri = url.parse().map_err(|_| wrong("cannot be read"))?;
        let secure = match uri.scheme_str() {
            Some("ws") => false,
            Some("wss") => true,
            _ => return Err(wrong("must begin with ws:// or wss://")),
        };
        let host =
            uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').into();
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        // Without user, password and query: those may be secrets.
        let authority = authority.rsplit('@').next().unwrap_or_default();
        let scheme = if secure { "wss" } else { "ws" };
        let shown = format!("{scheme}://{authority}{}", uri.path()).into();
        Ok(Self { uri, host, port, secure, shown })
    }

    /// The host's name or address.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Whether the URL asks for TLS.
    #[must_use]
    pub const fn is_secure(&self) -> bool {
        self.secure
    }

    /// The URL without its query, for people.
    #[must_use]
    pub fn shown(&self) -> &Arc<str> {
        &self.shown
    }

    fn request(&self, token: Option<&str>, client_id: Option<&str>) -> Result<Request, Failure> {
        let mut url = self.uri.to_string();
        if let Some(client_id) = client_id {
            url.push(if self.uri.query().is_some() { '&' } else { '?' });
            url.push_str("clientId=");
            percent_encode(&mut url, client_id);
        }
        let mut request = url.into_client_request().map_err(|error| Failure::from_ws(&error))?;
        if let Some(token) = token {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
                Failure::Token("the token holds characters that no header may".into())
            })?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }
}

fn percent_encode(out: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from_digit(digit.into(), 16).unwrap_or('0').to_ascii_uppercase());
            }
        }
    }
}

/// Why an attempt gave no session.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// No stream, or one that broke before `welcome`.
    Io(String),
    /// The server refused the upgrade.
    Http { status: u16, retry_after: Option<Duration> },
    /// The server closed instead of saying `welcome`.
    Closed { code: u16, reason: Arc<str>, token: Option<Arc<str>> },
    /// The provider has no token, or the one that was refused.
    Token(Arc<str>),
    /// Not in time.
    Timeout,
    /// Not a server of this protocol.
    Protocol(String),
}

impl Failure {
    fn from_ws(error: &tungstenite::Error) -> Self {
        match error {
            tungstenite::Error::Http(response) => Self::Http {
                status: response.status().as_u16(),
                retry_after: response
                    .headers()
                    .get(RETRY_AFTER)
                    .and_then(|value| value.to_str().ok()?.trim().parse().ok())
                    .map(Duration::from_secs),
            },
            tungstenite::Error::Io(error) => Self::Io(error.to_string()),
            other => Self::Protocol(other.to_string()),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => f.write_str(error),
            Self::Http { status, .. } => write!(f, "HTTP status {status}"),
            Self::Closed { code, reason, .. } => write!(f, "closed with {code} {reason}"),
            Self::Token(error) => write!(f, "no token: {error}"),
            Self::Timeout => f.write_str("no welcome in time"),
            Self::Protocol(error) => write!(f, "not this protocol: {error}"),
        }
    }
}

/// The largest frame and message that a client takes: far above what a server sends.
const MAX_FRAME: usize = 16 << 20;

fn websocket_config() -> WebSocketConfig {
    // Small buffers: a fleet's gateway or a simulator holds thousands of these.
    WebSocketConfig::default()
        .read_buffer_size(4 << 10)
        .write_buffer_size(8 << 10)
        .max_write_buffer_size(2 << 20)
        .max_message_size(Some(MAX_FRAME))
        .max_frame_size(Some(MAX_FRAME))
}

/// What an attempt needs to know.
pub(super) struct Attempt {
    pub(super) link: u64,
    pub(super) index: usize,
    pub(super) endpoint: Endpoint,
    pub(super) token: Token,
    pub(super) client_id: Option<Arc<str>>,
    /// A token that the server refused: it is not tried again.
    pub(super) refused_token: Option<Arc<str>>,
    pub(super) timeout: Duration,
}

/// Opens a session.
pub(super) async fn open<C: Connector>(
    connector: Arc<C>,
    attempt: Attempt,
) -> Result<Box<Link<C::Io>>, Failure> {
    let timeout = attempt.timeout;
    tokio::time::timeout(timeout, session(connector, attempt))
        .await
        .unwrap_or(Err(Failure::Timeout))
}

async fn session<C: Connector>(
    connector: Arc<C>,
    attempt: Attempt,
) -> Result<Box<Link<C::Io>>, Failure> {
    let token = attempt.token.get().await.map_err(Failure::Token)?;
    if token.is_some() && token == attempt.refused_token {
        return Err(Failure::Token("the provider gave the token that was refused".into()));
    }
    let request = attempt.endpoint.request(token.as_deref(), attempt.client_id.as_deref())?;
    let stream = connector
        .connect(&attempt.endpoint)
        .await
        .map_err(|error| Failure::Io(error.to_string()))?;
    let (socket, _) = client_async_with_config(request, stream, Some(websocket_config()))
        .await
        .map_err(|error| Failure::from_ws(&error))?;
    let shown = attempt.endpoint.shown.clone();
    Link::welcomed(attempt.link, attempt.index, shown, socket, token).await.map(Box::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let one = Endpoint::parse("ws://user:pw@[::1]:81/ws?token=secret").unwrap();
        assert_eq!((one.host(), one.port(), one.is_secure()), ("::1", 81, false));
        assert_eq!(&**one.shown(), "ws://[::1]:81/ws");
        assert_eq!(Endpoint::parse("wss://h/").unwrap().port(), 443);
        for bad in ["http://h/", "h:80", "", "ws://", "ws://a b/"] {
            assert!(matches!(Endpoint::parse(bad), Err(Error::Invalid(_))), "{bad}");
        }
    }

    #[test]
    fn the_client_id_is_escaped_and_the_token_stays_out_of_the_url() {
        let one = Endpoint::parse("ws://h:1/ws?x=1").unwrap();
        let request = one.request(Some("t.o.k"), Some("bus 7/ö&")).unwrap();
        assert_eq!(request.uri().query(), Some("x=1&clientId=bus%207%2F%C3%B6%26"));
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer t.o.k");
        assert!(request.headers()[AUTHORIZATION].is_sensitive());
        assert!(matches!(one.request(Some("a\nb"), None), Err(Failure::Token(_))));
    }
}
