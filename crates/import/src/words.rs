// SPDX-License-Identifier: Apache-2.0
//! Addresses, times and lines as all of these files write them.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// The words of a line, with quotes taken off and the comment left out. Quotes hold blanks
/// together, a backslash the next character.
pub(crate) fn words(line: &str, comments: &[char]) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => {
                let next = chars.next();
                // `\r` and the like are no letters.
                let kept = next.filter(char::is_ascii_alphanumeric).map(|_| '\\');
                word.get_or_insert_default()
                    .extend(kept.into_iter().chain(next));
            }
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if comments.contains(&c) => break,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// `192.0.2.1:80`, `[2001:db8::1]:80`.
pub(crate) fn endpoint(text: &str) -> Option<SocketAddr> {
    text.parse().ok()
}

/// `80`, or `8000-8010`.
pub(crate) fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ports = first.parse().ok()?..=last.parse().ok()?;
    (!ports.is_empty()).then_some(ports)
}

/// `192.0.2.1`, or `192.0.2.1-10`: the last group counts up, in IPv6 in hexadecimal digits.
pub(crate) fn addresses(text: &str) -> Option<Vec<IpAddr>> {
    let Some((first, last)) = text.split_once('-') else {
        return Some(vec![text.parse().ok()?]);
    };
    match first.parse().ok()? {
        IpAddr::V4(address) => {
            let [a, b, c, from] = address.octets();
            let to: u8 = last.parse().ok()?;
            Some((from..=to).map(|d| [a, b, c, d].into()).collect())
        }
        IpAddr::V6(address) => {
            let mut groups = address.segments();
            let to = u16::from_str_radix(last, 16).ok()?;
            let each = |group| {
                groups[7] = group;
                groups.into()
            };
            Some((address.segments()[7]..=to).map(each).collect())
        }
    }
}

/// `02:00:00:00:00:01`.
pub(crate) fn is_mac(text: &str) -> bool {
    let is_octet = |octet: &str| octet.len() == 2 && octet.bytes().all(|c| c.is_ascii_hexdigit());
    text.split(':').count() == 6 && text.split(':').all(is_octet)
}

/// Milliseconds of `text`, whose number has a unit, or else the one that the file takes.
pub(crate) fn millis(text: &str, bare: &str) -> Option<u64> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.'));
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = if unit.is_empty() { bare } else { unit };
    let of_unit = match unit {
        "us" => 0.001,
        "ms" => 1.0,
        "s" => 1e3,
        "m" => 60e3,
        "h" => 3600e3,
        "d" => 86_400e3,
        _ => return None,
    };
    let millis = number.parse::<f64>().ok()? * of_unit;
    // A day is the largest that means anything here; what is above saturates.
    Some(millis.round() as u64)
}

/// What a probe may look for in a page: text, if a pattern is no more than that.
pub(crate) fn plain_text(pattern: &str) -> Option<String> {
    let is_plain = !pattern.is_empty()
        && pattern.len() <= 120
        && !pattern.contains(|c: char| c.is_control() || "\\^$.|?*+()[]{}".contains(c));
    is_plain.then(|| pattern.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart_as_in_a_shell() {
        assert_eq!(
            words("a 'b c' \"d\\\"e\" # f", &['#']),
            ["a", "b c", "d\"e"]
        );
        assert_eq!(words("a\\ b ''", &[]), ["a b", ""]);
        assert!(words("   ! all of it", &['!']).is_empty());
    }

    #[test]
    fn ranges_count_up() {
        let four = addresses("192.0.2.254-255").unwrap();
        assert_eq!(four[1].to_string(), "192.0.2.255");
        assert_eq!(addresses("2001:db8::9-b").unwrap().len(), 3);
        assert!(addresses("192.0.2.1-300").is_none());
        assert_eq!(ports("80-81"), Some(80..=81));
        assert!(ports("81-80").is_none() && ports("http").is_none());
    }

    #[test]
    fn ethernet_addresses_have_six_octets() {
        assert!(is_mac("02:00:00:00:00:0a"));
        assert!(
            !is_mac("02:00:00:00:00")
                && !is_mac("+2:00:00:00:00:01")
                && !is_mac("02:00:00:00:00:xy")
                && !is_mac("0")
        );
    }

    #[test]
    fn a_bare_number_has_the_unit_of_its_file() {
        assert_eq!(millis("3", "s"), Some(3000));
        assert_eq!(millis("3", "ms"), Some(3));
        assert_eq!(millis("1.5s", "ms"), Some(1500));
        assert_eq!(millis("2m", "ms"), Some(120_000));
        assert!(millis("2weeks", "s").is_none() && millis("s", "s").is_none());
    }
}
