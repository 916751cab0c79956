//! Making tokens for development and tests (`milepost token`).
//!
//! Only from a shared secret: a server that holds public keys cannot sign, and
//! should not be able to.

use std::time::Duration;

use jsonwebtoken::{Algorithm, AlgorithmFamily, EncodingKey, Header};
use serde::Serialize;

use super::Settings;
use super::keys::{self, AuthSetupError};
use crate::time::UnixMillis;

/// What a minted token says.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    /// `sub`: the client id.
    pub sub: String,
    /// Room patterns to publish to; `None` leaves the claim out.
    pub publish: Option<Vec<String>>,
    /// Room patterns to subscribe to.
    pub subscribe: Option<Vec<String>>,
    /// Room patterns to read the history of.
    pub history: Option<Vec<String>>,
    /// Patterns of vehicles to publish for.
    pub vehicles: Option<Vec<String>>,
    /// Never announced by presence.
    pub hidden: bool,
    /// When it is made.
    pub issued_at: UnixMillis,
    /// How long it is good for; `None`: no `exp`.
    pub ttl: Option<Duration>,
}

/// Why no token was made.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// There is no secret to sign with.
    #[error(
        "minting needs a shared secret (auth.secret or auth.secret_file): with \
         auth.public_key_file or auth.jwks_file this server can only verify, so let the \
         issuer of the keys make the token"
    )]
    NoSecret,
    /// The secret could not be loaded.
    #[error(transparent)]
    Setup(#[from] AuthSetupError),
    /// The subject is no client id.
    #[error("sub must be 1 to 128 characters without control characters")]
    BadSubject,
    /// The signing failed.
    #[error("the token could not be signed")]
    Signing,
}

#[derive(Serialize)]
struct Payload<'a> {
    sub: &'a str,
    iat: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    publish: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subscribe: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vehicles: Option<&'a [String]>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    hidden: bool,
}

/// Signs a token that an authenticator with the same settings accepts: with the
/// configured secret, the first allowed HMAC algorithm, and `iss` and `aud` filled
/// in from the settings.
///
/// # Errors
/// [`MintError`]; none of them holds the secret.
pub fn mint(settings: &Settings, claims: &Claims) -> Result<String, MintError> {
    crate::ids::ClientId::parse(&claims.sub).map_err(|_| MintError::BadSubject)?;
    let (_, secret) = keys::secrets(settings)?.into_iter().next().ok_or(MintError::NoSecret)?;
    let algorithm = if settings.algorithms.is_empty() {
        Algorithm::HS256
    } else {
        settings
            .algorithms
            .iter()
            .filter_map(|name| name.parse::<Algorithm>().ok())
            .find(|algorithm| algorithm.family() == AlgorithmFamily::Hmac)
            .ok_or(AuthSetupError::NoAlgorithmLeft("secret"))?
    };
    let issued_at = claims.issued_at.get().div_euclid(1000);
    let exp = claims
        .ttl
        .map(|ttl| issued_at.saturating_add(i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX)));
    let payload = Payload {
        sub: &claims.sub,
        iat: issued_at,
        exp,
        iss: settings.issuer.first().map(String::as_str),
        aud: settings.audience.first().map(String::as_str),
        publish: claims.publish.as_deref(),
        subscribe: claims.subscribe.as_deref(),
        history: claims.history.as_deref(),
        vehicles: claims.vehicles.as_deref(),
        hidden: claims.hidden,
    };
    let key = EncodingKey::from_secret(&secret).map_err(|_| MintError::Signing)?;
    jsonwebtoken::encode(&Header::new(algorithm), &payload, &key).map_err(|_| MintError::Signing)
}
