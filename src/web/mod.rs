//! What people see in a browser: the status page, embedded in the binary, and the client
//! library for pages of their own.

mod client;

use hyper::http::{HeaderValue, Response, StatusCode, header};

use crate::listener::{Body, Pages, text};

/// Scripts, styles and connections of this server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// The pages of the public port.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    /// `server.map`: whether there are pages at all. The client library is there always.
    pub enabled: bool,
}

impl Pages for Site {
    fn page(&self, path: &str) -> Option<Response<Body>> {
        if let Some(module) = client::module(path) {
            return Some(module);
        }
        if !self.enabled {
            return None;
        }
        let (content_type, body) = match path {
            "/" => ("text/html; charset=utf-8", include_str!("status.html")),
            "/status.css" => ("text/css; charset=utf-8", include_str!("status.css")),
            "/status.js" => ("text/javascript; charset=utf-8", include_str!("status.js")),
            _ => return None,
        };
        let mut response = text(StatusCode::OK, content_type, body.to_owned());
        for (name, value) in [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ] {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        Some(response)
    }
}
