//! Names as tokens of a subject: any name becomes one token and comes back from it.
//!
//! Letters, digits, `-` and `_` stand for themselves, every other byte of the UTF-8 text
//! is written `=hh` (two lower-case hex digits). Each name has exactly one token, so two
//! names never share a subject.

use std::fmt::Write;

/// A name as one token of a subject.
#[must_use]
pub fn encode(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    for byte in name.bytes() {
        if is_plain(byte) {
            token.push(char::from(byte));
        } else {
            let _ = write!(token, "={byte:02x}");
        }
    }
    token
}

/// The name that a token stands for; `None` if [`encode`] makes no such token.
#[must_use]
pub fn decode(token: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.bytes();
    while let Some(byte) = rest.next() {
        if is_plain(byte) {
            bytes.push(byte);
        } else if byte == b'=' {
            let escaped = hex(rest.next()?)? * 16 + hex(rest.next()?)?;
            if is_plain(escaped) {
                return None;
            }
            bytes.push(escaped);
        } else {
            return None;
        }
    }
    String::from_utf8(bytes).ok().filter(|name| !name.is_empty())
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_name_comes_back_from_its_token(name in "\\PC{1,128}") {
            let token = encode(&name);
            prop_assert!(!token.contains(['.', '*', '>', ' ', '\t', '\r', '\n']));
            prop_assert!(token.is_ascii() && !token.is_empty());
            prop_assert_eq!(decode(&token), Some(name));
        }

        #[test]
        fn a_token_that_is_read_is_the_one_that_is_written(token in "[a-fA-F0-9=._*ä-]{0,12}") {
            if let Some(name) = decode(&token) {
                prop_assert_eq!(encode(&name), token);
            }
        }
    }

    #[test]
    fn plain_names_stay_as_they_are() {
        assert_eq!(encode("fleet-7_North"), "fleet-7_North");
        assert_eq!(encode("a/b.c*"), "a=2fb=2ec=2a");
        assert_eq!(decode("a=2Fb"), None, "one spelling only");
        assert_eq!(decode("=61"), None);
        assert_eq!(decode(""), None);
    }
}
