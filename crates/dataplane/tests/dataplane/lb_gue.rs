// SPDX-License-Identifier: Apache-2.0
//! Packets in UDP (GUE, variant 1): every family in every family, ports that follow
//! the flow, and checksums without a look at the payload, against etherparse's over
//! all of it.

use std::collections::HashSet;
use std::net::IpAddr;

use causeway_dataplane::abi::{GUE_CHECKSUM_4, GUE_CHECKSUM_6, REAL_GUE, RealValue, Verdict};
use etherparse::UdpHeader;

use crate::frame::{ACK, Ip, OWN, ROUTER, Tcp, Tuple, arriving, ethernet, icmp};
use crate::rig::{Rig, TCP, TUNNEL_SOURCE4, TUNNEL_SOURCE6, UDP, tunnel_real};
use crate::verdict_tests;

pub(crate) const VIP4: &str = "192.0.2.10";
pub(crate) const VIP6: &str = "2001:db8::10";
pub(crate) const REAL4: &str = "10.1.0.10";
pub(crate) const REAL6: &str = "fd00:1::10";
const UDP_LEN: usize = 8;

fn client(vip: &str) -> Tuple {
    let src = if vip == VIP4 {
        "198.51.100.7"
    } else {
        "2001:db8:c::7"
    };
    Tuple::new(src, 4000, vip, 443)
}

fn serve(rig: &mut Rig, vip: &str, real: &str) {
    let plain = tunnel_real(real);
    rig.real(
        1,
        RealValue {
            flags: plain.flags | REAL_GUE,
            ..plain
        },
    );
    rig.vip(0, vip, 443, TCP, &[1]);
    rig.vip(1, vip, 443, UDP, &[1]);
}

/// The outer headers, with what the flow's hash chose: source port and IPv6 label.
pub(crate) fn outer(
    real: &str,
    port: u16,
    tos: u8,
    chosen: (u16, u32),
    sum: bool,
    inner: &[u8],
) -> Vec<u8> {
    let to: IpAddr = real.parse().unwrap();
    let from = if to.is_ipv4() {
        TUNNEL_SOURCE4
    } else {
        TUNNEL_SOURCE6
    };
    let from: IpAddr = from.parse().unwrap();
    let mut udp = UdpHeader::without_ipv4_checksum(chosen.0, port, inner.len()).unwrap();
    if sum {
        udp.checksum = match (from, to) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                udp.calc_checksum_ipv4_raw(s.octets(), d.octets(), inner)
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                udp.calc_checksum_ipv6_raw(s.octets(), d.octets(), inner)
            }
            _ => unreachable!(),
        }
        .unwrap();
    }
    let payload = [&udp.to_bytes()[..], inner].concat();
    Ip {
        tos,
        flow_label: chosen.1,
        ..Ip::OUTER
    }
    .packet(from, to, UDP, &payload)
}

/// Source port and flow label of an untagged frame.
fn chosen(real: &str, frame: &[u8]) -> (u16, u32) {
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    match real {
        REAL4 => (word(14 + 20), 0),
        _ => (
            word(14 + 40),
            u32::from(frame[15] & 0xf) << 16 | u32::from(word(16)),
        ),
    }
}

/// Packets whose checksums say all about them.
pub(crate) fn summed(vip: &str) -> Vec<Vec<u8>> {
    let tuple = client(vip);
    let data = |payload| {
        tuple.tcp(Tcp {
            flags: ACK,
            seq: 9,
            ack: 8,
            payload,
            ..Tcp::default()
        })
    };
    vec![
        tuple.tcp(Tcp::syn(1)),
        data(b"even"),
        data(b"odd"),
        data(&[0xff; 1001]),
        data(&[0; 800]),
        tuple.udp(b"datagram"),
        tuple.udp(&[0xff; 33]),
    ]
}

verdict_tests! { Rig, Verdict:
    Established every_family_in_every_family_with_and_without_sums(rig) {
        for vip in [VIP4, VIP6] {
            for real in [REAL4, REAL6] {
                serve(rig, vip, real);
                for packet in summed(vip) {
                    rig.send(&arriving(&packet));
                    for sum in [false, true] {
                        rig.set_ctl(|ctl| ctl.gue_checksum = if sum { GUE_CHECKSUM_4 | GUE_CHECKSUM_6 } else { 0 });
                        for tags in [&[][..], &[(0x8100, 5)], &[(0x88a8, 6), (0x8100, 5)]] {
                            let (_, sent) = rig.send(&arriving(&packet));
                            let chosen = chosen(real, &sent);
                            let wrapped = outer(real, 6080, 0, chosen, sum, &packet);
                            let (verdict, udp) = (Verdict::Established, packet[if vip == VIP4 { 9 } else { 6 }] == UDP);
                            let syn = !udp && packet[if vip == VIP4 { 33 } else { 53 }] & 2 != 0;
                            let verdict = if syn { Verdict::SynAgain } else { verdict };
                            rig.expect(verdict, &ethernet(OWN, ROUTER, tags, &packet), &ethernet(ROUTER, OWN, tags, &wrapped));
                        }
                    }
                }
            }
        }
    }
    Opened port_checksum_policy_and_traffic_class(rig) {
        for (real, flag) in [(REAL4, GUE_CHECKSUM_4), (REAL6, GUE_CHECKSUM_6)] {
            serve(rig, VIP4, real);
            let Tuple { src, dst, .. } = client(VIP4);
            let packet = Ip { tos: 0xb9, ..Ip::CLIENT }.packet(src, dst, TCP, &client(VIP4).tcp_segment(Tcp::ack(1, 1)));
            rig.send(&arriving(&packet));
            for (checksum, sum) in [(flag, true), (GUE_CHECKSUM_4 ^ GUE_CHECKSUM_6 ^ flag, false)] {
                rig.set_ctl(|ctl| (ctl.gue_port_be, ctl.gue_checksum) = (9886u16.to_be_bytes(), checksum));
                let (_, sent) = rig.send(&arriving(&packet));
                let wrapped = outer(real, 9886, 0xb9, chosen(real, &sent), sum, &packet);
                rig.expect(Verdict::Established, &arriving(&packet), &ethernet(ROUTER, OWN, &[], &wrapped));
            }
        }
        let syn = Tuple { sport: 4001, ..client(VIP4) }.tcp(Tcp::syn(1));
        let (_, sent) = rig.send(&arriving(&syn));
        assert!(!sent.is_empty());
    }
    IcmpError errors_are_summed_too(rig) {
        rig.set_ctl(|ctl| ctl.gue_checksum = GUE_CHECKSUM_4 | GUE_CHECKSUM_6);
        for vip in [VIP4, VIP6] {
            for real in [REAL4, REAL6] {
                serve(rig, vip, real);
                rig.send(&arriving(&client(vip).tcp(Tcp::syn(1))));
                let Tuple { dst, .. } = client(vip);
                let router: IpAddr = if dst.is_ipv4() { "203.0.113.9" } else { "2001:db8:9::9" }.parse().unwrap();
                let quote = client(vip).reversed().tcp(Tcp::ack(1, 1));
                let (proto, kind) = if dst.is_ipv4() { (1, 3) } else { (58, 1) };
                let error = Ip::CLIENT.packet(router, dst, proto, &icmp(router, dst, kind, 0, [0; 4], &quote));
                let (_, sent) = rig.send(&arriving(&error));
                let wrapped = outer(real, 6080, 0, chosen(real, &sent), true, &error);
                rig.expect(Verdict::IcmpError, &arriving(&error), &ethernet(ROUTER, OWN, &[], &wrapped));
            }
        }
    }
    Established what_cannot_be_summed_is_sent_without(rig) {
        rig.set_ctl(|ctl| ctl.gue_checksum = GUE_CHECKSUM_4 | GUE_CHECKSUM_6);
        // A datagram without a checksum of its own.
        serve(rig, VIP4, REAL6);
        let mut bare = client(VIP4).udp(b"no sum");
        bare[26..28].fill(0);
        rig.send(&arriving(&bare));
        let (_, sent) = rig.send(&arriving(&bare));
        let wrapped = outer(REAL6, 6080, 0, chosen(REAL6, &sent), false, &bare);
        rig.expect(Verdict::Established, &arriving(&bare), &ethernet(ROUTER, OWN, &[], &wrapped));
        // Extension headers, which no transport checksum covers.
        serve(rig, VIP6, REAL4);
        let Tuple { src, dst, .. } = client(VIP6);
        let ip = Ip { options: &[TCP, 0, 1, 4, 0, 0, 0, 0], ..Ip::CLIENT };
        let packet = ip.packet(src, dst, 60, &client(VIP6).tcp_segment(Tcp::ack(1, 1)));
        rig.send(&arriving(&packet));
        let (_, sent) = rig.send(&arriving(&packet));
        let wrapped = outer(REAL4, 6080, 0, chosen(REAL4, &sent), false, &packet);
        rig.expect(Verdict::Established, &arriving(&packet), &ethernet(ROUTER, OWN, &[], &wrapped));
    }
    Opened source_ports_are_dynamic_and_follow_the_flow(rig) {
        for real in [REAL4, REAL6] {
            serve(rig, VIP4, real);
            let mut ports = HashSet::new();
            for sport in 1000..1200 {
                let tuple = Tuple { sport, ..client(VIP4) };
                let (_, first) = rig.send(&arriving(&tuple.tcp(Tcp::syn(1))));
                let (_, second) = rig.send(&arriving(&tuple.tcp(Tcp::ack(2, 1))));
                assert_eq!(chosen(real, &first), chosen(real, &second));
                assert!(chosen(real, &first).0 >= 0xc000);
                ports.insert(chosen(real, &first).0);
            }
            assert!(ports.len() > 180, "{} source ports of 200 flows", ports.len());
        }
    }
    TooBigAnswered the_udp_header_counts(rig) {
        for (vip, real, overhead) in [
            (VIP4, REAL4, 20 + UDP_LEN), (VIP4, REAL6, 40 + UDP_LEN),
            (VIP6, REAL4, 20 + UDP_LEN), (VIP6, REAL6, 40 + UDP_LEN),
        ] {
            serve(rig, vip, real);
            let Tuple { src, dst, .. } = client(vip);
            let headers = if dst.is_ipv4() { 40 } else { 60 };
            let packet = |len: usize| client(vip).tcp(Tcp { flags: ACK, payload: &vec![0x5a; len - headers], ..Tcp::default() });
            let (action, _) = rig.send(&arriving(&packet(1500 - overhead)));
            assert_eq!(action, Verdict::Established.action() as u32);
            let over = packet(1500 - overhead + 1);
            let mtu = ((1500 - overhead) as u16).to_be_bytes();
            let (proto, kind, code) = if dst.is_ipv4() { (1, 3, 4) } else { (58, 2, 0) };
            let message = icmp(dst, src, kind, code, [0, 0, mtu[0], mtu[1]], &over[..128]);
            let answer = Ip::OUTER.packet(dst, src, proto, &message);
            rig.expect(Verdict::TooBigAnswered, &arriving(&over), &ethernet(ROUTER, OWN, &[], &answer));
        }
    }
}
