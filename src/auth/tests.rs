//! Tokens of every kind of key, and those that must not pass.
//!
//! The keys under `testdata` exist for these tests only.

use std::io::Write;
use std::path::Path;

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::*;

/// 2027-01-15T08:00:00Z, in seconds.
const NOW: i64 = 1_800_000_000;
const TEXT: &str = "a secret for tests, long enough for HS512: 0123456789abcdef0123456789";

macro_rules! pem {
    ($name:literal) => {
        include_bytes!(concat!("testdata/", $name, ".pem"))
    };
}

fn at(seconds: i64) -> UnixMillis {
    UnixMillis::new(seconds * 1000).unwrap()
}

fn file(content: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    file
}

fn with_secret() -> Settings {
    Settings { secret: Some(Secret::new(TEXT)), ..Settings::default() }
}

fn with_public_key(path: &Path) -> Settings {
    Settings { public_key_file: Some(path.into()), ..Settings::default() }
}

fn with_jwks(path: &Path) -> Settings {
    Settings { jwks_file: Some(path.into()), ..Settings::default() }
}

fn hmac_key() -> EncodingKey {
    EncodingKey::from_secret(TEXT.as_bytes()).unwrap()
}

fn signed(algorithm: Algorithm, key: &EncodingKey, claims: &Value) -> String {
    encode(&Header::new(algorithm), claims, key).unwrap()
}

fn hs256(claims: &Value) -> String {
    signed(Algorithm::HS256, &hmac_key(), claims)
}

fn good() -> Value {
    json!({ "sub": "bus-1", "exp": NOW + 3600 })
}

/// `good()` with one claim changed.
fn but(name: &str, value: Value) -> Value {
    let mut claims = good();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = good();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

fn check(settings: Settings, token: &str) -> Result<Identity, Denied> {
    Authenticator::new(settings).unwrap().verify(Some(token), at(NOW))
}

fn check_claims(claims: &Value) -> Result<Identity, Denied> {
    check(with_secret(), &hs256(claims))
}

/// Every kind of key: its public and private halves and its algorithms.
fn pairs() -> Vec<(&'static [u8], EncodingKey, Vec<Algorithm>)> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    vec![
        (
            pem!("rsa.pub"),
            EncodingKey::from_rsa_pem(pem!("rsa")).unwrap(),
            vec![RS256, RS384, RS512, PS256, PS384, PS512],
        ),
        (pem!("p256.pub"), EncodingKey::from_ec_pem(pem!("p256")).unwrap(), vec![ES256]),
        (pem!("p384.pub"), EncodingKey::from_ec_pem(pem!("p384")).unwrap(), vec![ES384]),
        (pem!("ed25519.pub"), EncodingKey::from_ed_pem(pem!("ed25519")).unwrap(), vec![EdDSA]),
    ]
}

#[test]
fn every_algorithm_of_a_shared_secret() {
    let from_file = file(format!("{TEXT}\r\n").as_bytes());
    let settings = [
        with_secret(),
        Settings { secret_file: Some(from_file.path().into()), ..Settings::default() },
    ];
    for settings in settings {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let token = signed(algorithm, &hmac_key(), &good());
            let identity = check(settings.clone(), &token).unwrap();
            assert_eq!(identity.client_id.as_str(), "bus-1");
            assert_eq!(identity.expires_at, Some(at(NOW + 3600)));
            assert!(!identity.hidden);
        }
    }
}

#[test]
fn every_algorithm_of_every_public_key_and_of_no_other() {
    for (n, (public, _, _)) in pairs().iter().enumerate() {
        let public = file(public);
        let auth = Authenticator::new(with_public_key(public.path())).unwrap();
        for (m, (_, private, algorithms)) in pairs().iter().enumerate() {
            for algorithm in algorithms {
                let token = signed(*algorithm, private, &good());
                let verdict = auth.verify(Some(&token), at(NOW)).map(|i| i.client_id.to_string());
                let expected = if n == m { Ok("bus-1".into()) } else { Err(Denied::Invalid) };
                assert_eq!(verdict, expected, "{algorithm:?} with key {n}");
            }
        }
    }
}

#[test]
fn a_public_key_is_no_secret() {
    for (public, _, _) in pairs() {
        let path = file(public);
        // The text of the PEM, and its key bytes, as an HMAC secret.
        let text = std::str::from_utf8(public).unwrap();
        let der: String = text.lines().filter(|line| !line.starts_with('-')).collect();
        for key in [
            EncodingKey::from_secret(public).unwrap(),
            EncodingKey::from_secret(public.trim_ascii_end()).unwrap(),
            EncodingKey::from_base64_secret(&der).unwrap(),
        ] {
            for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
                let token = signed(algorithm, &key, &good());
                assert_eq!(
                    check(with_public_key(path.path()), &token).unwrap_err(),
                    Denied::Invalid
                );
            }
        }
    }
}

#[test]
fn the_header_cannot_choose() {
    use base64::Engine;
    let part =
        |value: &Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string());
    let token = hs256(&good());
    let (_, signature) = token.rsplit_once('.').unwrap();
    for alg in [json!("none"), json!("None"), json!(""), json!(null), json!(["HS256"])] {
        for signature in ["", signature] {
            let forged = format!("{}.{}.{signature}", part(&json!({ "alg": alg })), part(&good()));
            assert_eq!(check(with_secret(), &forged).unwrap_err(), Denied::Invalid, "{alg}");
        }
    }
    // A key in the header is not ours.
    let mut header = Header::new(Algorithm::HS256);
    let other = EncodingKey::from_secret(b"another secret, of the attacker's own").unwrap();
    header.jwk = Some(Jwk::from_encoding_key(&other, Algorithm::HS256).unwrap());
    let forged = encode(&header, &good(), &other).unwrap();
    assert_eq!(check(with_secret(), &forged).unwrap_err(), Denied::Invalid);
    // Extensions that must be understood (RFC 7515, 4.1.11).
    let mut header = Header::new(Algorithm::HS256);
    header.crit = Some(vec!["exp".into()]);
    let critical = encode(&header, &good(), &hmac_key()).unwrap();
    assert_eq!(check(with_secret(), &critical).unwrap_err(), Denied::Invalid);
}

#[test]
fn a_token_that_is_none() {
    let auth = Authenticator::new(with_secret()).unwrap();
    for missing in [None, Some(""), Some("  ")] {
        assert_eq!(auth.verify(missing, at(NOW)).unwrap_err(), Denied::Missing);
    }
    let token = hs256(&good());
    for broken in [
        "x".to_owned(),
        "..".to_owned(),
        "a.b.c.d".to_owned(),
        format!("{token}."),
        format!("{token}x"),
        format!("x.{token}"),
        token[..token.len() - 2].to_owned(),
        "ä.ö.ü".to_owned(),
    ] {
        assert_eq!(auth.verify(Some(&broken), at(NOW)).unwrap_err(), Denied::Invalid, "{broken}");
    }
}

#[test]
fn algorithms_are_narrowed_not_widened() {
    let narrowed = Settings { algorithms: vec!["HS512".into()], ..with_secret() };
    assert_eq!(check(narrowed.clone(), &hs256(&good())).unwrap_err(), Denied::Invalid);
    assert!(check(narrowed, &signed(Algorithm::HS512, &hmac_key(), &good())).is_ok());
    let error = |algorithms: &str| {
        let algorithms = vec![algorithms.into()];
        Authenticator::new(Settings { algorithms, ..with_secret() }).unwrap_err().to_string()
    };
    assert!(error("RS256").contains("auth.algorithms"));
    assert!(error("none").contains("\"none\" is none of HS256"));
}

#[test]
fn the_leeway_has_an_edge_at_both_ends() {
    let auth = Authenticator::new(with_secret()).unwrap();
    let token = hs256(&json!({ "sub": "a", "nbf": NOW, "exp": NOW + 100 }));
    let verdict = |millis: i64| {
        let now = UnixMillis::new(NOW * 1000 + millis).unwrap();
        auth.verify(Some(&token), now).map(|identity| identity.expires_at)
    };
    assert_eq!(verdict(-30_001), Err(Denied::NotYetValid));
    assert_eq!(verdict(-30_000), Ok(Some(at(NOW + 100))));
    assert_eq!(verdict(129_999), Ok(Some(at(NOW + 100))));
    assert_eq!(verdict(130_000), Err(Denied::Expired));
    let strict = Authenticator::new(Settings { leeway: Duration::ZERO, ..with_secret() }).unwrap();
    assert!(strict.verify(Some(&token), at(NOW)).is_ok());
    assert_eq!(strict.verify(Some(&token), at(NOW + 100)).unwrap_err(), Denied::Expired);
}

#[test]
fn times_may_be_fractions_and_absurd_but_not_text() {
    let expiry = |exp: Value| check_claims(&but("exp", exp)).map(|i| i.expires_at.unwrap().get());
    assert_eq!(expiry(json!(1_900_000_000.5)), Ok(1_900_000_000_500));
    assert_eq!(expiry(json!(u64::MAX)), Ok(253_402_207_200_999));
    assert_eq!(expiry(json!(1e300)), Ok(253_402_207_200_999));
    assert_eq!(expiry(json!(-1e300)), Err(Denied::Expired));
    assert_eq!(expiry(json!(0)), Err(Denied::Expired));
    for claim in ["exp", "nbf"] {
        for value in [json!("1900000000"), json!(null), json!([1]), json!({}), json!(true)] {
            let verdict = check_claims(&but(claim, value.clone())).unwrap_err();
            assert_eq!(verdict, Denied::Invalid, "{claim} {value}");
        }
    }
}

#[test]
fn exp_is_required_unless_not() {
    assert_eq!(check_claims(&without("exp")).unwrap_err(), Denied::Invalid);
    let lenient = Settings { require_exp: false, ..with_secret() };
    assert_eq!(check(lenient.clone(), &hs256(&without("exp"))).unwrap().expires_at, None);
    let expired = hs256(&but("exp", json!(NOW - 31)));
    assert_eq!(check(lenient, &expired).unwrap_err(), Denied::Expired);
}

#[test]
fn issuer_and_audience_count_when_configured() {
    let settings = Settings {
        issuer: vec!["https://issuer".into(), "other".into()],
        audience: vec!["fleet".into()],
        ..with_secret()
    };
    let verdict = |iss: Value, aud: Value| {
        let mut claims = good();
        claims["iss"] = iss;
        claims["aud"] = aud;
        assert!(check_claims(&claims).is_ok(), "unconfigured, they mean nothing");
        check(settings.clone(), &hs256(&claims)).is_ok()
    };
    assert!(verdict(json!("https://issuer"), json!("fleet")));
    assert!(verdict(json!("other"), json!(["x", "fleet"])));
    assert!(!verdict(json!("https://issuer/"), json!("fleet")));
    assert!(!verdict(json!(["other"]), json!("fleet")));
    assert!(!verdict(json!("other"), json!("fleets")));
    assert!(!verdict(json!("other"), json!([])));
    assert!(!verdict(json!("other"), json!(["fleet", 1])));
    assert!(!verdict(json!(null), json!("fleet")));
    assert!(!verdict(json!("other"), json!(null)));
    assert_eq!(check(settings, &hs256(&good())).unwrap_err(), Denied::Invalid);
}

#[test]
fn the_identity_is_sub_else_client_id() {
    let name = |claims: &Value| check_claims(claims).map(|i| i.client_id.to_string());
    let mut both = good();
    both["clientId"] = json!("other");
    assert_eq!(name(&both).as_deref(), Ok("bus-1"));
    let mut old = without("sub");
    assert_eq!(name(&old), Err(Denied::Invalid));
    old["clientId"] = json!("old-1");
    assert_eq!(name(&old).as_deref(), Ok("old-1"));
    for bad in [json!(7), json!(""), json!("a\nb"), json!("x".repeat(129)), json!({})] {
        assert_eq!(name(&but("sub", bad.clone())), Err(Denied::Invalid), "{bad}");
        // A bad sub is not passed over for a clientId.
        both["sub"] = bad;
        assert_eq!(name(&both), Err(Denied::Invalid));
    }
}

#[test]
fn any_list_makes_the_absent_ones_empty() {
    // publish, subscribe, history of room "a", and publishing for vehicle "v".
    let none = [false; 4];
    for (claims, default, expected) in [
        (json!({}), DefaultAccess::All, [true; 4]),
        (json!({}), DefaultAccess::None, none),
        (json!({ "publish": ["a"] }), DefaultAccess::All, [true, false, false, false]),
        (json!({ "subscribe": ["*"] }), DefaultAccess::All, [false, true, false, false]),
        (json!({ "history": ["a*"] }), DefaultAccess::None, [false, false, true, false]),
        (json!({ "vehicles": ["v"] }), DefaultAccess::All, [false, false, false, true]),
        (json!({ "publish": [] }), DefaultAccess::All, none),
        (
            json!({ "publish": ["b"], "subscribe": ["b", "a"] }),
            DefaultAccess::All,
            [false, true, false, false],
        ),
    ] {
        let mut all = good();
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        let settings = Settings { default_access: default, ..with_secret() };
        let identity = check(settings, &hs256(&all)).unwrap();
        let Identity { access, client_id, .. } = &identity;
        let found = [
            access.may_publish("a"),
            access.may_subscribe("a"),
            access.may_history("a"),
            access.may_publish_for(client_id, "v"),
        ];
        assert_eq!(found, expected, "{claims} {default:?}");
        assert!(access.may_publish_for(client_id, "bus-1"), "its own vehicle");
    }
}

#[test]
fn a_list_that_is_none_allows_nothing() {
    for name in ["publish", "subscribe", "history", "vehicles"] {
        for value in [json!("*"), json!(null), json!([1]), json!([["*"]]), json!({ "0": "*" })] {
            let verdict = check_claims(&but(name, value.clone())).unwrap_err();
            assert_eq!(verdict, Denied::Invalid, "{name} {value}");
        }
    }
    assert!(check_claims(&but("hidden", json!(true))).unwrap().hidden);
    assert_eq!(check_claims(&but("hidden", json!("yes"))).unwrap_err(), Denied::Invalid);
}

fn jwk(private: &EncodingKey, algorithm: Algorithm, id: &str) -> Value {
    let mut jwk = Jwk::from_encoding_key(private, algorithm).unwrap();
    jwk.common.key_id = Some(id.into());
    serde_json::to_value(jwk).unwrap()
}

#[test]
fn a_key_set_is_chosen_from_by_id_and_kind() {
    let mut keys: Vec<Value> = pairs()
        .iter()
        .map(|(_, private, algorithms)| {
            jwk(private, algorithms[0], &format!("{:?}", algorithms[0]))
        })
        .collect();
    keys.push(json!({ "kty": "future", "x": "?" }));
    let set = file(json!({ "keys": keys }).to_string().as_bytes());
    let auth = Authenticator::new(with_jwks(set.path())).unwrap();
    for (_, private, algorithms) in pairs() {
        let algorithm = algorithms[0];
        let mut header = Header::new(algorithm);
        for (id, ok) in
            [(None, true), (Some(format!("{algorithm:?}")), true), (Some("x".into()), false)]
        {
            header.kid = id;
            let token = encode(&header, &good(), &private).unwrap();
            assert_eq!(
                auth.verify(Some(&token), at(NOW)).is_ok(),
                ok,
                "{algorithm:?} {:?}",
                header.kid
            );
        }
    }
    // The set says RS256 for this key, so PS256 is not allowed with it.
    let (_, rsa, _) = &pairs()[0];
    let token = signed(Algorithm::PS256, rsa, &good());
    assert_eq!(auth.verify(Some(&token), at(NOW)).unwrap_err(), Denied::Invalid);
}

#[test]
fn setup_errors_name_the_file_and_what_was_expected() {
    let error = |settings: Settings| Authenticator::new(settings).unwrap_err().to_string();
    assert!(error(Settings::default()).contains("auth.secret_file"));
    let missing = Path::new("/nonexistent/key.pem");
    assert!(
        error(with_public_key(missing)).contains("auth.public_key_file: cannot read /nonexistent")
    );
    for content in [&b"hello"[..], pem!("rsa"), pem!("p256"), pem!("ed25519"), b"\xff\xfe"] {
        let wrong = file(content);
        let text = error(with_public_key(wrong.path()));
        assert!(text.contains(&wrong.path().display().to_string()), "{text}");
        assert!(text.contains("a PEM public key: RSA"), "{text}");
        let text = error(with_jwks(wrong.path()));
        assert!(text.contains("auth.jwks_file") && text.contains("JSON Web Key Set"), "{text}");
    }
    let empty = file(b"\n");
    let pem = file(pem!("rsa.pub"));
    for wrong in [&empty, &pem] {
        let settings = Settings { secret_file: Some(wrong.path().into()), ..Settings::default() };
        assert!(error(settings).contains("must hold a shared secret"));
    }
    let secret = Some(Secret::new(""));
    assert!(error(Settings { secret, ..Settings::default() }).contains("auth.secret: the value"));
}

#[test]
fn keys_are_swapped_whole_or_not_at_all() {
    let old = pairs().remove(1);
    let new = pairs().remove(3);
    let path = file(old.0);
    let auth = Authenticator::new(with_public_key(path.path())).unwrap();
    let old = signed(Algorithm::ES256, &old.1, &good());
    let new_token = signed(Algorithm::EdDSA, &new.1, &good());
    assert!(auth.verify(Some(&old), at(NOW)).is_ok());
    std::fs::write(path.path(), "half a file").unwrap();
    assert!(auth.reload().is_err());
    assert!(auth.verify(Some(&old), at(NOW)).is_ok());
    std::fs::write(path.path(), new.0).unwrap();
    auth.reload().unwrap();
    assert_eq!(auth.verify(Some(&old), at(NOW)).unwrap_err(), Denied::Invalid);
    assert!(auth.verify(Some(&new_token), at(NOW)).is_ok());
}

#[test]
fn without_authentication_the_client_says_who_it_is() {
    let auth = Authenticator::new(Settings { mode: Mode::None, ..Settings::default() }).unwrap();
    let named = auth.authenticate(None, Some("bus-1"), at(NOW)).unwrap();
    assert_eq!(named.client_id.as_str(), "bus-1");
    assert!(named.access.may_publish("any") && named.access.may_history("any"));
    let made_up = [auth.verify_open(None), auth.verify_open(Some(""))].map(Result::unwrap);
    assert_ne!(made_up[0].client_id, made_up[1].client_id);
    assert_eq!(auth.verify_open(Some("a\0b")).unwrap_err(), Denied::Invalid);
    let jwt = Authenticator::new(with_secret()).unwrap();
    assert_eq!(jwt.authenticate(None, Some("bus-1"), at(NOW)).unwrap_err(), Denied::Missing);
}

#[test]
fn a_minted_token_is_accepted_by_the_same_settings() {
    let settings = Settings {
        algorithms: vec!["RS256".into(), "HS384".into()],
        issuer: vec!["us".into()],
        audience: vec!["fleet".into()],
        ..with_secret()
    };
    let claims = Claims {
        sub: "bus-1".into(),
        subscribe: Some(vec!["fleet/*".into()]),
        hidden: true,
        issued_at: at(NOW),
        ttl: Some(Duration::from_secs(60)),
        ..Claims::default()
    };
    let token = mint(&settings, &claims).unwrap();
    let identity = check(settings, &token).unwrap();
    assert!(identity.hidden);
    assert_eq!(identity.expires_at, Some(at(NOW + 60)));
    assert!(identity.access.may_subscribe("fleet/1") && !identity.access.may_publish("fleet/1"));
    let public = file(pem!("rsa.pub"));
    let error = mint(&with_public_key(public.path()), &claims).unwrap_err();
    assert!(error.to_string().contains("can only verify"), "{error}");
    let nobody = Claims { sub: String::new(), ..claims };
    assert!(matches!(mint(&with_secret(), &nobody), Err(MintError::BadSubject)));
}

#[test]
fn no_secret_shows_in_debug_output() {
    let settings = with_secret();
    let auth = Authenticator::new(settings.clone()).unwrap();
    let shown = format!("{settings:?} {auth:?}");
    assert!(!shown.contains("secret for tests"), "{shown}");
}

#[test]
fn a_short_secret_is_noticed() {
    let short = Settings { secret: Some(Secret::new("x".repeat(31))), ..Settings::default() };
    assert!(Authenticator::new(short).unwrap().has_short_secret());
    assert!(!Authenticator::new(with_secret()).unwrap().has_short_secret());
}

#[test]
fn a_denial_is_the_close_reason_of_the_same_name() {
    for denied in [Denied::Missing, Denied::Invalid, Denied::NotYetValid, Denied::Expired] {
        assert_eq!(Close::from(denied).reason(), denied.to_string());
        assert_eq!(Close::from(denied).code(), 4001);
    }
}

proptest! {
    #[test]
    fn no_text_is_taken_for_a_token(text in "\\PC*") {
        let auth = Authenticator::new(with_secret()).unwrap();
        prop_assert!(auth.verify(Some(&text), at(NOW)).is_err());
    }

    #[test]
    fn no_changed_byte_goes_unnoticed(at_byte in 0_usize..1000, to in "[A-Za-z0-9_-]") {
        let token = hs256(&good());
        let place = at_byte % token.len();
        let mut changed = token.clone();
        changed.replace_range(place..=place, &to);
        // Not even bits of the last character that mean nothing (RFC 4648, 3.5).
        let verdict = check(with_secret(), &changed).is_ok();
        prop_assert_eq!(verdict, changed == token);
    }
}
