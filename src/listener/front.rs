//! What a request on the public port gets: an upgrade, a refusal, or a page.
//!
//! Everything is judged before the `101`, in an order that costs little for what is
//! refused; what a browser has to be able to read becomes a close code instead.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;

use crate::admin::Readiness;
use crate::close::Close;
use crate::connection::{Entry, Registered, Registry, Services};
use crate::limits::{AddressSlot, Addresses, HandshakeRate, TrustedProxies};
use crate::phase::Phase;
use crate::telemetry::events::HandshakeRefused;
use crate::telemetry::metrics::RefusedBecause;
use crate::time::UnixMillis;
use crate::transport::{Socket, upgrade};

/// The body of every answer.
pub type Body = Full<Bytes>;

/// The pages of the public port, which come from the edge of the program.
pub trait Pages: Send + Sync {
    /// The answer to a plain GET of `path`, if there is such a page.
    fn page(&self, path: &str) -> Option<Response<Body>>;
}

/// Who may open a connection from a browser (`server.allowed_origins`).
#[derive(Debug, Clone)]
pub enum Origins {
    /// Any page: there is no ambient credential.
    Any,
    /// Pages of this server only.
    Same,
    /// These, as in the `Origin` header; `*` for any.
    Listed(Vec<String>),
}

impl Origins {
    fn allow<B>(&self, request: &Request<B>) -> bool {
        let Some(origin) = request.headers().get(header::ORIGIN) else { return true };
        let Ok(origin) = origin.to_str() else { return false };
        match self {
            Self::Any => true,
            Self::Listed(listed) => {
                listed.iter().any(|one| one == "*" || one.eq_ignore_ascii_case(origin))
            }
            Self::Same => {
                let host = request.headers().get(header::HOST).and_then(|h| h.to_str().ok());
                let authority = origin.split_once("://").map(|(_, authority)| authority);
                authority.is_some() && authority == host
            }
        }
    }
}

/// A handshake that was answered with `101`.
pub(super) struct Accepted {
    pub(super) registered: Registered,
    pub(super) entry: Entry,
    pub(super) address: AddressSlot,
    pub(super) on_upgrade: OnUpgrade,
}

/// The public port's rules and what they need.
pub struct Front {
    /// The process as connections see it.
    pub services: Arc<Services>,
    /// All connections.
    pub registry: Arc<Registry>,
    /// Limits per address.
    pub addresses: Arc<Addresses>,
    /// Whose X-Forwarded-For counts.
    pub proxies: TrustedProxies,
    /// The server's handshakes a second.
    pub handshakes: HandshakeRate,
    /// `server.max_connections`; 0: no limit.
    pub max_connections: usize,
    /// Who may come from a browser.
    pub origins: Origins,
    /// The pages.
    pub pages: Arc<dyn Pages>,
    /// Whether traffic is wanted.
    pub readiness: Arc<Readiness>,
    /// When the process started.
    pub started: Instant,
}

struct Refused {
    status: StatusCode,
    code: &'static str,
    message: String,
    because: RefusedBecause,
    retry_after: Option<Duration>,
    close: bool,
}

impl Front {
    pub(super) fn respond(
        &self,
        socket: &Socket,
        mut request: Request<Incoming>,
    ) -> (Response<Body>, Option<Accepted>) {
        let on_upgrade = upgrade::is_upgrade(&request).then(|| hyper::upgrade::on(&mut request));
        let path = request.uri().path();
        let is_socket = matches!(path, "/" | "/ws");
        match on_upgrade {
            Some(on_upgrade) if is_socket => match self.admit(socket, &request, on_upgrade) {
                Ok((response, accepted)) => (response, Some(accepted)),
                Err(refused) => {
                    let peer = socket.peer();
                    HandshakeRefused {
                        reason: refused.because,
                        status: refused.status.as_u16(),
                        peer: &peer,
                    }
                    .emit(&self.services.metrics);
                    (refused.response(), None)
                }
            },
            _ => (self.plain(&request), None),
        }
    }

    fn admit(
        &self,
        socket: &Socket,
        request: &Request<Incoming>,
        on_upgrade: OnUpgrade,
    ) -> Result<(Response<Body>, Accepted), Refused> {
        if self.readiness.refuses_upgrades() {
            return Err(Refused::draining());
        }
        let response = upgrade::accept(request).map_err(Refused::bad)?;
        if !self.origins.allow(request) {
            return Err(Refused {
                status: StatusCode::FORBIDDEN,
                code: "FORBIDDEN",
                message: "This Origin is not in server.allowed_origins.".to_owned(),
                because: RefusedBecause::Origin,
                retry_after: None,
                close: false,
            });
        }
        if self.max_connections > 0 && self.registry.len() >= self.max_connections {
            let because = RefusedBecause::ServerFull;
            return Err(Refused::busy("The server is full.", because, Duration::ZERO));
        }
        if let Err(after) = self.handshakes.take(Instant::now()) {
            let text = "The server takes no more connections this second.";
            return Err(Refused::busy(text, RefusedBecause::HandshakeRate, after));
        }
        let forwarded =
            request.headers().get_all("x-forwarded-for").iter().filter_map(|v| v.to_str().ok());
        let address = self.proxies.client_address(socket.peer().ip(), forwarded);
        let (slot, entry) = match self.addresses.check(address) {
            Ok(slot) => (slot, self.authenticate(request)),
            Err(refusal) => (AddressSlot::default(), Entry::Refused(refusal.into())),
        };
        if let Entry::Refused(close) = &entry {
            let because = because(*close);
            HandshakeRefused { reason: because, status: close.code(), peer: &socket.peer() }
                .emit(&self.services.metrics);
        }
        let client = match &entry {
            Entry::Welcome(identity) => Some(identity.client_id.clone()),
            Entry::Refused(_) => None,
        };
        let port = if address.ip == socket.peer().ip() { socket.peer().port() } else { 0 };
        let peer = SocketAddr::new(address.ip, port);
        let registered = self.registry.register(client, peer, socket.clone());
        // Only now: whoever was registered before the phase advanced is notified, whoever
        // comes after sees it here.
        if self.readiness.refuses_upgrades() {
            return Err(Refused::draining());
        }
        let response = response.map(|()| Body::default());
        Ok((response, Accepted { registered, entry, address: slot, on_upgrade }))
    }

    fn authenticate(&self, request: &Request<Incoming>) -> Entry {
        let said = upgrade::credentials(request);
        let auth = &self.services.auth;
        let now = UnixMillis::now();
        match auth.authenticate(said.token.as_deref(), said.client_id.as_deref(), now) {
            Ok(identity) => Entry::Welcome(identity),
            Err(denied) => Entry::Refused(denied.into()),
        }
    }

    fn plain(&self, request: &Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        let phase = self.services.phase.get();
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = error(
                StatusCode::METHOD_NOT_ALLOWED,
                "METHOD_NOT_ALLOWED",
                "Only GET and HEAD are answered here.",
            );
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let mut response = match path {
            "/health" | "/healthz" => self.health(phase),
            "/readyz" => {
                let (status, body) = self.readiness.answer(self.registry.len());
                json(status, &body)
            }
            "/ws" => Refused::bad(upgrade::BadHandshake::NoUpgrade).response(),
            _ => self.pages.page(path).unwrap_or_else(|| {
                error(StatusCode::NOT_FOUND, "NOT_FOUND", "There is nothing at this path.")
            }),
        };
        if phase.refuses_upgrades() {
            close(&mut response);
        }
        response
    }

    fn health(&self, phase: Phase) -> Response<Body> {
        let word = if phase == Phase::Running { "ok" } else { "shutting_down" };
        let body = serde_json::json!({
            "status": word,
            "phase": phase.name(),
            "clients": self.registry.len(),
            "instanceId": &*self.services.settings.instance_id,
            "uptimeSeconds": self.started.elapsed().as_secs(),
            "version": env!("CARGO_PKG_VERSION"),
        });
        json(StatusCode::OK, &body)
    }
}

impl Refused {
    fn draining() -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: "SERVER_DRAINING",
            message: "The server is shutting down; connect to another instance.".to_owned(),
            because: RefusedBecause::Draining,
            retry_after: Some(Duration::from_secs(1)),
            close: true,
        }
    }

    fn busy(message: &str, because: RefusedBecause, after: Duration) -> Self {
        // Jitter, so that those who are refused together do not come back together: 1 to
        // 5 seconds once they are whole.
        let jitter = Duration::from_millis(fastrand::u64(1..=5000));
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: "SERVER_BUSY",
            message: message.to_owned(),
            because,
            retry_after: Some(after + jitter),
            close: false,
        }
    }

    fn bad(bad: upgrade::BadHandshake) -> Self {
        let because = match bad {
            upgrade::BadHandshake::NoUpgrade => RefusedBecause::NotAnUpgrade,
            _ => RefusedBecause::BadRequest,
        };
        Self {
            status: bad.status(),
            code: "VALIDATION_ERROR",
            message: bad.to_string(),
            because,
            retry_after: None,
            close: false,
        }
    }

    fn response(self) -> Response<Body> {
        let mut response = error(self.status, self.code, &self.message);
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            // Whole seconds (RFC 9110, 10.2.3), rounded up.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if self.status == StatusCode::UPGRADE_REQUIRED {
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        }
        if self.close {
            close(&mut response);
        }
        response
    }
}

/// The `503` of a draining server as it goes over the wire, for a handshake that is taken
/// back from the HTTP library.
pub(super) fn raw_draining() -> Vec<u8> {
    let refused = Refused::draining();
    let body = error_body(refused.code, &refused.message);
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: \
         1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn because(close: Close) -> RefusedBecause {
    match close {
        Close::ConnectRate => RefusedBecause::ConnectRate,
        Close::ConnectionsPerAddress => RefusedBecause::ConnectionsPerAddress,
        _ => RefusedBecause::Authentication,
    }
}

fn close(response: &mut Response<Body>) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}

fn error_body(code: &str, message: &str) -> String {
    serde_json::json!({ "error": code, "message": message }).to_string()
}

/// An error as JSON.
#[must_use]
pub fn error(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    text(status, "application/json", error_body(code, message))
}

/// A JSON answer.
#[must_use]
pub fn json(status: StatusCode, body: &serde_json::Value) -> Response<Body> {
    text(status, "application/json", body.to_string())
}

/// An answer that is not cached.
#[must_use]
pub fn text(status: StatusCode, content_type: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn those_who_are_refused_together_come_back_apart() {
        let mut counts = BTreeMap::new();
        for _ in 0..2000 {
            let refused = Refused::busy("x", RefusedBecause::HandshakeRate, Duration::ZERO);
            let response = refused.response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            let after = response.headers()[header::RETRY_AFTER].to_str().unwrap().to_owned();
            *counts.entry(after.parse::<u64>().unwrap()).or_insert(0) += 1;
        }
        assert!(counts.keys().copied().eq(1..=5), "{counts:?}");
        assert!(counts.values().all(|count| *count > 200), "evenly: {counts:?}");
        // On top of what the rate asks for.
        let after = Duration::from_secs(10);
        let response = Refused::busy("x", RefusedBecause::HandshakeRate, after).response();
        let seconds = response.headers()[header::RETRY_AFTER].to_str().unwrap().to_owned();
        assert!((11..=15).contains(&seconds.parse::<u64>().unwrap()), "{seconds}");
    }
}
