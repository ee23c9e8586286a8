// SPDX-License-Identifier: Apache-2.0

//! Link layers, and what may stand between them and IP: VLAN tags, MPLS labels,
//! PPPoE, SNAP.

use super::Skip;
use super::bytes::{be16, be32, fixed};

/// Layers followed before a frame is given up: QinQ has three, a labelled Ethernet
/// frame in another one some more.
const MAX_LAYERS: usize = 10;

/// Attributes before the packet in a netfilter log; the kernel writes about ten.
const MAX_NFLOG_ATTRIBUTES: usize = 32;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_MPLS: u16 = 0x8847;
const ETHERTYPE_MPLS_MULTICAST: u16 = 0x8848;
const ETHERTYPE_PPPOE: u16 = 0x8864;
/// Transparent Ethernet bridging, in GRE and GENEVE.
pub(super) const ETHERTYPE_BRIDGED: u16 = 0x6558;
/// A smaller type field is the length of an 802.3 frame.
const MAX_802_3_LEN: u16 = 1500;
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
    /// `LINKTYPE_RAW` and its older numbers: IPv4 or IPv6, distinguished by the version.
    Raw,
    /// `LINKTYPE_IPV4`.
    Ipv4,
    /// `LINKTYPE_IPV6`.
    Ipv6,
    /// `LINKTYPE_LINUX_SLL`: what `tcpdump -i any` wrote for long.
    LinuxCooked,
    /// `LINKTYPE_LINUX_SLL2`.
    LinuxCooked2,
    /// `LINKTYPE_PPP`, with or without address and control.
    Ppp,
    /// `LINKTYPE_PPP_HDLC`: PPP or Cisco HDLC on a serial line.
    PppSerial,
    /// `LINKTYPE_PPP_ETHER`: a PPPoE session without its Ethernet header.
    PppEther,
    /// `LINKTYPE_PPP_PPPD`: PPP with a direction in place of the address.
    PppPppd,
    /// `LINKTYPE_C_HDLC`: Cisco HDLC.
    CiscoHdlc,
    /// `LINKTYPE_PFLOG`: OpenBSD's packet filter.
    Pflog,
    /// `LINKTYPE_ENC`: OpenBSD's IPsec interface.
    Enc,
    /// `LINKTYPE_NFLOG`: Linux's netfilter, `tcpdump -i nflog:GROUP`.
    Nflog,
    /// `LINKTYPE_PKTAP`: any interface on macOS.
    Pktap,
}

impl LinkType {
    /// The link type of a `LINKTYPE_` number (<https://www.tcpdump.org/linktypes.html>),
    /// or `None` when there is no parser for it.
    #[inline]
    pub const fn from_number(number: u32) -> Option<LinkType> {
        Some(match number {
            0 => LinkType::Null,
            1 => LinkType::Ethernet,
            9 => LinkType::Ppp,
            // 12 and 14 are DLT_RAW where a program wrote its own DLT into the file.
            12 | 14 | 101 => LinkType::Raw,
            50 => LinkType::PppSerial,
            51 => LinkType::PppEther,
            104 => LinkType::CiscoHdlc,
            108 => LinkType::Loop,
            109 => LinkType::Enc,
            113 => LinkType::LinuxCooked,
            117 => LinkType::Pflog,
            166 => LinkType::PppPppd,
            228 => LinkType::Ipv4,
            229 => LinkType::Ipv6,
            239 => LinkType::Nflog,
            258 => LinkType::Pktap,
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
            LinkType::Ppp => 9,
            LinkType::Raw => 12,
            LinkType::PppSerial => 50,
            LinkType::PppEther => 51,
            LinkType::CiscoHdlc => 104,
            LinkType::Loop => 108,
            LinkType::Enc => 109,
            LinkType::LinuxCooked => 113,
            LinkType::Pflog => 117,
            LinkType::PppPppd => 166,
            LinkType::Ipv4 => 228,
            LinkType::Ipv6 => 229,
            LinkType::Nflog => 239,
            LinkType::Pktap => 258,
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
            LinkType::LinuxCooked => carried(data, 16, Layer::Type(half(data, 14)?)),
            LinkType::LinuxCooked2 => carried(data, 20, Layer::Type(half(data, 0)?)),
            _ => self.rare_network(data),
        }
    }

    fn rare_network(self, data: &[u8]) -> Result<Network<'_>, Skip> {
        let family = || {
            let family = be32(data, 0).ok_or(Skip::ShortLink)?;
            Ok((family, &data[4..]))
        };
        match self {
            // Written in host order: a small number shows which order that was.
            LinkType::Null => match family()? {
                (family @ 0..=0xffff, rest) => by_family(family, rest),
                (family, rest) => by_family(family.swap_bytes(), rest),
            },
            LinkType::Loop => family().and_then(|(family, rest)| by_family(family, rest)),
            LinkType::Ppp => carried(data, 0, Layer::Ppp),
            // Cisco's addresses are 0x0f and 0x8f, PPP's is 0xff.
            LinkType::PppSerial if data.first().is_some_and(|address| address & 0x7f == 0x0f) => {
                carried(data, 4, Layer::Type(half(data, 2)?))
            }
            LinkType::PppSerial => carried(data, 0, Layer::Ppp),
            LinkType::PppEther => carried(data, 0, Layer::Type(ETHERTYPE_PPPOE)),
            LinkType::PppPppd => carried(data, 2, Layer::Ppp),
            LinkType::CiscoHdlc => carried(data, 4, Layer::Type(half(data, 2)?)),
            LinkType::Enc => carried(data, 12, Layer::Ip),
            LinkType::Pflog => pflog(data),
            LinkType::Nflog => nflog(data),
            LinkType::Pktap => pktap(data),
            _ => Err(Skip::LinkType),
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
    /// Distinguishes IPv4 and IPv6 by the version field.
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

    /// The IP packet behind any VLAN tags, MPLS labels and PPPoE.
    #[inline]
    pub fn network(&self) -> Result<Network<'a>, Skip> {
        carried(self.0, 0, Layer::Ethernet)
    }
}

/// What begins at some byte, between the link and IP.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layer {
    /// An Ethernet header.
    Ethernet,
    /// What an EtherType says.
    Type(u16),
    /// An MPLS label (RFC 3032).
    Mpls,
    /// A PPP protocol field, perhaps behind address and control (RFC 1662).
    Ppp,
    /// Told by the version field.
    Ip,
}

/// Follows the layers from the one at `at` to an IP packet.
#[inline]
pub(super) fn carried(data: &[u8], at: usize, layer: Layer) -> Result<Network<'_>, Skip> {
    let (mut at, mut layer) = (at, layer);
    for _ in 0..MAX_LAYERS {
        let rest = data.get(at..).ok_or(Skip::ShortLink)?;
        let len;
        (layer, len) = match layer {
            Layer::Ethernet => (Layer::Type(half(rest, 12)?), EthernetFrame::HEADER_LEN),
            Layer::Type(ETHERTYPE_IPV4) => return Ok(Network::Ipv4(rest)),
            Layer::Type(ETHERTYPE_IPV6) => return Ok(Network::Ipv6(rest)),
            Layer::Type(tag) if ETHERTYPE_VLAN.contains(&tag) => (Layer::Type(half(rest, 2)?), 4),
            Layer::Type(ETHERTYPE_MPLS | ETHERTYPE_MPLS_MULTICAST) => (Layer::Mpls, 0),
            Layer::Type(ETHERTYPE_PPPOE) => (Layer::Ppp, 6),
            Layer::Type(ETHERTYPE_BRIDGED) => (Layer::Ethernet, 0),
            Layer::Type(0..=MAX_802_3_LEN) => (snap(rest)?, 8),
            Layer::Type(_) => return Err(Skip::NotIp),
            Layer::Mpls => label(rest)?,
            Layer::Ppp => ppp(rest)?,
            Layer::Ip => return Network::by_version(rest),
        };
        at += len;
    }
    Err(Skip::LinkDepth)
}

/// 802.2 LLC with SNAP, as Wi-Fi bridges and old stacks send IP (RFC 1042).
fn snap(data: &[u8]) -> Result<Layer, Skip> {
    let head = fixed::<8>(data).ok_or(Skip::ShortLink)?;
    match head[..6] {
        [0xaa, 0xaa, 3, 0, 0, 0 | 0xf8] => Ok(Layer::Type(u16::from_be_bytes([head[6], head[7]]))),
        _ => Err(Skip::NotIp),
    }
}

/// The label's payload, if it is the last one: IP, or an Ethernet pseudowire with
/// its control word (RFC 4385: the first nibble is 0). Without a control word nothing distinguishes
/// an Ethernet address from IP.
fn label(data: &[u8]) -> Result<(Layer, usize), Skip> {
    let head = fixed::<5>(data).ok_or(Skip::ShortLink)?;
    match (head[2] & 1, head[4] >> 4) {
        (0, _) => Ok((Layer::Mpls, 4)),
        (_, 4 | 6) => Ok((Layer::Ip, 4)),
        (_, 0) => Ok((Layer::Ethernet, 8)),
        _ => Err(Skip::NotIp),
    }
}

fn ppp(data: &[u8]) -> Result<(Layer, usize), Skip> {
    let skip = if data.starts_with(&[0xff, 0x03]) {
        2
    } else {
        0
    };
    let first = *data.get(skip).ok_or(Skip::ShortLink)?;
    // An odd first byte is a compressed field, the only byte of it.
    let (protocol, len) = match first & 1 {
        1 => (u16::from(first), 1),
        _ => (half(data, skip)?, 2),
    };
    let layer = match protocol {
        0x0021 => Layer::Type(ETHERTYPE_IPV4),
        0x0057 => Layer::Type(ETHERTYPE_IPV6),
        0x0281 => Layer::Mpls,
        _ => return Err(Skip::NotIp),
    };
    Ok((layer, skip + len))
}

fn half(data: &[u8], at: usize) -> Result<u16, Skip> {
    be16(data, at).ok_or(Skip::ShortLink)
}

/// The loopback header: `AF_INET` is 2 everywhere, `AF_INET6` differs by system
/// (10 on Linux, 24, 28 or 30 on the BSDs and macOS).
fn by_family(family: u32, rest: &[u8]) -> Result<Network<'_>, Skip> {
    match family {
        2 => Ok(Network::Ipv4(rest)),
        10 | 24 | 28 | 30 => Ok(Network::Ipv6(rest)),
        _ => Err(Skip::NotIp),
    }
}

/// pf's log: the header's own length, then the address family.
fn pflog(data: &[u8]) -> Result<Network<'_>, Skip> {
    let head = fixed::<2>(data).ok_or(Skip::ShortLink)?;
    let len = usize::from(head[0]).next_multiple_of(4);
    by_family(head[1].into(), data.get(len..).ok_or(Skip::ShortLink)?)
}

/// Netfilter's log: a header of four bytes, then attributes in the capturing
/// machine's byte order, each with its length and type; the packet is one of them.
fn nflog(data: &[u8]) -> Result<Network<'_>, Skip> {
    const PAYLOAD: u16 = 9;
    let family = *data.first().ok_or(Skip::ShortLink)?;
    let mut at = 4;
    for _ in 0..MAX_NFLOG_ATTRIBUTES {
        let rest = data.get(at..).ok_or(Skip::ShortLink)?;
        let head = fixed::<4>(rest).ok_or(Skip::ShortLink)?;
        let len = usize::from(u16::from_le_bytes([head[0], head[1]]));
        if u16::from_le_bytes([head[2], head[3]]) & 0x7fff == PAYLOAD {
            return by_family(family.into(), &rest[4..]);
        }
        at += len.max(4).next_multiple_of(4);
    }
    Err(Skip::NotIp)
}

/// macOS's `pktap`: a header with its own length and the link type of what follows,
/// both little-endian.
fn pktap(data: &[u8]) -> Result<Network<'_>, Skip> {
    let head = fixed::<12>(data).ok_or(Skip::ShortLink)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let frame = data.get(word(0) as usize..).ok_or(Skip::ShortLink)?;
    match LinkType::from_number(word(8)) {
        None | Some(LinkType::Pktap) => Err(Skip::NotIp),
        Some(inside) => inside.network(frame),
    }
}
