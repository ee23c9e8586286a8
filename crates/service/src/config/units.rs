// SPDX-License-Identifier: Apache-2.0
//! Durations and sizes as people write them: `100ms`, `2s`, `1Mi`.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// Parses a duration: a number and one of `ns us ms s m h`.
///
/// Fractions are allowed (`1.5s`); a bare number is refused, because its
/// unit would be a guess. The error is a sentence without its place.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let unit_ns: f64 = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        "" => {
            return Err(no_unit(text));
        }
        other => {
            return Err(format!(
                "`{other}` is not a unit of time; use ns, us, ms, s, m or h"
            ));
        }
    };
    let value = f64::from_str(number).map_err(|_| {
        format!("`{text}` is not a valid duration; write for example \"100ms\" or \"2s\"")
    })?;
    if value.is_sign_negative() {
        return Err(format!("`{text}` is below zero; a time is 0s or more"));
    }
    let ns = value * unit_ns;
    if !(0.0..=1e18).contains(&ns) {
        return Err(format!("`{text}` is out of range"));
    }
    Ok(Duration::from_nanos(ns.round() as u64))
}

/// What is wrong with a bare number.
pub(super) fn no_unit(number: impl Display) -> String {
    format!("`{number}` has no unit; write for example \"100ms\" or \"2s\"")
}

/// Parses a count: a whole number, optionally with `k`, `M`, `Ki` or `Mi`.
pub fn count(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor: u64 = match unit {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        other => {
            return Err(format!(
                "`{other}` is not a valid suffix; use k, M, Ki or Mi"
            ));
        }
    };
    u64::from_str(&number.replace('_', ""))
        .ok()
        .and_then(|value| value.checked_mul(factor))
        .ok_or_else(|| {
            format!("`{text}` is not a valid count; write for example 1000000, \"256k\" or \"1Mi\"")
        })
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let sign = usize::from(text.starts_with('-'));
    let end = text[sign..]
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .map_or(text.len(), |end| sign + end);
    (&text[..end], text[end..].trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250 us"), Ok(Duration::from_micros(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("100").unwrap_err().contains("has no unit"));
        assert!(
            duration("3 weeks")
                .unwrap_err()
                .contains("not a unit of time")
        );
        assert!(
            duration("ms")
                .unwrap_err()
                .contains("is not a valid duration")
        );
        for below in ["-3s", "-0.5ms"] {
            assert_eq!(
                duration(below),
                Err(format!("`{below}` is below zero; a time is 0s or more"))
            );
        }
        assert!(
            duration("99999999999h")
                .unwrap_err()
                .contains("out of range")
        );
    }

    #[test]
    fn counts_take_multiples() {
        assert_eq!(count("1_048_576"), Ok(1 << 20));
        assert_eq!(count("1Mi"), Ok(1 << 20));
        assert_eq!(count("256k"), Ok(256_000));
        assert!(count("1G").unwrap_err().contains("not a valid suffix"));
        assert!(count("1.5M").unwrap_err().contains("not a valid count"));
        assert!(count("-5k").unwrap_err().contains("not a valid count"));
        assert!(count("99999999999999999999").is_err());
    }
}
