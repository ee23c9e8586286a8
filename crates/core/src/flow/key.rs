// SPDX-License-Identifier: Apache-2.0

//! The five-tuple.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::FlowState;
use crate::wire::{IpDatagram, Quick};

const IPV6: u64 = 1 << 40;

/// A five-tuple. For a flow, the source is the client; for a packet, its sender.
/// Ports are 0 where the protocol has none.
///
/// The order is by protocol, source, source port, destination, destination
/// port, IPv4 before IPv6.
///
/// Five words, compared and hashed as such: the derived code for two
/// [`IpAddr`]s takes longer than parsing the packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FlowKey {
    /// High and low half; an IPv4 address stands in the low one.
    src: [u64; 2],
    dst: [u64; 2],
    /// From the low end: destination port, source port, protocol, [`IPV6`].
    rest: u64,
}

/// The name that both directions of a flow share, without the upper halves of its
/// addresses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Packed {
    /// Of IPv6, which [`WIDE`] says, where they stand elsewhere.
    addresses: u64,
    rest: u64,
}

/// In the words of [`Packed`], which no [`FlowKey`] equals that has this.
const WIDE: u64 = 1 << 48;

/// With equal ports the lower address comes first.
#[cold]
fn lower_comes_last(addresses: u64) -> bool {
    addresses > addresses.rotate_left(32)
}

impl Packed {
    /// Of IPv4: the name, its hash, and whether the packet was sent from the other side.
    #[inline(always)]
    pub(super) fn of(addresses: u64, ports: u32, proto: u8, hash: &FlowState) -> (Self, u64, bool) {
        let (mut addresses, mut ports, other) = (addresses, ports, ports.rotate_left(16));
        // The higher port comes first, which is the usual client's.
        let swapped = ports < other || ports == other && lower_comes_last(addresses);
        if swapped {
            (addresses, ports) = (addresses.rotate_left(32), other);
        }
        let rest = u64::from(proto) << 32 | u64::from(ports);
        let hash = hash.of_two(addresses, rest);
        (Self { addresses, rest }, hash, swapped)
    }
}

impl FlowKey {
    /// A five-tuple. Both addresses are of one family; should they not be, the
    /// IPv4 one becomes its mapped form.
    #[inline]
    pub fn new(proto: u8, src: IpAddr, sport: u16, dst: IpAddr, dport: u16) -> FlowKey {
        let rest = u64::from(proto) << 32 | u64::from(sport) << 16 | u64::from(dport);
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => FlowKey {
                src: [0, src.to_bits().into()],
                dst: [0, dst.to_bits().into()],
                rest,
            },
            _ => FlowKey {
                src: words(src),
                dst: words(dst),
                rest: rest | IPV6,
            },
        }
    }

    /// The five-tuple of a packet, as it was sent.
    #[inline]
    pub fn of(packet: &IpDatagram) -> FlowKey {
        let (sport, dport) = packet.transport.ports();
        FlowKey::new(
            packet.transport.protocol(),
            packet.src,
            sport,
            packet.dst,
            dport,
        )
    }

    /// [`FlowKey::of`] a frame that was read quickly.
    #[inline(always)]
    pub(super) fn of_quick(quick: &Quick) -> FlowKey {
        let ports = u64::from(quick.sport) << 16 | u64::from(quick.dport);
        FlowKey {
            src: [0, quick.src.into()],
            dst: [0, quick.dst.into()],
            rest: u64::from(quick.protocol) << 32 | ports,
        }
    }

    /// IP protocol number.
    #[inline]
    pub fn proto(&self) -> u8 {
        (self.rest >> 32) as u8
    }

    /// Address of the client, or of the sender.
    #[inline]
    pub fn src(&self) -> IpAddr {
        self.address(self.src)
    }

    /// Port of the client, or of the sender.
    #[inline]
    pub fn sport(&self) -> u16 {
        (self.rest >> 16) as u16
    }

    /// Address of the server, or of the receiver.
    #[inline]
    pub fn dst(&self) -> IpAddr {
        self.address(self.dst)
    }

    /// Port of the server, or of the receiver.
    #[inline]
    pub fn dport(&self) -> u16 {
        self.rest as u16
    }

    /// The same flow seen from the other side.
    #[inline]
    pub fn reversed(&self) -> FlowKey {
        let ports = (self.rest as u32).rotate_left(16);
        FlowKey {
            src: self.dst,
            dst: self.src,
            rest: self.rest >> 32 << 32 | u64::from(ports),
        }
    }

    /// The server's side alone: the client is the unspecified address and port 0.
    pub fn server(&self) -> FlowKey {
        FlowKey {
            src: [0; 2],
            dst: self.dst,
            rest: self.rest & !0xffff_0000,
        }
    }

    /// One name for both directions, and whether this is the other one: the
    /// higher port comes first (with equal ports the lower address).
    #[inline]
    pub(super) fn canonical(&self) -> (FlowKey, bool) {
        let swapped = self.is_swapped();
        (if swapped { self.reversed() } else { *self }, swapped)
    }

    #[inline(always)]
    fn is_swapped(&self) -> bool {
        let (sport, dport) = (self.sport(), self.dport());
        sport < dport || sport == dport && self.src > self.dst
    }

    /// [`FlowKey::canonical`], its hash, and whether that is the other name. Always
    /// inlined: a call would have the reader of a packet lay out its key in memory first.
    #[inline(always)]
    pub(super) fn name(&self, hash: &FlowState) -> (Packed, u64, bool) {
        if self.is_ipv6() {
            return self.wide_name(hash);
        }
        Packed::of(self.addresses(), self.rest as u32, self.proto(), hash)
    }

    #[inline(never)]
    fn wide_name(&self, hash: &FlowState) -> (Packed, u64, bool) {
        let (key, swapped) = self.canonical();
        let name = Packed {
            addresses: 0,
            rest: key.rest | WIDE,
        };
        (name, hash.hash_one(key), swapped)
    }

    /// Whether a packet is of this flow, sent from the other side where `swapped`.
    #[inline]
    pub(super) fn is(&self, packet: &FlowKey, swapped: bool) -> bool {
        let is = |src: &[u64; 2], dst: &[u64; 2], rest| {
            // The upper halves of IPv4 addresses are all zero.
            let same = (self.src[1] ^ src[1]) | (self.dst[1] ^ dst[1]) | (self.rest ^ rest) == 0;
            same && (!self.is_ipv6() || (self.src[0], self.dst[0]) == (src[0], dst[0]))
        };
        if swapped {
            let ports = (packet.rest as u32).rotate_left(16);
            let rest = packet.rest >> 32 << 32 | u64::from(ports);
            is(&packet.dst, &packet.src, rest)
        } else {
            is(&packet.src, &packet.dst, packet.rest)
        }
    }

    /// The key's name as it is kept: IPv6 has its addresses in `wide`, and their place
    /// there in the first word.
    #[inline(always)]
    pub(super) fn pack(&self, name: Packed, wide: &mut Vec<[[u64; 2]; 2]>) -> Packed {
        if !self.is_ipv6() {
            return name;
        }
        let (key, _) = self.canonical();
        wide.push([key.src, key.dst]);
        Packed {
            addresses: wide.len() as u64 - 1,
            ..name
        }
    }

    /// What was packed, with the same `wide`, of a packet that was sent from the other
    /// side where `swapped`.
    #[inline]
    pub(super) fn unpack(packed: Packed, swapped: bool, wide: &[[[u64; 2]; 2]]) -> FlowKey {
        let Packed { addresses, rest } = packed;
        let [src, dst] = match rest & WIDE {
            0 => [[0, addresses >> 32], [0, addresses & 0xffff_ffff]],
            _ => wide[addresses as usize],
        };
        let rest = rest & !WIDE;
        let name = FlowKey { src, dst, rest };
        if swapped { name.reversed() } else { name }
    }

    /// Whether this is the name of a flow of IPv4; of IPv6 that cannot be known.
    #[inline(always)]
    pub(super) fn has_name(&self, name: Packed) -> bool {
        self.rest == name.rest && self.addresses() == name.addresses
    }

    /// Both addresses of IPv4 in one word.
    #[inline]
    fn addresses(&self) -> u64 {
        self.src[1] << 32 | self.dst[1]
    }

    #[inline]
    fn is_ipv6(&self) -> bool {
        self.rest & IPV6 != 0
    }

    #[inline]
    fn address(&self, words: [u64; 2]) -> IpAddr {
        if self.is_ipv6() {
            Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1])).into()
        } else {
            Ipv4Addr::from_bits(words[1] as u32).into()
        }
    }
}

#[inline]
fn words(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        if self.is_ipv6() {
            for word in [self.src[0], self.src[1], self.dst[0], self.dst[1]] {
                state.write_u64(word);
            }
        } else {
            state.write_u64(self.addresses());
        }
        state.write_u64(self.rest);
    }
}

impl Ord for FlowKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = |key: &FlowKey| {
            (
                key.proto(),
                key.is_ipv6(),
                key.src,
                key.sport(),
                key.dst,
                key.dport(),
            )
        };
        order(self).cmp(&order(other))
    }
}

impl PartialOrd for FlowKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = SocketAddr::new(self.src(), self.sport());
        let server = SocketAddr::new(self.dst(), self.dport());
        write!(f, "{} {client} > {server}", self.proto())
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
