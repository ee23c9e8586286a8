// SPDX-License-Identifier: Apache-2.0
//! Cookies and connection ids.

use causeway_core::cookie::quic::CidRoute;
use causeway_core::cookie::{CookieLayout, KeyEpoch, Keys};

use super::{Plain, c, plain};

/// `CookieFormat::mode` of a VIP whose cookies are QUIC connection ids.
pub const COOKIE_QUIC: u8 = c::COOKIE_QUIC;
/// `Ctl::vip_first`: a VIP of TCP has cookies, or forgets flows.
pub const VIP_FIRST_TCP: u8 = c::VIP_FIRST_TCP;
/// `Ctl::vip_first`: a VIP of UDP has connection ids, or forgets flows.
pub const VIP_FIRST_UDP: u8 = c::VIP_FIRST_UDP;
/// Entries of `quic_configs` for each VIP.
pub const QUIC_CODEPOINTS: u32 = c::QUIC_CODEPOINTS;

impl From<&CookieLayout> for CookieFormat {
    fn from(format: &CookieLayout) -> Self {
        Self {
            mode: format.mode() as u8,
            bits: format.bits(),
            id_bits: format.id_bits(),
            pad: 0,
        }
    }
}

impl From<&CidRoute> for QuicLbConfig {
    fn from(route: &CidRoute) -> Self {
        let raw = route.raw();
        Self {
            algorithm: raw.algorithm,
            server_id_len: raw.server_id_len,
            nonce_len: raw.nonce_len,
            pad: raw.pad,
            siphash_key: raw.siphash_key,
            aes_rounds: std::array::from_fn(|round| {
                std::array::from_fn(|column| raw.aes_rounds[4 * round + column])
            }),
        }
    }
}

impl From<Option<&Keys>> for CookieKeys {
    fn from(keys: Option<&Keys>) -> Self {
        let mut value = Self::default();
        let Some(keys) = keys else {
            return value;
        };
        value.current = keys.current().index();
        for epoch in KeyEpoch::ALL {
            if let Some(key) = keys.get(epoch) {
                value.key[epoch.index() as usize] = key.words();
                value.present |= 1 << epoch.index();
            }
        }
        value
    }
}

plain! {
    /// How a VIP's cookies are made.
    "cookie_format" CookieFormat {
        /// `enum cookie_mode`; 0: none.
        mode: u8,
        /// Bits of the cookie, the epoch included.
        bits: u8,
        /// Bits of the id.
        id_bits: u8,
        /// Zero.
        pad: u8,
    }
    /// The keys of cookies.
    "cookie_keys" CookieKeys {
        /// SipHash keys, by epoch.
        key: [[u64; 2]; 2],
        /// Bit e: `key[e]` is set.
        present: u32,
        /// Epoch of new connections.
        current: u32,
    }
    /// One configuration of a VIP's QUIC connection ids.
    "quic_lb_config" QuicLbConfig {
        /// `enum quic_lb_algorithm`; 0: this codepoint has no configuration.
        algorithm: u8,
        /// Octets of the server id.
        server_id_len: u8,
        /// Octets of the nonce.
        nonce_len: u8,
        /// Zero.
        pad: [u8; 5],
        /// The key, for SipHash.
        siphash_key: [u64; 2],
        /// The expanded key, for AES.
        aes_rounds: [[u32; 4]; 11],
    }
    /// Packets of one VIP's cookies on one CPU.
    "cookie_counts" CookieCounts {
        /// By `enum cookie_result`.
        packets: [u64; 32],
    }
    /// Which real has an id.
    "cookie_slot" CookieSlot {
        /// Index into `reals`, plus one; 0: no real has this id.
        real: u32,
        /// When the id was taken away, CLOCK_MONOTONIC in seconds; 0: never.
        freed_up_s: u32,
        /// Address of the real that has or had it.
        addr: [u8; 16],
    }
}
