// SPDX-License-Identifier: Apache-2.0
//! Fragments to a VIP that takes them: to one real with all else of the client.

use causeway_dataplane::abi::Verdict;

use crate::frame::{ACK, Ip, Tcp, Tuple, arriving, leaving};
use crate::rig::{Rig, TCP, TUNNEL_SOURCE4, UDP};
use crate::verdict_tests;

const VIPS: [(&str, &str); 2] = [
    ("198.51.100.7", "192.0.2.10"),
    ("2001:db8:c::7", "2001:db8::10"),
];

/// A VIP for `proto` over many reals that takes fragments.
fn serve(rig: &mut Rig, vip: &str, port: u16, proto: u8) {
    let reals: Vec<u32> = (0..13).collect();
    for id in &reals {
        rig.tunnel_real(*id, &format!("10.1.0.{id}"));
    }
    rig.vip(3, vip, port, proto, &reals);
    rig.take_fragments(3, vip, port, proto);
}

/// First, middle and last fragment of `segment`, whose length is a multiple of 8.
fn fragments(tuple: Tuple, proto: u8, segment: &[u8]) -> Vec<Vec<u8>> {
    let third = segment.len() / 24 * 8;
    let pieces = [0..third, third..2 * third, 2 * third..segment.len()];
    let packet = |piece: std::ops::Range<usize>| {
        let (offset, more) = (piece.start as u16 / 8, piece.end < segment.len());
        let header = [
            &[proto, 0][..],
            &(offset << 3 | u16::from(more)).to_be_bytes(),
            &[0, 0, 0, 9],
        ]
        .concat();
        let (options, number): (&[u8], u8) = if tuple.src.is_ipv4() {
            (&[], proto)
        } else {
            (&header, 44)
        };
        let ip = Ip {
            dont_fragment: false,
            more_fragments: more,
            fragment_offset: offset,
            options,
            ..Ip::CLIENT
        };
        ip.packet(tuple.src, tuple.dst, number, &segment[piece])
    };
    pieces.into_iter().map(packet).collect()
}

fn tunnelled(real: &str, inner: &[u8]) -> Vec<u8> {
    let proto = if inner[0] >> 4 == 4 { 4 } else { 41 };
    leaving(&Ip::OUTER.packet(
        TUNNEL_SOURCE4.parse().unwrap(),
        real.parse().unwrap(),
        proto,
        inner,
    ))
}

fn real_of(frame: &[u8]) -> String {
    format!("{}.{}.{}.{}", frame[30], frame[31], frame[32], frame[33])
}

verdict_tests! { Rig, Verdict:
    FragmentSent all_fragments_go_where_the_whole_packets_go(rig) {
        for (client, vip) in VIPS {
            serve(rig, vip, 53, UDP);
            for host in 1..20u16 {
                let source = if client.contains(':') { format!("2001:db8:c::{host:x}") } else { format!("198.51.100.{host}") };
                let tuple = Tuple::new(&source, 4000 + host, vip, 53);
                let whole = tuple.udp(&[0x5a; 64]);
                let (_, sent) = rig.send(&arriving(&whole));
                let real = real_of(&sent);
                let segment = &whole[whole.len() - 72..];
                for piece in fragments(tuple, UDP, segment) {
                    rig.expect(Verdict::FragmentSent, &arriving(&piece), &tunnelled(&real, &piece));
                }
                let other = Tuple { sport: 9, ..tuple }.udp(b"another port");
                rig.expect(Verdict::FirstDatagram, &arriving(&other), &tunnelled(&real, &other));
            }
        }
    }
    FragmentSent they_stay_when_the_ring_changes_and_are_not_measured(rig) {
        let (client, vip) = VIPS[0];
        serve(rig, vip, 80, TCP);
        let tuple = Tuple::new(client, 4000, vip, 80);
        let segment = tuple.tcp_segment(Tcp { flags: ACK, payload: &[1; 76], ..Tcp::default() });
        let pieces = fragments(tuple, TCP, &segment);
        let (_, sent) = rig.send(&arriving(&pieces[0]));
        let real = real_of(&sent);
        rig.ring(3, &[12; 17]);
        for piece in &pieces {
            rig.expect(Verdict::FragmentSent, &arriving(piece), &tunnelled(&real, piece));
        }
        let stats: Vec<_> = (0..13).map(|id| rig.real_stats(id)).collect();
        assert_eq!(stats.iter().map(|s| s.packets).sum::<u64>(), 4);
        assert_eq!(stats.iter().map(|s| s.requests + s.conns_opened + s.conns_closed).sum::<u64>(), 0);
    }
    Fragment other_protocols_of_the_address_are_dropped(rig) {
        for (client, vip) in VIPS {
            serve(rig, vip, 53, UDP);
            rig.vip(4, vip, 80, TCP, &[1]);
            let tuple = Tuple::new(client, 4000, vip, 80);
            for proto in [TCP, 1, 58, 132] {
                for piece in fragments(tuple, proto, &[0; 72]) {
                    rig.expect(Verdict::Fragment, &arriving(&piece), &[]);
                }
            }
        }
    }
    Malformed a_fragment_header_cut_off(rig) {
        let (client, vip) = VIPS[1];
        serve(rig, vip, 53, UDP);
        let tuple = Tuple::new(client, 4000, vip, 53);
        let packet = Ip::CLIENT.packet(tuple.src, tuple.dst, 44, &[17, 0, 0, 1]);
        rig.expect(Verdict::Malformed, &arriving(&packet), &[]);
    }
}
