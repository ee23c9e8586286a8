// SPDX-License-Identifier: Apache-2.0
//! Builds packets with etherparse, which knows nothing of the code under test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use causeway_core::cookie;
use etherparse::{
    IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, TcpHeader, TcpOptionElement, UdpHeader,
};

/// The upstream router, where packets come from and tunnels go to.
pub(crate) const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The balancer's own MAC.
pub(crate) const OWN: [u8; 6] = [2, 0, 0, 0, 0, 2];

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;

/// VLAN tags as TPID and TCI.
pub(crate) type Tags<'a> = &'a [(u16, u16)];

/// An Ethernet frame; its type follows from the IP version.
pub(crate) fn ethernet(to: [u8; 6], from: [u8; 6], tags: Tags<'_>, ip: &[u8]) -> Vec<u8> {
    let mut frame = [to, from].concat();
    for (tpid, tci) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(if ip[0] >> 4 == 4 {
        [0x08, 0x00]
    } else {
        [0x86, 0xdd]
    });
    frame.extend(ip);
    frame
}

/// A frame from the router to the balancer.
pub(crate) fn arriving(ip: &[u8]) -> Vec<u8> {
    ethernet(OWN, ROUTER, &[], ip)
}

/// The same the other way.
pub(crate) fn leaving(ip: &[u8]) -> Vec<u8> {
    ethernet(ROUTER, OWN, &[], ip)
}

/// What an IP header says besides addresses.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ip<'a> {
    pub tos: u8,
    pub ttl: u8,
    pub id: u16,
    pub dont_fragment: bool,
    pub more_fragments: bool,
    pub fragment_offset: u16,
    /// IPv4 options, or IPv6 extension headers with the number of the first.
    pub options: &'a [u8],
    pub flow_label: u32,
}

impl Ip<'_> {
    pub(crate) const CLIENT: Ip<'static> = Ip {
        tos: 0,
        ttl: 57,
        id: 0x1234,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        options: &[],
        flow_label: 0x5_4321,
    };
    /// An outer header as the balancer writes it.
    pub(crate) const OUTER: Ip<'static> = Ip {
        tos: 0,
        ttl: 64,
        id: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        options: &[],
        flow_label: 0,
    };

    /// An IP packet of `src`'s family.
    pub(crate) fn packet(&self, src: IpAddr, dst: IpAddr, proto: u8, payload: &[u8]) -> Vec<u8> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.packet4(src, dst, proto, payload),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.packet6(src, dst, proto, payload),
            _ => panic!("two families in one header"),
        }
    }

    fn packet4(&self, src: Ipv4Addr, dst: Ipv4Addr, proto: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = Ipv4Header::new(
            payload.len() as u16,
            self.ttl,
            IpNumber(proto),
            src.octets(),
            dst.octets(),
        )
        .unwrap();
        header.options = self.options.try_into().unwrap();
        header.set_payload_len(payload.len()).unwrap();
        header.identification = self.id;
        header.dont_fragment = self.dont_fragment;
        header.more_fragments = self.more_fragments;
        header.fragment_offset = self.fragment_offset.try_into().unwrap();
        header.header_checksum = 0;
        let mut bytes = header.to_bytes().to_vec();
        bytes[1] = self.tos;
        let header = Ipv4Header::from_slice(&bytes).unwrap().0;
        let sum = header.calc_header_checksum().to_be_bytes();
        bytes[10..12].copy_from_slice(&sum);
        bytes.extend(payload);
        bytes
    }

    fn packet6(&self, src: Ipv6Addr, dst: Ipv6Addr, proto: u8, payload: &[u8]) -> Vec<u8> {
        let header = Ipv6Header {
            traffic_class: self.tos,
            flow_label: Ipv6FlowLabel::try_new(self.flow_label).unwrap(),
            payload_length: (self.options.len() + payload.len()) as u16,
            next_header: IpNumber(proto),
            hop_limit: self.ttl,
            source: src.octets(),
            destination: dst.octets(),
        };
        [&header.to_bytes()[..], self.options, payload].concat()
    }
}

/// One direction of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tuple {
    pub src: IpAddr,
    pub sport: u16,
    pub dst: IpAddr,
    pub dport: u16,
}

impl From<Tuple> for cookie::Tuple {
    fn from(tuple: Tuple) -> Self {
        let client = (tuple.src, tuple.sport).into();
        Self::tcp(client, (tuple.dst, tuple.dport).into())
    }
}

impl Tuple {
    pub(crate) fn new(src: &str, sport: u16, dst: &str, dport: u16) -> Self {
        Self {
            src: src.parse().unwrap(),
            sport,
            dst: dst.parse().unwrap(),
            dport,
        }
    }

    pub(crate) fn reversed(self) -> Self {
        Self {
            src: self.dst,
            sport: self.dport,
            dst: self.src,
            dport: self.sport,
        }
    }

    pub(crate) fn tcp(self, segment: Tcp<'_>) -> Vec<u8> {
        Ip::CLIENT.packet(self.src, self.dst, 6, &self.tcp_segment(segment))
    }

    pub(crate) fn tcp_segment(self, segment: Tcp<'_>) -> Vec<u8> {
        let mut header = TcpHeader::new(self.sport, self.dport, segment.seq, 64_000);
        header.acknowledgment_number = segment.ack;
        header.fin = segment.flags & FIN != 0;
        header.syn = segment.flags & SYN != 0;
        header.rst = segment.flags & RST != 0;
        header.psh = segment.flags & PSH != 0;
        header.ack = segment.flags & ACK != 0;
        header.set_options_raw(segment.options).unwrap();
        header.checksum = match (self.src, self.dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                header.calc_checksum_ipv4_raw(s.octets(), d.octets(), segment.payload)
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                header.calc_checksum_ipv6_raw(s.octets(), d.octets(), segment.payload)
            }
            _ => panic!("two families in one tuple"),
        }
        .unwrap();
        [&header.to_bytes()[..], segment.payload].concat()
    }

    pub(crate) fn udp(self, payload: &[u8]) -> Vec<u8> {
        let mut header =
            UdpHeader::without_ipv4_checksum(self.sport, self.dport, payload.len()).unwrap();
        header.checksum = match (self.src, self.dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                header.calc_checksum_ipv4_raw(s.octets(), d.octets(), payload)
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                header.calc_checksum_ipv6_raw(s.octets(), d.octets(), payload)
            }
            _ => panic!("two families in one tuple"),
        }
        .unwrap();
        Ip::CLIENT.packet(
            self.src,
            self.dst,
            17,
            &[&header.to_bytes()[..], payload].concat(),
        )
    }
}

/// A TCP segment's own part.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tcp<'a> {
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub options: &'a [u8],
    pub payload: &'a [u8],
}

impl Tcp<'_> {
    pub(crate) fn syn(seq: u32) -> Self {
        Tcp {
            flags: SYN,
            seq,
            ..Tcp::default()
        }
    }

    pub(crate) fn ack(seq: u32, ack: u32) -> Self {
        Tcp {
            flags: ACK,
            seq,
            ack,
            ..Tcp::default()
        }
    }
}

/// NOP NOP TS, as nearly every packet has it.
pub(crate) fn timestamp(value: u32, echo: u32) -> Vec<u8> {
    let mut header = TcpHeader::default();
    header
        .set_options(&[
            TcpOptionElement::Noop,
            TcpOptionElement::Noop,
            TcpOptionElement::Timestamp(value, echo),
        ])
        .unwrap();
    header.options.as_slice().to_vec()
}

/// The Internet checksum (RFC 1071) of `bytes`, an even number of them.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// An ICMP or ICMPv6 message with its checksum.
pub(crate) fn icmp(
    src: IpAddr,
    dst: IpAddr,
    kind: u8,
    code: u8,
    rest: [u8; 4],
    body: &[u8],
) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], &rest, body].concat();
    let mut summed = match (src, dst) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let len = (message.len() as u32).to_be_bytes();
            [&src.octets()[..], &dst.octets(), &len, &[0, 0, 0, 58]].concat()
        }
        _ => Vec::new(),
    };
    summed.extend(&message);
    summed.resize(summed.len().next_multiple_of(2), 0);
    message[2..4].copy_from_slice(&checksum(&summed).to_be_bytes());
    message
}
