// SPDX-License-Identifier: Apache-2.0
//! What is not for the balancer, and what is broken.

use causeway_dataplane::abi::Verdict;

use crate::frame::{ACK, FIN, Ip, RST, SYN, Tcp, Tuple, arriving};
use crate::rig::{Rig, TCP, UDP};
use crate::verdict_tests;

const VIPS: [(&str, &str); 2] = [
    ("198.51.100.7", "192.0.2.10"),
    ("2001:db8:c::7", "2001:db8::10"),
];

fn serve(rig: &mut Rig, vip: &str) {
    rig.tunnel_real(0, "10.1.0.10");
    rig.vip(0, vip, 80, TCP, &[0]);
    rig.vip(1, vip, 80, UDP, &[0]);
}

/// A TCP packet whose frame has a byte changed.
fn changed(tuple: Tuple, offset: usize, value: u8) -> Vec<u8> {
    let mut frame = arriving(&tuple.tcp(Tcp {
        flags: ACK,
        payload: b"data",
        ..Tcp::default()
    }));
    frame[offset] = value;
    frame
}

verdict_tests! { Rig, Verdict:
    NotIp other_ethertypes_are_the_kernels(rig) {
        for ethertype in [0x0806u16, 0x88cc, 0x0004] {
            let mut frame = arriving(&[0; 46]);
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            rig.expect_untouched(Verdict::NotIp, &frame);
        }
    }
    NotIp a_third_vlan_tag_is_not_looked_behind(rig) {
        let tags = [(0x88a8, 1), (0x88a8, 2), (0x8100, 3)];
        let ip = Tuple::new("198.51.100.7", 1, "192.0.2.10", 80).tcp(Tcp::syn(1));
        let frame = crate::frame::ethernet(crate::frame::OWN, crate::frame::ROUTER, &tags, &ip);
        rig.expect_untouched(Verdict::NotIp, &frame);
    }
    NotVip packets_to_other_addresses_are_the_kernels(rig) {
        for (client, vip) in VIPS {
            serve(rig, vip);
            let other = Tuple::new(client, 4000, client, 80);
            rig.expect_untouched(Verdict::NotVip, &arriving(&other.tcp(Tcp::syn(1))));
            rig.expect_untouched(Verdict::NotVip, &arriving(&other.udp(b"x")));
        }
    }
    NotServed what_is_for_a_vips_address_alone_goes_nowhere(rig) {
        for (client, vip) in VIPS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 4000, vip, 81);
            let protocols = [2, 47, 50, 132].map(|proto| Ip::CLIENT.packet(tuple.src, tuple.dst, proto, &[0; 20]));
            let ports = [tuple.tcp(Tcp::syn(1)), tuple.tcp(Tcp::ack(1, 1)), tuple.udp(b"x")];
            for packet in protocols.iter().chain(&ports) {
                rig.set_ctl(|_| ());
                rig.expect(Verdict::NotServed, &arriving(packet), &[]);
                rig.set_ctl(|ctl| ctl.pass_unserved = 1);
                rig.expect_untouched(Verdict::NotVip, &arriving(packet));
            }
        }
    }
    NotServed five_extension_headers_are_not_walked(rig) {
        let (client, vip) = VIPS[1];
        serve(rig, vip);
        let tuple = Tuple::new(client, 1, vip, 80);
        let options = [60, 0, 1, 4, 0, 0, 0, 0].repeat(5);
        let packet = Ip { options: &options, ..Ip::CLIENT }.packet(tuple.src, tuple.dst, 60, &[0; 20]);
        rig.expect(Verdict::NotServed, &arriving(&packet), &[]);
    }
    Fragment fragments_to_a_vip_are_dropped(rig) {
        for (client, vip) in VIPS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 4000, vip, 80);
            let segment = tuple.tcp_segment(Tcp::ack(1, 1));
            let first = Ip { more_fragments: true, dont_fragment: false, options: &[TCP, 0, 0, 1, 0, 0, 0, 9], ..Ip::CLIENT };
            let later = Ip { fragment_offset: 185, more_fragments: false, options: &[TCP, 0, 5, 200, 0, 0, 0, 9], ..first };
            for ip in [first, later] {
                // IPv4 takes the fields, IPv6 the fragment header (44) in the options.
                let (ip, proto) = if tuple.src.is_ipv4() { (Ip { options: &[], ..ip }, TCP) } else { (ip, 44) };
                rig.expect(Verdict::Fragment, &arriving(&ip.packet(tuple.src, tuple.dst, proto, &segment)), &[]);
                let elsewhere = ip.packet(tuple.src, tuple.src, proto, &segment);
                rig.expect_untouched(Verdict::NotVip, &arriving(&elsewhere));
            }
        }
    }
    Malformed headers_that_contradict_the_frame(rig) {
        let tuple = Tuple::new(VIPS[0].0, 4000, VIPS[0].1, 80);
        serve(rig, VIPS[0].1);
        for (offset, value) in [
            (14, 0x65), // version
            (14, 0x44), // header length below 20
            (14, 0x4f), // header longer than the packet
            (16, 0xff), // total length beyond the frame
            (17, 0x13), // total length below the header
            (46, 0x40), // TCP header below 20
            (46, 0xf0), // TCP header longer than the packet
        ] {
            rig.expect(Verdict::Malformed, &changed(tuple, offset, value), &[]);
        }
        let tuple = Tuple::new(VIPS[1].0, 4000, VIPS[1].1, 80);
        serve(rig, VIPS[1].1);
        for (offset, value) in [(14, 0x45), (18, 0xff), (66, 0x40), (66, 0xf0)] {
            rig.expect(Verdict::Malformed, &changed(tuple, offset, value), &[]);
        }
    }
    Malformed a_syn_that_ends_its_connection(rig) {
        for (client, vip) in VIPS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 4000, vip, 80);
            for flags in [SYN | FIN, SYN | RST, SYN | FIN | ACK, SYN | FIN | RST] {
                let packet = tuple.tcp(Tcp { flags, seq: 1, ..Tcp::default() });
                rig.expect(Verdict::Malformed, &arriving(&packet), &[]);
            }
            assert!(rig.flow(tuple, TCP).is_none());
        }
    }
    Malformed frames_that_end_early(rig) {
        for (client, vip) in VIPS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 4000, vip, 80);
            for packet in [tuple.tcp(Tcp::syn(1)), tuple.udp(b"")] {
                let whole = arriving(&packet);
                for len in 14..whole.len() {
                    rig.expect(Verdict::Malformed, &whole[..len], &[]);
                }
            }
        }
    }
    Malformed transport_headers_that_end_early(rig) {
        for (client, vip) in VIPS {
            serve(rig, vip);
            let Tuple { src, dst, .. } = Tuple::new(client, 0, vip, 0);
            for (proto, len) in [(TCP, 0), (TCP, 19), (UDP, 0), (UDP, 7)] {
                rig.expect(Verdict::Malformed, &arriving(&Ip::CLIENT.packet(src, dst, proto, &vec![0; len])), &[]);
            }
        }
    }
    Malformed vlan_tags_and_extension_headers_that_end_early(rig) {
        let mut frame = arriving(&[0; 2]);
        frame[12..14].copy_from_slice(&[0x81, 0]);
        rig.expect(Verdict::Malformed, &frame, &[]);
        let (client, vip) = VIPS[1];
        let Tuple { src, dst, .. } = Tuple::new(client, 0, vip, 0);
        for body in [&[][..], &[TCP, 200, 0, 0, 0, 0, 0, 0]] {
            rig.expect(Verdict::Malformed, &arriving(&Ip::CLIENT.packet(src, dst, 60, body)), &[]);
        }
    }
}

/// Whatever comes in, one verdict is counted and its action taken.
#[test]
fn random_frames_get_exactly_one_verdict() {
    let mut rig = Rig::new();
    let mut seed = 0x5eed_u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let mut frames = Vec::new();
    for (client, vip) in VIPS {
        serve(&mut rig, vip);
        let tuple = Tuple::new(client, 4000, vip, 80);
        let options = crate::frame::timestamp(1, 2);
        frames.push(tuple.tcp(Tcp {
            flags: ACK,
            options: &options,
            payload: b"data",
            ..Tcp::default()
        }));
        frames.push(tuple.udp(b"datagram"));
        let proto = if tuple.src.is_ipv4() { 1 } else { 58 };
        let quote = crate::frame::icmp(
            tuple.src,
            tuple.dst,
            3,
            0,
            [0; 4],
            &tuple.reversed().tcp(Tcp::ack(1, 1)),
        );
        frames.push(Ip::CLIENT.packet(tuple.src, tuple.dst, proto, &quote));
        frames.push(
            Ip {
                options: &[0; 40],
                ..Ip::CLIENT
            }
            .packet(tuple.src, tuple.dst, 6, &[0; 40]),
        );
    }
    for _ in 0..20_000 {
        let tags = &[(0x88a8, 1), (0x8100, 2)][..random(3)];
        let ip = &frames[random(frames.len())];
        let mut frame = crate::frame::ethernet(crate::frame::OWN, crate::frame::ROUTER, tags, ip);
        for _ in 0..random(4) {
            // Mostly in the headers, where it matters.
            let header = 12 + random(100);
            let at = random(frame.len().min(header));
            frame[at] = random(256) as u8;
        }
        frame.truncate(
            frame.len()
                - if random(4) == 0 {
                    random(frame.len() - 13)
                } else {
                    0
                },
        );
        let before = rig.counters();
        let (action, _) = rig.send(&frame);
        let after = rig.counters();
        let verdict = Verdict::ALL
            .into_iter()
            .find(|v| after == before.clone().plus(*v as usize, frame.len()))
            .unwrap_or_else(|| panic!("not one verdict for {:?}", crate::rig::hex(&frame)));
        assert_eq!(action, verdict.action() as u32, "{verdict:?}");
    }
}
