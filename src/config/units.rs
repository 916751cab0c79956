//! How durations, sizes and addresses are written in the configuration.
//!
//! A duration is a whole number with a unit (`"250ms"`, `"30s"`, `"10m"`, `"24h"`,
//! `"7d"`); a size is one with a unit (`"512B"`, `"64KiB"`, `"4GiB"`) or a plain
//! number of bytes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use serde::de::{self, Deserialize, Deserializer, Visitor};

const DURATIONS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A hundred years: sums of times stay far from every overflow.
const MAX_DURATION_MS: u64 = 36_500 * 86_400_000;

const SIZES: [(&str, u64); 8] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

const DURATION_FORM: &str = r#"a duration such as "250ms", "30s", "10m", "24h" or "7d""#;
const SIZE_FORM: &str = r#"a size such as "512B", "64KiB", "16MiB" or "4GiB""#;
const ADDRESS_FORM: &str = r#"an IP address and port such as "127.0.0.1:8080" or "[::]:8080""#;
const NETWORK_FORM: &str = r#"an address or network such as "10.0.0.7" or "10.0.0.0/8""#;

fn number_with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = units.iter().find(|(name, _)| *name == unit.trim_start())?.1;
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// Reads a duration of at most a hundred years.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    number_with_unit(text.trim(), &DURATIONS)
        .filter(|millis| *millis <= MAX_DURATION_MS)
        .map(Duration::from_millis)
}

/// Reads a size in bytes, with a unit or plain; at most 2⁶³−1.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let size = if plain { text.parse().ok() } else { number_with_unit(text, &SIZES) };
    size.filter(|size| i64::try_from(*size).is_ok())
}

/// Writes a duration in the largest unit that divides it.
#[must_use]
pub fn format_duration(time: Duration) -> String {
    let millis = time.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    let (unit, factor) = DURATIONS
        .into_iter()
        .rev()
        .find(|(_, factor)| millis.is_multiple_of(u128::from(*factor)))
        .unwrap_or(DURATIONS[0]);
    format!("{}{unit}", millis / u128::from(factor))
}

/// Writes a size in the largest binary unit that divides it.
#[must_use]
pub fn format_size(size: u64) -> String {
    let (unit, factor) = SIZES[..5]
        .iter()
        .rev()
        .find(|(_, factor)| size != 0 && size.is_multiple_of(*factor))
        .unwrap_or(&SIZES[0]);
    format!("{}{unit}", size / factor)
}

struct TextOr<T> {
    form: &'static str,
    text: fn(&str) -> Option<T>,
    number: fn(i64) -> Option<T>,
}

impl<T> Visitor<'_> for TextOr<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.form)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        (self.number)(number).ok_or_else(|| E::invalid_type(de::Unexpected::Signed(number), &self))
    }
}

pub(super) fn duration<'de, D: Deserializer<'de>>(source: D) -> Result<Duration, D::Error> {
    source.deserialize_any(TextOr { form: DURATION_FORM, text: parse_duration, number: |_| None })
}

pub(super) fn optional_duration<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<Option<Duration>, D::Error> {
    duration(source).map(Some)
}

pub(super) fn size<'de, D: Deserializer<'de>>(source: D) -> Result<usize, D::Error> {
    source.deserialize_any(TextOr {
        form: SIZE_FORM,
        text: |text| parse_size(text).and_then(|size| usize::try_from(size).ok()),
        number: |number| usize::try_from(number).ok(),
    })
}

pub(super) fn large_size<'de, D: Deserializer<'de>>(source: D) -> Result<u64, D::Error> {
    source.deserialize_any(TextOr {
        form: SIZE_FORM,
        text: parse_size,
        number: |number| u64::try_from(number).ok(),
    })
}

pub(super) fn address<'de, D: Deserializer<'de>>(source: D) -> Result<SocketAddr, D::Error> {
    source.deserialize_any(TextOr {
        form: ADDRESS_FORM,
        text: |text| text.parse().ok(),
        number: |_| None,
    })
}

pub(super) fn optional_address<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<Option<SocketAddr>, D::Error> {
    address(source).map(Some)
}

struct Network(IpNet);

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        source.deserialize_any(TextOr {
            form: NETWORK_FORM,
            text: |text| {
                let host = text.parse::<IpAddr>().ok().map(IpNet::from);
                host.or_else(|| text.parse().ok()).map(Network)
            },
            number: |_| None,
        })
    }
}

pub(super) fn networks<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<IpNet>, D::Error> {
    Ok(Vec::<Network>::deserialize(source)?.into_iter().map(|network| network.0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations() {
        for (text, millis) in [
            ("0s", Some(0)),
            ("250ms", Some(250)),
            ("30s", Some(30_000)),
            ("10m", Some(600_000)),
            ("24h", Some(86_400_000)),
            ("7d", Some(604_800_000)),
            (" 5 s ", Some(5_000)),
            ("36500d", Some(MAX_DURATION_MS)),
            ("36501d", None),
            ("18446744073709551615d", None),
            ("99999999999999999999s", None),
            ("", None),
            ("s", None),
            ("30", None),
            ("-1s", None),
            ("1.5s", None),
            ("1h30m", None),
            ("30S", None),
            ("30sec", None),
        ] {
            assert_eq!(parse_duration(text), millis.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn sizes() {
        for (text, size) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("512B", Some(512)),
            ("64KiB", Some(65_536)),
            ("4GiB", Some(4 << 30)),
            ("1 MB", Some(1_000_000)),
            ("9223372036854775807", Some(i64::MAX as u64)),
            ("9223372036854775808", None),
            ("18446744073709551615TiB", None),
            ("", None),
            ("KiB", None),
            ("-1", None),
            ("64kib", None),
            ("64K", None),
        ] {
            assert_eq!(parse_size(text), size, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,24}|[0-9]{0,22} ?[a-zA-Z]{0,4}") {
            let _ = parse_duration(&text);
            let _ = parse_size(&text);
        }

        #[test]
        fn written_durations_read_back(millis in 0..=MAX_DURATION_MS) {
            let time = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&format_duration(time)), Some(time));
        }

        #[test]
        fn written_sizes_read_back(size in 0..=i64::MAX as u64) {
            prop_assert_eq!(parse_size(&format_size(size)), Some(size));
        }
    }
}
