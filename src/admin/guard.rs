//! Who may change something through the admin port.
//!
//! A web page on the same machine must not: its requests carry `Origin` or
//! `Sec-Fetch-Site`, or (DNS rebinding) a foreign `Host`.

use std::net::SocketAddr;
use std::path::Path;

use hyper::http::{Request, StatusCode, header};

/// The token file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("admin.token_file: {file}: {text}; it must be a readable file with the token in it")]
pub struct TokenFileError {
    file: String,
    text: String,
}

/// The rules for calls that change something.
#[derive(Clone)]
pub struct Guard {
    token: Option<String>,
    allowed_hosts: Vec<String>,
}

/// Why a call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardRefusal {
    /// It comes from a web page.
    FromPage,
    /// Its `Host` is none of ours.
    ForeignHost,
    /// Its bearer token is missing or wrong.
    Token,
    /// There is no token, so only loopback may.
    NotLoopback,
}

impl GuardRefusal {
    /// The status to answer with.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::Token => StatusCode::UNAUTHORIZED,
            _ => StatusCode::FORBIDDEN,
        }
    }

    /// The code in the body.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Token => "AUTH_FAILED",
            _ => "FORBIDDEN",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::FromPage => "A web page may not change the server.",
            Self::ForeignHost => "The Host header is neither loopback nor in admin.allowed_hosts.",
            Self::Token => "Send the token of admin.token as Authorization: Bearer.",
            Self::NotLoopback => "Without admin.token only loopback may change the server.",
        }
    }
}

impl Guard {
    /// The rules: a bearer token or, without one, loopback only.
    #[must_use]
    pub fn new(token: Option<String>, allowed_hosts: Vec<String>) -> Self {
        Self { token, allowed_hosts }
    }

    /// Reads the token from a file; white space around it does not count.
    ///
    /// # Errors
    /// [`TokenFileError`] names the file.
    pub fn read_token(file: &Path) -> Result<String, TokenFileError> {
        let failed = |text: String| TokenFileError { file: file.display().to_string(), text };
        let text = std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
        let token = text.trim();
        if token.is_empty() { Err(failed("empty".to_owned())) } else { Ok(token.to_owned()) }
    }

    /// Whether `request` from `peer` may change something.
    ///
    /// # Errors
    /// `GuardRefusal` otherwise.
    pub fn check<B>(&self, peer: SocketAddr, request: &Request<B>) -> Result<(), GuardRefusal> {
        let headers = request.headers();
        if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
            return Err(GuardRefusal::FromPage);
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        if !host.is_some_and(|host| self.allows_host(host)) {
            return Err(GuardRefusal::ForeignHost);
        }
        match &self.token {
            None if peer.ip().to_canonical().is_loopback() => Ok(()),
            None => Err(GuardRefusal::NotLoopback),
            Some(token) => {
                let sent = headers
                    .get(header::AUTHORIZATION)
                    .and_then(|value| value.to_str().ok())
                    .and_then(|value| value.strip_prefix("Bearer "))
                    .unwrap_or_default();
                if same(sent.as_bytes(), token.as_bytes()) {
                    Ok(())
                } else {
                    Err(GuardRefusal::Token)
                }
            }
        }
    }

    fn allows_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            || self
                .allowed_hosts
                .iter()
                .any(|one| one.eq_ignore_ascii_case(name) || one.eq_ignore_ascii_case(host))
    }
}

/// Compares in a time that does not depend on where the texts differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (x, y)| differ | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::post("/shutdown");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn pages_and_foreign_hosts_are_refused() {
        let guard = Guard::new(None, vec!["admin.example".to_owned()]);
        let local: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let remote: SocketAddr = "192.0.2.1:9".parse().unwrap();
        for (headers, peer, expected) in [
            (&[("host", "localhost:9090")][..], local, Ok(())),
            (&[("host", "[::1]:9090")], local, Ok(())),
            (&[("host", "127.0.0.1")], local, Ok(())),
            (&[("host", "admin.example:9090")], local, Ok(())),
            (&[("host", "evil.example")], local, Err(GuardRefusal::ForeignHost)),
            (&[], local, Err(GuardRefusal::ForeignHost)),
            (
                &[("host", "localhost"), ("origin", "http://localhost")],
                local,
                Err(GuardRefusal::FromPage),
            ),
            (
                &[("host", "localhost"), ("sec-fetch-site", "same-origin")],
                local,
                Err(GuardRefusal::FromPage),
            ),
            (&[("host", "localhost")], remote, Err(GuardRefusal::NotLoopback)),
        ] {
            assert_eq!(guard.check(peer, &request(headers)), expected, "{headers:?}");
        }
    }

    #[test]
    fn a_token_is_needed_once_there_is_one() {
        let guard = Guard::new(Some("secret".to_owned()), Vec::new());
        let local: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let ask = |token: &str| {
            let value = format!("Bearer {token}");
            guard.check(local, &request(&[("host", "localhost"), ("authorization", &value)]))
        };
        assert_eq!(ask("secret"), Ok(()));
        assert_eq!(ask("secreT"), Err(GuardRefusal::Token));
        assert_eq!(ask(""), Err(GuardRefusal::Token));
        assert_eq!(
            guard.check(local, &request(&[("host", "localhost")])),
            Err(GuardRefusal::Token)
        );
    }
}
