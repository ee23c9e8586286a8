// SPDX-License-Identifier: Apache-2.0

//! IPv4 and IPv6 headers, with IPv6 extension headers.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::bytes::{be16, fixed};
use super::{Skip, proto};

/// IPv6 extension headers followed before a packet is given up.
const MAX_EXTENSIONS: usize = 8;

/// The part of an IP packet behind its header: which protocol, how long on the
/// wire, and as many of its bytes as were captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer<'a> {
    /// Protocol number.
    pub protocol: u8,
    /// Length on the wire, in bytes, from the headers.
    pub len: u32,
    /// Captured bytes, at most `len`.
    pub data: &'a [u8],
}

impl<'a> UpperLayer<'a> {
    fn new(protocol: u8, len: u32, captured: &'a [u8]) -> Self {
        // Ethernet pads short frames: bytes beyond the IP length are not payload.
        let data = captured.get(..len as usize).unwrap_or(captured);
        Self {
            protocol,
            len,
            data,
        }
    }
}

/// An IPv4 packet whose header was captured in full.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Packet<'a> {
    data: &'a [u8],
    header_len: usize,
    total_len: u32,
}

impl<'a> Ipv4Packet<'a> {
    /// Bytes of a header without options.
    pub const MIN_HEADER_LEN: usize = 20;

    /// Checks the header. `wire_len` is the number of bytes from the header on
    /// that were on the wire; it stands in for a total length of 0, which
    /// segmentation offload leaves in packets captured on the sending host.
    #[inline]
    pub fn new(data: &'a [u8], wire_len: u32) -> Result<Self, Skip> {
        let head = fixed::<20>(data).ok_or(Skip::ShortIp)?;
        let header_len = usize::from(head[0] & 0x0f) * 4;
        if head[0] >> 4 != 4 || header_len < Self::MIN_HEADER_LEN {
            return Err(Skip::BadIp);
        }
        if data.len() < header_len {
            return Err(Skip::ShortIp);
        }
        let total_len = match u16::from_be_bytes([head[2], head[3]]) {
            0 => wire_len,
            len => u32::from(len),
        };
        if (total_len as usize) < header_len {
            return Err(Skip::BadIp);
        }
        Ok(Self {
            data,
            header_len,
            total_len,
        })
    }

    /// Header and payload, in bytes on the wire.
    #[inline]
    pub fn total_len(&self) -> u32 {
        self.total_len
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.data[12], self.data[13], self.data[14], self.data[15])
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.data[16], self.data[17], self.data[18], self.data[19])
    }

    /// Offset of this fragment, in units of 8 bytes. 0 for the first or only one.
    #[inline]
    pub fn fragment_offset(&self) -> u16 {
        u16::from_be_bytes([self.data[6], self.data[7]]) & 0x1fff
    }

    /// What the packet carries.
    ///
    /// # Errors
    /// [`Skip::Fragment`] for every fragment but the first.
    #[inline]
    pub fn upper(&self) -> Result<UpperLayer<'a>, Skip> {
        if self.fragment_offset() != 0 {
            return Err(Skip::Fragment);
        }
        let len = self.total_len - self.header_len as u32;
        Ok(UpperLayer::new(
            self.data[9],
            len,
            &self.data[self.header_len..],
        ))
    }
}

/// An IPv6 packet whose fixed header was captured in full.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Packet<'a> {
    data: &'a [u8],
    payload_len: u32,
}

impl<'a> Ipv6Packet<'a> {
    /// Bytes of the fixed header.
    pub const HEADER_LEN: usize = 40;

    /// Checks the fixed header. `wire_len` as for [`Ipv4Packet::new`]: it stands
    /// in for a payload length of 0 (jumbograms and segmentation offload).
    #[inline]
    pub fn new(data: &'a [u8], wire_len: u32) -> Result<Self, Skip> {
        let head = fixed::<40>(data).ok_or(Skip::ShortIp)?;
        if head[0] >> 4 != 6 {
            return Err(Skip::BadIp);
        }
        let payload_len = match u16::from_be_bytes([head[4], head[5]]) {
            0 => wire_len
                .checked_sub(Self::HEADER_LEN as u32)
                .ok_or(Skip::BadIp)?,
            len => u32::from(len),
        };
        Ok(Self { data, payload_len })
    }

    /// Header and payload, in bytes on the wire.
    #[inline]
    pub fn total_len(&self) -> u32 {
        self.payload_len.saturating_add(Self::HEADER_LEN as u32)
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        address(&self.data[8..24])
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        address(&self.data[24..40])
    }

    /// What the packet carries behind its extension headers (RFC 8200, section 4).
    ///
    /// # Errors
    /// [`Skip::Fragment`] for every fragment but the first, [`Skip::ShortIp`]
    /// when an extension header was not captured, [`Skip::BadIp`] when one
    /// is longer than the packet, [`Skip::ExtensionDepth`] when there are too many.
    #[inline]
    pub fn upper(&self) -> Result<UpperLayer<'a>, Skip> {
        let mut protocol = self.data[6];
        let mut rest = &self.data[Self::HEADER_LEN..];
        let mut len = self.payload_len;
        for _ in 0..=MAX_EXTENSIONS {
            let Some(size) = extension_len(protocol, rest)? else {
                return Ok(UpperLayer::new(protocol, len, rest));
            };
            if protocol == proto::FRAGMENT && be16(rest, 2).ok_or(Skip::ShortIp)? & 0xfff8 != 0 {
                return Err(Skip::Fragment);
            }
            protocol = rest[0];
            rest = rest.get(size..).ok_or(Skip::ShortIp)?;
            len = len.checked_sub(size as u32).ok_or(Skip::BadIp)?;
        }
        Err(Skip::ExtensionDepth)
    }
}

/// The length in bytes of the extension header `protocol`, or `None` when it is
/// no extension header. With `Some`, at least one byte of it is there.
#[inline]
fn extension_len(protocol: u8, data: &[u8]) -> Result<Option<usize>, Skip> {
    let unit = match protocol {
        proto::HOP_BY_HOP | proto::ROUTING | proto::DEST_OPTIONS => 8,
        proto::MOBILITY | proto::HIP | proto::SHIM6 => 8,
        proto::AUTH => 4,
        proto::FRAGMENT => {
            return if data.is_empty() {
                Err(Skip::ShortIp)
            } else {
                Ok(Some(8))
            };
        }
        _ => return Ok(None),
    };
    let units = usize::from(*data.get(1).ok_or(Skip::ShortIp)?);
    // AH counts 4-byte words beyond two (RFC 4302), the others 8-byte words beyond one.
    Ok(Some(units * unit + 8))
}

/// `bytes` has 16 of them: both callers slice a checked 40-byte header.
fn address(bytes: &[u8]) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(bytes);
    Ipv6Addr::from(octets)
}
