// SPDX-License-Identifier: Apache-2.0
//! How a VIP's cookies are made; balancers and servers must agree on it.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Most bits of an id: a VIP has at most 1024 servers.
const ID_BITS_MAX: u8 = 10;
/// The least that leaves a server's id a check, and the most that leaves the clock
/// a ring of four seconds.
const TIMESTAMP_BITS: std::ops::RangeInclusive<u8> = 8..=20;
/// Beyond this the natural clock would be too coarse: it ticks every 2^bits ms.
const LIGHT_BITS: std::ops::RangeInclusive<u8> = 4..=10;

/// A stateful balancer's connection tokens: the bits that distinguish second-tier balancers come
/// first.
const TIER_BITS: u8 = 15;

/// Where a cookie lies and what drives the clock beside it (`enum cookie_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CookieMode {
    /// Low bits of TSval, an event-driven clock above.
    Timestamp = 1,
    /// Low bits of TSval, the natural clock above; the server gets no echo.
    Light = 2,
    /// No cookie: the number of the second-tier balancer that a stateful VIP's
    /// connection is on. The ids are the balancers' numbers.
    Tier = 5,
}

/// A format that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CookieLayoutError {
    /// The cookie's size is not one of the mode's.
    #[error("a cookie of this mode has {min} to {max} bits, not {bits}")]
    Bits {
        /// What was wanted.
        bits: u8,
        /// The least.
        min: u8,
        /// The most.
        max: u8,
    },
    /// The id does not fit.
    #[error(
        "a cookie of {bits} bits has room for 1 to {max} bits of id, not {id_bits}: one bit is the epoch's"
    )]
    IdBits {
        /// Of the cookie.
        bits: u8,
        /// What was wanted.
        id_bits: u8,
        /// The most.
        max: u8,
    },
}

/// `struct cookie_format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(super) struct RawFormat {
    mode: u8,
    bits: u8,
    id_bits: u8,
    pad: u8,
}

/// A format whose parts fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "[u8; 3]", try_from = "[u8; 3]")]
pub struct CookieLayout(RawFormat, CookieMode);

impl CookieLayout {
    /// A cookie of `bits` bits, `id_bits` of them the server's id. What remains
    /// beside the epoch is the check's, at most fifteen bits.
    pub fn new(mode: CookieMode, bits: u8, id_bits: u8) -> Result<Self, CookieLayoutError> {
        let range = match mode {
            CookieMode::Timestamp => TIMESTAMP_BITS,
            CookieMode::Light => LIGHT_BITS,
            CookieMode::Tier => TIER_BITS..=TIER_BITS,
        };
        let (min, max) = (*range.start(), *range.end());
        if !range.contains(&bits) {
            return Err(CookieLayoutError::Bits { bits, min, max });
        }
        let max = (bits - 1).min(ID_BITS_MAX);
        if id_bits == 0 || id_bits > max {
            return Err(CookieLayoutError::IdBits { bits, id_bits, max });
        }
        let raw = RawFormat {
            mode: mode as u8,
            bits,
            id_bits,
            pad: 0,
        };
        Ok(Self(raw, mode))
    }

    /// The mode's own sizes: 16 bits with 1024 ids; `light` 10 bits with 64 ids, and
    /// `tier` 15 bits with two balancers.
    pub fn default_of(mode: CookieMode) -> Self {
        let (bits, id_bits) = match mode {
            CookieMode::Timestamp => (16, 10),
            CookieMode::Light => (10, 6),
            CookieMode::Tier => (TIER_BITS, 1),
        };
        let raw = RawFormat {
            mode: mode as u8,
            bits,
            id_bits,
            pad: 0,
        };
        Self(raw, mode)
    }

    /// The mode.
    pub fn mode(&self) -> CookieMode {
        self.1
    }

    /// Bits of the cookie, the epoch's included.
    pub fn bits(&self) -> u8 {
        self.0.bits
    }

    /// Bits of the server's id.
    pub fn id_bits(&self) -> u8 {
        self.0.id_bits
    }

    /// Bits of the check; with [`CookieMode::Tier`], less one, those of the slot.
    pub fn check_bits(&self) -> u8 {
        self.0.bits - 1 - self.0.id_bits
    }

    /// How many ids there are.
    pub fn ids(&self) -> u16 {
        1 << self.0.id_bits
    }

    pub(super) fn raw(&self) -> RawFormat {
        self.0
    }
}

/// Mode, bits, bits of the id, as datagrams and files have it.
impl From<CookieLayout> for [u8; 3] {
    fn from(layout: CookieLayout) -> Self {
        [layout.mode() as u8, layout.bits(), layout.id_bits()]
    }
}

impl TryFrom<[u8; 3]> for CookieLayout {
    type Error = &'static str;

    fn try_from([mode, bits, id_bits]: [u8; 3]) -> Result<Self, Self::Error> {
        let modes = [CookieMode::Timestamp, CookieMode::Light, CookieMode::Tier];
        let mode = modes.into_iter().find(|one| *one as u8 == mode);
        let layout = mode.map(|mode| Self::new(mode, bits, id_bits));
        layout.and_then(Result::ok).ok_or("there is no such cookie")
    }
}
