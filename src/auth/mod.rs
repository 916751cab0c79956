//! Who a client is and what it may do (operation.md, "Token claims").
//!
//! Owns the keys, the verification of tokens and what a token allows. It must
//! not know connections or messages, and no token or key ever stands in an
//! error, a `Debug` or a log line.

mod access;
mod keys;
mod mint;
mod token;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

pub use access::{Access, Patterns};
pub use keys::AuthSetupError;
pub use mint::{Claims, MintError, mint};

use crate::close::Close;
use crate::ids::{ClientId, fresh_id};
use crate::time::UnixMillis;

/// How clients are told apart (`auth.mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// By a signed token.
    #[default]
    Jwt,
    /// Not at all: the name is what the client says.
    None,
}

/// What a token without any of the four lists allows (`auth.default_access`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DefaultAccess {
    /// Everything, as in the old gateway.
    #[default]
    All,
    /// Nothing.
    None,
}

/// A secret text; its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes the secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The settings of the section `auth`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How clients are told apart.
    pub mode: Mode,
    /// The shared secret for HS256, HS384 and HS512, as text.
    pub secret: Option<Secret>,
    /// A file that holds the shared secret; one line end after it is not part of it.
    pub secret_file: Option<PathBuf>,
    /// A PEM file with an RSA, EC (P-256, P-384) or Ed25519 public key.
    pub public_key_file: Option<PathBuf>,
    /// A JSON Web Key Set (RFC 7517).
    pub jwks_file: Option<PathBuf>,
    /// Narrows the algorithms that follow from the keys (`RS256` …); empty: no narrowing.
    pub algorithms: Vec<String>,
    /// If not empty, `iss` must be one of these.
    pub issuer: Vec<String>,
    /// If not empty, `aud` must hold one of these.
    pub audience: Vec<String>,
    /// How far clocks may disagree, for `exp` and `nbf`.
    pub leeway: Duration,
    /// Whether a token must have `exp`.
    pub require_exp: bool,
    /// What a token without lists allows.
    pub default_access: DefaultAccess,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Jwt,
            secret: None,
            secret_file: None,
            public_key_file: None,
            jwks_file: None,
            algorithms: Vec::new(),
            issuer: Vec::new(),
            audience: Vec::new(),
            leeway: Duration::from_secs(30),
            require_exp: true,
            default_access: DefaultAccess::All,
        }
    }
}

/// Who a connection is and what it may do.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The token's `sub`, else its `clientId`.
    pub client_id: ClientId,
    /// What it may do.
    pub access: Access,
    /// The token's `exp`, as it stands there: [`Authenticator::leeway`] comes on top.
    pub expires_at: Option<UnixMillis>,
    /// Whether presence never announces it.
    pub hidden: bool,
}

/// Why a client was not let in. The texts are the close reasons of protocol.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Denied {
    /// There was no token.
    #[error("Authentication token is missing")]
    Missing,
    /// The token is no token, has a wrong signature or a wrong claim.
    #[error("Invalid token")]
    Invalid,
    /// `nbf` lies more than the leeway ahead.
    #[error("Token not yet valid")]
    NotYetValid,
    /// `exp` has passed, and the leeway too.
    #[error("Token has expired")]
    Expired,
}

impl From<Denied> for Close {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Missing => Self::TokenMissing,
            Denied::Invalid => Self::TokenInvalid,
            Denied::NotYetValid => Self::TokenNotYetValid,
            Denied::Expired => Self::TokenExpired,
        }
    }
}

/// Verifies tokens. Shared by all connections; its keys can be reloaded under them.
#[derive(Debug)]
pub struct Authenticator {
    settings: Settings,
    keys: ArcSwap<keys::KeySet>,
}

impl Authenticator {
    /// Reads the keys.
    ///
    /// # Errors
    /// [`AuthSetupError`] names the file and what was expected in it, or says how
    /// to get going if `auth.mode = "jwt"` has no key at all.
    pub fn new(settings: Settings) -> Result<Self, AuthSetupError> {
        let keys = keys::load(&settings)?;
        Ok(Self { settings, keys: ArcSwap::from_pointee(keys) })
    }

    /// Reads the key files again and swaps the keys at once.
    ///
    /// # Errors
    /// As [`Authenticator::new`]; the keys in use then stay.
    pub fn reload(&self) -> Result<(), AuthSetupError> {
        self.keys.store(Arc::new(keys::load(&self.settings)?));
        Ok(())
    }

    /// How clients are told apart.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.settings.mode
    }

    /// How long after `exp` a token is still good.
    #[must_use]
    pub fn leeway(&self) -> Duration {
        self.settings.leeway
    }

    /// Whether a shared secret has fewer than 32 bytes, so that who holds one token can
    /// guess it (RFC 7518, 3.2). Worth a warning.
    #[must_use]
    pub fn has_short_secret(&self) -> bool {
        self.keys.load().has_short_secret()
    }

    /// Verifies a token as of `now`.
    ///
    /// # Errors
    /// [`Denied`], whose variants are the 4001 close reasons.
    pub fn verify(&self, token: Option<&str>, now: UnixMillis) -> Result<Identity, Denied> {
        let token = token.map(str::trim).filter(|t| !t.is_empty()).ok_or(Denied::Missing)?;
        token::verify(token, &self.keys.load(), &self.settings, now)
    }

    /// The identity of a client in `auth.mode = "none"`: its own word, else a
    /// made-up name. It may do everything.
    ///
    /// # Errors
    /// [`Denied::Invalid`] if the name is no name.
    pub fn verify_open(&self, client_id: Option<&str>) -> Result<Identity, Denied> {
        let client_id = match client_id.filter(|name| !name.is_empty()) {
            Some(name) => ClientId::parse(name),
            None => ClientId::parse(&fresh_id()),
        };
        Ok(Identity {
            client_id: client_id.map_err(|_| Denied::Invalid)?,
            access: Access::all(),
            expires_at: None,
            hidden: false,
        })
    }

    /// The identity of a handshake, in either mode.
    ///
    /// # Errors
    /// As [`Authenticator::verify`] and [`Authenticator::verify_open`].
    pub fn authenticate(
        &self,
        token: Option<&str>,
        client_id: Option<&str>,
        now: UnixMillis,
    ) -> Result<Identity, Denied> {
        match self.settings.mode {
            Mode::Jwt => self.verify(token, now),
            Mode::None => self.verify_open(client_id),
        }
    }
}

#[cfg(test)]
mod tests;
