// SPDX-License-Identifier: Apache-2.0

//! From captured bytes to the innermost datagram.

use std::net::IpAddr;

use super::{
    GrePacket, IcmpMessage, Ipv4Packet, Ipv6Packet, LinkType, Network, Skip, TcpFlags, TcpSegment,
    TcpTimestamps, UdpDatagram, UpperLayer, proto,
};

use super::link::{Layer, carried};
use super::tunnel::{in_udp, is_tunnel_port};

/// Tunnels within tunnels followed before a packet is given up.
const MAX_TUNNELS: usize = 4;

/// The least that a tunnel in UDP carries: an IPv4 header and that of UDP.
const MIN_IN_UDP: u32 = 28;

/// The innermost IP packet of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpDatagram {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Length on the wire from the IP header on, in bytes.
    pub ip_len: u32,
    /// What the packet carries.
    pub transport: TransportHeader,
}

/// The transport header of a packet. Payload lengths are in bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportHeader {
    /// TCP.
    Tcp {
        /// Source port.
        sport: u16,
        /// Destination port.
        dport: u16,
        /// Sequence number.
        seq: u32,
        /// Acknowledgement number.
        ack: u32,
        /// Flags.
        flags: TcpFlags,
        /// Timestamps option.
        timestamps: Option<TcpTimestamps>,
        /// Payload.
        payload_len: u32,
    },
    /// UDP.
    Udp {
        /// Source port.
        sport: u16,
        /// Destination port.
        dport: u16,
        /// Payload.
        payload_len: u32,
        /// The payload's first byte, if it was captured: QUIC's header form and
        /// spin bit stand there.
        first_byte: Option<u8>,
    },
    /// ICMP (protocol 1) or ICMPv6 (protocol 58).
    Icmp {
        /// Protocol number.
        protocol: u8,
        /// Message type.
        kind: u8,
        /// Message code.
        code: u8,
    },
    /// Any other protocol: ESP, SCTP, ...
    Other {
        /// Protocol number.
        protocol: u8,
        /// All that follows the IP header.
        payload_len: u32,
    },
}

impl TransportHeader {
    /// The protocol number.
    #[inline]
    pub fn protocol(&self) -> u8 {
        match *self {
            TransportHeader::Tcp { .. } => proto::TCP,
            TransportHeader::Udp { .. } => proto::UDP,
            TransportHeader::Icmp { protocol, .. } | TransportHeader::Other { protocol, .. } => {
                protocol
            }
        }
    }

    /// Source and destination port, 0 where the protocol has none.
    #[inline]
    pub fn ports(&self) -> (u16, u16) {
        match *self {
            TransportHeader::Tcp { sport, dport, .. }
            | TransportHeader::Udp { sport, dport, .. } => (sport, dport),
            TransportHeader::Icmp { .. } | TransportHeader::Other { .. } => (0, 0),
        }
    }
}

/// Reads a captured frame down to its innermost datagram.
///
/// `data` is what was captured, `wire_len` how long the frame was on the wire,
/// in bytes. Tunnels are unwrapped: IP, MPLS and Ethernet in IP, GRE, and those in
/// UDP by their ports, where the header fits.
///
/// # Errors
/// The reason why there is nothing to measure in this frame.
#[inline]
pub fn parse(link: LinkType, data: &[u8], wire_len: u32) -> Result<IpDatagram, Skip> {
    let network = link.network(data)?;
    let header = data.len() - network.bytes().len();
    parse_ip(network, wire_len.saturating_sub(header as u32))
}

/// Reads an IP packet down to its innermost datagram: [`parse`] without the link layer.
#[inline]
pub fn parse_ip(network: Network<'_>, wire_len: u32) -> Result<IpDatagram, Skip> {
    let mut network = network;
    let mut wire_len = wire_len;
    for _ in 0..=MAX_TUNNELS {
        let (src, dst, ip_len, upper) = read_ip(network, wire_len)?;
        match inner(&upper)? {
            Some(inside) => {
                let outer = upper.data.len() - inside.bytes().len();
                wire_len = upper.len.saturating_sub(outer as u32);
                network = inside;
            }
            None => {
                return Ok(IpDatagram {
                    src,
                    dst,
                    ip_len,
                    transport: read_transport(&upper)?,
                });
            }
        }
    }
    Err(Skip::TunnelDepth)
}

#[inline]
fn read_ip(
    network: Network<'_>,
    wire_len: u32,
) -> Result<(IpAddr, IpAddr, u32, UpperLayer<'_>), Skip> {
    match network {
        Network::Ipv4(data) => {
            let ip = Ipv4Packet::new(data, wire_len)?;
            Ok((
                ip.src().into(),
                ip.dst().into(),
                ip.total_len(),
                ip.upper()?,
            ))
        }
        Network::Ipv6(data) => {
            let ip = Ipv6Packet::new(data, wire_len)?;
            Ok((
                ip.src().into(),
                ip.dst().into(),
                ip.total_len(),
                ip.upper()?,
            ))
        }
    }
}

/// The IP packet that a tunnel carries, or `None` when this is not a tunnel.
#[inline]
fn inner<'a>(upper: &UpperLayer<'a>) -> Result<Option<Network<'a>>, Skip> {
    Ok(match upper.protocol {
        proto::IPIP => Some(Network::Ipv4(upper.data)),
        proto::IPV6 => Some(Network::Ipv6(upper.data)),
        proto::GRE => Some(GrePacket::new(upper.data)?.network()?),
        proto::MPLS => Some(carried(upper.data, 0, Layer::Mpls)?),
        proto::ETHERNET => Some(carried(upper.data, 0, Layer::Ethernet)?),
        // Two bytes of header: version 3, nothing else (RFC 3378).
        proto::ETHERIP => Some(carried(upper.data, 2, Layer::Ethernet)?),
        proto::UDP => {
            let udp = UdpDatagram::new(upper)?;
            if is_tunnel_port(udp.dst_port()) && udp.payload_len() >= MIN_IN_UDP {
                return in_udp(udp.dst_port(), udp.payload());
            }
            None
        }
        _ => None,
    })
}

#[inline]
fn read_transport(upper: &UpperLayer<'_>) -> Result<TransportHeader, Skip> {
    Ok(match upper.protocol {
        proto::TCP => {
            let tcp = TcpSegment::new(upper)?;
            TransportHeader::Tcp {
                sport: tcp.src_port(),
                dport: tcp.dst_port(),
                seq: tcp.seq(),
                ack: tcp.ack(),
                flags: tcp.flags(),
                timestamps: tcp.timestamps(),
                payload_len: tcp.payload_len(),
            }
        }
        proto::UDP => {
            let udp = UdpDatagram::new(upper)?;
            TransportHeader::Udp {
                sport: udp.src_port(),
                dport: udp.dst_port(),
                payload_len: udp.payload_len(),
                first_byte: udp.payload().first().copied(),
            }
        }
        proto::ICMP | proto::ICMPV6 => {
            let icmp = IcmpMessage::new(upper)?;
            TransportHeader::Icmp {
                protocol: upper.protocol,
                kind: icmp.kind(),
                code: icmp.code(),
            }
        }
        protocol => TransportHeader::Other {
            protocol,
            payload_len: upper.len,
        },
    })
}
