// SPDX-License-Identifier: Apache-2.0
//! Cookies: the keys file, and how a VIP's are made.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::time::Duration;

use causeway_core::cookie::{Epoch, Format, Key, Keys, Mode};
use serde::Deserialize;
use toml::Spanned;

use super::error::Faults;
use super::raw::{RawCookie, RawVip};
use super::validate::text;
use super::words::{CookieAt, CookieKind, Words};
use super::{Protocol, units};

/// How long an id rests that was taken away: connections of a server that is gone
/// give up before (Linux: after 15 retransmissions, 924 s, or sooner).
pub const QUARANTINE: Duration = Duration::from_secs(15 * 60);
const QUARANTINE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// What cookies need beside the VIPs.
#[derive(Debug, Clone, PartialEq)]
pub struct Cookies {
    /// The keys file.
    pub file: PathBuf,
    /// What it holds.
    pub keys: Keys,
    /// How long an id rests before another real gets it.
    pub quarantine: Duration,
}

/// The keys file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKeys {
    current: u8,
    key0: Option<String>,
    key1: Option<String>,
}

/// Reads a keys file. The error is one sentence without the file's name.
pub fn read_keys(path: &Path) -> Result<Keys, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?;
    let raw: RawKeys = toml::from_str(&text).map_err(|error| error.message().to_owned())?;
    let key = |name: &str, text: Option<String>| match text {
        None => Ok(None),
        Some(text) => Key::from_str(&text)
            .map(Some)
            .map_err(|error| format!("{name}: {error}")),
    };
    let (zero, one) = (key("key0", raw.key0)?, key("key1", raw.key1)?);
    let (current, wanted, other) = match raw.current {
        0 => (Epoch::Zero, zero, one),
        1 => (Epoch::One, one, zero),
        n => return Err(format!("current = {n} is no epoch; use 0 or 1")),
    };
    let missing = format!("key{0} is missing, which current = {0} names", raw.current);
    Ok(Keys::new(current, wanted.ok_or(missing)?, other))
}

/// Writes a keys file for its owner alone, in one step.
pub fn write_keys(path: &Path, keys: &Keys) -> std::io::Result<()> {
    let mut text = format!(
        "# Keys of Causeway's cookies, the same on all balancers and servers. Secret.\n\
         # `causeway cookie rotate` changes them; docs/cookies.md says in which order.\n\
         current = {}\n",
        keys.current().index()
    );
    for epoch in Epoch::ALL {
        if let Some(key) = keys.get(epoch) {
            text += &format!("key{} = \"{}\"\n", epoch.index(), key.to_hex());
        }
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // One that an earlier attempt left may have other permissions.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// The keys that a file names; a fault at that place if they cannot be read.
pub(super) fn keys_of(
    place: Option<&Spanned<String>>,
    faults: &mut Faults<'_>,
) -> Option<(PathBuf, Keys)> {
    text(place, faults, |path| {
        if !path.starts_with('/') {
            return Err(format!(
                "`{path}` is not an absolute path; begin it with `/`"
            ));
        }
        let path = PathBuf::from(path);
        let keys = read_keys(&path).map_err(|error| {
            format!(
                "keys file {}: {error}; `causeway cookie new-keys` makes one",
                path.display()
            )
        })?;
        Ok((path, keys))
    })
}

pub(super) fn cookies(raw: &RawCookie, faults: &mut Faults<'_>) -> Option<Cookies> {
    let quarantine = text(raw.quarantine.as_ref(), faults, |text| {
        let quarantine = units::duration(text)?;
        match quarantine <= QUARANTINE_MAX {
            true => Ok(quarantine),
            false => Err("quarantine must lie between 0s and 168h".to_owned()),
        }
    });
    let (file, keys) = keys_of(raw.keys.as_ref(), faults)?;
    Some(Cookies {
        file,
        keys,
        quarantine: quarantine.unwrap_or(QUARANTINE),
    })
}

/// A format from its keys: what is not given is the mode's own.
pub(super) fn format(
    kind: CookieKind,
    bits: Option<&Spanned<i64>>,
    id_bits: Option<&Spanned<i64>>,
    faults: &mut Faults<'_>,
) -> Option<Format> {
    let mode = match kind {
        CookieKind::None => return None,
        CookieKind::Timestamp => Mode::Timestamp,
        CookieKind::TimestampLight => Mode::Light,
        CookieKind::TimestampMsb => Mode::Msb,
        CookieKind::Tier => Mode::Tier,
    };
    let default = Format::default_of(mode);
    let number = |value: Option<&Spanned<i64>>, default: u8| match value {
        None => default,
        Some(value) => u8::try_from(*value.as_ref()).unwrap_or(u8::MAX),
    };
    let wanted = (
        number(bits, default.bits()),
        number(id_bits, default.id_bits()),
    );
    match Format::new(mode, wanted.0, wanted.1) {
        Ok(format) => Some(format),
        Err(error) => {
            let place = bits.or(id_bits).map(Spanned::span);
            faults.at(place.unwrap_or_default(), error.to_string());
            None
        }
    }
}

/// What a VIP's cookies need beside the VIP.
#[derive(Debug, Clone, Copy)]
pub struct Beside {
    /// There are keys.
    pub has_keys: bool,
    /// How many second-tier balancers there are, a power of two.
    pub tiers: u32,
    /// What the VIP's cookies are, where it does not say.
    pub kept: Option<Format>,
}

impl Beside {
    /// Of a balancer that runs by `config`.
    pub fn of(config: &super::Config) -> Self {
        Self {
            has_keys: config.cookies.is_some(),
            tiers: config.stateful.tiers,
            kept: None,
        }
    }

    /// The cookies that a VIP has, and goes on with.
    pub fn keeping(kept: Option<Format>) -> Self {
        Self {
            kept,
            ..Self::NOTHING
        }
    }

    /// Nothing: for a whole file.
    pub const NOTHING: Self = Self {
        has_keys: false,
        tiers: 1,
        kept: None,
    };
}

/// Why not at the balancer: docs/decisions.md, 73.
fn cookie_at(word: &str) -> Result<CookieAt, String> {
    match word {
        "balancer" => Err("cookie_at = \"balancer\" would need responses that pass the balancer, and servers answer past it; use \"agent\", which runs on each server".to_owned()),
        word => CookieAt::from_word(word),
    }
}

/// A VIP's format. TCP VIPs have cookies as soon as there are keys.
pub(super) fn of_vip(
    raw: &RawVip,
    protocol: Protocol,
    beside: Beside,
    faults: &mut Faults<'_>,
) -> Option<Format> {
    if raw.cookie.is_none() && beside.kept.is_some() {
        return beside.kept;
    }
    let kind = text(raw.cookie.as_ref(), faults, CookieKind::from_word);
    text(raw.cookie_at.as_ref(), faults, cookie_at);
    let default = match protocol == Protocol::Tcp && beside.has_keys {
        true => CookieKind::Timestamp,
        false => CookieKind::None,
    };
    if let (Some(kind), Some(place)) = (kind.filter(|kind| *kind != CookieKind::None), &raw.cookie)
    {
        if protocol != Protocol::Tcp {
            faults.at(
                place.span(),
                format!(
                    "cookie = \"{kind}\" needs TCP, whose timestamps carry it; a UDP vip has none"
                ),
            );
            return None;
        }
        if kind == CookieKind::Tier {
            return of_first_tier(raw, place, beside.tiers, faults);
        }
        if !beside.has_keys {
            faults.at(place.span(), format!("cookie = \"{kind}\" needs keys; name their file under [cookie], and make it with `causeway cookie new-keys`"));
            return None;
        }
    }
    format(
        kind.unwrap_or(default),
        raw.cookie_bits.as_ref(),
        raw.cookie_id_bits.as_ref(),
        faults,
    )
}

/// The words of second-tier balancers, as a first tier reads them: the reals are those
/// balancers, and their ids the numbers.
fn of_first_tier(
    raw: &RawVip,
    place: &Spanned<String>,
    tiers: u32,
    faults: &mut Faults<'_>,
) -> Option<Format> {
    if tiers < 2 {
        faults.at(place.span(), "cookie = \"tier\" needs the number of second-tier balancers: set tiers under [stateful], the same as in their files");
        return None;
    }
    if let Some(bits) = raw.cookie_bits.as_ref().or(raw.cookie_id_bits.as_ref()) {
        faults.at(bits.span(), "cookie = \"tier\" reads words, whose parts [stateful] tiers gives; remove cookie_bits and cookie_id_bits");
    }
    for real in raw.real.iter().filter(|real| real.as_ref().id.is_none()) {
        faults.at(real.span(), "with cookie = \"tier\" each real is a second-tier balancer and needs its number; add id, which is `tier` under [stateful] in its file");
    }
    let format = Format::default_of(Mode::Tier);
    Format::new(Mode::Tier, format.bits(), tiers.trailing_zeros() as u8).ok()
}

/// A server's id in a VIP.
pub(super) fn id(
    value: Option<&Spanned<i64>>,
    format: Option<&Format>,
    faults: &mut Faults<'_>,
) -> Option<u16> {
    let value = value?;
    let ids = format.map_or(causeway_core::cookie::IDS, Format::ids);
    match u16::try_from(*value.as_ref()) {
        Ok(id) if id < ids => Some(id),
        _ => {
            faults.at(
                value.span(),
                format!(
                    "id {} is out of range; use 0 to {}",
                    value.as_ref(),
                    ids - 1
                ),
            );
            None
        }
    }
}

/// The word of a format's mode.
pub fn word(format: Option<&Format>) -> &'static str {
    match format.map(Format::mode) {
        None => "none",
        Some(Mode::Timestamp) => "timestamp",
        Some(Mode::Light) => "timestamp-light",
        Some(Mode::Msb) => "timestamp-msb",
        Some(Mode::Tier) => "tier",
    }
}
