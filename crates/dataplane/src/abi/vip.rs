// SPDX-License-Identifier: Apache-2.0
//! VIPs, and which reals their packets go to.

use super::{CookieFormat, Plain, c, plain};

/// `Vip::flags`: no flow is remembered.
pub const VIP_FORGET: u32 = c::VIP_FORGET;
/// `Vip::flags`: new flows add to their real's load.
pub const VIP_COUNT_LOAD: u32 = c::VIP_COUNT_LOAD;
/// `VipKey::kind`: the VIP that takes its address's fragments.
pub const VIP_OF_FRAGMENTS: u8 = c::VIP_OF_FRAGMENTS;
/// `Vip::flags`: picks by the client's address alone.
pub const VIP_PICK_BY_ADDRESS: u32 = c::VIP_PICK_BY_ADDRESS;
/// `VipValue::flags`: connections with timestamps get a slot of their own.
pub const VIP_STATEFUL: u32 = c::VIP_STATEFUL;
/// `Vip::flags`: some clients have reals of their own.
pub const VIP_SOURCES: u32 = c::VIP_SOURCES;
/// `Vip::flags`: new flows of a client prefix are limited.
pub const VIP_LIMITED: u32 = c::VIP_LIMITED;
/// `Vip::flags`: packets carry the former owner of a slot to servers.
pub const VIP_SECOND_CHANCE: u32 = c::VIP_SECOND_CHANCE;
/// `Vip::pick`: the slot of the tuple's hash.
pub const PICK_HASH: u8 = c::PICK_HASH;
/// `Vip::pick`: the next slot.
pub const PICK_TURN: u8 = c::PICK_TURN;
/// `Vip::pick`: of two slots that with less load.
pub const PICK_TWO: u8 = c::PICK_TWO;
/// A server's address: tunnels are opened that end there.
pub const ADDRESS_TUNNEL_END: u32 = c::ADDRESS_TUNNEL_END;
/// A server's address: packets for it are taken out of tunnels.
pub const ADDRESS_VIP: u32 = c::ADDRESS_VIP;
/// Groups of client prefixes that have rings.
pub const SOURCE_GROUPS: u32 = c::SOURCE_GROUPS;

plain! {
    /// Key of `vips`.
    "vip_key" VipKey {
        /// The VIP's address, IPv4 as IPv4-mapped.
        addr: [u8; 16],
        /// Its port; 0 is all ports.
        port_be: [u8; 2],
        /// IP protocol; 0 with port 0 marks the address alone.
        proto: u8,
        /// 0, or [`VIP_OF_FRAGMENTS`].
        kind: u8,
    }
    /// Which connections are measured: 1 in 2^k.
    "sampling" SamplingValue {
        /// k of those that open now; of a VIP not used.
        opening: u8,
        /// The least k in recent use.
        least: u8,
        /// The greatest k in recent use.
        most: u8,
    }
    /// Value of `vips`.
    "vip" VipValue {
        /// Index into `rings` and `vip_stats`.
        id: u32,
        /// Entries of the VIP's ring; 0: no real.
        ring_size: u32,
        /// See `enum vip_flags`.
        flags: u32,
        /// See `enum vip_pick`.
        pick: u8,
        /// Which connections are measured, over all reals.
        sampling: SamplingValue,
        /// Slot of the VIP's id 0 in `cookie_slots`.
        cookie_base: u32,
        /// How its cookies are made; mode 0: it has none.
        cookie: CookieFormat,
        /// Entries of its ring of configured weights; 0: its own serves.
        plain_size: u32,
        /// Entries of its ring of former owners; 0: none.
        former_size: u32,
    }
    /// A client prefix of a VIP.
    "source_key" SourceKey {
        /// Bits that count: the VIP's 32, and the prefix's, of 128.
        length: u32,
        /// The VIP's id.
        vip: u32,
        /// The address, IPv4 as IPv4-mapped.
        addr: [u8; 16],
    }
    /// The reals of some client prefixes.
    "source_group" SourceGroup {
        /// Slots of its ring; 0: none of the reals is there.
        ring_size: u32,
        /// Without reals: no real at all, instead of the VIP's ring.
        strict: u32,
        /// As a VIP's.
        plain_size: u32,
    }
    /// How many new flows a client prefix may have at a VIP.
    "vip_limit" VipLimit {
        /// Time that each takes, in units of 1024 ns; 0: no limit.
        interval: u32,
        /// Time that a prefix may be ahead.
        tolerance: u32,
        /// Bits of an IPv4 client's address that count.
        prefix4: u8,
        /// The same of IPv6.
        prefix6: u8,
        /// Zero.
        pad: [u8; 6],
    }
    /// What a server needs to know of a VIP.
    "server_vip" ServerVip {
        /// The server's own id.
        id: u32,
        /// How the VIP's cookies are made.
        cookie: CookieFormat,
    }
    /// A network that tunnels are opened from.
    "tunnel_source" TunnelSource {
        /// Bits that count, of 128.
        length: u32,
        /// The address, IPv4 as IPv4-mapped.
        addr: [u8; 16],
    }
    /// Value of `turns`.
    "turns" Turns {
        /// Turns taken.
        taken: u64,
        /// Zero.
        pad: [u64; 7],
    }
}
