// SPDX-License-Identifier: Apache-2.0
//! Two tiers: a first-tier balancer sends by the number at the head of a token, and a
//! second-tier balancer takes what it sends out of the tunnel.

use std::net::IpAddr;

use causeway_core::cookie;
use causeway_dataplane::abi::{CookieResult, REAL_GUE, RealValue, Verdict};

use crate::frame::{ACK, Ip, RST, Tcp, Tuple, arriving, icmp, leaving, timestamp};
use crate::rig::{HASH_KEY, Rig, TCP, TUNNEL_SOURCE4, TUNNEL_SOURCE6, UDP, tunnel_real};
use crate::verdict_tests;

const VIPS: [(&str, &str); 2] = [
    ("198.51.100.7", "192.0.2.10"),
    ("2001:db8:c::7", "2001:db8::10"),
];
/// Second-tier balancers number 0, 1 and 3; a fourth one, number 2, is not there.
const NUMBERS: [(u16, u32); 3] = [(0, 4), (1, 5), (3, 6)];
const BALANCERS: [&str; 3] = ["10.1.0.4", "10.1.0.5", "fd00:1::6"];

/// A first tier of four.
pub(crate) struct First(Rig);

impl First {
    pub(crate) fn new() -> Self {
        let mut rig = Rig::new();
        for (id, address) in (4..).zip(BALANCERS) {
            rig.tunnel_real(id, address);
        }
        for (_, vip) in VIPS {
            rig.vip(5, vip, 80, TCP, &[4]);
            rig.tier((vip, 80), 2, &NUMBERS);
        }
        Self(rig)
    }

    pub(crate) fn counters(&self) -> crate::rig::Counters {
        self.0.counters()
    }
}

fn client(vip: &str, sport: u16) -> Tuple {
    let (client, vip) = VIPS.into_iter().find(|(_, known)| *known == vip).unwrap();
    Tuple::new(client, sport, vip, 80)
}

/// What a client sees of a token.
fn hidden(tuple: Tuple, token: u32) -> u32 {
    let tuple = cookie::Tuple::from(tuple);
    token ^ u32::from(tuple.token_mask(HASH_KEY))
}

/// A segment whose timestamp echoes one that ends in `token`, as its client sees it.
fn echo(tuple: Tuple, token: u32, flags: u8) -> Vec<u8> {
    let token = hidden(tuple, token);
    tuple.tcp(Tcp {
        flags,
        seq: 1001,
        ack: 1,
        options: &timestamp(101, 0x0123_0000 | token),
        payload: b"GET /",
    })
}

/// In bare IP to a balancer, as the first tier sends it. The flow label is the tuple's,
/// and taken from what was sent.
fn tunnelled(to: &str, inner: &[u8], sent: &[u8]) -> Vec<u8> {
    let to: IpAddr = to.parse().unwrap();
    let proto = if inner[0] >> 4 == 4 { 4 } else { 41 };
    let source = if to.is_ipv4() {
        TUNNEL_SOURCE4
    } else {
        TUNNEL_SOURCE6
    };
    let label = u32::from_be_bytes([0, sent[15] & 15, sent[16], sent[17]]);
    let outer = Ip {
        flow_label: if to.is_ipv4() { 0 } else { label },
        ..Ip::OUTER
    };
    leaving(&outer.packet(source.parse().unwrap(), to, proto, inner))
}

/// Whether the outer destination is this one.
fn sent_to(frame: &[u8], to: &str) -> bool {
    match to.parse().expect("an address") {
        IpAddr::V4(to) => frame[30..34] == to.octets(),
        IpAddr::V6(to) => frame[38..54] == to.octets(),
    }
}

fn expect_to(rig: &mut Rig, verdict: Verdict, to: &str, packet: &[u8]) {
    let (_, sent) = rig.send(&arriving(packet));
    rig.expect(verdict, &arriving(packet), &tunnelled(to, packet, &sent));
}

verdict_tests! { First, Verdict:
    Established a_token_leads_to_the_balancer_that_gave_it(first) {
        let rig = &mut first.0;
        for (_, vip) in VIPS {
            for ((number, _), to) in NUMBERS.into_iter().zip(BALANCERS) {
                for slot in [0, 1, 0x1fff] {
                    // Whatever is above the token, the epoch's bit among it, is not its own.
                    for above in [0, 0x8000] {
                        let token = u32::from(number) << 13 | slot | above;
                        expect_to(rig, Verdict::Established, to, &echo(client(vip, 4000), token, ACK));
                        expect_to(rig, Verdict::Established, to, &echo(client(vip, 4001), token, RST));
                    }
                }
                // Options in another order, which are walked.
                let token = hidden(client(vip, 4002), u32::from(number) << 13 | 5) as u16;
                let token = token.to_be_bytes();
                let options = [&[1u8, 1, 1, 1][..], &[8, 10, 0, 0, 0, 1, 0, 0], &token, &[1, 1]].concat();
                let packet = client(vip, 4002).tcp(Tcp { flags: ACK, seq: 1, ack: 1, options: &options, payload: b"x" });
                expect_to(rig, Verdict::Established, to, &packet);
            }
        }
        let counts = rig.cookie_counts(5);
        assert_eq!(counts, [(CookieResult::Tier, 2 * 2 * 3 * (3 * 2 * 2 + 1))]);
        assert_eq!(rig.flow(client(VIPS[0].1, 4000), TCP).map(|flow| flow.real), None, "nothing is remembered");
    }
    Established a_client_cannot_tell_which_balancer_a_token_names(first) {
        let rig = &mut first.0;
        for (_, vip) in VIPS {
            // The same echo of many connections, as of an attacker that aims at one balancer.
            let mut reached = [0; BALANCERS.len()];
            for sport in 5000..5400 {
                let token = hidden(client(vip, sport), 0);
                let frame = arriving(&echo(client(vip, sport), token, ACK));
                let (_, sent) = rig.send(&frame);
                let to = (0..).zip(BALANCERS).find(|(_, to)| sent_to(&sent, to));
                reached[to.map_or(0, |(n, _)| n)] += 1;
            }
            // Of four numbers one is not there, and goes by hash to the first.
            for (count, of_four) in reached.into_iter().zip([2, 1, 1]) {
                assert!((60 * of_four..150 * of_four).contains(&count), "{reached:?}");
            }
        }
    }
    Adopted a_number_that_no_balancer_has_goes_by_hash(first) {
        let rig = &mut first.0;
        for (_, vip) in VIPS {
            expect_to(rig, Verdict::Adopted, BALANCERS[0], &echo(client(vip, 4000), 2 << 13 | 7, ACK));
            // The one that has it comes, another one goes.
            rig.tier((vip, 80), 2, &[(2, 5)]);
            expect_to(rig, Verdict::Established, BALANCERS[1], &echo(client(vip, 4000), 2 << 13 | 7, ACK));
            rig.real(5, RealValue::default());
            expect_to(rig, Verdict::Adopted, BALANCERS[0], &echo(client(vip, 4000), 2 << 13 | 7, ACK));
            rig.tunnel_real(5, BALANCERS[1]);
            rig.forget_number(2);
        }
        assert_eq!(rig.cookie_counts(5), [(CookieResult::Tier, 4), (CookieResult::TierOther, 8)]);
    }
    Opened a_syn_is_picked_and_a_repeated_one_is_not_picked_anew(first) {
        let rig = &mut first.0;
        for (_, vip) in VIPS {
            let tuple = client(vip, 4000);
            let syn = tuple.tcp(Tcp { options: &timestamp(100, 0), ..Tcp::syn(1000) });
            let (_, sent) = rig.send(&arriving(&syn));
            assert_eq!(sent, tunnelled(BALANCERS[0], &syn, &sent));
            rig.vip(5, vip, 80, TCP, &[5]);
            rig.tier((vip, 80), 2, &NUMBERS);
            expect_to(rig, Verdict::SynAgain, BALANCERS[0], &syn);
            // Nor does a segment that carries no token yet miss it.
            expect_to(rig, Verdict::Adopted, BALANCERS[1], &client(vip, 4009).tcp(Tcp::ack(1001, 1)));
            expect_to(rig, Verdict::Established, BALANCERS[0], &tuple.tcp(Tcp::ack(1001, 1)));
            rig.vip(5, vip, 80, TCP, &[4]);
        }
    }
    Adopted clients_without_timestamps_go_by_hash_and_are_not_remembered(first) {
        let rig = &mut first.0;
        for (_, vip) in VIPS {
            let tuple = client(vip, 4000);
            let (_, sent) = rig.send(&arriving(&tuple.tcp(Tcp::syn(1000))));
            assert_eq!(sent, tunnelled(BALANCERS[0], &tuple.tcp(Tcp::syn(1000)), &sent));
            expect_to(rig, Verdict::Adopted, BALANCERS[0], &tuple.tcp(Tcp::ack(1001, 1)));
            assert!(rig.flow(tuple, TCP).is_none());
        }
    }
    IcmpError an_error_follows_the_word_that_it_quotes(first) {
        let rig = &mut first.0;
        for (_, vip) in VIPS {
            let tuple = client(vip, 4000);
            // The server's timestamp is the quoted packet's value, not its echo.
            let options = timestamp(0x0123_0000 | hidden(tuple, 1 << 13 | 9), 5);
            let quoted = tuple.reversed().tcp(Tcp { flags: ACK, seq: 1, ack: 1001, options: &options, payload: b"" });
            let (proto, kind, code) = if tuple.src.is_ipv4() { (1, 3, 4) } else { (58, 2, 0) };
            let body = icmp(tuple.src, tuple.dst, kind, code, [0, 0, 5, 120], &quoted);
            let error = Ip::CLIENT.packet(tuple.src, tuple.dst, proto, &body);
            expect_to(rig, Verdict::IcmpError, BALANCERS[1], &error);
        }
        assert_eq!(rig.cookie_counts(5), [(CookieResult::Quoted, 4)]);
    }
}

const ENDS: [&str; 2] = ["10.9.1.1", "fd00:9:1::1"];
const FIRST: [&str; 2] = ["10.9.0.7", "fd00:9::7"];
const REALS: [&str; 2] = ["10.1.0.10", "fd00:1::10"];

/// A second tier whose VIPs have one real each, of the VIP's family.
pub(crate) struct Second(Rig);

impl Second {
    pub(crate) fn new() -> Self {
        let mut rig = Rig::second_tier(ENDS, [("10.9.0.0", 24), (FIRST[1], 128)]);
        for (i, (_, vip)) in (0..).zip(VIPS) {
            rig.tunnel_real(i, REALS[i as usize]);
            rig.vip(i, vip, 80, TCP, &[i]);
        }
        Self(rig)
    }

    pub(crate) fn counters(&self) -> crate::rig::Counters {
        self.0.counters()
    }
}

/// What a first tier sends: `inner` behind an outer header to `end`, in bare IP or GUE.
fn sent_by_first(end: &str, gue: bool, tos: u8, inner: &[u8]) -> Vec<u8> {
    let end: IpAddr = end.parse().unwrap();
    let from: IpAddr = FIRST[usize::from(end.is_ipv6())].parse().unwrap();
    let outer = Ip { tos, ..Ip::OUTER };
    if !gue {
        let proto = if inner[0] >> 4 == 4 { 4 } else { 41 };
        return outer.packet(from, end, proto, inner);
    }
    let mut udp = [0xc123u16.to_be_bytes(), 6080u16.to_be_bytes()].concat();
    udp.extend(((8 + inner.len()) as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(inner);
    outer.packet(from, end, UDP, &udp)
}

/// Every way to be sent here.
fn ways() -> impl Iterator<Item = (&'static str, bool)> {
    ENDS.into_iter().flat_map(|end| [(end, false), (end, true)])
}

fn ack(vip: &str) -> Vec<u8> {
    client(vip, 4000).tcp(Tcp {
        payload: b"GET /",
        ..Tcp::ack(1001, 1)
    })
}

pub(crate) mod second {
    use super::*;

    /// The frame counts as it is when the tunnel is off: its length is the inner one's.
    fn expect_inner(rig: &mut Rig, verdict: Verdict, frame: &[u8], inner: &[u8], out: &[u8]) {
        let before = rig.counters();
        let (action, after) = rig.send(frame);
        assert_eq!(
            rig.counters(),
            before.plus(verdict as usize, 14 + inner.len())
        );
        assert_eq!(action, verdict.action() as u32);
        if !out.is_empty() {
            assert_eq!(crate::rig::hex(&after), crate::rig::hex(out));
        }
    }

    verdict_tests! { Second, Verdict:
        Established what_comes_in_a_tunnel_is_balanced_as_if_it_had_come_by_itself(second) {
            let rig = &mut second.0;
            for (_, vip) in VIPS {
                let inner = ack(vip);
                rig.send(&arriving(&inner));
                let (_, bare) = rig.send(&arriving(&inner));
                for (end, gue) in ways() {
                    let frame = arriving(&sent_by_first(end, gue, 0, &inner));
                    expect_inner(rig, Verdict::Established, &frame, &inner, &bare);
                }
            }
            let flow = rig.flow(client(VIPS[0].1, 4000), TCP).expect("a flow");
            assert_eq!(flow.real, 0);
        }
        Congested a_mark_that_cannot_be_told_drops(second) {
            let rig = &mut second.0;
            for (_, vip) in VIPS {
                for (end, gue) in ways() {
                    let frame = arriving(&sent_by_first(end, gue, 3, &ack(vip)));
                    rig.expect(Verdict::Congested, &frame, &[]);
                }
            }
            // A capable one is marked, and its DSCP stays its own.
            let mut inner = ack(VIPS[1].1);
            inner[1] |= 2 << 4;
            rig.send(&arriving(&inner));
            let mut marked = inner.clone();
            marked[1] |= 3 << 4;
            let (_, bare) = rig.send(&arriving(&marked));
            let frame = arriving(&sent_by_first(ENDS[0], false, 3, &inner));
            expect_inner(rig, Verdict::Established, &frame, &inner, &bare);
        }
        Malformed an_inner_packet_that_is_none_drops(second) {
            let rig = &mut second.0;
            let mut inner = ack(VIPS[0].1);
            inner[0] = 0x55;
            for end in ENDS {
                let frame = arriving(&Ip::OUTER.packet(
                    FIRST[usize::from(end.contains(':'))].parse().unwrap(), end.parse().unwrap(), 4, &inner));
                rig.expect(Verdict::Malformed, &frame, &[]);
            }
        }
        NotVip tunnels_to_others_and_what_is_no_tunnel_go_on_as_they_came(second) {
            let rig = &mut second.0;
            let inner = ack(VIPS[0].1);
            for end in ["10.9.1.2", "fd00:9:1::2"] {
                for gue in [false, true] {
                    rig.expect_untouched(Verdict::NotVip, &arriving(&sent_by_first(end, gue, 0, &inner)));
                }
            }
            let ssh = Tuple::new(FIRST[0], 4000, ENDS[0], 22).tcp(Tcp::ack(1, 1));
            rig.expect_untouched(Verdict::NotVip, &arriving(&ssh));
        }
        TunnelRefused tunnels_are_opened_from_a_first_tier_alone(second) {
            let rig = &mut second.0;
            for (from, end) in [("10.9.1.7", ENDS[0]), ("fd00:9::8", ENDS[1])] {
                let (from, end): (IpAddr, IpAddr) = (from.parse().unwrap(), end.parse().unwrap());
                let bare = Ip::OUTER.packet(from, end, 4, &ack(VIPS[0].1));
                rig.expect(Verdict::TunnelRefused, &arriving(&bare), &[]);
                let tuple = Tuple { src: from, dst: end, sport: 50_000, dport: 6080 };
                rig.expect(Verdict::TunnelRefused, &arriving(&tuple.udp(&ack(VIPS[0].1))), &[]);
            }
        }
        InnerNotVip nothing_but_clients_packets_comes_out_of_a_tunnel(second) {
            let rig = &mut second.0;
            for (end, gue) in ways() {
                for (from, to) in [("198.51.100.7", ENDS[0]), ("198.51.100.7", "10.0.0.1"), ("2001:db8:c::7", ENDS[1])] {
                    let inner = Tuple::new(from, 4000, to, 22).tcp(Tcp::syn(1));
                    rig.expect(Verdict::InnerNotVip, &arriving(&sent_by_first(end, gue, 0, &inner)), &[]);
                }
            }
        }
        InnerSpoofed nothing_in_a_tunnel_comes_from_a_vip_or_its_end(second) {
            let rig = &mut second.0;
            for ((end, from), vip) in [(ENDS[0], ENDS[0]), (ENDS[1], ENDS[1]), (ENDS[0], VIPS[1].1)].into_iter()
                .zip([VIPS[0].1, VIPS[1].1, VIPS[1].1]) {
                let inner = Tuple::new(from, 4000, vip, 80).tcp(Tcp::syn(1));
                rig.expect(Verdict::InnerSpoofed, &arriving(&sent_by_first(end, false, 0, &inner)), &[]);
            }
        }
    }

    #[test]
    fn without_tunnel_ends_no_tunnel_is_opened() {
        let mut rig = Rig::new();
        rig.tunnel_real(0, REALS[0]);
        rig.vip(0, VIPS[0].1, 80, TCP, &[0]);
        for (end, gue) in ways() {
            let frame = arriving(&sent_by_first(end, gue, 0, &ack(VIPS[0].1)));
            rig.expect_untouched(Verdict::NotVip, &frame);
        }
    }
}

/// GUE to second-tier balancers is like GUE to servers; only the address differs.
#[test]
fn a_first_tier_may_send_in_gue() {
    let mut rig = First::new().0;
    let plain = tunnel_real(BALANCERS[1]);
    rig.real(
        5,
        RealValue {
            flags: plain.flags | REAL_GUE,
            ..plain
        },
    );
    let packet = echo(client(VIPS[0].1, 4000), 1 << 13 | 7, ACK);
    let (_, sent) = rig.send(&arriving(&packet));
    assert_eq!(sent[14 + 9], UDP);
    assert_eq!(sent[14 + 16..14 + 20], [10, 1, 0, 5]);
    assert_eq!(sent[14 + 20 + 8..], packet[..]);
}
