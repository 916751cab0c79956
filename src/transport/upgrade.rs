//! The opening handshake (RFC 6455, 4.2) as a pure function of the HTTP request: what is
//! asked for, with which token, and what to answer.
//!
//! The query string may hold a token, so nothing here is ever logged.

use hyper::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// The subprotocol of this server.
pub const SUBPROTOCOL: &str = "milepost.v1";
const BEARER: &str = "bearer.";

/// Why a request is no handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHandshake {
    /// It does not ask for an upgrade to WebSocket.
    #[error("This address takes WebSocket connections: send an Upgrade.")]
    NoUpgrade,
    /// `Sec-WebSocket-Version` is not 13.
    #[error("Sec-WebSocket-Version must be 13.")]
    Version,
    /// Something else is missing or wrong.
    #[error("{0}")]
    Malformed(&'static str),
}

impl BadHandshake {
    /// The HTTP status to answer with.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::NoUpgrade | Self::Version => StatusCode::UPGRADE_REQUIRED,
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
        }
    }
}

/// Whether the request asks for an upgrade at all; if not it is an ordinary one.
#[must_use]
pub fn is_upgrade<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(header::UPGRADE)
        || request.headers().contains_key(header::SEC_WEBSOCKET_KEY)
}

/// What a handshake says of its client.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The token, from the header, the subprotocol or the query, in this order.
    pub token: Option<String>,
    /// `?clientId=`, which counts with `auth.mode = "none"` only.
    pub client_id: Option<String>,
}

/// Reads the credentials of a request.
#[must_use]
pub fn credentials<B>(request: &Request<B>) -> Credentials {
    let headers = request.headers();
    let query = request.uri().query().unwrap_or_default();
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim().to_owned());
    let offered = || {
        offered_protocols(headers)
            .find_map(|protocol| protocol.strip_prefix(BEARER))
            .map(ToOwned::to_owned)
    };
    Credentials {
        token: bearer.or_else(offered).or_else(|| query_value(query, "token")),
        client_id: query_value(query, "clientId"),
    }
}

fn offered_protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|protocol| !protocol.is_empty())
}

/// The decoded value of the first `name=…` in a query string.
#[must_use]
pub fn query_value(query: &str, name: &str) -> Option<String> {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| percent_decoded(value))
}

/// `application/x-www-form-urlencoded`; what is no escape stays as it is.
fn percent_decoded(text: &str) -> String {
    let hex = |byte: Option<&u8>| byte.and_then(|b| char::from(*b).to_digit(16));
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escape = (byte == b'%')
            .then(|| Some(hex(bytes.get(at + 1))? * 16 + hex(bytes.get(at + 2))?))
            .flatten()
            .and_then(|value| u8::try_from(value).ok());
        match (byte, escape) {
            (_, Some(value)) => {
                decoded.push(value);
                at += 3;
            }
            (b'+', None) => {
                decoded.push(b' ');
                at += 1;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The `101` for a handshake that is in order.
///
/// # Errors
/// [`BadHandshake`] with the HTTP status to answer.
pub fn accept<B>(request: &Request<B>) -> Result<Response<()>, BadHandshake> {
    let headers = request.headers();
    let has = |name: header::HeaderName, token: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|value| value.trim().eq_ignore_ascii_case(token))
    };
    if request.method() != Method::GET {
        return Err(BadHandshake::Malformed("A handshake must be a GET request."));
    }
    if request.version() < Version::HTTP_11 {
        return Err(BadHandshake::Malformed("A handshake needs HTTP/1.1."));
    }
    if !headers.contains_key(header::HOST) {
        return Err(BadHandshake::Malformed("The Host header is missing."));
    }
    if !has(header::UPGRADE, "websocket") {
        return Err(BadHandshake::NoUpgrade);
    }
    if !has(header::CONNECTION, "upgrade") {
        return Err(BadHandshake::Malformed("Connection must hold `Upgrade`."));
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(BadHandshake::Version);
    }
    // 16 bytes in base64 (RFC 6455, 4.1).
    let key_ok = headers.get(header::SEC_WEBSOCKET_KEY).is_some_and(|key| {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD
            .decode(key.as_bytes())
            .is_ok_and(|key| key.len() == 16)
    });
    if !key_ok {
        return Err(BadHandshake::Malformed("Sec-WebSocket-Key must be 16 bytes in base64."));
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).map_or(&[][..], HeaderValue::as_bytes);
    let accepted = HeaderValue::from_str(&derive_accept_key(key))
        .map_err(|_| BadHandshake::Malformed("The handshake is malformed."))?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in [
        (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::SEC_WEBSOCKET_ACCEPT, accepted),
    ] {
        response.headers_mut().insert(name, value);
    }
    let ours = offered_protocols(headers).find(|protocol| *protocol == SUBPROTOCOL);
    // Some clients fail when none of their subprotocols comes back.
    let chosen =
        ours.or_else(|| offered_protocols(headers).find(|protocol| !protocol.starts_with(BEARER)));
    if let Some(value) = chosen.and_then(|protocol| HeaderValue::from_str(protocol).ok()) {
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, value);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(change: impl FnOnce(&mut Request<()>)) -> Request<()> {
        let mut request = Request::get("/ws?token=from%20query&clientId=a+b")
            .header("host", "x")
            .header("upgrade", "WebSocket")
            .header("connection", "keep-alive, Upgrade")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .body(())
            .unwrap();
        change(&mut request);
        request
    }

    fn set(name: &'static str, value: &'static str) -> impl FnOnce(&mut Request<()>) {
        move |request| {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
    }

    #[test]
    fn accepts_with_the_key_of_the_rfc() {
        let response = accept(&request(|_| {})).unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(!response.headers().contains_key("sec-websocket-protocol"));
        assert!(!response.headers().contains_key("sec-websocket-extensions"));
        // RFC 6455, 4.2.1: the header holds the keyword, perhaps among others.
        assert!(accept(&request(set("upgrade", "h2c, websocket"))).is_ok());
    }

    #[test]
    fn the_token_is_never_echoed() {
        let response =
            accept(&request(set("sec-websocket-protocol", "bearer.tok, milepost.v1"))).unwrap();
        assert_eq!(response.headers()["sec-websocket-protocol"], SUBPROTOCOL);
        let response = accept(&request(set("sec-websocket-protocol", "bearer.tok"))).unwrap();
        assert!(!response.headers().contains_key("sec-websocket-protocol"));
        let response =
            accept(&request(set("sec-websocket-protocol", "bearer.tok, graphql, x"))).unwrap();
        assert_eq!(response.headers()["sec-websocket-protocol"], "graphql");
    }

    #[test]
    fn the_token_is_taken_in_the_contracts_order() {
        let query = request(|_| {});
        assert_eq!(credentials(&query).token.as_deref(), Some("from query"));
        assert_eq!(credentials(&query).client_id.as_deref(), Some("a b"));
        let offered = request(set("sec-websocket-protocol", "milepost.v1, bearer.offered"));
        assert_eq!(credentials(&offered).token.as_deref(), Some("offered"));
        let header = request(|request| {
            set("sec-websocket-protocol", "bearer.offered")(request);
            set("authorization", "bearer header")(request);
        });
        assert_eq!(credentials(&header).token.as_deref(), Some("header"));
    }

    #[test]
    fn each_defect_has_its_status() {
        for (change, status) in [
            (set("sec-websocket-version", "8"), 426),
            (set("upgrade", "h2c"), 426),
            (set("sec-websocket-key", "short"), 400),
            (set("connection", "keep-alive"), 400),
        ]
        .map(|(change, status)| (request(change), status))
        {
            assert_eq!(accept(&change).unwrap_err().status().as_u16(), status);
        }
        let old = request(|request| *request.version_mut() = Version::HTTP_10);
        assert_eq!(accept(&old).unwrap_err().status().as_u16(), 400);
        let post = request(|request| *request.method_mut() = Method::POST);
        assert_eq!(accept(&post).unwrap_err().status().as_u16(), 400);
        let no_host = request(|request| {
            request.headers_mut().remove("host");
        });
        assert_eq!(accept(&no_host).unwrap_err().status().as_u16(), 400);
    }

    #[test]
    fn odd_escapes_stay_as_they_are() {
        for (text, decoded) in
            [("%", "%"), ("%4", "%4"), ("%zz", "%zz"), ("a%2Bb", "a+b"), ("%ff", "\u{fffd}")]
        {
            assert_eq!(percent_decoded(text), decoded);
        }
    }
}
