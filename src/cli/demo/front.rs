//! The demo's public port: a small balancer before the server processes.
//!
//! It speaks HTTP/1.1 and looks at every request, not only at the first of a connection, so
//! that `/demo/state` and `/demo/deploy` are answered here also on a connection that was
//! kept alive. Everything else goes to the process that serves now, over a connection of
//! its own; after a `101` bytes are passed on both ways until both sides have ended, also
//! when the process has become the old one. While no process serves, requests wait.
//! The admin port is passed on byte by byte.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1 as outwards;
use hyper::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::server::conn::http1 as inwards;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::state::{Ports, StateSender};
use crate::listener::{error, json};

/// How long a request waits for a process that serves.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a request's head may take.
const HEAD: Duration = Duration::from_secs(10);
/// After an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

type Body = Either<Full<Bytes>, Incoming>;

/// Passes connections on.
#[derive(Clone)]
pub(super) struct Front {
    /// Where to.
    pub(super) state: StateSender,
    /// Woken when a deploy has begun.
    pub(super) deploys: Arc<Notify>,
    /// The connections that are passed on.
    pub(super) tunnels: TaskTracker,
}

impl Front {
    /// Serves the public port.
    pub(super) async fn run(self, listener: TcpListener) {
        loop {
            let (stream, peer) = accept(&listener).await;
            let this = self.clone();
            tokio::spawn(async move {
                let service = service_fn(|request| this.respond(peer, request));
                let connection = inwards::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD)
                    .half_close(true)
                    .serve_connection(TokioIo::new(stream), service);
                // An error is the peer's: there is nobody to tell.
                let _ = connection.with_upgrades().await;
            });
        }
    }

    /// Serves the admin port.
    pub(super) async fn run_admin(self, listener: TcpListener) {
        loop {
            let (mut stream, _) = accept(&listener).await;
            let this = self.clone();
            tokio::spawn(async move {
                if let Some(mut server) = this.connect(|ports| ports.admin).await {
                    let _ = copy_bidirectional(&mut stream, &mut server).await;
                }
            });
        }
    }

    async fn respond(
        &self,
        peer: SocketAddr,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        Ok(match (request.uri().path(), request.method()) {
            ("/demo/state", &Method::GET) => self.state(StatusCode::OK),
            ("/demo/deploy", &Method::POST) => match may_deploy(peer, &request) {
                true if self.state.begin() => {
                    self.deploys.notify_one();
                    self.state(StatusCode::ACCEPTED)
                }
                true => self.state(StatusCode::CONFLICT),
                false => error(
                    StatusCode::FORBIDDEN,
                    "FORBIDDEN",
                    "Only this machine may deploy: its command line, or a page of this server.",
                )
                .map(Either::Left),
            },
            ("/demo/state" | "/demo/deploy", _) => {
                let text = "GET /demo/state, POST /demo/deploy";
                error(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", text).map(Either::Left)
            }
            _ => self.forward(request).await,
        })
    }

    fn state(&self, status: StatusCode) -> Response<Body> {
        match serde_json::to_value(self.state.now()) {
            Ok(state) => json(status, &state).map(Either::Left),
            Err(_) => unavailable(),
        }
    }

    async fn forward(&self, mut request: Request<Incoming>) -> Response<Body> {
        let upgraded = request
            .headers()
            .contains_key(header::UPGRADE)
            .then(|| hyper::upgrade::on(&mut request));
        let Some(server) = self.connect(|ports| ports.public).await else { return unavailable() };
        let Ok((mut sender, connection)) = outwards::handshake(TokioIo::new(server)).await else {
            return unavailable();
        };
        tokio::spawn(connection.with_upgrades());
        // An error: the process ended in between.
        let Ok(mut response) = sender.send_request(request).await else { return unavailable() };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(client) = upgraded
        {
            let server = hyper::upgrade::on(&mut response);
            self.tunnels.spawn(pass_on(client, server));
        }
        response.map(Either::Right)
    }

    /// A connection to the process that serves, as soon as there is one.
    async fn connect(&self, port: impl Fn(&Ports) -> SocketAddr) -> Option<TcpStream> {
        let mut state = self.state.watch();
        let connecting = async {
            loop {
                let ports = state.borrow_and_update().ports;
                if let Some(ports) = ports
                    && let Ok(stream) = TcpStream::connect(port(&ports)).await
                {
                    let _ = stream.set_nodelay(true);
                    return Some(stream);
                }
                // It has gone, or there is none: the next one is announced here.
                state.changed().await.ok()?;
            }
        };
        tokio::time::timeout(PATIENCE, connecting).await.ok().flatten()
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                return (stream, peer);
            }
            Err(error) => {
                tracing::warn!(event = "demo.accept_failed", %error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn pass_on(client: OnUpgrade, server: OnUpgrade) {
    if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
        // However it ends, both sides have seen it.
        let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
    }
}

fn unavailable() -> Response<Body> {
    let text = "No server process is running.";
    let mut response = error(StatusCode::SERVICE_UNAVAILABLE, "SERVER_BUSY", text);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response.map(Either::Left)
}

/// Whether `request` comes from this machine, and not from a foreign web page on it: such
/// a page's requests carry its `Origin`, or (DNS rebinding) a foreign `Host`.
fn may_deploy<B>(peer: SocketAddr, request: &Request<B>) -> bool {
    let text = |name: &str| request.headers().get(name).map(|value| value.to_str().ok());
    let Some(Some(host)) = text("host") else { return false };
    let own_page = match text("origin") {
        None => true,
        Some(origin) => origin.and_then(|origin| origin.strip_prefix("http://")) == Some(host),
    };
    let own_site = matches!(text("sec-fetch-site"), None | Some(Some("same-origin")));
    peer.ip().to_canonical().is_loopback() && own_page && own_site && is_loopback(host)
}

/// Whether a `Host` names this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_and_its_pages_may_deploy() {
        let (local, remote) = ("127.0.0.1:9", "192.0.2.1:9");
        for (peer, headers, may) in [
            (local, &[("host", "localhost:8080")][..], true),
            (local, &[("host", "[::1]:8080")], true),
            (local, &[("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:8080")], true),
            (local, &[("host", "127.0.0.1:8080"), ("sec-fetch-site", "same-origin")], true),
            (local, &[], false),
            (remote, &[("host", "localhost:8080")], false),
            (local, &[("host", "evil.example:8080")], false),
            (local, &[("host", "evil.example"), ("origin", "http://evil.example")], false),
            (local, &[("host", "localhost:8080"), ("origin", "http://evil.example")], false),
            (local, &[("host", "localhost:8080"), ("origin", "http://localhost:9")], false),
            (local, &[("host", "localhost:8080"), ("origin", "null")], false),
            (local, &[("host", "localhost:8080"), ("sec-fetch-site", "cross-site")], false),
            (local, &[("host", "localhost:8080"), ("sec-fetch-site", "same-site")], false),
        ] {
            let mut request = Request::post("/demo/deploy");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(()).unwrap();
            assert_eq!(may_deploy(peer.parse().unwrap(), &request), may, "{peer} {headers:?}");
        }
    }
}
