// SPDX-License-Identifier: Apache-2.0

//! Link layers: Ethernet with VLAN tags, Linux cooked, loopback, raw IP.

use super::Skip;
use super::bytes::{be16, be32};

/// VLAN tags followed before a frame is given up: QinQ has two.
const MAX_VLAN_TAGS: usize = 4;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// 802.1Q, 802.1ad, and the two tags that QinQ used before 802.1ad.
const ETHERTYPE_VLAN: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];

/// The link types that have a parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkType {
    /// `LINKTYPE_NULL`: address family in the byte order of the capturing machine.
    Null,
    /// `LINKTYPE_LOOP`: address family in network byte order (OpenBSD).
    Loop,
    /// `LINKTYPE_ETHERNET`.
    Ethernet,
    /// `LINKTYPE_RAW` and its older numbers: IPv4 or IPv6, told by the version.
    Raw,
    /// `LINKTYPE_IPV4`.
    Ipv4,
    /// `LINKTYPE_IPV6`.
    Ipv6,
    /// `LINKTYPE_LINUX_SLL`: what `tcpdump -i any` wrote for long.
    LinuxCooked,
    /// `LINKTYPE_LINUX_SLL2`.
    LinuxCooked2,
}

impl LinkType {
    /// The link type of a `LINKTYPE_` number (<https://www.tcpdump.org/linktypes.html>),
    /// or `None` when there is no parser for it.
    #[inline]
    pub const fn from_number(number: u32) -> Option<LinkType> {
        Some(match number {
            0 => LinkType::Null,
            1 => LinkType::Ethernet,
            // 12 and 14 are DLT_RAW where a program wrote its own DLT into the file.
            12 | 14 | 101 => LinkType::Raw,
            108 => LinkType::Loop,
            113 => LinkType::LinuxCooked,
            228 => LinkType::Ipv4,
            229 => LinkType::Ipv6,
            276 => LinkType::LinuxCooked2,
            _ => return None,
        })
    }

    /// Its `DLT_` number, by which libpcap's compiler knows it. It differs from
    /// the number in files for raw IP alone.
    pub const fn dlt(self) -> u32 {
        match self {
            LinkType::Null => 0,
            LinkType::Ethernet => 1,
            LinkType::Raw => 12,
            LinkType::Loop => 108,
            LinkType::LinuxCooked => 113,
            LinkType::Ipv4 => 228,
            LinkType::Ipv6 => 229,
            LinkType::LinuxCooked2 => 276,
        }
    }

    /// Finds the network packet in a captured frame.
    #[inline]
    pub(super) fn network(self, data: &[u8]) -> Result<Network<'_>, Skip> {
        match self {
            LinkType::Ethernet => EthernetFrame::new(data)?.network(),
            LinkType::Raw => Network::by_version(data),
            LinkType::Ipv4 => Ok(Network::Ipv4(data)),
            LinkType::Ipv6 => Ok(Network::Ipv6(data)),
            LinkType::LinuxCooked => by_ethertype(data, 14, 16),
            LinkType::LinuxCooked2 => by_ethertype(data, 0, 20),
            LinkType::Null => {
                let family = be32(data, 0).ok_or(Skip::ShortLink)?;
                // Written in host order: a small number tells which order that was.
                by_family(
                    if family > 0xffff {
                        family.swap_bytes()
                    } else {
                        family
                    },
                    data,
                )
            }
            LinkType::Loop => by_family(be32(data, 0).ok_or(Skip::ShortLink)?, data),
        }
    }
}

/// What a link-layer frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network<'a> {
    /// Bytes from the first byte of an IPv4 header on.
    Ipv4(&'a [u8]),
    /// Bytes from the first byte of an IPv6 header on.
    Ipv6(&'a [u8]),
}

impl<'a> Network<'a> {
    /// Tells IPv4 from IPv6 by the version field.
    #[inline]
    pub fn by_version(data: &'a [u8]) -> Result<Network<'a>, Skip> {
        match data.first().ok_or(Skip::ShortIp)? >> 4 {
            4 => Ok(Network::Ipv4(data)),
            6 => Ok(Network::Ipv6(data)),
            _ => Err(Skip::BadIp),
        }
    }

    /// The captured bytes from the IP header on.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            Network::Ipv4(data) | Network::Ipv6(data) => data,
        }
    }
}

/// An Ethernet II frame.
#[derive(Clone, Copy, Debug)]
pub struct EthernetFrame<'a>(&'a [u8]);

impl<'a> EthernetFrame<'a> {
    /// Bytes of the header without tags.
    pub const HEADER_LEN: usize = 14;

    /// Checks that the two addresses and the type were captured.
    #[inline]
    pub fn new(data: &'a [u8]) -> Result<Self, Skip> {
        if data.len() < Self::HEADER_LEN {
            return Err(Skip::ShortLink);
        }
        Ok(Self(data))
    }

    /// The type field, or the first VLAN tag's identifier.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        u16::from_be_bytes([self.0[12], self.0[13]])
    }

    /// The IP packet behind any VLAN tags.
    #[inline]
    pub fn network(&self) -> Result<Network<'a>, Skip> {
        by_ethertype(self.0, 12, Self::HEADER_LEN)
    }
}

/// Reads the EtherType at `at`, then the payload at `payload`, and steps over
/// VLAN tags, each of which holds the next EtherType in its bytes 2 and 3.
#[inline]
pub(super) fn by_ethertype(data: &[u8], at: usize, payload: usize) -> Result<Network<'_>, Skip> {
    let mut ethertype = be16(data, at).ok_or(Skip::ShortLink)?;
    let mut payload = payload;
    for _ in 0..=MAX_VLAN_TAGS {
        let rest = data.get(payload..).ok_or(Skip::ShortLink)?;
        match ethertype {
            ETHERTYPE_IPV4 => return Ok(Network::Ipv4(rest)),
            ETHERTYPE_IPV6 => return Ok(Network::Ipv6(rest)),
            tag if ETHERTYPE_VLAN.contains(&tag) => {
                ethertype = be16(rest, 2).ok_or(Skip::ShortLink)?;
                payload += 4;
            }
            _ => return Err(Skip::NotIp),
        }
    }
    Err(Skip::VlanDepth)
}

/// The loopback header: `AF_INET` is 2 everywhere, `AF_INET6` differs by system
/// (10 on Linux, 24, 28 or 30 on the BSDs and macOS).
fn by_family(family: u32, data: &[u8]) -> Result<Network<'_>, Skip> {
    let rest = &data[4..];
    match family {
        2 => Ok(Network::Ipv4(rest)),
        10 | 24 | 28 | 30 => Ok(Network::Ipv6(rest)),
        _ => Err(Skip::NotIp),
    }
}
