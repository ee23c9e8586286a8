// SPDX-License-Identifier: Apache-2.0

//! Packets built by etherparse, an independent implementation, come back as
//! they were built; arbitrary and cut bytes never panic and never invent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{IpNumber, PacketBuilder};
use proptest::prelude::*;

use super::*;
use crate::flow::{Batch, FlowState, HashedFlow, Headers, Observation};

const V4: ([u8; 4], [u8; 4]) = ([10, 9, 1, 2], [10, 9, 2, 2]);

pub(super) fn ipv4() -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    PacketBuilder::ipv4(V4.0, V4.1, 64)
}

pub(super) fn udp_bytes(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ipv4().udp(40_000, 53).write(&mut out, payload).unwrap();
    out
}

pub(super) fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 12];
    out.extend(ethertype.to_be_bytes());
    out.extend(payload);
    out
}

pub(super) fn ipv4_header(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header =
        etherparse::Ipv4Header::new(payload.len() as u16, 64, IpNumber(protocol), V4.0, V4.1)
            .unwrap();
    [&header.to_bytes()[..], payload].concat()
}

pub(super) fn whole(link: LinkType, data: &[u8]) -> Result<IpDatagram, Skip> {
    parse(link, data, data.len() as u32)
}

pub(super) fn udp_datagram(payload_len: u32, first_byte: u8) -> IpDatagram {
    IpDatagram {
        src: IpAddr::V4(Ipv4Addr::from(V4.0)),
        dst: IpAddr::V4(Ipv4Addr::from(V4.1)),
        ip_len: 28 + payload_len,
        transport: TransportHeader::Udp {
            sport: 40_000,
            dport: 53,
            payload_len,
            first_byte: Some(first_byte),
        },
    }
}

#[derive(Clone, Debug)]
struct TcpCase {
    sport: u16,
    dport: u16,
    seq: u32,
    ack: u32,
    flags: u8,
    timestamps: Option<(u32, u32)>,
    payload: Vec<u8>,
}

prop_compose! {
    fn tcp_case()(
        sport: u16, dport: u16, seq: u32, ack: u32, flags in 0u8..64,
        timestamps in proptest::option::of(any::<(u32, u32)>()),
        payload in proptest::collection::vec(any::<u8>(), 0..64),
    ) -> TcpCase {
        TcpCase { sport, dport, seq, ack, flags, timestamps, payload }
    }
}

impl TcpCase {
    fn header(&self) -> etherparse::TcpHeader {
        let mut header = etherparse::TcpHeader::new(self.sport, self.dport, self.seq, 512);
        header.acknowledgment_number = self.ack;
        header.fin = self.flags & 1 != 0;
        header.syn = self.flags & 2 != 0;
        header.rst = self.flags & 4 != 0;
        header.psh = self.flags & 8 != 0;
        header.ack = self.flags & 16 != 0;
        header.urg = self.flags & 32 != 0;
        if let Some((value, echo)) = self.timestamps {
            use etherparse::TcpOptionElement::{Noop, Timestamp};
            // Padded as most stacks do, or behind the option (RFC 7323 allows both).
            let timestamp = Timestamp(value, echo);
            let padded = !self.seq.is_multiple_of(4);
            let options = if padded {
                [Noop, Noop, timestamp]
            } else {
                [timestamp, Noop, Noop]
            };
            header.set_options(&options).unwrap();
        }
        header
    }

    fn transport(&self) -> TransportHeader {
        TransportHeader::Tcp {
            sport: self.sport,
            dport: self.dport,
            seq: self.seq,
            ack: self.ack,
            flags: TcpFlags(self.flags),
            timestamps: self
                .timestamps
                .map(|(value, echo)| TcpTimestamps { value, echo }),
            payload_len: self.payload.len() as u32,
        }
    }
}

proptest! {
    #[test]
    fn tcp_over_ethernet_round_trips(case in tcp_case(), six: bool, tags in 0usize..3) {
        let link = PacketBuilder::ethernet2([1; 6], [2; 6]);
        let (src, dst) = (Ipv6Addr::from([7; 16]), Ipv6Addr::from([9; 16]));
        let mut out = Vec::new();
        let v4 = etherparse::Ipv4Header::new(0, 64, IpNumber::TCP, V4.0, V4.1).unwrap();
        let v6 = etherparse::Ipv6Header {
            next_header: IpNumber::TCP, hop_limit: 64, source: src.octets(), destination: dst.octets(),
            ..Default::default()
        };
        let ip = if six {
            etherparse::IpHeaders::Ipv6(v6, Default::default())
        } else {
            etherparse::IpHeaders::Ipv4(v4, Default::default())
        };
        let step = match tags {
            0 => link.ip(ip),
            1 => link.single_vlan(etherparse::VlanId::try_new(5).unwrap()).ip(ip),
            _ => link.double_vlan(
                etherparse::VlanId::try_new(5).unwrap(), etherparse::VlanId::try_new(6).unwrap()).ip(ip),
        };
        step.tcp_header(case.header()).write(&mut out, &case.payload).unwrap();
        let got = whole(LinkType::Ethernet, &out).unwrap();
        prop_assert_eq!(got.transport, case.transport());
        prop_assert_eq!(got.ip_len as usize, out.len() - 14 - 4 * tags);
        prop_assert_eq!(got.src.is_ipv6(), six);
    }

    /// What the headers say does not depend on how much payload was captured,
    /// and a cut header is an error, never a wrong value.
    #[test]
    fn a_cut_packet_reads_the_same_or_not_at_all(case in tcp_case(), cut in 0usize..140) {
        let mut out = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(V4.0, V4.1, 64)
            .tcp_header(case.header()).write(&mut out, &case.payload).unwrap();
        let cut = cut.min(out.len());
        let header_len = out.len() - case.payload.len();
        match parse(LinkType::Ethernet, &out[..cut], out.len() as u32) {
            Ok(got) if cut >= header_len => prop_assert_eq!(got.transport, case.transport()),
            Ok(got) => {
                // Only the options may be missing.
                prop_assert!(cut >= 54);
                let TransportHeader::Tcp { payload_len, seq, .. } = got.transport else { panic!("not TCP") };
                prop_assert_eq!(payload_len as usize, case.payload.len());
                prop_assert_eq!(seq, case.seq);
            }
            Err(Skip::ShortLink) => prop_assert!(cut < 14),
            Err(Skip::ShortIp) => prop_assert!((14..34).contains(&cut)),
            Err(skip) => {
                prop_assert_eq!(skip, Skip::ShortTransport);
                prop_assert!((34..54).contains(&cut));
            }
        }
    }

    /// Frames near the common ones: a byte changed, cut, another header length.
    #[test]
    fn the_quick_way_gives_the_same_or_nothing(
        case in tcp_case(), cut in 0usize..140, change in proptest::option::of((12usize..70, any::<u8>())),
        udp: bool,
    ) {
        let mut frame = ethernet(0x0800, &[]);
        if udp {
            ipv4().udp(case.sport, case.dport).write(&mut frame, &case.payload).unwrap();
        } else {
            ipv4().tcp_header(case.header()).write(&mut frame, &case.payload).unwrap();
        }
        if let Some((at, byte)) = change
            && let Some(place) = frame.get_mut(at)
        {
            *place = byte;
        }
        let wire_len = frame.len() as u32;
        frame.truncate(cut);
        if let Some(stamped) = Stamped::of(LinkType::Ethernet, &frame) {
            let hash = FlowState::new(11);
            for headers in [Headers::Clear, Headers::Opaque] {
                let seen = Observation::of_frame(LinkType::Ethernet, &frame, wire_len, 7, headers)
                    .expect("the slow way reads it");
                let (mut straight, mut through) = (Batch::default(), Batch::default());
                straight.push_stamped(3, &stamped, 7, headers, HashedFlow::of_stamped(&stamped, &hash));
                through.push(3, &seen, HashedFlow::of(&seen.key, &hash));
                prop_assert_eq!(straight.iter().next(), Some((3, seen)));
                prop_assert_eq!(format!("{straight:?}"), format!("{through:?}"));
            }
        }
        if let Some(quick) = parse_quickly(LinkType::Ethernet, &frame) {
            let slow = parse(LinkType::Ethernet, &frame, wire_len).expect("the slow way reads it");
            prop_assert_eq!(slow, quick.into());
            for headers in [Headers::Clear, Headers::Opaque] {
                let seen = Observation::of_frame(LinkType::Ethernet, &frame, wire_len, 7, headers);
                prop_assert_eq!(seen, Observation::new(&slow, 7, headers));
            }
        } else if !udp && change.is_none() && case.timestamps.is_some() && !case.seq.is_multiple_of(4) {
            prop_assert!(cut < 14 + 20 + 32, "a common frame takes the quick way");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        number in 0u32..300, wire_len: u32, data in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Some(link) = LinkType::from_number(number) {
            let _ = parse(link, &data, wire_len);
        }
    }

    /// Bytes that reach deep: a valid packet with a few bytes changed.
    #[test]
    fn damaged_packets_never_panic(
        changes in proptest::collection::vec((0usize..200, any::<u8>()), 1..6), cut in 0usize..200,
        which in 0usize..6,
    ) {
        let mut packet = samples().swap_remove(which);
        for (at, byte) in changes {
            let at = at % packet.len();
            packet[at] = byte;
        }
        let wire_len = packet.len() as u32;
        packet.truncate(cut);
        let _ = parse(LinkType::Ethernet, &packet, wire_len);
    }
}

/// One Ethernet frame for each way through the parser.
fn samples() -> Vec<Vec<u8>> {
    let inner = udp_bytes(b"question");
    let frame = ethernet(0x0800, &inner);
    let gre = ipv4_header(47, &[&[0x20, 0, 0x08, 0, 0, 0, 0, 1][..], &inner].concat());
    let vxlan = [&[0x08, 0, 0, 0, 0, 0, 7, 0][..], &frame].concat();
    let mut outer = Vec::new();
    ipv4()
        .udp(1000, VXLAN_PORT)
        .write(&mut outer, &vxlan)
        .unwrap();
    vec![
        ethernet(0x0800, &inner),
        ethernet(0x8100, &[&[0, 5, 0x08, 0][..], &inner].concat()),
        ethernet(0x0800, &ipv4_header(4, &inner)),
        ethernet(0x0800, &gre),
        ethernet(0x0800, &outer),
        ethernet(0x86dd, &ipv6_with_extensions(&[60, 43, 51], &inner[20..])),
    ]
}

/// An IPv6 packet: the given extension headers, then UDP.
pub(super) fn ipv6_with_extensions(extensions: &[u8], udp: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for next in extensions.iter().skip(1).chain(&[proto::UDP]) {
        body.extend([*next, 0, 0, 0, 0, 0, 0, 0]);
    }
    body.extend(udp);
    let header = etherparse::Ipv6Header {
        payload_length: body.len() as u16,
        next_header: IpNumber(*extensions.first().unwrap_or(&proto::UDP)),
        source: [1; 16],
        destination: [2; 16],
        ..Default::default()
    };
    [&header.to_bytes()[..], &body].concat()
}

#[test]
fn every_sample_reaches_the_same_datagram() {
    for (index, packet) in samples().iter().enumerate() {
        let got = whole(LinkType::Ethernet, packet).unwrap();
        if index < 5 {
            assert_eq!(got, udp_datagram(8, b'q'), "sample {index}");
        } else {
            assert_eq!(got.transport, udp_datagram(8, b'q').transport);
            assert_eq!(got.ip_len as usize, packet.len() - 14);
        }
    }
}

#[test]
fn every_link_type_finds_the_packet() {
    let ip = udp_bytes(b"hi");
    let cases: &[(u32, Vec<u8>)] = &[
        (1, ethernet(0x0800, &[])),
        (0, vec![2, 0, 0, 0]),
        (0, vec![0, 0, 0, 2]),
        (108, vec![0, 0, 0, 2]),
        (12, vec![]),
        (101, vec![]),
        (228, vec![]),
        (113, [&[0; 14][..], &[0x08, 0x00]].concat()),
        (276, [&[0x08, 0x00][..], &[0; 18]].concat()),
    ];
    for (number, head) in cases {
        let link = LinkType::from_number(*number).unwrap();
        let packet = [&head[..], &ip].concat();
        assert_eq!(
            whole(link, &packet),
            Ok(udp_datagram(2, b'h')),
            "link type {number}"
        );
        for cut in 0..packet.len() - 2 {
            assert!(parse(link, &packet[..cut], packet.len() as u32).is_err());
        }
    }
    assert_eq!(LinkType::from_number(105), None);
}

#[test]
fn six_in_four_and_bridged_gre_are_unwrapped() {
    let v6 = ipv6_with_extensions(&[], &udp_bytes(b"x")[20..]);
    let expected = whole(LinkType::Ipv6, &v6).unwrap();
    assert_eq!(whole(LinkType::Raw, &ipv4_header(41, &v6)), Ok(expected));
    let bridged = [&[0x00, 0, 0x65, 0x58][..], &ethernet(0x86dd, &v6)].concat();
    assert_eq!(
        whole(LinkType::Raw, &ipv4_header(47, &bridged)),
        Ok(expected)
    );
}

#[test]
fn lengths_of_zero_mean_the_wire_length() {
    let mut packet = udp_bytes(&[0; 100]);
    packet[2..4].fill(0);
    packet[24..26].fill(0);
    packet.truncate(60);
    assert_eq!(
        parse(LinkType::Raw, &packet, 70_000),
        Ok(udp_datagram(69_972, 0))
    );
}

#[test]
fn padding_is_not_payload() {
    let mut header = etherparse::TcpHeader::new(1, 2, 3, 4);
    header.ack = true;
    let mut packet = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(V4.0, V4.1, 64)
        .tcp_header(header)
        .write(&mut packet, &[])
        .unwrap();
    packet.resize(60, 0);
    let TransportHeader::Tcp { payload_len, .. } =
        whole(LinkType::Ethernet, &packet).unwrap().transport
    else {
        panic!("not TCP")
    };
    assert_eq!(payload_len, 0);
}

#[test]
fn each_reason_has_a_packet() {
    let udp = udp_bytes(b"x");
    let nested = (0..6).fold(udp.clone(), |inner, _| ipv4_header(4, &inner));
    let tags = [&[0u8, 1, 0x81, 0][..]; 12].concat();
    let mut later_fragment = udp.clone();
    later_fragment[7] = 9;
    let mut short_udp = udp.clone();
    short_udp[25] = 3;
    let many = ipv6_with_extensions(&[60; 12], &udp[20..]);
    let raw = |data: &[u8]| whole(LinkType::Raw, data);
    let ether = |data: &[u8]| whole(LinkType::Ethernet, data);
    let cases = [
        (Skip::ShortLink, ether(&[0; 13])),
        (Skip::LinkDepth, ether(&ethernet(0x8100, &tags))),
        (Skip::NotIp, ether(&ethernet(0x0806, &[0; 28]))),
        (Skip::ShortIp, raw(&udp[..19])),
        (Skip::BadIp, raw(&[0x44; 40])),
        (Skip::ExtensionDepth, raw(&many)),
        (Skip::Fragment, raw(&later_fragment)),
        (Skip::ShortTunnel, raw(&ipv4_header(47, &[0, 0]))),
        (Skip::BadTunnel, raw(&ipv4_header(47, &[0, 1, 8, 0]))),
        (Skip::TunnelDepth, raw(&nested)),
        (Skip::ShortTransport, parse(LinkType::Raw, &udp[..24], 29)),
        (Skip::BadTransport, raw(&short_udp)),
    ];
    for (skip, got) in &cases {
        assert_eq!(got, &Err(*skip), "{skip}");
    }
    // `no_time` and `link_type` are the capture's, `protocol` is the meter's.
    assert_eq!(cases.len() + 3, Skip::ALL.len());
}

#[test]
fn counts_add_up() {
    let mut counts = SkipCounts::default();
    counts.add(Skip::NotIp);
    counts.add(Skip::NotIp);
    let mut other = SkipCounts::default();
    other.add(Skip::Fragment);
    counts.merge(&other);
    assert_eq!(
        counts.nonzero().collect::<Vec<_>>(),
        [(Skip::NotIp, 2), (Skip::Fragment, 1)]
    );
    assert_eq!(counts.total(), 3);
}
