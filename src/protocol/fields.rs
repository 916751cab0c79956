//! Reading one JSON object as raw members: the only way this floor takes input apart.
//!
//! `serde_json` skips a raw value without recursion, so nesting costs no stack here; what
//! is decoded further is bounded by `check_value`. Nothing is copied but keys that are
//! written with escapes.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::error::HandlerError;

/// How deep an unknown field may nest. Readers of the event see it a few levels deeper,
/// and the stricter among them stop at 64.
pub(super) const MAX_DEPTH: usize = 32;

/// One member of an object: its key as written and as meant, its value as written.
#[derive(Debug, Clone)]
pub(super) struct Member<'a> {
    /// The key with quotes and escapes, as it stood in the text.
    pub(super) raw_key: &'a str,
    /// The key as meant.
    pub(super) key: Cow<'a, str>,
    /// The value as it stood in the text, without space around it.
    pub(super) value: &'a str,
}

struct EachMember<F>(F);

impl<'de, F: FnMut(Member<'de>) -> bool> Visitor<'de> for EachMember<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((key, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
            let raw_key = key.get();
            let inner = raw_key.get(1..raw_key.len().saturating_sub(1)).unwrap_or_default();
            let key = if inner.contains('\\') {
                Cow::Owned(serde_json::from_str(raw_key).map_err(serde::de::Error::custom)?)
            } else {
                Cow::Borrowed(inner)
            };
            if !(self.0)(Member { raw_key, key, value: value.get() }) {
                return Err(serde::de::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// Calls `each` for every member of the object `text` until it returns `false`.
/// `Err` when it is not an object, or not JSON, or `each` stopped.
pub(super) fn each_member<'a>(
    text: &'a str,
    each: impl FnMut(Member<'a>) -> bool,
) -> Result<(), serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    deserializer.deserialize_map(EachMember(each))?;
    deserializer.end()
}

/// Sorts the members of the object `text` into the places of `names`; others are ignored.
///
/// # Errors
/// A key of `names` that occurs twice, or a text that is not an object (then `what` is the
/// field).
pub(super) fn members<'a, const N: usize>(
    text: &'a str,
    what: &str,
    names: &[&'static str; N],
) -> Result<[Option<&'a str>; N], HandlerError> {
    let mut found = [None; N];
    let mut twice = None;
    let read = each_member(text, |member| {
        if let Some(at) = names.iter().position(|name| *name == member.key)
            && found[at].replace(member.value).is_some()
        {
            twice = Some(names[at]);
            return false;
        }
        true
    });
    match (twice, read) {
        (Some(name), _) => Err(occurs_twice(name)),
        (None, Err(_)) => {
            Err(HandlerError::validation(what, format!("`{what}` must be a JSON object.")))
        }
        (None, Ok(())) => Ok(found),
    }
}

pub(super) fn occurs_twice(name: &str) -> HandlerError {
    HandlerError::validation(name, format!("`{name}` must occur only once."))
}

/// The string that `raw` stands for; `None` if it is no string, or holds half a surrogate
/// pair.
pub(super) fn string(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str::<String>(raw).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// A whole number that JSON may write as `3`, `3.0` or `3e0`, within ±(2⁵³−1).
pub(super) fn integer(raw: &str) -> Option<i64> {
    const LIMIT: i64 = (1 << 53) - 1;
    if !raw.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        return None;
    }
    if let Ok(number) = raw.parse::<i64>() {
        return (-LIMIT..=LIMIT).contains(&number).then_some(number);
    }
    let number = raw.parse::<f64>().ok()?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
    (number.fract() == 0.0 && number.abs() <= LIMIT as f64).then_some(number as i64)
}

/// Why an unknown field cannot be carried on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadValue {
    TooDeep,
    Unreadable,
}

/// Whether every JSON reader can take `raw`: nesting within [`MAX_DEPTH`], no half of a
/// surrogate pair, no number beyond a 64-bit float.
pub(super) fn check_value(raw: &str) -> Result<(), BadValue> {
    if !raw.starts_with(['{', '[']) {
        // The common cases, without a parser: text without escapes, a short number, a word.
        match raw.as_bytes().first() {
            Some(b'"') if !raw.contains('\\') => return Ok(()),
            Some(b't' | b'f' | b'n') => return Ok(()),
            Some(b'-' | b'0'..=b'9') => {
                let finite = raw.parse::<f64>().is_ok_and(f64::is_finite);
                return if finite { Ok(()) } else { Err(BadValue::Unreadable) };
            }
            _ => {}
        }
    }
    let mut too_deep = false;
    let mut deserializer = serde_json::Deserializer::from_str(raw);
    let checked = Check { left: MAX_DEPTH, too_deep: &mut too_deep }
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end());
    match checked {
        Ok(()) => Ok(()),
        Err(_) if too_deep => Err(BadValue::TooDeep),
        Err(_) => Err(BadValue::Unreadable),
    }
}

struct Check<'c> {
    left: usize,
    too_deep: &'c mut bool,
}

impl Check<'_> {
    fn deeper<E: serde::de::Error>(&mut self) -> Result<Check<'_>, E> {
        match self.left.checked_sub(1) {
            Some(left) => Ok(Check { left, too_deep: self.too_deep }),
            None => {
                *self.too_deep = true;
                Err(E::custom("nested too deeply"))
            }
        }
    }

    fn again(&mut self) -> Check<'_> {
        Check { left: self.left, too_deep: self.too_deep }
    }
}

impl<'de> DeserializeSeed<'de> for Check<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// A text that is decoded, and thereby judged, and thrown away.
struct Judged;

impl<'de> Deserialize<'de> for Judged {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Judged;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_str<E>(self, _: &str) -> Result<Judged, E> {
                Ok(Judged)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl<'de> Visitor<'de> for Check<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut inside = self.deeper()?;
        while seq.next_element_seed(inside.again())?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut inside = self.deeper()?;
        while map.next_key::<Judged>()?.is_some() {
            map.next_value_seed(inside.again())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_compared_as_meant() {
        let [a, b] =
            members(r#"{"\u0061": 1 , "b":[ 2 ],"c":{}}"#, "payload", &["a", "b"]).unwrap();
        assert_eq!((a, b), (Some("1"), Some("[ 2 ]")));
        let error = members(r#"{"a":1,"\u0061":2}"#, "payload", &["a"]).unwrap_err();
        assert_eq!(error.wire().field(), Some("a"));
        for text in ["[]", "1", "null", "{", "{} {}", r#"{"\ud800":1}"#] {
            let error = members(text, "payload", &["a"]).unwrap_err();
            assert_eq!(error.wire().field(), Some("payload"), "{text}");
        }
    }

    #[test]
    fn whole_numbers_in_every_spelling() {
        for (raw, expected) in [
            ("0", Some(0)),
            ("-7", Some(-7)),
            ("3.0", Some(3)),
            ("1.7e3", Some(1700)),
            ("9007199254740991", Some(9_007_199_254_740_991)),
            ("9007199254740992", None),
            ("1.5", None),
            ("1e999", None),
            ("\"3\"", None),
            ("null", None),
            ("[3]", None),
        ] {
            assert_eq!(integer(raw), expected, "{raw}");
        }
    }

    #[test]
    fn values_that_some_readers_choke_on_are_found() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(check_value(&nested(MAX_DEPTH)), Ok(()));
        assert_eq!(check_value(&nested(MAX_DEPTH + 1)), Err(BadValue::TooDeep));
        assert_eq!(check_value(&nested(30_000)), Err(BadValue::TooDeep));
        for raw in [r#""\ud800""#, "1e999", r#"{"a":[1e400]}"#, r#"{"\udc00":1}"#, r#"["\ud800x"]"#]
        {
            assert_eq!(check_value(raw), Err(BadValue::Unreadable), "{raw}");
        }
        for raw in ["1", "-0.5e3", "true", "null", r#""a""#, r#""\ud83d\ude8c""#, r#"{"a":[{}]}"#] {
            assert_eq!(check_value(raw), Ok(()), "{raw}");
        }
    }
}
