// SPDX-License-Identifier: Apache-2.0

//! One frame for each link type and tunnel, byte by byte from its standard; what is
//! inside must come out, whole or cut.

use super::tests::*;
use super::*;

/// UDP from port 40000 to 53 with this payload, the packet inside everything here.
fn inside() -> Vec<u8> {
    udp_bytes(b"question")
}

fn in_udp(port: u16, header: &[u8], inside: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let payload = [header, inside].concat();
    ipv4().udp(50_000, port).write(&mut out, &payload).unwrap();
    out
}

fn in_ip(protocol: u8, header: &[u8], inside: &[u8]) -> Vec<u8> {
    ipv4_header(protocol, &[header, inside].concat())
}

/// An MPLS label; the last one has the bottom-of-stack bit.
fn label(last: bool) -> [u8; 4] {
    [0, 1, 0x40 | u8::from(last), 64]
}

fn tunnels() -> Vec<(&'static str, Vec<u8>)> {
    let ip = inside();
    let frame = ethernet(0x0800, &ip);
    let labels = [label(false), label(true)].concat();
    let wire = [&label(true)[..], &[0, 0, 0, 9], &frame].concat();
    vec![
        ("ipip", in_ip(4, &[], &ip)),
        ("gre", in_ip(47, &[0, 0, 8, 0], &ip)),
        (
            "gre with checksum, key and number",
            in_ip(47, &[&[0xb0, 0, 8, 0][..], &[1; 12]].concat(), &ip),
        ),
        ("gre bridged", in_ip(47, &[0, 0, 0x65, 0x58], &frame)),
        (
            "gre with mpls",
            in_ip(47, &[&[0, 0, 0x88, 0x47][..], &labels].concat(), &ip),
        ),
        ("erspan 1", in_ip(47, &[0, 0, 0x88, 0xbe], &frame)),
        (
            "erspan 2",
            in_ip(47, &[&[0x10, 0, 0x88, 0xbe][..], &[0; 12]].concat(), &frame),
        ),
        (
            "erspan 3 with a subheader",
            in_ip(
                47,
                &[&[0x10, 0, 0x22, 0xeb][..], &[0; 15], &[1], &[0; 8]].concat(),
                &frame,
            ),
        ),
        ("mpls in ip", in_ip(137, &labels, &ip)),
        ("ethernet in ip", in_ip(143, &[], &frame)),
        ("etherip", in_ip(97, &[0x30, 0], &frame)),
        ("vxlan", in_udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0], &frame)),
        (
            "vxlan of linux",
            in_udp(8472, &[8, 0, 0, 0, 0, 0, 7, 0], &frame),
        ),
        ("vxlan-gpe", in_udp(4790, &[12, 0, 0, 1, 0, 0, 7, 0], &ip)),
        (
            "vxlan-gpe, ethernet",
            in_udp(4790, &[12, 0, 0, 3, 0, 0, 7, 0], &frame),
        ),
        (
            "geneve",
            in_udp(6081, &[0, 0, 0x65, 0x58, 0, 0, 7, 0], &frame),
        ),
        (
            "geneve with options",
            in_udp(
                6081,
                &[&[2, 0, 8, 0, 0, 0, 7, 0][..], &[1; 8]].concat(),
                &ip,
            ),
        ),
        ("gue", in_udp(6080, &[0, 4, 0, 0], &ip)),
        (
            "gue with flags",
            in_udp(9886, &[1, 4, 0, 0, 1, 2, 3, 4], &ip),
        ),
        ("gue version 1", in_udp(19523, &[], &ip)),
        ("mpls in udp", in_udp(6635, &labels, &ip)),
        ("pseudowire", in_ip(137, &wire, &[])),
        ("gtp-u", in_udp(2152, &[0x30, 255, 0, 0, 0, 0, 0, 1], &ip)),
        (
            "gtp-u with an extension",
            in_udp(
                2152,
                &[0x34, 255, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0, 9, 0],
                &ip,
            ),
        ),
        (
            "gtp-u with a number",
            in_udp(2152, &[0x32, 255, 0, 0, 0, 0, 0, 1, 0, 5, 0, 0], &ip),
        ),
        ("vxlan in gre in ipip", {
            let vxlan = in_udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0], &frame);
            in_ip(4, &[], &in_ip(47, &[0, 0, 8, 0], &vxlan))
        }),
    ]
}

#[test]
fn every_tunnel_is_unwrapped() {
    for (name, packet) in tunnels() {
        assert_eq!(
            whole(LinkType::Raw, &packet),
            Ok(udp_datagram(8, b'q')),
            "{name}"
        );
        let framed = ethernet(0x0800, &packet);
        assert_eq!(
            whole(LinkType::Ethernet, &framed),
            Ok(udp_datagram(8, b'q')),
            "{name}"
        );
        assert!(
            parse_quickly(LinkType::Ethernet, &framed).is_none(),
            "{name}"
        );
    }
}

/// A cut tunnel may read as an error, never as another datagram: the outer one of
/// UDP would be a wrong flow.
#[test]
fn a_cut_tunnel_is_not_taken_for_plain_udp() {
    for (name, packet) in tunnels() {
        for cut in 0..packet.len() - 8 {
            let got = parse(LinkType::Raw, &packet[..cut], packet.len() as u32);
            match got {
                Err(_) => {}
                // Cut before the header's own length, GUE's version 1 does not show.
                Ok(got) if name == "gue version 1" => assert_eq!(got.transport.ports().0, 50_000),
                Ok(got) => panic!("{name} cut at {cut} reads as {got:?}"),
            }
        }
    }
}

#[test]
fn what_only_has_a_tunnels_port_is_plain_udp() {
    for port in [4789, 8472, 4790, 6081, 6080, 9886, 19523, 2152] {
        for payload in [&[0; 40][..], &[0x81; 40], &[0; 3]] {
            let packet = in_udp(port, payload, &[]);
            let got = whole(LinkType::Raw, &packet).map(|datagram| datagram.transport.ports());
            assert_eq!(got, Ok((50_000, port)), "{payload:x?}");
        }
    }
}

#[test]
fn what_has_no_labels_is_plain_udp() {
    for payload in [&[0; 200][..], &[0x81; 40]] {
        let packet = in_udp(6635, payload, &[]);
        let got = whole(LinkType::Raw, &packet).map(|datagram| datagram.transport.ports());
        assert_eq!(got, Ok((50_000, 6635)), "{payload:x?}");
    }
}

#[test]
fn layers_between_ethernet_and_ip_are_passed() {
    let ip = inside();
    let labels = [label(false), label(false), label(true)].concat();
    let pppoe = |protocol: &[u8]| [&[0x11, 0, 0, 1, 0, 30][..], protocol, &ip].concat();
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &ip].concat();
    let cases = [
        ("mpls", ethernet(0x8847, &[&labels[..], &ip].concat())),
        ("pppoe", ethernet(0x8864, &pppoe(&[0, 0x21]))),
        ("pppoe, compressed", ethernet(0x8864, &pppoe(&[0x21]))),
        (
            "qinq, pppoe",
            ethernet(
                0x88a8,
                &[&[0, 1, 0x81, 0, 0, 2, 0x88, 0x64][..], &pppoe(&[0, 0x21])].concat(),
            ),
        ),
        ("snap", ethernet(snap.len() as u16, &snap)),
    ];
    for (name, frame) in cases {
        assert_eq!(
            whole(LinkType::Ethernet, &frame),
            Ok(udp_datagram(8, b'q')),
            "{name}"
        );
    }
    let session = ethernet(0x8864, &pppoe(&[0xc0, 0x21])); // LCP
    assert_eq!(whole(LinkType::Ethernet, &session), Err(Skip::NotIp));
    let endless = ethernet(0x8847, &[label(false); 40].concat());
    assert_eq!(whole(LinkType::Ethernet, &endless), Err(Skip::LinkDepth));
}

#[test]
fn rarer_link_types_find_the_packet() {
    let ip = inside();
    let mut pktap = vec![0; 108];
    pktap[..4].copy_from_slice(&108u32.to_le_bytes());
    pktap[8..12].copy_from_slice(&1u32.to_le_bytes());
    pktap.extend(ethernet(0x0800, &[]));
    let cases: &[(u32, Vec<u8>)] = &[
        (9, vec![0, 0x21]),
        (9, vec![0xff, 3, 0, 0x21]),
        (50, vec![0xff, 3, 0, 0x21]),
        (50, vec![0x0f, 0, 8, 0]),
        (51, vec![0x11, 0, 0, 1, 0, 38, 0, 0x21]),
        (104, vec![0x8f, 0, 8, 0]),
        (109, vec![2; 12]),
        (117, [&[61, 2][..], &[0; 62]].concat()),
        (166, vec![1, 3, 0, 0x21]),
        // A prefix attribute of five bytes, padded, then the packet.
        (
            239,
            vec![2, 0, 0, 1, 5, 0, 10, 0, b'x', 0, 0, 0, 40, 0, 9, 0],
        ),
        (258, pktap),
    ];
    for (number, head) in cases {
        let link = LinkType::from_number(*number).unwrap();
        let packet = [&head[..], &ip].concat();
        assert_eq!(
            whole(link, &packet),
            Ok(udp_datagram(8, b'q')),
            "link type {number}"
        );
        for cut in 0..packet.len() - 8 {
            assert!(parse(link, &packet[..cut], packet.len() as u32).is_err());
        }
    }
    let endless = [&[2, 0, 0, 0][..], &[0; 4096]].concat();
    let nflog = LinkType::from_number(239).unwrap();
    assert_eq!(whole(nflog, &endless), Err(Skip::NotIp));
}
