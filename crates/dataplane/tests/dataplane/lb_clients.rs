// SPDX-License-Identifier: Apache-2.0
//! What goes by the client's prefix: reals of its own, and a limit of new flows.

use std::time::{Duration, Instant};

use causeway_core::cookie::{CookieKey, KeyEpoch, Keys};
use causeway_dataplane::FlowLimit;
use causeway_dataplane::abi::{CookieResult, VIP_FORGET, Verdict};

use crate::frame::{ACK, Ip, Tcp, Tuple, arriving, leaving, timestamp};
use crate::rig::{Rig, TCP, TUNNEL_SOURCE4, UDP};
use crate::verdict_tests;

const VIP4: &str = "192.0.2.10";
const VIP6: &str = "2001:db8::10";
const ID4: u32 = 5;
const ID6: u32 = 6;
/// All of IPv4, so that outer headers are alike.
const REALS: [&str; 4] = ["10.1.0.10", "10.1.0.11", "10.1.0.12", "10.1.0.13"];

fn vips(rig: &mut Rig, proto: u8) {
    for (id, real) in (0..).zip(REALS) {
        rig.tunnel_real(id, real);
    }
    rig.vip(ID4, VIP4, 80, proto, &[0]);
    rig.vip(ID6, VIP6, 80, proto, &[0]);
}

fn from(client: &str, sport: u16) -> Tuple {
    let vip = if client.contains(':') { VIP6 } else { VIP4 };
    Tuple::new(client, sport, vip, 80)
}

fn expect(rig: &mut Rig, verdict: Verdict, real: &str, packet: &[u8]) {
    let proto = if packet[0] >> 4 == 4 { 4 } else { 41 };
    let source = TUNNEL_SOURCE4.parse().unwrap();
    let outer = Ip::OUTER.packet(source, real.parse().unwrap(), proto, packet);
    rig.expect(verdict, &arriving(packet), &leaving(&outer));
}

fn opens(rig: &mut Rig, client: &str, real: &str) {
    static PORT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(2000);
    let port = PORT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let syn = from(client, port).tcp(Tcp::syn(1000));
    expect(rig, Verdict::Opened, real, &syn);
}

/// Prefixes of both families: a network, a part of it, one host of that.
fn sources(rig: &mut Rig) {
    rig.source_group(0, &[1], false);
    rig.source_group(1, &[2], false);
    rig.source_group(2, &[3], false);
    for (vip, address, lengths) in [
        (ID4, "198.51.100.0", [24, 25, 32]),
        (ID6, "2001:db8:c::", [48, 64, 128]),
    ] {
        for (group, length) in (0..).zip(lengths) {
            rig.source(vip, (address, length), group);
        }
    }
}

verdict_tests! { Rig, Verdict:
    Opened the_longest_prefix_of_a_client_decides(rig) {
        vips(rig, TCP);
        // Without its flag a VIP does not ask.
        sources(rig);
        opens(rig, "198.51.100.0", REALS[0]);
        rig.change_vip(VIP4, 80, TCP, |vip| vip.flags |= causeway_dataplane::abi::VIP_SOURCES);
        rig.change_vip(VIP6, 80, TCP, |vip| vip.flags |= causeway_dataplane::abi::VIP_SOURCES);
        for (client, real) in [
            ("198.51.100.200", REALS[1]), ("198.51.100.7", REALS[2]), ("198.51.100.0", REALS[3]),
            ("198.51.101.0", REALS[0]),
            ("2001:db8:c:1::7", REALS[1]), ("2001:db8:c::7", REALS[2]), ("2001:db8:c::", REALS[3]),
            ("2001:db8:d::", REALS[0]),
        ] {
            opens(rig, client, real);
        }
        assert_eq!([0, 1, 2].map(|group| rig.source_picks(group)), [2, 2, 2]);
    }
    Established a_known_flow_does_not_ask_for_its_prefix(rig) {
        vips(rig, TCP);
        let tuple = from("198.51.100.0", 4000);
        expect(rig, Verdict::Opened, REALS[0], &tuple.tcp(Tcp::syn(1000)));
        sources(rig);
        rig.change_vip(VIP4, 80, TCP, |vip| vip.flags |= causeway_dataplane::abi::VIP_SOURCES);
        expect(rig, Verdict::Established, REALS[0], &tuple.tcp(Tcp::ack(1001, 1)));
    }
    Adopted without_memory_every_packet_asks(rig) {
        vips(rig, TCP);
        sources(rig);
        rig.change_vip(VIP4, 80, TCP, |vip| vip.flags |= causeway_dataplane::abi::VIP_SOURCES | VIP_FORGET);
        let tuple = from("198.51.100.0", 4000);
        expect(rig, Verdict::Opened, REALS[3], &tuple.tcp(Tcp::syn(1000)));
        expect(rig, Verdict::Adopted, REALS[3], &tuple.tcp(Tcp::ack(1001, 1)));
    }
    NoReal a_group_without_reals_falls_back_or_drops(rig) {
        vips(rig, TCP);
        rig.source(ID4, ("198.51.100.0", 24), 0);
        rig.change_vip(VIP4, 80, TCP, |vip| vip.flags |= causeway_dataplane::abi::VIP_SOURCES);
        rig.source_group(0, &[], false);
        opens(rig, "198.51.100.9", REALS[0]);
        rig.source_group(0, &[], true);
        let syn = from("198.51.100.9", 4000).tcp(Tcp::syn(1000));
        rig.expect(Verdict::NoReal, &arriving(&syn), &[]);
        opens(rig, "203.0.113.9", REALS[0]);
    }
    Opened a_syn_with_timestamps_asks_too_and_its_cookie_does_not(rig) {
        vips(rig, TCP);
        sources(rig);
        let keys = Keys::new(KeyEpoch::Zero, CookieKey::from_bytes([7; 16]), None);
        rig.cookies((VIP4, 80), &keys, &[(1, 0)]);
        rig.change_vip(VIP4, 80, TCP, |vip| vip.flags |= causeway_dataplane::abi::VIP_SOURCES | VIP_FORGET);
        let tuple = from("198.51.100.0", 4000);
        let syn = tuple.tcp(Tcp { options: &timestamp(1, 0), ..Tcp::syn(1000) });
        expect(rig, Verdict::Opened, REALS[3], &syn);
        expect(rig, Verdict::SynAgain, REALS[3], &syn);
    }
    RateLimited a_prefix_may_open_its_burst_and_no_more(rig) {
        vips(rig, TCP);
        // One in 1,000 s: a slow machine does not fill it.
        rig.limit((VIP4, 80, TCP), ID4, FlowLimit::new(0.001, 3, 24, 64).unwrap());
        rig.limit((VIP6, 80, TCP), ID6, FlowLimit::new(0.001, 3, 24, 64).unwrap());
        for (near, far) in [("198.51.100.", "198.51.101.1"), ("2001:db8:c::", "2001:db8:c:1::1")] {
            for host in 1..=3 {
                opens(rig, &format!("{near}{host}"), REALS[0]);
            }
            for host in [1, 200] {
                let syn = from(&format!("{near}{host}"), 9).tcp(Tcp::syn(1));
                rig.expect(Verdict::RateLimited, &arriving(&syn), &[]);
                let syn = from(&format!("{near}{host}"), 9).tcp(Tcp { options: &timestamp(1, 0), ..Tcp::syn(1) });
                rig.expect(Verdict::RateLimited, &arriving(&syn), &[]);
            }
            // Another prefix has a burst of its own.
            opens(rig, far, REALS[0]);
        }
    }
    Established what_is_open_is_never_limited(rig) {
        vips(rig, TCP);
        rig.limit((VIP4, 80, TCP), ID4, FlowLimit::new(0.001, 1, 32, 64).unwrap());
        let tuple = from("198.51.100.7", 4000);
        expect(rig, Verdict::Opened, REALS[0], &tuple.tcp(Tcp::syn(1000)));
        expect(rig, Verdict::SynAgain, REALS[0], &tuple.tcp(Tcp::syn(1000)));
        for n in 0..20 {
            let packet = tuple.tcp(Tcp { flags: ACK, seq: 1001 + n, ack: 1, options: &[], payload: b"x" });
            expect(rig, Verdict::Established, REALS[0], &packet);
        }
        // Nor what is older than the table's memory of it: it opens nothing.
        rig.forget_flows();
        expect(rig, Verdict::Adopted, REALS[0], &tuple.tcp(Tcp::ack(1100, 1)));
    }
    RateLimited datagrams_of_new_flows_are_limited(rig) {
        vips(rig, UDP);
        rig.limit((VIP4, 80, UDP), ID4, FlowLimit::new(0.001, 2, 32, 64).unwrap());
        let packet = |port| from("198.51.100.7", port).udp(b"?");
        for port in [1, 2] {
            expect(rig, Verdict::FirstDatagram, REALS[0], &packet(port));
        }
        rig.expect(Verdict::RateLimited, &arriving(&packet(3)), &[]);
        expect(rig, Verdict::Established, REALS[0], &packet(1));
    }
    RateLimited a_syn_with_a_cookie_s_timestamp_is_limited(rig) {
        vips(rig, TCP);
        let keys = Keys::new(KeyEpoch::Zero, CookieKey::from_bytes([7; 16]), None);
        rig.cookies((VIP4, 80), &keys, &[(1, 0)]);
        rig.change_vip(VIP4, 80, TCP, |vip| vip.flags |= VIP_FORGET);
        rig.limit((VIP4, 80, TCP), ID4, FlowLimit::new(0.001, 1, 32, 64).unwrap());
        let syn = |port| from("198.51.100.7", port).tcp(Tcp { options: &timestamp(1, 0), ..Tcp::syn(1000) });
        expect(rig, Verdict::Opened, REALS[0], &syn(1));
        expect(rig, Verdict::SynAgain, REALS[0], &syn(1));
        rig.expect(Verdict::RateLimited, &arriving(&syn(2)), &[]);
        // Nor is one without timestamps let in; and neither counts as a connection.
        let plain = from("198.51.100.7", 3).tcp(Tcp::syn(1000));
        rig.expect(Verdict::RateLimited, &arriving(&plain), &[]);
        let counts = [(CookieResult::Syn, 1), (CookieResult::SynAgain, 1)];
        assert_eq!(rig.cookie_counts(ID4), counts);
    }
    Opened the_budget_fills_with_the_time(rig) {
        vips(rig, TCP);
        rig.limit((VIP4, 80, TCP), ID4, FlowLimit::new(4.0, 1, 32, 64).unwrap());
        let syn = |port: u16| arriving(&from("198.51.100.7", port).tcp(Tcp::syn(1000)));
        let start = Instant::now();
        let mut let_in = 0;
        // A first one at once, and one in each quarter of a second.
        for port in 1.. {
            let_in += u32::from(rig.send(&syn(port)).0 == Verdict::Opened.action() as u32);
            // Nothing is let in while this stands still: one waits at most.
            let elapsed = start.elapsed();
            if elapsed > Duration::from_millis(900) && (let_in >= 3 || elapsed.as_secs() > 30) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let most = start.elapsed().as_secs_f64() * 4.0 + 1.0;
        assert!((3..=most.ceil() as u32).contains(&let_in), "{let_in} of at most {most:.1}");
    }
}

/// Eight prefixes share a cache line; a ninth takes the place of who owes least.
#[test]
fn a_crowd_of_prefixes_is_told_apart() {
    let mut rig = Rig::new();
    vips(&mut rig, TCP);
    let limit = FlowLimit::new(0.001, 1, 32, 64).unwrap();
    rig.limit((VIP4, 80, TCP), ID4, limit);
    let clients = 4000_u32;
    let syn = |client: u32, port| {
        let client = std::net::Ipv4Addr::from(0x0a64_0000 + client).to_string();
        arriving(&from(&client, port).tcp(Tcp::syn(1000)))
    };
    let tx = Verdict::Opened.action() as u32;
    let let_in = |rig: &mut Rig, port| {
        (0..clients)
            .filter(|client| rig.send(&syn(*client, port)).0 == tx)
            .count()
    };
    assert_eq!(let_in(&mut rig, 1), clients as usize);
    assert_eq!(let_in(&mut rig, 2), 0, "of 65,536 places 4,000 are taken");
}

/// What was written long ago must not look as if it were due far ahead: it would never make
/// room, and live prefixes would evict each other.
#[test]
fn old_prefixes_make_room() {
    let mut rig = Rig::new();
    vips(&mut rig, TCP);
    let limit = FlowLimit::new(0.001, 1, 32, 64).unwrap();
    rig.limit((VIP4, 80, TCP), ID4, limit);
    rig.fill_limits(Duration::from_secs(6 * 86_400));
    let syn = |client: u32, port| {
        let client = std::net::Ipv4Addr::from(0x0a64_0000 + client).to_string();
        arriving(&from(&client, port).tcp(Tcp::syn(1000)))
    };
    let tx = Verdict::Opened.action() as u32;
    let mut let_in = |port| {
        let sent = (0..2000).map(|client| rig.send(&syn(client, port)).0);
        sent.filter(|action| *action == tx).count()
    };
    assert_eq!((let_in(1), let_in(2)), (2000, 0));
}
