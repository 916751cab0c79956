//! One HTTP request to a server on this machine, for the operator's commands.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::http::{Method, Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// An operator waits no longer than this for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An answer.
pub(super) struct Answer {
    /// The status.
    pub(super) status: StatusCode,
    /// The body.
    pub(super) body: String,
}

/// Sends one request without a body and returns the answer.
///
/// # Errors
/// When nobody answers at `url` in time; the text names it.
pub(super) fn request(method: Method, url: &str, token: Option<&str>) -> Result<Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let answer = tokio::time::timeout(TIMEOUT, send(method, url, token)).await;
        answer
            .unwrap_or_else(|_| bail!("no answer within {} s", TIMEOUT.as_secs()))
            .with_context(|| format!("no answer from {url}"))
    })
}

/// [`request`] within a runtime and without a limit of time.
///
/// # Errors
/// The same.
pub(super) async fn send(method: Method, url: &str, token: Option<&str>) -> Result<Answer> {
    let uri: Uri = url.parse().context("not a URL")?;
    if uri.scheme_str() != Some("http") {
        bail!("the URL must begin with http://");
    }
    let authority = uri.authority().context("the URL has no host")?.clone();
    let stream = TcpStream::connect((
        authority.host().trim_start_matches('[').trim_end_matches(']'),
        authority.port_u16().unwrap_or(80),
    ))
    .await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let mut request =
        Request::builder().method(method).uri(path).header(header::HOST, authority.as_str());
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    driver.abort();
    Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned() })
}

/// The base URL of a server that listens on `address`.
#[must_use]
pub(super) fn base_url(mut address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        let loopback = match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        address.set_ip(loopback);
    }
    format!("http://{address}")
}
