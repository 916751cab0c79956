//! Where the server listens and what it writes: `[server]`, `[admin]`, `[log]`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use super::{Secret, units};

/// `[server]`: the public port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// Address of WebSockets, health and the live map; port 0 lets the kernel choose.
    #[serde(deserialize_with = "units::address")]
    pub listen: SocketAddr,
    /// Connections at once; above it upgrades are refused with 503.
    pub max_connections: usize,
    /// Values of `Origin` that may connect; unset: any with `auth.mode = "jwt"`, the
    /// same origin with `none`.
    pub allowed_origins: Option<Vec<String>>,
    /// Whether plain GET `/` is the live map.
    pub map: bool,
    /// The release or deployment that this process belongs to. Clients of a server that
    /// stops prefer one of another generation. The version of the binary by default; in
    /// Kubernetes the pod template's hash, through the downward API.
    pub generation: String,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            max_connections: 16_000,
            allowed_origins: None,
            map: true,
            generation: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// `[admin]`: the admin port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Address of the admin port; port 0 lets the kernel choose.
    #[serde(deserialize_with = "units::address")]
    pub listen: SocketAddr,
    /// Bearer token for calls that change something; without one only loopback may.
    pub token: Option<Secret>,
    /// File that holds the token instead.
    pub token_file: Option<PathBuf>,
    /// An address that serves `/metrics`, `/livez` and `/readyz` only.
    #[serde(deserialize_with = "units::optional_address")]
    pub metrics_listen: Option<SocketAddr>,
    /// Values of `Host`, besides loopback, with which calls may change something.
    pub allowed_hosts: Vec<String>,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)),
            token: None,
            token_file: None,
            metrics_listen: None,
            allowed_hosts: Vec::new(),
        }
    }
}

/// `[log]`: what goes to stdout.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// The form of a line.
    pub format: LogFormat,
    /// The least important level that is written.
    pub level: LogLevel,
}

/// The form of a log line; the last three rename keys and level words only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Flat JSON, one object a line.
    #[default]
    Json,
    /// For people.
    Text,
    /// Elastic Common Schema.
    Ecs,
    /// Google Cloud Logging.
    Gcp,
    /// Datadog.
    Datadog,
}

/// The importance of a log line, most important first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Something failed and somebody should look.
    Error,
    /// Something was refused, dropped or nearly failed.
    Warn,
    /// The life of the process and of connections.
    #[default]
    Info,
    /// Single messages.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// All levels, most important first.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// The name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A level name that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected one of error, warn, info, debug, trace")]
pub struct UnknownLevel;

impl FromStr for LogLevel {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        Self::ALL.into_iter().find(|level| level.name() == text).ok_or(UnknownLevel)
    }
}
