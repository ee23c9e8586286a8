// SPDX-License-Identifier: Apache-2.0

//! TCP, UDP and ICMP headers.

use super::bytes::{be32, fixed};
use super::{Skip, UpperLayer};

/// The flag bits of a TCP header (its byte 13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Start of a connection.
    pub const SYN: u8 = 0x02;
    /// The connection is refused or aborted.
    pub const RST: u8 = 0x04;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;

    /// Opens a connection, or answers that.
    #[inline]
    pub const fn is_syn(self) -> bool {
        self.0 & Self::SYN != 0
    }

    /// Opens a connection: SYN without ACK.
    #[inline]
    pub const fn opens(self) -> bool {
        self.0 & (Self::SYN | Self::ACK) == Self::SYN
    }

    /// Answers an opening: SYN with ACK.
    #[inline]
    pub const fn answers(self) -> bool {
        self.0 & (Self::SYN | Self::ACK) == Self::SYN | Self::ACK
    }
}

/// The TCP timestamps option (RFC 7323).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpTimestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the last clock value the sender saw from its peer.
    pub echo: u32,
}

/// A TCP segment whose fixed header was captured in full. Its options may be cut.
#[derive(Clone, Copy, Debug)]
pub struct TcpSegment<'a> {
    head: &'a [u8; 20],
    options: &'a [u8],
    payload_len: u32,
}

impl<'a> TcpSegment<'a> {
    /// Bytes of a header without options.
    pub const MIN_HEADER_LEN: usize = 20;

    /// Checks the header against the length that the IP header gives.
    #[inline]
    pub fn new(upper: &UpperLayer<'a>) -> Result<Self, Skip> {
        if upper.len < Self::MIN_HEADER_LEN as u32 {
            return Err(Skip::BadTransport);
        }
        let head = fixed::<20>(upper.data).ok_or(Skip::ShortTransport)?;
        let header_len = usize::from(head[12] >> 4) * 4;
        if header_len < Self::MIN_HEADER_LEN {
            return Err(Skip::BadTransport);
        }
        let payload_len = upper
            .len
            .checked_sub(header_len as u32)
            .ok_or(Skip::BadTransport)?;
        let options = &upper.data[20..upper.data.len().min(header_len)];
        Ok(Self {
            head,
            options,
            payload_len,
        })
    }

    /// Source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        u16::from_be_bytes([self.head[0], self.head[1]])
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        u16::from_be_bytes([self.head[2], self.head[3]])
    }

    /// Sequence number.
    #[inline]
    pub fn seq(&self) -> u32 {
        u32::from_be_bytes([self.head[4], self.head[5], self.head[6], self.head[7]])
    }

    /// Acknowledgement number.
    #[inline]
    pub fn ack(&self) -> u32 {
        u32::from_be_bytes([self.head[8], self.head[9], self.head[10], self.head[11]])
    }

    /// Flags.
    #[inline]
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(self.head[13])
    }

    /// Payload on the wire, in bytes.
    #[inline]
    pub fn payload_len(&self) -> u32 {
        self.payload_len
    }

    /// The timestamps option, if it is there and was captured.
    #[inline]
    pub fn timestamps(&self) -> Option<TcpTimestamps> {
        // Nearly every stack sends NOP NOP TS: look there first.
        if self.options.len() >= 12 && self.options[..4] == [1, 1, 8, 10] {
            return timestamps_at(self.options, 2);
        }
        let mut at = 0;
        while let Some(&kind) = self.options.get(at) {
            match kind {
                0 => return None,
                1 => at += 1,
                8 => return timestamps_at(self.options, at),
                _ => at += usize::from(*self.options.get(at + 1)?).max(2),
            }
        }
        None
    }
}

#[inline]
fn timestamps_at(options: &[u8], at: usize) -> Option<TcpTimestamps> {
    if *options.get(at + 1)? != 10 {
        return None;
    }
    Some(TcpTimestamps {
        value: be32(options, at + 2)?,
        echo: be32(options, at + 6)?,
    })
}

/// A UDP datagram whose header was captured in full.
#[derive(Clone, Copy, Debug)]
pub struct UdpDatagram<'a> {
    head: &'a [u8; 8],
    payload: &'a [u8],
    payload_len: u32,
}

impl<'a> UdpDatagram<'a> {
    /// Bytes of the header.
    pub const HEADER_LEN: usize = 8;

    /// Checks the header. A length of 0 (jumbograms, segmentation offload)
    /// means all that the IP header gives. A first fragment keeps the length of
    /// the whole datagram.
    #[inline]
    pub fn new(upper: &UpperLayer<'a>) -> Result<Self, Skip> {
        if upper.len < Self::HEADER_LEN as u32 {
            return Err(Skip::BadTransport);
        }
        let head = fixed::<8>(upper.data).ok_or(Skip::ShortTransport)?;
        let len = match u16::from_be_bytes([head[4], head[5]]) {
            0 => upper.len,
            len => u32::from(len),
        };
        let payload_len = len
            .checked_sub(Self::HEADER_LEN as u32)
            .ok_or(Skip::BadTransport)?;
        Ok(Self {
            head,
            payload: &upper.data[Self::HEADER_LEN..],
            payload_len,
        })
    }

    /// Source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        u16::from_be_bytes([self.head[0], self.head[1]])
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        u16::from_be_bytes([self.head[2], self.head[3]])
    }

    /// Payload on the wire, in bytes.
    #[inline]
    pub fn payload_len(&self) -> u32 {
        self.payload_len
    }

    /// Captured payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An ICMP or ICMPv6 message whose first four bytes were captured.
#[derive(Clone, Copy, Debug)]
pub struct IcmpMessage<'a>(&'a [u8; 4]);

impl<'a> IcmpMessage<'a> {
    /// Checks the length.
    #[inline]
    pub fn new(upper: &UpperLayer<'a>) -> Result<Self, Skip> {
        if upper.len < 4 {
            return Err(Skip::BadTransport);
        }
        Ok(Self(fixed::<4>(upper.data).ok_or(Skip::ShortTransport)?))
    }

    /// Message type.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.0[0]
    }

    /// Message code.
    #[inline]
    pub fn code(&self) -> u8 {
        self.0[1]
    }
}
