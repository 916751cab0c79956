//! The broker of several instances: `[nats]`. Read where `room_log.engine = "nats"`.
//!
//! A URL may hold a user and a password: they are used, never shown.

use std::fmt;
use std::path::PathBuf;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

const URL_FORM: &str =
    "the URL of a NATS server such as \"nats://127.0.0.1:4222\", or a list of them";

/// `[nats]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nats {
    /// Servers of one cluster, at least one; any of them will do.
    #[serde(deserialize_with = "urls")]
    pub url: Vec<NatsUrl>,
    /// A file of credentials (user JWT and seed) to log in with.
    pub credentials_file: Option<PathBuf>,
    /// The stream that keeps the log; instances that share it share their rooms.
    pub stream: String,
    /// Copies of the stream: 1, 3 or 5.
    pub replicas: usize,
}

impl Nats {
    /// The servers for a log line, without what stands before an `@`.
    #[must_use]
    pub fn servers(&self) -> String {
        self.url.iter().map(NatsUrl::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Whether `name` can name a stream: 1 to 64 ASCII letters, digits, `-` and `_`. NATS
    /// forbids `.`, `*`, `>`, spaces and what a path may not hold; this forbids the rest of
    /// what would need quoting somewhere.
    #[must_use]
    pub fn is_stream_name(name: &str) -> bool {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        (1..=64).contains(&name.len()) && name.chars().all(fits)
    }
}

impl Default for Nats {
    fn default() -> Self {
        Self {
            url: NatsUrl::parse("nats://127.0.0.1:4222").into_iter().collect(),
            credentials_file: None,
            stream: "milepost".to_owned(),
            replicas: 1,
        }
    }
}

/// The address of a NATS server. `Debug` and `Display` leave out user and password.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsUrl {
    text: String,
    shown: String,
}

impl NatsUrl {
    /// Reads `[nats://|tls://][user:password@]host[:port]`; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").unwrap_or(("nats", text));
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let server = rest.rsplit_once('@').map_or(rest, |(_, server)| server);
        let (host, port) = match server.rsplit_once(':') {
            // The last colon of an IPv6 address in brackets is no port's.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (server, 4222_u16),
        };
        let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let fits = if bracketed {
            host[1..host.len() - 1].parse::<std::net::Ipv6Addr>().is_ok()
        } else {
            !host.is_empty() && host.chars().all(plain)
        };
        let clean = text.chars().all(|c| !c.is_whitespace() && !c.is_control());
        (matches!(scheme, "nats" | "tls") && fits && clean && port != 0).then(|| Self {
            text: format!("{scheme}://{rest}"),
            shown: format!("{scheme}://{host}:{port}"),
        })
    }

    /// The address with user and password, to connect with. Not for logs.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Takes `"a,b"` as well as `["a", "b"]`. No text of an error quotes a URL.
fn urls<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<NatsUrl>, D::Error> {
    struct Urls;

    impl<'de> Visitor<'de> for Urls {
        type Value = Vec<NatsUrl>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(URL_FORM)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            let urls: Option<Vec<_>> = text.split(',').map(NatsUrl::parse).collect();
            urls.ok_or_else(|| E::custom(format!("found something else, expected {URL_FORM}")))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut urls = Vec::new();
            while let Some(text) = list.next_element::<String>()? {
                urls.extend(Urls.visit_str::<A::Error>(&text)?);
            }
            Ok(urls)
        }
    }

    source.deserialize_any(Urls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_their_secrets_kept() {
        for (text, used, shown) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            (" broker ", "nats://broker", "nats://broker:4222"),
            ("tls://n.example.com/", "tls://n.example.com", "tls://n.example.com:4222"),
            ("nats://[::1]:14222", "nats://[::1]:14222", "nats://[::1]:14222"),
            ("[::1]", "nats://[::1]", "nats://[::1]:4222"),
            ("nats://me:hunter2@a:1", "nats://me:hunter2@a:1", "nats://a:1"),
            ("nats://me:hun@ter2@a:1", "nats://me:hun@ter2@a:1", "nats://a:1"),
            ("nats://hunter2@a", "nats://hunter2@a", "nats://a:4222"),
        ] {
            let url = NatsUrl::parse(text).expect(text);
            assert_eq!((url.expose(), url.to_string().as_str()), (used, shown));
            assert!(!format!("{url:?} {url}").contains("hunter2"));
        }
        for text in [
            "",
            "nats://",
            "http://a:80",
            "nats://a:0",
            "nats://a:port",
            "nats://a:65536",
            "nats://a b",
            "nats://a/b",
            "nats://[::1",
            "nats://[x]",
            "nats://me:x@",
            ":4222",
        ] {
            assert_eq!(NatsUrl::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn names_of_streams() {
        for name in ["milepost", "A-1_b", &"x".repeat(64)] {
            assert!(Nats::is_stream_name(name), "{name}");
        }
        for name in ["", "a.b", "a b", "a*", "a>", "a/b", "ä", &"x".repeat(65)] {
            assert!(!Nats::is_stream_name(name), "{name}");
        }
    }
}
