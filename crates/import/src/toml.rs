// SPDX-License-Identifier: Apache-2.0
//! Values and comments as TOML has them.

use std::fmt::Write as _;

/// A basic string (TOML 1.0, strings).
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            // Writing to a String does not fail.
            c if c.is_control() => drop(write!(out, "\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A line that is not a setting; control characters may not stand there.
pub(crate) fn comment(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    format!("# {plain}\n")
}

/// A duration of the file, in the largest unit without a rest.
pub(crate) fn duration(millis: u64) -> String {
    let (number, unit) = match millis {
        ms if ms % 60_000 == 0 && ms > 0 => (ms / 60_000, "m"),
        ms if ms % 1000 == 0 => (ms / 1000, "s"),
        ms => (ms, "ms"),
    };
    quoted(&format!("{number}{unit}"))
}

/// Whether a key needs no quotes.
pub(crate) fn is_bare(key: &str) -> bool {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !key.is_empty() && key.chars().all(bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_toml() {
        assert_eq!(quoted("a\"b\\c\n"), r#""a\"b\\c\u000A""#);
        assert_eq!(comment("a\tb\r"), "# a b \n");
        for (millis, expected) in [
            (0, "\"0s\""),
            (100, "\"100ms\""),
            (2000, "\"2s\""),
            (120_000, "\"2m\""),
        ] {
            assert_eq!(duration(millis), expected);
        }
    }
}
