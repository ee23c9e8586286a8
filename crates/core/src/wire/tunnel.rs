// SPDX-License-Identifier: Apache-2.0

//! Tunnel headers: GRE (RFC 2784, RFC 2890) and VXLAN (RFC 7348).

use super::bytes::fixed;
use super::link::by_ethertype;
use super::{EthernetFrame, Network, Skip};

/// The UDP port that IANA assigned to VXLAN.
pub const VXLAN_PORT: u16 = 4789;

/// Transparent Ethernet bridging: the GRE payload is an Ethernet frame.
const ETHERTYPE_BRIDGED: u16 = 0x6558;

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
        if u16::from_be_bytes([self.data[2], self.data[3]]) == ETHERTYPE_BRIDGED {
            return EthernetFrame::new(&self.data[self.header_len..])?.network();
        }
        by_ethertype(self.data, 2, self.header_len)
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

    /// The VXLAN network identifier, 24 bits.
    pub fn vni(&self) -> u32 {
        u32::from_be_bytes([0, self.0[4], self.0[5], self.0[6]])
    }

    /// The IP packet inside the inner Ethernet frame.
    pub fn network(&self) -> Result<Network<'a>, Skip> {
        EthernetFrame::new(&self.0[Self::HEADER_LEN..])?.network()
    }
}
