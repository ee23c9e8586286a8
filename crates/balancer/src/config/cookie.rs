// SPDX-License-Identifier: Apache-2.0
//! Cookies: the keys file, and how a VIP's are made.

use std::path::PathBuf;
use std::time::Duration;

use causeway_core::cookie::{CookieLayout, CookieMode};
use causeway_service::config::{
    BALANCERS_KEYS, CookieKind, Faults, KeysFile, Spanned, cookie_format, cookie_kind, keys_of,
    text, time_within,
};

use super::raw::{RawCookie, RawVip};
use super::{Protocol, TunnelEnds};

/// How long an id rests that was taken away: connections of a server that is gone
/// give up before (Linux: after 15 retransmissions, 924 s, or sooner).
pub const QUARANTINE: Duration = Duration::from_secs(15 * 60);

/// What cookies need beside the VIPs.
#[derive(Debug, Clone, PartialEq)]
pub struct Cookies {
    /// The keys file.
    pub file: PathBuf,
    /// What it holds.
    pub keys: KeysFile,
    /// How long an id rests before another real gets it.
    pub quarantine: Duration,
}

pub(super) fn cookies(raw: &RawCookie, faults: &mut Faults<'_>) -> Option<Cookies> {
    let quarantine = raw.quarantine.as_ref();
    let quarantine = time_within(quarantine, "quarantine", ["0s", "168h"], faults);
    let (file, keys) = keys_of(raw.keys.as_ref(), BALANCERS_KEYS, faults)?;
    Some(Cookies {
        file,
        keys,
        quarantine: quarantine.unwrap_or(QUARANTINE),
    })
}

/// What a VIP goes by beside itself: its cookies, above all.
#[derive(Debug, Clone, Copy)]
pub struct Beside {
    /// There are keys.
    pub has_keys: bool,
    /// How many second-tier balancers there are, a power of two.
    pub balancers: u32,
    /// Where tunnels of a first tier end: no real is there.
    pub tunnel_ends: TunnelEnds,
    /// What the VIP's cookies are, where it does not say.
    pub kept: Option<CookieLayout>,
    /// Its reals may come later: it is asked for, and stands in no file.
    pub may_be_empty: bool,
}

impl Beside {
    /// Of a balancer that runs by `config`.
    pub fn of(config: &super::BalancerConfig) -> Self {
        Self {
            has_keys: config.cookies.is_some(),
            balancers: config.stateful.balancers,
            tunnel_ends: config.tunnel_ends,
            kept: None,
            may_be_empty: true,
        }
    }

    /// The cookies that a VIP has, and goes on with.
    pub fn keeping(kept: Option<CookieLayout>) -> Self {
        Self {
            kept,
            may_be_empty: true,
            ..Self::NOTHING
        }
    }

    /// Nothing: for a whole file.
    pub const NOTHING: Self = Self {
        has_keys: false,
        balancers: 1,
        tunnel_ends: TunnelEnds { v4: None, v6: None },
        kept: None,
        may_be_empty: false,
    };
}

/// A VIP's format. TCP VIPs have cookies as soon as there are keys.
pub(super) fn of_vip(
    raw: &RawVip,
    protocol: Protocol,
    beside: Beside,
    faults: &mut Faults<'_>,
) -> Option<CookieLayout> {
    if raw.cookie.is_none() && beside.kept.is_some() {
        return beside.kept;
    }
    let kind = text(raw.cookie.as_ref(), faults, cookie_kind);
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
            return of_first_tier(raw, place, beside.balancers, faults);
        }
        if !beside.has_keys {
            faults.at(place.span(), format!("cookie = \"{kind}\" needs keys; name their file under [cookie], and make it with `causeway cookie new-keys`"));
            return None;
        }
    }
    cookie_format(
        kind.unwrap_or(default),
        raw.cookie_bits.as_ref(),
        raw.cookie_id_bits.as_ref(),
        faults,
    )
}

/// The tokens of second-tier balancers, as a first tier reads them: the reals are those
/// balancers, and their ids the numbers.
fn of_first_tier(
    raw: &RawVip,
    place: &Spanned<String>,
    balancers: u32,
    faults: &mut Faults<'_>,
) -> Option<CookieLayout> {
    if balancers < 2 {
        faults.at(place.span(), "cookie = \"tier\" needs the number of second-tier balancers: set `balancers` under [stateful], the same as in their files");
        return None;
    }
    if let Some(bits) = raw.cookie_bits.as_ref().or(raw.cookie_id_bits.as_ref()) {
        faults.at(bits.span(), "cookie = \"tier\" reads connection tokens, whose parts `balancers` under [stateful] gives; remove cookie_bits and cookie_id_bits");
    }
    for real in raw.real.iter().filter(|real| real.as_ref().id.is_none()) {
        faults.at(real.span(), "with cookie = \"tier\" each real is a second-tier balancer and needs its number; add id, which is `number` under [stateful] in its file");
    }
    let format = CookieLayout::default_of(CookieMode::Tier);
    CookieLayout::new(
        CookieMode::Tier,
        format.bits(),
        balancers.trailing_zeros() as u8,
    )
    .ok()
}

/// The word of a format's mode.
pub fn word(format: Option<&CookieLayout>) -> &'static str {
    match format.map(CookieLayout::mode) {
        None => "none",
        Some(CookieMode::Timestamp) => "timestamp",
        Some(CookieMode::Light) => "timestamp-light",
        Some(CookieMode::Tier) => "tier",
    }
}
