//! The verification of one token: signature first, then its claims.
//!
//! The times are judged here against a `now` that the caller gives, so that tests
//! own the clock. Every claim of a wrong type makes the whole token invalid: a
//! list that is no list must not widen what a token allows.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};

use super::access::{Access, Patterns};
use super::keys::KeySet;
use super::{DefaultAccess, Denied, Identity, Settings};
use crate::ids::ClientId;
use crate::time::UnixMillis;

type Object = Map<String, Value>;

/// Verifies a token in the compact form (RFC 7515, 3.1).
pub(super) fn verify(
    token: &str,
    keys: &KeySet,
    settings: &Settings,
    now: UnixMillis,
) -> Result<Identity, Denied> {
    let claims = checked_claims(token, keys).ok_or(Denied::Invalid)?;
    let identity = identity(&claims, settings).ok_or(Denied::Invalid)?;
    let leeway = i64::try_from(settings.leeway.as_millis()).unwrap_or(i64::MAX);
    if let Some(not_before) = time(&claims, "nbf").ok_or(Denied::Invalid)?
        && now.plus(leeway) < not_before
    {
        return Err(Denied::NotYetValid);
    }
    match identity.expires_at {
        Some(expires_at) if now >= expires_at.plus(leeway) => Err(Denied::Expired),
        _ => Ok(identity),
    }
}

/// The claims, if a key of ours signed them.
fn checked_claims(token: &str, keys: &KeySet) -> Option<Object> {
    let (message, signature) = token.rsplit_once('.')?;
    let (header, claims) = message.split_once('.')?;
    if claims.contains('.') {
        return None;
    }
    let header = object(header)?;
    // RFC 7515, 4.1.11: an extension that must be understood, and none is.
    if header.contains_key("crit") {
        return None;
    }
    // "none" is no algorithm here, so it cannot be parsed to one.
    let algorithm: Algorithm = header.get("alg")?.as_str()?.parse().ok()?;
    let id = match header.get("kid") {
        None | Some(Value::Null) => None,
        Some(id) => Some(id.as_str()?),
    };
    let signed = keys.candidates(algorithm, id).any(|key| {
        jsonwebtoken::crypto::verify(signature, message.as_bytes(), &key.decoding, algorithm)
            .unwrap_or(false)
    });
    if signed { object(claims) } else { None }
}

fn object(part: &str) -> Option<Object> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

fn identity(claims: &Object, settings: &Settings) -> Option<Identity> {
    if !settings.issuer.is_empty() {
        let issuer = claims.get("iss")?.as_str()?;
        settings.issuer.iter().find(|allowed| *allowed == issuer)?;
    }
    if !settings.audience.is_empty() {
        let named = strings(claims.get("aud")?)?;
        settings.audience.iter().find(|allowed| named.contains(&allowed.as_str()))?;
    }
    let name = match claims.get("sub") {
        None | Some(Value::Null) => claims.get("clientId")?,
        Some(subject) => subject,
    };
    let expires_at = time(claims, "exp")?;
    if settings.require_exp && expires_at.is_none() {
        return None;
    }
    let hidden = match claims.get("hidden") {
        None | Some(Value::Null) => false,
        Some(hidden) => hidden.as_bool()?,
    };
    Some(Identity {
        client_id: ClientId::parse(name.as_str()?).ok()?,
        access: access(claims, settings.default_access)?,
        expires_at,
        hidden,
    })
}

/// A time claim (RFC 7519, 2: seconds, possibly fractional). `None`: malformed.
#[expect(clippy::option_option, reason = "the outer is the verdict, the inner the claim")]
#[expect(clippy::cast_possible_truncation, reason = "`as` saturates, and so should this")]
fn time(claims: &Object, name: &str) -> Option<Option<UnixMillis>> {
    let Some(value) = claims.get(name) else {
        return Some(None);
    };
    let millis = match value.as_i64() {
        Some(seconds) => seconds.saturating_mul(1000),
        None => (value.as_f64()? * 1000.0) as i64,
    };
    Some(Some(UnixMillis::default().plus(millis)))
}

/// `aud`: one string or a list of them.
fn strings(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(one) => Some(vec![one]),
        Value::Array(list) => list.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn access(claims: &Object, default: DefaultAccess) -> Option<Access> {
    let list = |name: &str| match claims.get(name) {
        None => Some(None),
        Some(Value::Array(list)) => {
            let patterns = list.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
            Some(Some(Patterns::new(patterns)))
        }
        Some(_) => None,
    };
    let lists = [list("publish")?, list("subscribe")?, list("history")?, list("vehicles")?];
    if lists.iter().all(Option::is_none) {
        return Some(match default {
            DefaultAccess::All => Access::all(),
            DefaultAccess::None => Access::none(),
        });
    }
    let [publish, subscribe, history, vehicles] =
        lists.map(|list| list.unwrap_or_else(Patterns::none));
    Some(Access::new(publish, subscribe, history, vehicles))
}
