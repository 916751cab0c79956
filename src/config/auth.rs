//! Who may connect and with which rights: `[auth]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::{Secret, units};

/// `[auth]`. In mode `jwt` exactly one of the four key sources is set.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// How a client proves who it is.
    pub mode: AuthMode,
    /// Allows mode `none` on an address that other machines reach.
    pub allow_insecure: bool,
    /// The shared secret (HMAC) itself.
    pub secret: Option<Secret>,
    /// File that holds the shared secret.
    pub secret_file: Option<PathBuf>,
    /// PEM file of a public key (RSA, EC or Ed25519).
    pub public_key_file: Option<PathBuf>,
    /// JSON Web Key Set (RFC 7517) as a file.
    pub jwks_file: Option<PathBuf>,
    /// Algorithms accepted; empty: all that suit the kind of key.
    pub algorithms: Vec<String>,
    /// The `iss` that tokens must carry.
    pub issuer: Option<String>,
    /// The `aud` that tokens must carry.
    pub audience: Option<String>,
    /// Clock difference tolerated in `exp` and `nbf`.
    #[serde(deserialize_with = "units::duration")]
    pub leeway: Duration,
    /// Whether a token without `exp` is refused.
    pub require_exp: bool,
    /// What happens when the token of a live connection expires.
    pub expiry: Expiry,
    /// How long before it the client is told with `token_expiring`.
    #[serde(deserialize_with = "units::duration")]
    pub expiry_warning: Duration,
    /// What a token without any access list may do.
    pub default_access: DefaultAccess,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            mode: AuthMode::Jwt,
            allow_insecure: false,
            secret: None,
            secret_file: None,
            public_key_file: None,
            jwks_file: None,
            algorithms: Vec::new(),
            issuer: None,
            audience: None,
            leeway: Duration::from_secs(30),
            require_exp: true,
            expiry: Expiry::Enforce,
            expiry_warning: Duration::from_secs(30),
            default_access: DefaultAccess::All,
        }
    }
}

/// How a client proves who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthMode {
    /// With a signed token (RFC 7519).
    Jwt,
    /// Not at all: the identity is `?clientId=` or made up.
    None,
}

/// What happens when the token of a live connection expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expiry {
    /// The connection is closed with 4001.
    Enforce,
    /// Nothing: only a new connection needs a valid token.
    AtConnect,
}

/// What a token without any access list may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DefaultAccess {
    /// Publish, subscribe and read the history of every room.
    All,
    /// Nothing.
    None,
}
