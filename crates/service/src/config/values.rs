// SPDX-License-Identifier: Apache-2.0
//! Keys that many files have: how each is written, and what is wrong with one that is not.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use nix::unistd::Group;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use super::error::Faults;
use super::spanned::Spanned;
use super::{read_secrets, units};

/// A key with text, or none.
pub type Text = Option<Spanned<String>>;

/// A key with a time, or none.
pub type Time = Option<Spanned<TimeValue>>;

/// A time with its unit, as it is written.
#[derive(Debug, Clone)]
pub struct TimeValue(String);

impl AsRef<str> for TimeValue {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for TimeValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WithUnit;
        impl Visitor<'_> for WithUnit {
            type Value = TimeValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time, for example \"100ms\" or \"2s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TimeValue, E> {
                Ok(TimeValue(text.to_owned()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<TimeValue, E> {
                Err(E::custom(units::no_unit(number)))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<TimeValue, E> {
                Err(E::custom(units::no_unit(number)))
            }
        }
        deserializer.deserialize_any(WithUnit)
    }
}

/// Schemas have it as text.
impl JsonSchema for TimeValue {
    fn inline_schema() -> bool {
        String::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        String::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        String::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// `http = "127.0.0.1:9470"`, or `http = false` for none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "neither an address nor false; write for example \"127.0.0.1:9470\""
)]
pub enum HttpValue {
    Switch(bool),
    Address(String),
}

/// A count as a number or as text with a multiple.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "not a count; write a whole number, or for example \"64Ki\""
)]
pub enum CountValue {
    Number(i64),
    Text(String),
}

/// A secret: `{ file = "/etc/causeway/hash.key" }`, `{ env = "NAME" }`, or the text itself.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "not a secret; write { file = \"/path\" }, { env = \"NAME\" }, or the text itself"
)]
pub enum SecretValue {
    Text(String),
    At(SecretSource),
}

/// Where a secret is, if not in the file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum SecretSource {
    /// In a file of its own, which not every user may read.
    File(PathBuf),
    /// In a variable of the daemon's environment.
    Env(String),
}

/// Longest interface name that the kernel takes (IFNAMSIZ - 1).
const INTERFACE_NAME_MAX: usize = 15;

/// Parses an optional text; a fault is recorded at its place and gives `None`.
pub fn text<S: AsRef<str>, T>(
    value: Option<&Spanned<S>>,
    faults: &mut Faults<'_>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    let value = value?;
    let written: &S = value.as_ref();
    match parse(written.as_ref()) {
        Ok(parsed) => Some(parsed),
        Err(message) => {
            faults.at(value.span(), message);
            None
        }
    }
}

/// Parses an optional secret, wherever it is.
pub fn secret<T>(
    value: Option<&Spanned<SecretValue>>,
    faults: &mut Faults<'_>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    let value = value?;
    let parsed = match value.as_ref() {
        SecretValue::Text(text) => parse(text),
        SecretValue::At(SecretSource::File(path)) => read_absolute(path)
            .and_then(|text| parse(text.trim()))
            .map_err(|message| format!("file {}: {message}", path.display())),
        SecretValue::At(SecretSource::Env(name)) => std::env::var(name)
            .map_err(|_| "is not set; a unit sets it by EnvironmentFile=".to_owned())
            .and_then(|text| parse(text.trim()))
            .map_err(|message| format!("environment variable {name}: {message}")),
    };
    parsed
        .map_err(|message| faults.at(value.span(), message))
        .ok()
}

fn read_absolute(path: &Path) -> Result<String, String> {
    match path.is_absolute() {
        true => read_secrets(path),
        false => Err("is not an absolute path; begin it with `/`".to_owned()),
    }
}

pub fn within<T: PartialOrd>(
    value: T,
    range: &RangeInclusive<T>,
    what: &str,
    low: &str,
    high: &str,
) -> Result<T, String> {
    match range.contains(&value) {
        true => Ok(value),
        false => Err(format!("{what} must lie between {low} and {high}")),
    }
}

/// A time in a range, whose ends are as messages have them.
pub fn time_within<S: AsRef<str>>(
    value: Option<&Spanned<S>>,
    what: &str,
    [low, high]: [&str; 2],
    faults: &mut Faults<'_>,
) -> Option<Duration> {
    text(value, faults, |text| {
        let range = units::duration(low)?..=units::duration(high)?;
        within(units::duration(text)?, &range, what, low, high)
    })
}

/// A count in a range, whose ends are as messages have them.
pub fn count_within(
    value: Option<&Spanned<CountValue>>,
    what: &str,
    [low, high]: [&str; 2],
    faults: &mut Faults<'_>,
) -> Option<u64> {
    let value = value?;
    let checked = count(value.as_ref()).and_then(|count| {
        let range = units::count(low)?..=units::count(high)?;
        within(count, &range, what, low, high)
    });
    checked
        .map_err(|message| faults.at(value.span(), message))
        .ok()
}

/// A whole number in a range.
pub fn number_within<T: TryFrom<i64> + PartialOrd + fmt::Display>(
    value: Option<&Spanned<i64>>,
    what: &str,
    range: RangeInclusive<T>,
    faults: &mut Faults<'_>,
) -> Option<T> {
    let fits = |number: &T| range.contains(number);
    let (low, high) = (range.start(), range.end());
    number(value, fits, faults, |_| {
        format!("{what} must lie between {low} and {high}")
    })
}

/// A whole number that fits; `fault` says what is wrong with another.
pub fn number<T: TryFrom<i64>>(
    value: Option<&Spanned<i64>>,
    fits: impl FnOnce(&T) -> bool,
    faults: &mut Faults<'_>,
    fault: impl FnOnce(i64) -> String,
) -> Option<T> {
    let value = value?;
    let number = T::try_from(*value.as_ref()).ok().filter(fits);
    if number.is_none() {
        faults.at(value.span(), fault(*value.as_ref()));
    }
    number
}

/// The interface that `whose` packets enter by.
pub fn interface(
    value: Option<&Spanned<String>>,
    whose: &str,
    faults: &mut Faults<'_>,
) -> Option<String> {
    if value.is_none() {
        faults.file(format!("`interface` is missing; name the interface that {whose} packets enter by, for example interface = \"eth0\""));
    }
    text(value, faults, |name| {
        let fits = (1..=INTERFACE_NAME_MAX).contains(&name.len());
        match fits && !name.contains(|c: char| c == '/' || c.is_whitespace()) {
            true => Ok(name.to_owned()),
            false => Err(format!(
                "`{name}` is not a valid interface name; it must have 1 to {INTERFACE_NAME_MAX} characters without `/` and blanks"
            )),
        }
    })
}

/// An absolute path.
pub fn directory(
    value: Option<&Spanned<String>>,
    default: &str,
    faults: &mut Faults<'_>,
) -> PathBuf {
    text(value, faults, absolute_path).unwrap_or_else(|| PathBuf::from(default))
}

/// A path that does not depend on where the daemon runs.
pub fn absolute_path(path: &str) -> Result<PathBuf, String> {
    match path.starts_with('/') {
        true => Ok(PathBuf::from(path)),
        false => Err(format!(
            "`{path}` is not an absolute path; begin it with `/`"
        )),
    }
}

/// The group whose members may use the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketGroup {
    /// As the system calls it.
    pub name: String,
    pub(crate) id: u32,
}

/// The group of that name; without one that of the package, where there is one.
pub fn socket_group(
    value: Option<&Spanned<String>>,
    faults: &mut Faults<'_>,
) -> Option<SocketGroup> {
    let find = |name: &str| match Group::from_name(name) {
        Ok(Some(group)) => Ok(SocketGroup {
            name: name.to_owned(),
            id: group.gid.as_raw(),
        }),
        Ok(None) => Err(format!(
            "there is no group `{name}` on this machine; make one by `groupadd --system {name}`, or name another"
        )),
        Err(error) => Err(format!("cannot look up the group `{name}`: {error}")),
    };
    match value {
        Some(_) => text(value, faults, find),
        None => find("causeway").ok(),
    }
}

/// A loopback address; the default's port is `port`.
pub fn http(
    value: Option<&Spanned<HttpValue>>,
    port: u16,
    faults: &mut Faults<'_>,
) -> Option<SocketAddr> {
    let default = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let Some(spanned) = value else {
        return Some(default);
    };
    let message = match spanned.as_ref() {
        HttpValue::Switch(false) => return None,
        HttpValue::Switch(true) => return Some(default),
        HttpValue::Address(address) => match SocketAddr::from_str(address) {
            Ok(address) if address.ip().is_loopback() => return Some(address),
            Ok(address) => format!(
                "http on {address} would be read by other hosts in clear; serve them by `[api]` with TLS and tokens, and use a loopback address such as 127.0.0.1:{} here",
                address.port()
            ),
            Err(_) => format!(
                "`{address}` is not an address with a port; write for example \"{default}\", or false for none"
            ),
        },
    };
    faults.at(spanned.span(), message);
    None
}

/// Octets of two hexadecimal digits each.
pub fn octets<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16);
    let mut octets = [0; N];
    for (octet, pair) in octets.iter_mut().zip(digits.chunks_exact(2)) {
        *octet = (value(pair[0])? << 4 | value(pair[1])?) as u8;
    }
    Some(octets)
}

/// The length of a prefix, of `bits` at most: digits alone.
pub fn prefix_length(text: &str, bits: u8) -> Option<u8> {
    let is_plain = text.bytes().all(|digit| digit.is_ascii_digit());
    let length = text.parse().ok().filter(|_| is_plain);
    length.filter(|length| *length <= bits)
}

/// A number, or text with a unit.
pub fn count(value: &CountValue) -> Result<u64, String> {
    match value {
        CountValue::Number(number) => {
            u64::try_from(*number).map_err(|_| format!("`{number}` is not a valid count"))
        }
        CountValue::Text(text) => units::count(text),
    }
}

/// An address with a prefix length, the rest of its bits zero.
pub fn network(text: &str) -> Result<(IpAddr, u8), String> {
    let wrong =
        || format!("`{text}` is not a valid prefix; write for example 10.0.0.0/8 or 2001:db8::/32");
    let (address, length) = text.split_once('/').ok_or_else(wrong)?;
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let (value, bits) = match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    };
    let length = prefix_length(length, bits).ok_or_else(wrong)?;
    match value.checked_shl(length.into()).unwrap_or(0) {
        0 => Ok((address, length)),
        _ => Err(format!(
            "`{text}` has bits behind its length; set them to zero"
        )),
    }
}

/// The same, or one address.
pub fn address_or_network(text: &str) -> Result<(IpAddr, u8), String> {
    match text.parse() {
        Ok(address @ IpAddr::V4(_)) => Ok((address, 32)),
        Ok(address @ IpAddr::V6(_)) => Ok((address, 128)),
        Err(_) => network(text),
    }
}

/// Reads an address with a port.
pub fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "not an address with a port; write for example 192.0.2.1:80 or [2001:db8::1]:443".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse;
    use super::*;

    #[test]
    fn the_ends_of_a_range_lie_in_it() {
        #[derive(Deserialize, JsonSchema)]
        struct Raw {
            time: Time,
            count: Option<Spanned<CountValue>>,
            number: Option<Spanned<i64>>,
        }
        let read = |text: &str| {
            let read = parse(Path::new("f"), text, &[], |raw: Raw, faults| {
                Some((
                    time_within(raw.time.as_ref(), "time", ["0s", "1h"], faults),
                    count_within(raw.count.as_ref(), "count", ["1", "16Mi"], faults),
                    number_within(raw.number.as_ref(), "number", 1..=u8::MAX, faults),
                ))
            });
            read.map_err(|errors| errors.to_string())
        };
        let lowest = (Some(Duration::ZERO), Some(1), Some(1));
        assert_eq!(read("time = \"0s\"\ncount = 1\nnumber = 1"), Ok(lowest));
        let highest = (Some(Duration::from_secs(3600)), Some(16 << 20), Some(255));
        let text = "time = \"60m\"\ncount = \"16Mi\"\nnumber = 255";
        assert_eq!(read(text), Ok(highest));
        let errors = read("time = \"61m\"\ncount = 0\nnumber = 256").unwrap_err();
        let expected = "f:1: time must lie between 0s and 1h\n\
                        f:2: count must lie between 1 and 16Mi\n\
                        f:3: number must lie between 1 and 255";
        assert_eq!(errors, expected);
    }

    #[test]
    fn a_prefix_length_has_no_sign() {
        assert_eq!(network("10.0.0.0/8"), Ok(([10, 0, 0, 0].into(), 8)));
        for wrong in ["10.0.0.0/+8", "10.0.0.0/", "10.0.0.0/33", "2001:db8::/+32"] {
            assert!(network(wrong).is_err(), "{wrong}");
        }
    }
}
