//! The keys: where they come from, and which algorithms each one allows.
//!
//! The algorithms follow from the kind of key alone (RFC 8725, 3.1), so a token
//! cannot choose how it is checked. No key material stands in an error.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};

use super::{Mode, Settings};

/// Why the keys could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum AuthSetupError {
    /// `auth.mode = "jwt"` without a key.
    #[error(
        "auth.mode is \"jwt\" but there is no key: set auth.secret_file, auth.secret, \
         auth.public_key_file or auth.jwks_file (or, to try things out on loopback, \
         auth.mode = \"none\")"
    )]
    NoKey,
    /// A file could not be read.
    #[error("auth.{setting}: cannot read {}: {source}", path.display())]
    Read {
        /// The name of the setting.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file, or a setting, does not hold what it should.
    #[error("auth.{setting}: {place} must hold {expected}")]
    Content {
        /// The name of the setting.
        setting: &'static str,
        /// The file, or "the value".
        place: String,
        /// What was expected.
        expected: &'static str,
    },
    /// `auth.algorithms` names something unknown.
    #[error(
        "auth.algorithms: \"{0}\" is none of HS256, HS384, HS512, RS256, RS384, RS512, PS256, \
         PS384, PS512, ES256, ES384, EdDSA"
    )]
    UnknownAlgorithm(String),
    /// `auth.algorithms` leaves a key without any.
    #[error("auth.algorithms allows none of the algorithms of the key of auth.{0}")]
    NoAlgorithmLeft(&'static str),
}

const SECRET: &str =
    "a shared secret (not empty, and not a PEM key: those go to auth.public_key_file)";
const PUBLIC_KEY: &str =
    "a PEM public key: RSA of 2048 bits or more, EC on P-256 or P-384, or Ed25519";
const JWKS: &str =
    "a JSON Web Key Set, {\"keys\": […]}, with at least one usable key for signatures";

/// One key and what it allows.
pub(super) struct Key {
    pub(super) id: Option<String>,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) decoding: DecodingKey,
}

/// All keys in use.
#[derive(Default)]
pub(super) struct KeySet {
    keys: Vec<Key>,
}

impl std::fmt::Debug for KeySet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeySet({} keys)", self.keys.len())
    }
}

impl KeySet {
    /// Whether a shared secret has fewer than 32 bytes (RFC 7518, 3.2).
    pub(super) fn has_short_secret(&self) -> bool {
        self.keys.iter().any(|key| {
            key.decoding.family() == AlgorithmFamily::Hmac
                && key.decoding.try_get_as_bytes().is_ok_and(|secret| secret.len() < 32)
        })
    }

    /// The keys that may check a token with this header.
    pub(super) fn candidates(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
    ) -> impl Iterator<Item = &Key> {
        self.keys.iter().filter(move |key| {
            key.algorithms.contains(&algorithm)
                && match (&key.id, id) {
                    (Some(ours), Some(theirs)) => ours == theirs,
                    _ => true,
                }
        })
    }
}

/// Reads every configured key.
pub(super) fn load(settings: &Settings) -> Result<KeySet, AuthSetupError> {
    if settings.mode == Mode::None {
        return Ok(KeySet::default());
    }
    let allowed = settings
        .algorithms
        .iter()
        .map(|name| {
            name.parse::<Algorithm>().map_err(|_| AuthSetupError::UnknownAlgorithm(name.clone()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut keys = Vec::new();
    let mut add = |setting, mut key: Key| {
        if !allowed.is_empty() {
            key.algorithms.retain(|algorithm| allowed.contains(algorithm));
        }
        if key.algorithms.is_empty() {
            return Err(AuthSetupError::NoAlgorithmLeft(setting));
        }
        keys.push(key);
        Ok(())
    };
    for (setting, secret) in secrets(settings)? {
        let decoding =
            DecodingKey::from_secret(&secret).map_err(|_| content(setting, None, SECRET))?;
        add(setting, from_kind(decoding))?;
    }
    if let Some(path) = &settings.public_key_file {
        let setting = "public_key_file";
        let key = public_key(&read(setting, path)?)
            .ok_or_else(|| content(setting, Some(path), PUBLIC_KEY))?;
        add(setting, key)?;
    }
    if let Some(path) = &settings.jwks_file {
        let setting = "jwks_file";
        let set =
            key_set(&read(setting, path)?).ok_or_else(|| content(setting, Some(path), JWKS))?;
        for key in set {
            add(setting, key)?;
        }
    }
    if keys.is_empty() { Err(AuthSetupError::NoKey) } else { Ok(KeySet { keys }) }
}

/// The configured shared secrets with the names of their settings.
pub(super) fn secrets(settings: &Settings) -> Result<Vec<(&'static str, Vec<u8>)>, AuthSetupError> {
    let mut found = Vec::new();
    if let Some(secret) = &settings.secret {
        let bytes = secret.as_bytes();
        check_secret("secret", None, bytes)?;
        found.push(("secret", bytes.to_vec()));
    }
    if let Some(path) = &settings.secret_file {
        let mut bytes = read("secret_file", path)?;
        // Editors and `echo` end a file with a line end that nobody means.
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        check_secret("secret_file", Some(path), &bytes)?;
        found.push(("secret_file", bytes));
    }
    Ok(found)
}

fn check_secret(
    setting: &'static str,
    path: Option<&Path>,
    bytes: &[u8],
) -> Result<(), AuthSetupError> {
    let pem = bytes.trim_ascii_start().starts_with(b"-----BEGIN ");
    if bytes.is_empty() || pem { Err(content(setting, path, SECRET)) } else { Ok(()) }
}

fn content(setting: &'static str, path: Option<&Path>, expected: &'static str) -> AuthSetupError {
    let place = path.map_or_else(|| "the value".into(), |path| path.display().to_string());
    AuthSetupError::Content { setting, place, expected }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, AuthSetupError> {
    fs::read(path).map_err(|source| AuthSetupError::Read { setting, path: path.into(), source })
}

/// A key with every algorithm of its kind.
fn from_kind(decoding: DecodingKey) -> Key {
    let algorithms = match decoding.family() {
        // The curve decides: an uncompressed point of P-384 has 97 bytes, of P-256 65.
        AlgorithmFamily::Ec => match decoding.try_get_as_bytes().map(<[u8]>::len) {
            Ok(97) => vec![Algorithm::ES384],
            Ok(65) => vec![Algorithm::ES256],
            _ => Vec::new(),
        },
        family => family.algorithms().to_vec(),
    };
    Key { id: None, algorithms, decoding }
}

fn public_key(pem: &[u8]) -> Option<Key> {
    let text = std::str::from_utf8(pem).ok()?;
    if text.contains("PRIVATE KEY-----") {
        return None;
    }
    let key = DecodingKey::from_rsa_pem(pem)
        .or_else(|_| DecodingKey::from_ec_pem(pem))
        .or_else(|_| DecodingKey::from_ed_pem(pem))
        .ok()?;
    usable(from_kind(key))
}

fn key_set(json: &[u8]) -> Option<Vec<Key>> {
    let set: serde_json::Value = serde_json::from_slice(json).ok()?;
    let keys: Vec<Key> = set
        .get("keys")?
        .as_array()?
        .iter()
        // RFC 7517, 5: keys that one does not understand are to be ignored.
        .filter_map(|key| serde_json::from_value::<Jwk>(key.clone()).ok())
        .filter_map(|jwk| from_jwk(&jwk))
        .collect();
    if keys.is_empty() { None } else { Some(keys) }
}

fn from_jwk(jwk: &Jwk) -> Option<Key> {
    if matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption)) {
        return None;
    }
    if let AlgorithmParameters::OctetKeyPair(pair) = &jwk.algorithm
        && pair.curve != EllipticCurve::Ed25519
    {
        return None;
    }
    let mut key = from_kind(DecodingKey::from_jwk(jwk).ok()?);
    key.id.clone_from(&jwk.common.key_id);
    if let Some(named) = &jwk.common.key_algorithm {
        let name = serde_json::to_value(named).ok()?;
        let named: Algorithm = name.as_str()?.parse().ok()?;
        key.algorithms.retain(|algorithm| *algorithm == named);
    }
    usable(key)
}

/// Keys with which no signature could ever be checked are worth an error at the start.
fn usable(key: Key) -> Option<Key> {
    let long_enough = match (key.decoding.family(), key.decoding.kind()) {
        (AlgorithmFamily::Rsa, DecodingKeyKind::RsaModulusExponent { n, .. }) => n.len() >= 256,
        (AlgorithmFamily::Rsa, DecodingKeyKind::SecretOrDer(der)) => der.len() >= 256,
        (AlgorithmFamily::Ed, DecodingKeyKind::SecretOrDer(point)) => point.len() == 32,
        _ => true,
    };
    (long_enough && !key.algorithms.is_empty()).then_some(key)
}
