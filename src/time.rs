//! Wall-clock times as they stand on the wire: milliseconds since 1970, and
//! RFC 3339 in UTC with milliseconds and `Z`.
//!
//! Durations and deadlines never come from here: they use `tokio::time::Instant`,
//! which tests can pause.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970-01-01T00:00:00Z, between the years 0000 and 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixMillis(i64);

const MIN: i64 = -62_167_219_200_000;
/// 9999-12-30T22:00:00.999Z: the latest instant that every UTC offset can still write
/// (and jiff's own bound).
const MAX: i64 = 253_402_207_200_999;

impl UnixMillis {
    /// Takes a count of milliseconds; `None` outside the years 0000 to 9999, which
    /// RFC 3339 cannot write.
    #[must_use]
    pub const fn new(millis: i64) -> Option<Self> {
        if millis >= MIN && millis <= MAX { Some(Self(millis)) } else { None }
    }

    /// The wall clock now.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(MAX).min(MAX))
    }

    /// The count of milliseconds.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// This time moved by `millis`, kept within the representable years.
    #[must_use]
    pub const fn plus(self, millis: i64) -> Self {
        let moved = self.0.saturating_add(millis);
        Self(if moved < MIN {
            MIN
        } else if moved > MAX {
            MAX
        } else {
            moved
        })
    }

    /// Reads RFC 3339 with any offset; digits below the millisecond are cut off.
    #[must_use]
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        // jiff's own grammar is wider (ISO 8601 basic forms, time zone annotations).
        let bytes = text.as_bytes();
        let separators = bytes.len() >= 20
            && bytes[4] == b'-'
            && bytes[7] == b'-'
            && matches!(bytes[10], b'T' | b't' | b' ')
            && bytes[13] == b':'
            && bytes[16] == b':'
            && !text.contains(['[', ',']);
        if !separators {
            return None;
        }
        let timestamp: jiff::Timestamp = text.parse().ok()?;
        Self::new(timestamp.as_millisecond())
    }
}

impl fmt::Display for UnixMillis {
    /// RFC 3339, UTC, milliseconds, `Z`: always 24 characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.div_euclid(86_400_000);
        let in_day = self.0.rem_euclid(86_400_000);
        // Days to civil date: the algorithm of Howard Hinnant's `civil_from_days`.
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let doe = z.rem_euclid(146_097);
        let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let day = doy - (153 * mp + 2) / 5 + 1;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        let year = yoe + era * 400 + i64::from(month <= 2);
        let (seconds, millis) = (in_day / 1000, in_day % 1000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

impl serde::Serialize for UnixMillis {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn writes_and_reads_the_wire_form() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_827_696_789, "2000-02-29T12:34:56.789Z"),
            (MIN, "0000-01-01T00:00:00.000Z"),
            (MAX, "9999-12-30T22:00:00.999Z"),
        ] {
            let time = UnixMillis::new(millis).unwrap();
            assert_eq!(time.to_string(), text);
            assert_eq!(UnixMillis::parse_rfc3339(text), Some(time));
        }
    }

    #[test]
    fn takes_any_offset_and_refuses_other_forms() {
        let expected = UnixMillis::new(1_705_430_000_000);
        for text in
            ["2024-01-16T18:33:20Z", "2024-01-16T20:33:20+02:00", "2024-01-16t18:33:20.0004z"]
        {
            assert_eq!(UnixMillis::parse_rfc3339(text), expected, "{text}");
        }
        for text in [
            "",
            "2024-01-16",
            "2024-01-16T18:33:20",
            "20240116T183320Z",
            "2024-13-16T18:33:20Z",
            "1705430000000",
        ] {
            assert_eq!(UnixMillis::parse_rfc3339(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_and_back_is_the_same(millis in MIN..=MAX) {
            let time = UnixMillis::new(millis).unwrap();
            prop_assert_eq!(UnixMillis::parse_rfc3339(&time.to_string()), Some(time));
        }
    }
}
