// SPDX-License-Identifier: Apache-2.0
//! How a packet leaves: outer headers of both families, VLAN tags, l2, and what
//! happens when it is too long or there is no way.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use causeway_dataplane::abi::{REAL_L2, REAL_PRESENT, RealValue, Verdict};
use libbpf_rs::MapCore as _;

use crate::frame::{ACK, Ip, OWN, ROUTER, Tags, Tcp, Tuple, arriving, ethernet, icmp, leaving};
use crate::rig::{Rig, TCP, TUNNEL_SOURCE4, TUNNEL_SOURCE6, UDP, no_headroom, run_alone, write};
use crate::verdict_tests;

const VIP4: &str = "192.0.2.10";
const VIP6: &str = "2001:db8::10";
const REAL4: &str = "10.1.0.10";
const REAL6: &str = "fd00:1::10";

fn client(vip: &str) -> Tuple {
    let src = if vip == VIP4 {
        "198.51.100.7"
    } else {
        "2001:db8:c::7"
    };
    Tuple::new(src, 4000, vip, 443)
}

fn serve(rig: &mut Rig, vip: &str, real: &str) {
    rig.tunnel_real(1, real);
    rig.vip(0, vip, 443, TCP, &[1]);
    rig.vip(1, vip, 443, UDP, &[1]);
}

/// An outer header of the real's family. The label of an outer IPv6 header comes
/// from the flow's hash; tests take it from the packet and check it by itself.
fn outer(real: &str, tos: u8, label: u32, inner: &[u8]) -> Vec<u8> {
    let real: IpAddr = real.parse().unwrap();
    let source = if real.is_ipv4() {
        TUNNEL_SOURCE4
    } else {
        TUNNEL_SOURCE6
    };
    let proto = if inner[0] >> 4 == 4 { 4 } else { 41 };
    Ip {
        tos,
        flow_label: label,
        ..Ip::OUTER
    }
    .packet(source.parse().unwrap(), real, proto, inner)
}

/// The flow label of an untagged IPv6 frame.
fn label_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes([0, frame[15] & 0xf, frame[16], frame[17]])
}

/// Sends a SYN and a datagram through every pair of families, each from a port of its own.
fn all_families(rig: &mut Rig, tags: &[Tags<'_>]) {
    let pairs = [VIP4, VIP6].map(|vip| [(vip, REAL4), (vip, REAL6)]);
    let pairs = pairs.iter().flatten();
    let cases = pairs.flat_map(|&(vip, real)| tags.iter().map(move |&tags| (vip, real, tags)));
    for ((vip, real, tags), sport) in cases.zip(5000..) {
        serve(rig, vip, real);
        let client = Tuple {
            sport,
            ..client(vip)
        };
        let packets = [
            (Verdict::Opened, client.tcp(Tcp::syn(1))),
            (
                Verdict::Established,
                client.tcp(Tcp {
                    flags: ACK,
                    payload: b"GET /",
                    ..Tcp::default()
                }),
            ),
            (Verdict::FirstDatagram, client.udp(b"hello")),
            (Verdict::Established, client.udp(b"again")),
        ];
        // The label must not change within a connection; learn it once, untagged.
        let (_, probe) = rig.send(&arriving(&client.tcp(Tcp::ack(7, 7))));
        let label = if real == REAL6 { label_of(&probe) } else { 0 };
        for (verdict, inner) in packets {
            let sent = ethernet(OWN, ROUTER, tags, &inner);
            rig.expect(
                verdict,
                &sent,
                &ethernet(ROUTER, OWN, tags, &outer(real, 0, label, &inner)),
            );
        }
    }
}

/// A packet of `len` bytes in all.
fn padded(vip: &str, len: usize) -> Vec<u8> {
    let headers = client(vip).tcp(Tcp::ack(1, 1)).len();
    client(vip).tcp(Tcp {
        flags: ACK,
        seq: 1,
        ack: 1,
        payload: &vec![0x5a; len - headers],
        ..Tcp::default()
    })
}

/// The answer to the sender of `inner`: at most `mtu` bytes.
fn too_big(vip: &str, inner: &[u8], mtu: u16) -> Vec<u8> {
    let Tuple { src, dst, .. } = client(vip);
    let mtu_be = mtu.to_be_bytes();
    let (proto, kind, code) = if src.is_ipv4() { (1, 3, 4) } else { (58, 2, 0) };
    let message = icmp(
        dst,
        src,
        kind,
        code,
        [0, 0, mtu_be[0], mtu_be[1]],
        &inner[..128],
    );
    Ip::OUTER.packet(dst, src, proto, &message)
}

verdict_tests! { Rig, Verdict:
    Opened every_family_in_every_family(rig) {
        all_families(rig, &[&[]]);
        serve(rig, VIP4, REAL4);
        let syn = client(VIP4).tcp(Tcp::syn(1));
        rig.expect(Verdict::Opened, &arriving(&syn), &leaving(&outer(REAL4, 0, 0, &syn)));
    }
    Opened vlan_tags_stay(rig) {
        let (vlan, qinq) = ([(0x8100, 0x2064)], [(0x88a8, 0x0007), (0x8100, 0x0064)]);
        all_families(rig, &[&vlan, &qinq]);
        serve(rig, VIP4, REAL4);
        let syn = client(VIP4).tcp(Tcp::syn(1));
        rig.expect(Verdict::Opened, &arriving(&syn), &leaving(&outer(REAL4, 0, 0, &syn)));
    }
    Established ipv4_options_and_the_traffic_class_are_kept(rig) {
        serve(rig, VIP4, REAL4);
        let Tuple { src, dst, .. } = client(VIP4);
        let segment = client(VIP4).tcp_segment(Tcp { flags: ACK, payload: b"x", ..Tcp::default() });
        let record_route = [7, 7, 4, 0, 0, 0, 0, 0];
        for (verdict, options) in [(Verdict::Adopted, &record_route[..]), (Verdict::Established, &[1; 40])] {
            let ip = Ip { options, tos: 0xb9, dont_fragment: false, ..Ip::CLIENT };
            let inner = ip.packet(src, dst, TCP, &segment);
            rig.expect(verdict, &arriving(&inner), &leaving(&outer(REAL4, 0xb9, 0, &inner)));
        }
    }
    Established ipv6_extension_headers_are_walked(rig) {
        serve(rig, VIP6, REAL4);
        let Tuple { src, dst, .. } = client(VIP6);
        let segment = client(VIP6).tcp_segment(Tcp::ack(1, 1));
        // Hop-by-hop (0), destination options (60), routing (43), each padded to 8 or 16 bytes.
        let hop = [60, 0, 1, 4, 0, 0, 0, 0];
        let dest = [43, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let routing = [TCP, 0, 4, 0, 0, 0, 0, 0];
        let options = [&hop[..], &dest, &routing].concat();
        let inner = Ip { options: &options, ..Ip::CLIENT }.packet(src, dst, 0, &segment);
        rig.expect(Verdict::Adopted, &arriving(&inner), &leaving(&outer(REAL4, 0, 0, &inner)));
        rig.expect(Verdict::Established, &arriving(&inner), &leaving(&outer(REAL4, 0, 0, &inner)));
    }
    Opened ethernet_padding_is_carried_along(rig) {
        serve(rig, VIP4, REAL4);
        let syn = client(VIP4).tcp(Tcp::syn(1));
        let (mut sent, mut out) = (arriving(&syn), leaving(&outer(REAL4, 0, 0, &syn)));
        sent.extend([0; 6]);
        out.extend([0; 6]);
        rig.expect(Verdict::Opened, &sent, &out);
    }
    Opened l2_rewrites_the_addresses_only(rig) {
        let mac = [2, 0, 0, 0, 0, 9];
        for vip in [VIP4, VIP6] {
            serve(rig, vip, REAL4);
            rig.real(1, RealValue { flags: REAL_PRESENT | REAL_L2, mac, family: 4, ..RealValue::default() });
            for tags in [&[][..], &[(0x8100, 5)]] {
                let syn = client(vip).tcp(Tcp::syn(tags.len() as u32));
                rig.expect(Verdict::Opened, &ethernet(OWN, ROUTER, tags, &syn), &ethernet(mac, OWN, tags, &syn));
            }
        }
    }
    Opened outer_sources_spread_within_their_mask(rig) {
        for real in [REAL4, REAL6] {
            serve(rig, VIP4, real);
            rig.set_ctl(|ctl| {
                ctl.outer4_entropy_be = [0, 0, 0xff, 0xff];
                ctl.outer6_entropy_be = [0, 0, 0xff, 0xff];
            });
            let source = if real == REAL4 { 26..30 } else { 22..38 };
            let mut sources = HashSet::new();
            for sport in 1..=200 {
                let inner = Tuple { sport, ..client(VIP4) }.tcp(Tcp::syn(u32::from(sport)));
                let again = Tuple { sport, ..client(VIP4) }.tcp(Tcp::ack(u32::from(sport) + 1, 9));
                let (_, first) = rig.send(&arriving(&inner));
                let (_, second) = rig.send(&arriving(&again));
                assert_eq!(first[source.clone()], second[source.clone()], "one path per connection");
                sources.insert(first[source.clone()].to_vec());
            }
            let kept = source.len() - 2;
            assert!(sources.len() > 190, "{} sources of 200 flows", sources.len());
            assert_eq!(sources.iter().map(|s| s[..kept].to_vec()).collect::<HashSet<_>>().len(), 1);
        }
    }
    TooBigAnswered what_does_not_fit_the_tunnel_is_answered(rig) {
        for (vip, real, overhead) in [(VIP4, REAL4, 20), (VIP4, REAL6, 40), (VIP6, REAL4, 20), (VIP6, REAL6, 40)] {
            serve(rig, vip, real);
            for (link, mtu) in [(0, 1500usize), (1400, 1400)] {
                rig.set_ctl(|ctl| ctl.mtu = link);
                let longest = padded(vip, mtu - overhead);
                let (action, _) = rig.send(&arriving(&longest));
                assert_eq!(action, Verdict::Established.action() as u32);
                let over = padded(vip, mtu - overhead + 1);
                for tags in [&[][..], &[(0x8100, 5)], &[(0x88a8, 6), (0x8100, 5)]] {
                    rig.expect(
                        Verdict::TooBigAnswered,
                        &ethernet(OWN, ROUTER, tags, &over),
                        &ethernet(ROUTER, OWN, tags, &too_big(vip, &over, (mtu - overhead) as u16)),
                    );
                }
            }
        }
    }
    TooBigSilent an_icmp_error_that_does_not_fit_is_dropped(rig) {
        for vip in [VIP4, VIP6] {
            serve(rig, vip, REAL4);
            let Tuple { src, dst, .. } = client(vip);
            let mut quote = client(vip).reversed().tcp(Tcp::ack(1, 1));
            quote.resize(1470, 0);
            let (proto, kind) = if src.is_ipv4() { (1, 3) } else { (58, 1) };
            let error = Ip::CLIENT.packet(src, dst, proto, &icmp(src, dst, kind, 0, [0; 4], &quote));
            rig.expect(Verdict::TooBigSilent, &arriving(&error), &[]);
        }
    }
    TooBigSilent no_ipv6_sender_is_told_less_than_1280(rig) {
        for (real, overhead) in [(REAL4, 20), (REAL6, 40)] {
            serve(rig, VIP6, real);
            let over = padded(VIP6, 1281);
            rig.set_ctl(|ctl| ctl.mtu = 1280 + overhead);
            rig.expect(Verdict::TooBigAnswered, &arriving(&over), &leaving(&too_big(VIP6, &over, 1280)));
            rig.set_ctl(|ctl| ctl.mtu = 1280 + overhead - 1);
            rig.expect(Verdict::TooBigSilent, &arriving(&over), &[]);
            rig.expect(Verdict::TooBigSilent, &arriving(&padded(VIP6, 1280)), &[]);
            // A sender of IPv4 may get an MTU below 1280.
            serve(rig, VIP4, real);
            let over = padded(VIP4, 1280);
            rig.expect(Verdict::TooBigAnswered, &arriving(&over), &leaving(&too_big(VIP4, &over, 1279)));
        }
    }
    Opened each_outer_family_has_a_router_of_its_own(rig) {
        let other = [2, 0, 0, 0, 0, 6];
        rig.set_ctl(|ctl| ctl.gateway6_mac = other);
        for (sport, real, router) in [(4001, REAL4, ROUTER), (4002, REAL6, other)] {
            serve(rig, VIP4, real);
            let own = Tuple { sport, ..client(VIP4) };
            let (_, probe) = rig.send(&arriving(&own.tcp(Tcp::ack(7, 7))));
            let label = if real == REAL6 { label_of(&probe) } else { 0 };
            let syn = own.tcp(Tcp::syn(1));
            let left = ethernet(router, OWN, &[], &outer(real, 0, label, &syn));
            rig.expect(Verdict::Opened, &arriving(&syn), &left);
        }
        // One router is enough for one family.
        rig.set_ctl(|ctl| (ctl.gateway_mac, ctl.gateway6_mac) = ([0; 6], other));
        serve(rig, VIP4, REAL4);
        rig.expect(Verdict::NoNextHop, &arriving(&client(VIP4).tcp(Tcp::syn(1))), &[]);
    }
    Opened frames_leave_with_the_interfaces_address_whomever_they_came_to(rig) {
        const ANOTHER: [u8; 6] = [2, 0, 0, 0, 0, 7];
        let mac = [2, 0, 0, 0, 0, 9];
        for (vip, sport) in [(VIP4, 4001), (VIP6, 4002)] {
            serve(rig, vip, REAL4);
            let flooded = |ip: &[u8]| ethernet(ANOTHER, ROUTER, &[], ip);
            let syn = Tuple { sport, ..client(vip) }.tcp(Tcp::syn(1));
            rig.expect(Verdict::Opened, &flooded(&syn), &leaving(&outer(REAL4, 0, 0, &syn)));
            let long = padded(vip, 1490);
            let answer = leaving(&too_big(vip, &long, 1480));
            rig.expect(Verdict::TooBigAnswered, &flooded(&long), &answer);
            let Tuple { src, dst, .. } = client(vip);
            let (proto, ask, reply) = if src.is_ipv4() { (1, 8, 0) } else { (58, 128, 129) };
            let message = |src, dst, kind| icmp(src, dst, kind, 0, [1; 4], b"hello");
            let answer = Ip { ttl: 64, ..Ip::CLIENT }.packet(dst, src, proto, &message(dst, src, reply));
            let request = Ip::CLIENT.packet(src, dst, proto, &message(src, dst, ask));
            rig.expect(Verdict::EchoAnswered, &flooded(&request), &leaving(&answer));
            rig.real(1, RealValue { flags: REAL_PRESENT | REAL_L2, mac, family: 4, ..RealValue::default() });
            let syn = Tuple { sport: sport + 10, ..client(vip) }.tcp(Tcp::syn(1));
            rig.expect(Verdict::Opened, &flooded(&syn), &ethernet(mac, OWN, &[], &syn));
        }
    }
    NoNextHop nothing_leaves_without_a_gateway_or_a_source(rig) {
        let syn = arriving(&client(VIP4).tcp(Tcp::syn(1)));
        serve(rig, VIP4, REAL4);
        rig.set_ctl(|ctl| ctl.gateway_mac = [0; 6]);
        rig.expect(Verdict::NoNextHop, &syn, &[]);
        rig.set_ctl(|ctl| ctl.outer4_be = [0; 4]);
        rig.expect(Verdict::NoNextHop, &syn, &[]);
        serve(rig, VIP4, REAL6);
        rig.set_ctl(|ctl| ctl.outer6_be = [0; 16]);
        rig.expect(Verdict::NoNextHop, &syn, &[]);
        assert_eq!(rig.real_stats(1).packets, 0, "not sent, not counted as sent");
    }
    NoHeadroom a_frame_with_no_room_before_it_is_dropped(rig) {
        serve(rig, VIP4, REAL4);
        let mover = no_headroom();
        let program = rig.program().as_fd().as_raw_fd();
        let table = mover.maps().find(|map| map.name() == "under_test").expect("map");
        write(&table, &0u32.to_ne_bytes(), &program.to_ne_bytes());
        let frame = arriving(&client(VIP4).tcp(Tcp::syn(1)));
        let before = rig.counters();
        let (action, _) = run_alone(&mover.progs_mut().next().expect("program"), &frame);
        assert_eq!(rig.counters(), before.plus(Verdict::NoHeadroom as usize, frame.len()));
        assert_eq!(action, Verdict::NoHeadroom.action() as u32);
    }
}
