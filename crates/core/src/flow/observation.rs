// SPDX-License-Identifier: Apache-2.0

//! What estimators need to know of one packet.

use super::{FlowKey, Hint};
use crate::estimate;
use crate::wire::{self, IpDatagram, LinkType, Quick, Skip, TransportHeader, proto};

/// Encapsulated security payload: no ports, nothing to read behind it.
const ESP: u8 = 50;

/// How much of a packet the estimators may look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    /// TCP's acknowledgements and timestamps; sizes and gaps for UDP.
    #[default]
    Clear,
    /// Sizes and gaps alone, whatever the protocol: what an observer of IPsec or
    /// WireGuard would have.
    Opaque,
}

/// What the meter needs to know of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The five-tuple as sent.
    pub key: FlowKey,
    /// What the packet says about its direction.
    pub hint: Hint,
    /// The packet as the estimators see it.
    pub packet: estimate::Packet,
    /// TCP's timestamp value, the sender's clock; valid where `packet.has_ts`.
    pub tsval: u32,
    /// First byte of a UDP payload, if it was captured.
    pub first_byte: Option<u8>,
}

impl Observation {
    /// Reduces a frame captured at `time_ns`, of which `wire_len` bytes were on the wire.
    ///
    /// # Errors
    /// As [`wire::parse`] and [`Observation::new`].
    #[inline]
    pub fn of_frame(
        link: LinkType,
        data: &[u8],
        wire_len: u32,
        time_ns: u64,
        headers: Headers,
    ) -> Result<Self, Skip> {
        match Self::of_common_frame(link, data, time_ns, headers) {
            Some(seen) => Ok(seen),
            None => Self::of_any_frame(link, data, wire_len, time_ns, headers),
        }
    }

    /// [`Observation::of_frame`] of a frame of the commonest sort, straight from bytes
    /// to fields; `None`: ask that.
    #[inline(always)]
    pub fn of_common_frame(
        link: LinkType,
        data: &[u8],
        time_ns: u64,
        headers: Headers,
    ) -> Option<Self> {
        wire::parse_quickly(link, data).map(|quick| Self::of_quick(&quick, time_ns, headers))
    }

    #[inline(always)]
    fn of_quick(quick: &Quick, time_ns: u64, headers: Headers) -> Self {
        let timestamps = quick.timestamps.unwrap_or_default();
        Self {
            key: FlowKey::of_quick(quick),
            hint: Hint::of_flags(quick.flags),
            packet: estimate::Packet {
                t_ns: time_ns,
                ip_len: quick.ip_len,
                payload_len: quick.payload_len,
                seq: quick.seq,
                ack: quick.ack,
                tsecr: timestamps.echo,
                tcp_flags: quick.flags.0,
                has_ts: quick.timestamps.is_some(),
                proto: quick.protocol,
                opaque: headers == Headers::Opaque,
            },
            tsval: timestamps.value,
            first_byte: quick.first_byte,
        }
    }

    #[inline(never)]
    fn of_any_frame(
        link: LinkType,
        data: &[u8],
        wire_len: u32,
        time_ns: u64,
        headers: Headers,
    ) -> Result<Self, Skip> {
        Self::new(&wire::parse(link, data, wire_len)?, time_ns, headers)
    }

    /// Reduces a datagram captured at `time_ns`.
    ///
    /// # Errors
    /// [`Skip::Protocol`] for what carries no requests: ICMP always, with clear
    /// headers everything but TCP, UDP and ESP.
    #[inline]
    pub fn new(datagram: &IpDatagram, time_ns: u64, headers: Headers) -> Result<Self, Skip> {
        let mut packet = estimate::Packet {
            t_ns: time_ns,
            ip_len: datagram.ip_len,
            proto: datagram.transport.protocol(),
            opaque: headers == Headers::Opaque,
            ..estimate::Packet::default()
        };
        let (mut tsval, mut first_byte) = (0, None);
        match datagram.transport {
            TransportHeader::Tcp {
                seq,
                ack,
                flags,
                timestamps,
                payload_len,
                ..
            } => {
                packet.payload_len = payload_len;
                packet.seq = seq;
                packet.ack = ack;
                packet.tcp_flags = flags.0;
                packet.has_ts = timestamps.is_some();
                let timestamps = timestamps.unwrap_or_default();
                packet.tsecr = timestamps.echo;
                tsval = timestamps.value;
            }
            TransportHeader::Udp {
                payload_len,
                first_byte: first,
                ..
            } => {
                packet.payload_len = payload_len;
                first_byte = first;
            }
            TransportHeader::Icmp { .. } => return Err(Skip::Protocol),
            TransportHeader::Other {
                protocol,
                payload_len,
            } => {
                if protocol == proto::NO_NEXT || protocol != ESP && headers == Headers::Clear {
                    return Err(Skip::Protocol);
                }
                packet.opaque = true;
                packet.payload_len = payload_len;
            }
        }
        Ok(Self {
            key: FlowKey::of(datagram),
            hint: Hint::of(datagram),
            packet,
            tsval,
            first_byte,
        })
    }
}
