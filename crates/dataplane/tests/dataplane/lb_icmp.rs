// SPDX-License-Identifier: Apache-2.0
//! Echo requests to a VIP, and ICMP errors that quote a flow.

use causeway_dataplane::abi::Verdict;

use crate::frame::{Ip, Tcp, Tuple, arriving, icmp, leaving};
use crate::rig::{Rig, TCP, TUNNEL_SOURCE4, UDP};
use crate::verdict_tests;

const REAL0: &str = "10.1.0.10";
const REAL1: &str = "10.1.0.11";

/// A client of each family, with the VIP; and the routers that errors come from.
const CLIENTS: [(&str, &str, &str); 2] = [
    ("198.51.100.7", "192.0.2.10", "203.0.113.1"),
    ("2001:db8:c::7", "2001:db8::10", "2001:db8:f::1"),
];

struct Numbers {
    proto: u8,
    echo: u8,
    reply: u8,
    errors: &'static [u8],
    other: u8,
}

fn numbers(tuple: Tuple) -> Numbers {
    if tuple.src.is_ipv4() {
        Numbers {
            proto: 1,
            echo: 8,
            reply: 0,
            errors: &[3, 11, 12],
            other: 13,
        }
    } else {
        Numbers {
            proto: 58,
            echo: 128,
            reply: 129,
            errors: &[1, 2, 3, 4],
            other: 139,
        }
    }
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

fn serve(rig: &mut Rig, vip: &str) {
    rig.tunnel_real(0, REAL0);
    rig.tunnel_real(1, REAL1);
    rig.vip(0, vip, 80, TCP, &[0]);
    rig.vip(1, vip, 53, UDP, &[0]);
}

/// An error from `router` to the VIP that quotes `quoted`.
fn error(router: &str, tuple: Tuple, kind: u8, quoted: &[u8]) -> Vec<u8> {
    let router = router.parse().unwrap();
    let body = icmp(router, tuple.dst, kind, 0, [0; 4], quoted);
    Ip::CLIENT.packet(router, tuple.dst, numbers(tuple).proto, &body)
}

verdict_tests! { Rig, Verdict:
    EchoAnswered a_vip_answers_echo_requests(rig) {
        for (client, vip, _) in CLIENTS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 0, vip, 0);
            let Numbers { proto, echo, reply, .. } = numbers(tuple);
            let (src, dst) = (tuple.src, tuple.dst);
            for body in [&b"abcdefgh"[..], &[0xff; 56], &[0; 1400]] {
                let request = Ip::CLIENT.packet(src, dst, proto, &icmp(src, dst, echo, 0, [1, 2, 3, 4], body));
                let ip = Ip { ttl: 64, ..Ip::CLIENT };
                let answer = ip.packet(dst, src, proto, &icmp(dst, src, reply, 0, [1, 2, 3, 4], body));
                rig.expect(Verdict::EchoAnswered, &arriving(&request), &leaving(&answer));
            }
        }
    }
    NotVip other_echo_requests_are_the_kernels(rig) {
        for (client, vip, router) in CLIENTS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 0, router, 0);
            let Numbers { proto, echo, .. } = numbers(tuple);
            let message = icmp(tuple.src, tuple.dst, echo, 0, [0; 4], b"abcd");
            let request = Ip::CLIENT.packet(tuple.src, tuple.dst, proto, &message);
            rig.expect_untouched(Verdict::NotVip, &arriving(&request));
        }
    }
    IcmpError an_error_follows_its_flow(rig) {
        for (client, vip, router) in CLIENTS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 4000, vip, 80);
            let syn = tuple.tcp(Tcp::syn(1));
            rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL0, &syn));
            // The pool has changed since; the flow has not.
            rig.vip(0, vip, 80, TCP, &[1]);
            let response = tuple.reversed().tcp(Tcp { payload: &[7; 500], ..Tcp::ack(9, 2) });
            let ip_len = if tuple.src.is_ipv4() { 20 } else { 40 };
            for kind in numbers(tuple).errors {
                for quoted in [&response[..], &response[..ip_len + 8]] {
                    let error = error(router, tuple, *kind, quoted);
                    rig.expect(Verdict::IcmpError, &arriving(&error), &tunnelled(REAL0, &error));
                }
            }
            assert_eq!(rig.flow(tuple, TCP).expect("entry").bits, 1, "the error closes nothing");
        }
    }
    IcmpError without_an_entry_it_goes_by_the_ring_and_makes_none(rig) {
        for (client, vip, router) in CLIENTS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 4000, vip, 53);
            let error = error(router, tuple, 3, &tuple.reversed().udp(b"answer"));
            rig.expect(Verdict::IcmpError, &arriving(&error), &tunnelled(REAL0, &error));
            assert!(rig.flow(tuple, UDP).is_none());
        }
    }
    IcmpError ipv4_options_in_the_quote(rig) {
        let (client, vip, router) = CLIENTS[0];
        serve(rig, vip);
        let tuple = Tuple::new(client, 4000, vip, 80);
        let ip = Ip { options: &[1; 40], ..Ip::CLIENT };
        let segment = tuple.reversed().tcp_segment(Tcp::ack(1, 1));
        let error = error(router, tuple, 3, &ip.packet(tuple.dst, tuple.src, TCP, &segment));
        rig.expect(Verdict::IcmpError, &arriving(&error), &tunnelled(REAL0, &error));
    }
    NotServed an_error_about_no_vips_port_goes_nowhere(rig) {
        for (client, vip, router) in CLIENTS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 4000, vip, 81);
            let error = error(router, tuple, 3, &tuple.reversed().tcp(Tcp::ack(1, 1)));
            rig.expect(Verdict::NotServed, &arriving(&error), &[]);
        }
    }
    IcmpOther neighbour_discovery_is_the_kernels(rig) {
        let (client, vip, router) = CLIENTS[1];
        serve(rig, vip);
        for kind in [133, 135, 136, 137] {
            let solicitation = error(router, Tuple::new(client, 4000, vip, 80), kind, &[0; 20]);
            rig.expect_untouched(Verdict::IcmpOther, &arriving(&solicitation));
        }
    }
    NotServed what_is_neither_goes_nowhere_unless_the_host_wants_it(rig) {
        for (client, vip, router) in CLIENTS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 4000, vip, 80);
            let response = tuple.reversed().tcp(Tcp::ack(1, 1));
            let foreign = tuple.tcp(Tcp::ack(1, 1)); // was not sent by the VIP
            let Numbers { proto, other, .. } = numbers(tuple);
            let icmp_in_quote = Ip::CLIENT.packet(tuple.dst, tuple.src, proto, &[0; 16]);
            for (kind, quoted) in [
                (other, &response[..]),
                (3, &foreign),
                (3, &response[..16]),
                (3, &response[..if tuple.src.is_ipv4() { 27 } else { 47 }]),
                (3, &icmp_in_quote),
                (3, &[]),
            ] {
                let frame = arriving(&error(router, tuple, kind, quoted));
                rig.set_ctl(|_| ());
                rig.expect(Verdict::NotServed, &frame, &[]);
                rig.set_ctl(|ctl| ctl.pass_unserved = 1);
                rig.expect_untouched(Verdict::IcmpOther, &frame);
            }
        }
    }
    NotServed a_quoted_later_fragment_has_no_ports(rig) {
        let (client, vip, router) = CLIENTS[0];
        serve(rig, vip);
        let tuple = Tuple::new(client, 4000, vip, 80);
        let segment = tuple.reversed().tcp_segment(Tcp::ack(1, 1));
        let first = Ip { more_fragments: true, dont_fragment: false, ..Ip::CLIENT };
        let quote = first.packet(tuple.dst, tuple.src, TCP, &segment);
        let whole = error(router, tuple, 3, &quote);
        rig.expect(Verdict::IcmpError, &arriving(&whole), &tunnelled(REAL0, &whole));
        let later = Ip { fragment_offset: 185, ..first };
        let quote = later.packet(tuple.dst, tuple.src, TCP, &segment);
        rig.expect(Verdict::NotServed, &arriving(&error(router, tuple, 3, &quote)), &[]);
    }
    NotServed padding_is_no_part_of_a_quote(rig) {
        for (client, vip, router) in CLIENTS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 4000, vip, 80);
            let ip_len = if tuple.src.is_ipv4() { 20 } else { 40 };
            let response = tuple.reversed().tcp(Tcp::ack(1, 1));
            let mut frame = arriving(&error(router, tuple, 3, &response[..ip_len + 7]));
            frame.extend(&response[ip_len + 7..]);
            rig.expect(Verdict::NotServed, &frame, &[]);
        }
    }
    Malformed a_truncated_header(rig) {
        for (client, vip, _) in CLIENTS {
            serve(rig, vip);
            let tuple = Tuple::new(client, 0, vip, 0);
            let Numbers { proto, echo, .. } = numbers(tuple);
            let packet = Ip::CLIENT.packet(tuple.src, tuple.dst, proto, &[echo, 0, 0, 0, 0, 0]);
            rig.expect(Verdict::Malformed, &arriving(&packet), &[]);
        }
    }
}
