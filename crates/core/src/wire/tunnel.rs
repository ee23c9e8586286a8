// SPDX-License-Identifier: Apache-2.0

//! Tunnel headers: GRE (RFC 2784, RFC 2890) with ERSPAN, and those in UDP: VXLAN
//! (RFC 7348) and VXLAN-GPE, GENEVE (RFC 8926), GUE (draft-ietf-intarea-gue), MPLS
//! (RFC 7510) and GTP-U (3GPP TS 29.281).
//!
//! A port proves nothing: what does not look like the port's tunnel is plain UDP.

use super::bytes::{be16, fixed};
use super::link::{ETHERTYPE_BRIDGED, Layer, carried};
use super::{Network, Skip};

/// The UDP port that IANA assigned to VXLAN.
pub const VXLAN_PORT: u16 = 4789;
/// The port that Linux took for VXLAN before, and still does by default.
const VXLAN_LINUX_PORT: u16 = 8472;
const VXLAN_GPE_PORT: u16 = 4790;
const GENEVE_PORT: u16 = 6081;
const MPLS_PORT: u16 = 6635;
const GTP_PORT: u16 = 2152;
/// Assigned to GUE, Katran's, and that of GLB Director.
const GUE_PORTS: [u16; 3] = [6080, 9886, 19523];

/// ERSPAN types I and II, and III (draft-foschiano-erspan).
const ETHERTYPE_ERSPAN: u16 = 0x88be;
const ETHERTYPE_ERSPAN_3: u16 = 0x22eb;

/// Extension headers of GTP-U followed before a packet is given up.
const MAX_GTP_EXTENSIONS: usize = 8;

/// A GRE packet of version 0 whose header was captured in full.
#[derive(Clone, Copy, Debug)]
pub struct GrePacket<'a> {
    data: &'a [u8],
    header_len: usize,
}

impl<'a> GrePacket<'a> {
    /// Checks version and flags.
    ///
    /// # Errors
    /// [`Skip::BadTunnel`] for PPTP (version 1) and for source routing
    /// (RFC 1701), [`Skip::ShortTunnel`] when the header was not captured.
    pub fn new(data: &'a [u8]) -> Result<Self, Skip> {
        let head = fixed::<4>(data).ok_or(Skip::ShortTunnel)?;
        let (flags, version) = (head[0], head[1] & 0x07);
        if version != 0 || flags & 0x40 != 0 {
            return Err(Skip::BadTunnel);
        }
        // Checksum, key and sequence number take four bytes each where present.
        let header_len = 4 + 4 * (flags & 0xb0).count_ones() as usize;
        if data.len() < header_len {
            return Err(Skip::ShortTunnel);
        }
        Ok(Self { data, header_len })
    }

    /// Bytes of this header.
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// The IP packet inside, behind an inner Ethernet header if there is one.
    pub fn network(&self) -> Result<Network<'a>, Skip> {
        let at = self.header_len;
        match u16::from_be_bytes([self.data[2], self.data[3]]) {
            ETHERTYPE_ERSPAN => {
                let numbered = self.data[0] & 0x10 != 0;
                let header = if numbered { 8 } else { 0 };
                carried(self.data, at + header, Layer::Ethernet)
            }
            ETHERTYPE_ERSPAN_3 => {
                let last = *self.data.get(at + 11).ok_or(Skip::ShortTunnel)?;
                let header = if last & 1 != 0 { 20 } else { 12 };
                carried(self.data, at + header, Layer::Ethernet)
            }
            ethertype => carried(self.data, at, Layer::Type(ethertype)),
        }
    }
}

/// A VXLAN packet whose header was captured in full.
#[derive(Clone, Copy, Debug)]
pub struct VxlanPacket<'a>(&'a [u8]);

impl<'a> VxlanPacket<'a> {
    /// Bytes of the header.
    pub const HEADER_LEN: usize = 8;

    /// Checks that the header has a network identifier.
    pub fn new(data: &'a [u8]) -> Result<Self, Skip> {
        let head = fixed::<8>(data).ok_or(Skip::ShortTunnel)?;
        if head[0] & 0x08 == 0 {
            return Err(Skip::BadTunnel);
        }
        Ok(Self(data))
    }

    /// The IP packet inside the inner Ethernet frame.
    pub fn network(&self) -> Result<Network<'a>, Skip> {
        carried(self.0, Self::HEADER_LEN, Layer::Ethernet)
    }
}

/// Whether a packet to this port may be a tunnel's.
#[inline]
pub(super) fn is_tunnel_port(port: u16) -> bool {
    matches!(
        port,
        VXLAN_PORT | VXLAN_LINUX_PORT | VXLAN_GPE_PORT | GENEVE_PORT | MPLS_PORT | GTP_PORT
    ) || GUE_PORTS.contains(&port)
}

/// The packet inside of a datagram to `port`. `None`: it is not a tunnel's.
///
/// # Errors
/// When it is one and cannot be followed: see [`Skip`].
pub(super) fn in_udp(port: u16, payload: &[u8]) -> Result<Option<Network<'_>>, Skip> {
    let found = match port {
        VXLAN_PORT | VXLAN_LINUX_PORT => {
            VxlanPacket::new(payload).and_then(|vxlan| vxlan.network())
        }
        VXLAN_GPE_PORT => vxlan_gpe(payload),
        GENEVE_PORT => geneve(payload),
        // Labels have nothing else that others could not have, too.
        MPLS_PORT => match carried(payload, 0, Layer::Mpls) {
            Err(Skip::NotIp | Skip::LinkDepth) => Err(Skip::BadTunnel),
            carried => carried,
        },
        GTP_PORT => gtp(payload),
        _ if GUE_PORTS.contains(&port) => gue(payload),
        _ => return Ok(None),
    };
    match found {
        Ok(network) => Ok(Some(network)),
        Err(Skip::BadTunnel) => Ok(None),
        Err(skip) => Err(skip),
    }
}

/// As VXLAN, with a protocol where its flag is set (draft-ietf-nvo3-vxlan-gpe).
fn vxlan_gpe(data: &[u8]) -> Result<Network<'_>, Skip> {
    let head = fixed::<8>(data).ok_or(Skip::ShortTunnel)?;
    let protocol = if head[0] & 0x04 != 0 { head[3] } else { 3 };
    match (head[0] & 0x08, protocol) {
        (0x08, 1 | 2) => carried(data, 8, Layer::Ip),
        (0x08, 3) => carried(data, 8, Layer::Ethernet),
        (0x08, 5) => carried(data, 8, Layer::Mpls),
        _ => Err(Skip::BadTunnel),
    }
}

fn geneve(data: &[u8]) -> Result<Network<'_>, Skip> {
    let head = fixed::<8>(data).ok_or(Skip::ShortTunnel)?;
    let (version, options) = (head[0] >> 6, usize::from(head[0] & 0x3f) * 4);
    let ethertype = u16::from_be_bytes([head[2], head[3]]);
    // Smaller numbers are not EtherTypes (IEEE 802.3, clause 3.2.6).
    if version != 0 || head[7] != 0 || ethertype < 0x0600 {
        return Err(Skip::BadTunnel);
    }
    let layer = match ethertype {
        ETHERTYPE_BRIDGED => Layer::Ethernet,
        other => Layer::Type(other),
    };
    carried(data, 8 + options, layer)
}

/// Version 0 has a header and the number of the protocol inside; version 1 is the
/// IP packet itself, whose version field has its first bits.
fn gue(data: &[u8]) -> Result<Network<'_>, Skip> {
    let head = fixed::<4>(data).ok_or(Skip::ShortTunnel)?;
    let len = 4 + usize::from(head[0] & 0x1f) * 4;
    match (head[0] >> 5, head[1]) {
        (0, protocol @ (4 | 41)) => {
            let inside = data.get(len..).ok_or(Skip::ShortTunnel)?;
            match (protocol, Network::by_version(inside)) {
                (4, Ok(ip @ Network::Ipv4(_))) | (41, Ok(ip @ Network::Ipv6(_))) => Ok(ip),
                (_, Err(Skip::ShortIp)) => Err(Skip::ShortIp),
                _ => Err(Skip::BadTunnel),
            }
        }
        (2 | 3, _) => match Network::by_version(data) {
            Ok(ip) if inside_length_fits(&ip) => Ok(ip),
            _ => Err(Skip::BadTunnel),
        },
        _ => Err(Skip::BadTunnel),
    }
}

/// Whether the bytes look like an IP header and not like chance.
fn inside_length_fits(ip: &Network<'_>) -> bool {
    match *ip {
        Network::Ipv4(data) => {
            data.first() == Some(&0x45) && be16(data, 2).is_some_and(|len| len >= 28)
        }
        Network::Ipv6(data) => matches!(data.get(6), Some(6 | 17 | 58)),
    }
}

/// User packets of mobile networks, behind any extension headers.
fn gtp(data: &[u8]) -> Result<Network<'_>, Skip> {
    let head = fixed::<8>(data).ok_or(Skip::ShortTunnel)?;
    // Version 1, protocol type GTP, message type G-PDU.
    if head[0] & 0xf0 != 0x30 || head[1] != 255 {
        return Err(Skip::BadTunnel);
    }
    if head[0] & 0x07 == 0 {
        return carried(data, 8, Layer::Ip);
    }
    let mut at = 12;
    for _ in 0..MAX_GTP_EXTENSIONS {
        // The type of the next extension is the last byte before it.
        if *data.get(at - 1).ok_or(Skip::ShortTunnel)? == 0 || head[0] & 0x04 == 0 {
            return carried(data, at, Layer::Ip);
        }
        let units = *data.get(at).ok_or(Skip::ShortTunnel)?;
        if units == 0 {
            return Err(Skip::BadTunnel);
        }
        at += usize::from(units) * 4;
    }
    Err(Skip::ExtensionDepth)
}
