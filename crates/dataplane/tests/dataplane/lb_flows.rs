// SPDX-License-Identifier: Apache-2.0
//! Which real a packet goes to: new, known, repeated, adopted and moved flows.

use std::hash::Hasher;
#[expect(
    deprecated,
    reason = "the one SipHash-2-4 with a key in the standard library"
)]
use std::hash::SipHasher;
use std::net::IpAddr;

use causeway_dataplane::abi::{REAL_DOWN, REAL_PRESENT, RealValue, Verdict};

use crate::frame::{ACK, FIN, Ip, RST, SYN, Tcp, Tuple, arriving, leaving};
use crate::rig::{HASH_KEY, Rig, TCP, TUNNEL_SOURCE4, UDP, tunnel_real};
use crate::verdict_tests;

const VIP: &str = "192.0.2.10";
const REAL0: &str = "10.1.0.10";
const REAL1: &str = "10.1.0.11";

fn client(port: u16) -> Tuple {
    Tuple::new("198.51.100.7", port, VIP, 80)
}

/// The packet in an outer header to `real`.
fn tunnelled(real: &str, inner: &[u8]) -> Vec<u8> {
    leaving(&Ip::OUTER.packet(
        TUNNEL_SOURCE4.parse().unwrap(),
        real.parse().unwrap(),
        4,
        inner,
    ))
}

fn one_real(rig: &mut Rig) {
    rig.tunnel_real(3, REAL0);
    rig.vip(5, VIP, 80, TCP, &[3]);
}

/// Opens the client's connection to the real 3.
fn open(rig: &mut Rig, tuple: Tuple) {
    let syn = tuple.tcp(Tcp::syn(1000));
    rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL0, &syn));
}

verdict_tests! { Rig, Verdict:
    Opened a_syn_picks_and_is_remembered(rig) {
        one_real(rig);
        let syn = client(4000).tcp(Tcp::syn(1000));
        rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL0, &syn));
        let flow = rig.flow(client(4000), TCP).expect("entry");
        assert_eq!((flow.real, flow.vip, flow.isn, flow.bits), (3, 5, 1000, 1));
        let stats = rig.real_stats(3);
        let frame_len = arriving(&syn).len() as u64;
        assert_eq!((stats.packets, stats.bytes, stats.conns_opened, stats.conns_closed), (1, frame_len, 1, 0));
        let vip = rig.vip_stats(5);
        assert_eq!((vip.packets, vip.bytes), (1, frame_len));
    }
    Established a_known_flow_stays_when_the_ring_changes(rig) {
        one_real(rig);
        open(rig, client(4000));
        rig.tunnel_real(4, REAL1);
        rig.vip(5, VIP, 80, TCP, &[4]);
        let ack = client(4000).tcp(Tcp::ack(1001, 1));
        rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL0, &ack));
        let other = client(4001).tcp(Tcp::syn(1));
        rig.expect(Verdict::Opened, &arriving(&other), &tunnelled(REAL1, &other));
    }
    SynAgain a_repeated_syn_keeps_its_real(rig) {
        one_real(rig);
        open(rig, client(4000));
        rig.tunnel_real(4, REAL1);
        rig.vip(5, VIP, 80, TCP, &[4]);
        let syn = client(4000).tcp(Tcp::syn(1000));
        rig.expect(Verdict::SynAgain, &arriving(&syn), &tunnelled(REAL0, &syn));
        assert_eq!(rig.real_stats(3).conns_opened, 1);
    }
    FirstDatagram a_datagram_after_long_silence_is_a_first_one(rig) {
        rig.tunnel_real(3, REAL0);
        rig.vip(5, VIP, 80, UDP, &[3]);
        let packet = client(4000).udp(b"hello");
        rig.expect(Verdict::FirstDatagram, &arriving(&packet), &tunnelled(REAL0, &packet));
        rig.tunnel_real(4, REAL1);
        rig.vip(5, VIP, 80, UDP, &[4]);
        rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(REAL0, &packet));
        rig.end_flows();
        rig.expect(Verdict::FirstDatagram, &arriving(&packet), &tunnelled(REAL1, &packet));
        rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(REAL1, &packet));
        assert_eq!(rig.flow(client(4000), UDP).expect("one entry").real, 4, "in its old place");
    }
    Established a_tcp_connection_whose_place_is_offered_lives_on(rig) {
        one_real(rig);
        open(rig, client(4000));
        rig.tunnel_real(4, REAL1);
        rig.vip(5, VIP, 80, TCP, &[4]);
        rig.end_flows();
        let ack = client(4000).tcp(Tcp::ack(1001, 1));
        rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL0, &ack));
    }
    Opened a_syn_after_long_silence_is_a_new_pick(rig) {
        // Sent again, and of another connection.
        for (port, seq) in [(4000, 1000), (4001, 77)] {
            one_real(rig);
            open(rig, client(port));
            rig.tunnel_real(4, REAL1);
            rig.vip(5, VIP, 80, TCP, &[4]);
            rig.end_flows();
            let syn = client(port).tcp(Tcp::syn(seq));
            rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL1, &syn));
            rig.expect(Verdict::SynAgain, &arriving(&syn), &tunnelled(REAL1, &syn));
            let ack = client(port).tcp(Tcp::ack(seq + 1, 1));
            rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL1, &ack));
            assert_eq!(rig.flow(client(port), TCP).expect("one entry").real, 4, "in its old place");
        }
    }
    Opened a_tuple_that_opens_again_is_there_once(rig) {
        one_real(rig);
        // Some first buckets have few empty slots left by then, and their second ones more.
        let ports = 1000..2000;
        for port in ports.clone() {
            open(rig, client(port));
        }
        rig.end_flows();
        rig.tunnel_real(4, REAL1);
        rig.vip(5, VIP, 80, TCP, &[4]);
        for port in ports {
            let (syn, ack) = (client(port).tcp(Tcp::syn(77)), client(port).tcp(Tcp::ack(78, 1)));
            rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL1, &syn));
            rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL1, &ack));
        }
    }
    Opened a_real_that_is_down_keeps_its_connections_and_no_syn(rig) {
        for (port, seq) in [(4000, 1000), (4001, 77)] {
            one_real(rig);
            open(rig, client(port));
            rig.tunnel_real(4, REAL1);
            rig.vip(5, VIP, 80, TCP, &[4]);
            rig.real(3, RealValue { flags: REAL_PRESENT | REAL_DOWN, ..tunnel_real(REAL0) });
            let ack = client(port).tcp(Tcp::ack(1001, 1));
            rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL0, &ack));
            let syn = client(port).tcp(Tcp::syn(seq));
            rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL1, &syn));
            rig.expect(Verdict::SynAgain, &arriving(&syn), &tunnelled(REAL1, &syn));
            let ack = client(port).tcp(Tcp::ack(seq + 1, 1));
            rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL1, &ack));
        }
        // What the ring gives it is its.
        rig.vip(5, VIP, 80, TCP, &[3]);
        open(rig, client(4002));
    }
    Opened another_isn_does_not_move_a_live_connection(rig) {
        one_real(rig);
        open(rig, client(4000));
        rig.tunnel_real(4, REAL1);
        rig.vip(5, VIP, 80, TCP, &[4]);
        let syn = client(4000).tcp(Tcp::syn(77));
        rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL0, &syn));
        let ack = client(4000).tcp(Tcp::ack(1001, 1));
        rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL0, &ack));
        let flow = rig.flow(client(4000), TCP).expect("entry");
        assert_eq!((flow.real, flow.isn, flow.bits), (3, 77, 1));
        assert_eq!(rig.real_stats(3).conns_opened, 2);
    }
    Opened another_isn_after_the_end_is_a_new_pick(rig) {
        // Adopted connections, which count no closing, end as well.
        for (port, first) in [(4000, Tcp::syn(1000)), (4001, Tcp::ack(5, 6))] {
            one_real(rig);
            rig.send(&arriving(&client(port).tcp(first)));
            let end = client(port).tcp(Tcp { flags: FIN | ACK, seq: 1001, ..Tcp::default() });
            rig.expect(Verdict::Established, &arriving(&end), &tunnelled(REAL0, &end));
            rig.tunnel_real(4, REAL1);
            rig.vip(5, VIP, 80, TCP, &[4]);
            let syn = client(port).tcp(Tcp::syn(77));
            rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL1, &syn));
            let flow = rig.flow(client(port), TCP).expect("entry");
            assert_eq!((flow.real, flow.isn, flow.bits), (4, 77, 1));
        }
    }
    Opened another_isn_leaves_a_real_that_is_gone(rig) {
        for gone in [RealValue::default(), RealValue { r#gen: 1, ..tunnel_real(REAL0) }] {
            one_real(rig);
            rig.send(&arriving(&client(4000).tcp(Tcp::syn(1000))));
            rig.real(3, gone);
            rig.tunnel_real(4, REAL1);
            rig.vip(5, VIP, 80, TCP, &[4]);
            let syn = client(4000).tcp(Tcp::syn(77));
            rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL1, &syn));
            let end = client(4000).tcp(Tcp { flags: RST, seq: 78, ..Tcp::default() });
            rig.expect(Verdict::Established, &arriving(&end), &tunnelled(REAL1, &end));
        }
    }
    Adopted tcp_without_an_entry_goes_by_the_ring_and_is_remembered(rig) {
        one_real(rig);
        let ack = client(4000).tcp(Tcp::ack(5, 6));
        rig.expect(Verdict::Adopted, &arriving(&ack), &tunnelled(REAL0, &ack));
        rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL0, &ack));
        assert_eq!(rig.real_stats(3).conns_opened, 0);
    }
    Adopted what_ends_a_connection_makes_no_entry(rig) {
        one_real(rig);
        for flags in [RST, RST | ACK, FIN | ACK] {
            let end = client(4000).tcp(Tcp { flags, seq: 9, ..Tcp::default() });
            rig.expect(Verdict::Adopted, &arriving(&end), &tunnelled(REAL0, &end));
        }
        assert!(rig.flow(client(4000), TCP).is_none());
        assert_eq!(rig.real_stats(3).conns_closed, 0);
    }
    Adopted a_syn_ack_opens_nothing(rig) {
        one_real(rig);
        let stray = client(4000).tcp(Tcp { flags: SYN | ACK, seq: 9, ..Tcp::default() });
        rig.expect(Verdict::Adopted, &arriving(&stray), &tunnelled(REAL0, &stray));
    }
    Moved a_removed_real_loses_its_flows(rig) {
        one_real(rig);
        open(rig, client(4000));
        rig.tunnel_real(4, REAL1);
        rig.vip(5, VIP, 80, TCP, &[4]);
        rig.real(3, RealValue::default());
        let ack = client(4000).tcp(Tcp::ack(1001, 1));
        rig.expect(Verdict::Moved, &arriving(&ack), &tunnelled(REAL1, &ack));
        rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL1, &ack));
    }
    Moved a_slot_used_again_takes_over_no_flow(rig) {
        one_real(rig);
        open(rig, client(4000));
        rig.real(3, RealValue { r#gen: 1, ..tunnel_real(REAL1) });
        let ack = client(4000).tcp(Tcp::ack(1001, 1));
        rig.expect(Verdict::Moved, &arriving(&ack), &tunnelled(REAL1, &ack));
    }
    FirstDatagram udp_is_remembered_from_its_first_packet(rig) {
        rig.tunnel_real(3, REAL0);
        rig.vip(5, VIP, 53, UDP, &[3]);
        let tuple = Tuple::new("198.51.100.7", 4000, VIP, 53);
        let query = tuple.udp(b"query");
        rig.expect(Verdict::FirstDatagram, &arriving(&query), &tunnelled(REAL0, &query));
        rig.expect(Verdict::Established, &arriving(&query), &tunnelled(REAL0, &query));
        assert_eq!(rig.flow(tuple, UDP).expect("entry").real, 3);
    }
    Opened port_zero_takes_all_ports_and_an_exact_port_goes_first(rig) {
        rig.tunnel_real(3, REAL0);
        rig.tunnel_real(4, REAL1);
        rig.vip(5, VIP, 80, TCP, &[3]);
        rig.vip(6, VIP, 0, TCP, &[4]);
        open(rig, client(4000));
        let syn = Tuple::new("198.51.100.7", 4000, VIP, 8443).tcp(Tcp::syn(1));
        rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL1, &syn));
        assert_eq!((rig.vip_stats(5).packets, rig.vip_stats(6).packets), (1, 1));
    }
    NoReal a_vip_without_a_ring_drops(rig) {
        rig.vip(5, VIP, 80, TCP, &[]);
        rig.expect(Verdict::NoReal, &arriving(&client(4000).tcp(Tcp::syn(1))), &[]);
        assert!(rig.flow(client(4000), TCP).is_none());
    }
    NoReal a_ring_with_a_removed_real_drops(rig) {
        rig.vip(5, VIP, 80, TCP, &[3]);
        rig.expect(Verdict::NoReal, &arriving(&client(4000).tcp(Tcp::syn(1))), &[]);
    }
    Opened the_pick_is_siphash_of_the_tuple_modulo_the_ring(rig) {
        let slots: Vec<u32> = (0..13).collect();
        for id in &slots {
            rig.tunnel_real(*id, &format!("10.1.0.{id}"));
        }
        rig.vip(5, VIP, 80, TCP, &[0]);
        rig.ring(5, &slots.iter().cycle().take(17).copied().collect::<Vec<_>>());
        for port in 5000..5064 {
            let tuple = client(port);
            // The key as it lies in memory.
            let mut key = vec![198, 51, 100, 7, 192, 0, 2, 10];
            key.extend(port.to_be_bytes());
            key.extend(80u16.to_be_bytes());
            key.extend([TCP, 0, 0, 0]);
            let slot = siphash(&key) % 17;
            let real = format!("10.1.0.{}", slot % 13);
            let syn = tuple.tcp(Tcp::syn(1));
            rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(&real, &syn));
        }
    }
    Opened the_table_evicts_and_every_packet_still_goes(rig) {
        one_real(rig);
        // Four times what the table holds.
        for port in 0..4096 {
            let syn = client(port).tcp(Tcp::syn(1));
            rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL0, &syn));
        }
        let known = rig.known_ports("198.51.100.7").len();
        assert!((1024..=1280).contains(&known), "{known} flows are left of 4096");
    }
    Established a_flood_of_syns_pushes_out_its_own(rig) {
        one_real(rig);
        // A quarter of the places; another packet makes each of them live.
        let live = 0..320;
        for port in live.clone() {
            open(rig, client(port));
            let ack = client(port).tcp(Tcp::ack(1001, 1));
            rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL0, &ack));
            // Forged: it makes the flow no less live.
            let syn = client(port).tcp(Tcp::syn(77));
            rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(REAL0, &syn));
        }
        for host in 0..4 {
            for port in 1000..3000 {
                rig.send(&arriving(&Tuple::new(&format!("203.0.113.{host}"), port, VIP, 80).tcp(Tcp::syn(9))));
            }
        }
        rig.tunnel_real(4, REAL1);
        rig.vip(5, VIP, 80, TCP, &[4]);
        for port in live {
            let ack = client(port).tcp(Tcp::ack(1001, 1));
            rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL0, &ack));
        }
    }
    Established live_flows_give_way_to_live_flows(rig) {
        one_real(rig);
        // More than there are places: all that come are remembered for a while.
        for port in 0..2600 {
            open(rig, client(port));
            let ack = client(port).tcp(Tcp::ack(1001, 1));
            rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(REAL0, &ack));
        }
        let known = rig.known_ports("198.51.100.7");
        let left = |ports: std::ops::Range<u16>| ports.filter(|port| known.contains(port)).count();
        assert!(left(0..1300) > 100, "{} of the older half are left", left(0..1300));
        assert!(left(1300..2600) > 600, "{} of the newer half are left", left(1300..2600));
    }
    Opened what_the_client_reset_goes_first(rig) {
        one_real(rig);
        for port in 0..1200 {
            open(rig, client(port));
            let flags = if port % 2 == 0 { RST } else { ACK };
            rig.send(&arriving(&client(port).tcp(Tcp { flags, seq: 1001, ..Tcp::default() })));
        }
        for port in 2000..2400 {
            open(rig, client(port));
        }
        let known = rig.known_ports("198.51.100.7");
        let kept = (0..1200).filter(|port| port % 2 == 1 && known.contains(port)).count();
        assert!(kept > 590, "{kept} of 600 live flows are left");
    }
    Established no_address_collides_with_another_whatever_the_seed(rig) {
        rig.tunnel_real(0, REAL0);
        rig.vip(5, "2001:db8::10", 80, TCP, &[0]);
        // They differ in the highest bits of three words, in which a multiplication loses all others.
        let twins = ["2001:db8:1:2::10", "2001:db8:1:82:0:80:0:90"];
        let [known, twin] = twins.map(|client| Tuple::new(client, 4000, "2001:db8::10", 80));
        for seed in [1, 0x5eed, 0x9e37_79b9_7f4a_7c15, u64::MAX] {
            rig.set_ctl(|ctl| ctl.table_seed = seed);
            rig.send(&arriving(&known.tcp(Tcp::syn(1000))));
            rig.send(&arriving(&known.tcp(Tcp::ack(1001, 1))));
            rig.send(&arriving(&twin.tcp(Tcp::syn(1000))));
            assert!(rig.flow(known, TCP).is_some() && rig.flow(twin, TCP).is_some(), "{seed:x}");
            let (action, _) = rig.send(&arriving(&known.tcp(Tcp::ack(1001, 1))));
            assert_eq!(action, Verdict::Established.action() as u32);
            rig.forget_flows();
        }
    }
    Opened ipv6_tuples_are_hashed_whole(rig) {
        let slots: Vec<u32> = (0..13).collect();
        for id in &slots {
            rig.tunnel_real(*id, &format!("10.1.0.{id}"));
        }
        rig.vip(5, "2001:db8::10", 80, TCP, &slots);
        for client in 1..=64u16 {
            let tuple = Tuple::new(&format!("2001:db8:c::{client:x}"), 4000 + client, "2001:db8::10", 80);
            let (IpAddr::V6(src), IpAddr::V6(dst)) = (tuple.src, tuple.dst) else { unreachable!() };
            let ports = [tuple.sport.to_be_bytes(), tuple.dport.to_be_bytes()].concat();
            let key = [&src.octets()[..], &dst.octets(), &ports, &[TCP, 0, 0, 0]].concat();
            let syn = tuple.tcp(Tcp::syn(1));
            let (action, _) = rig.send(&arriving(&syn));
            assert_eq!(action, Verdict::Opened.action() as u32);
            let real = rig.flow(tuple, TCP).expect("entry").real;
            assert_eq!(u64::from(real), siphash(&key) % 17 % 13);
        }
    }
}

/// SipHash-2-4 as the standard library has it.
#[expect(
    deprecated,
    reason = "the one SipHash-2-4 with a key in the standard library"
)]
fn siphash(key: &[u8]) -> u64 {
    let mut hasher = SipHasher::new_with_keys(HASH_KEY[0], HASH_KEY[1]);
    hasher.write(key);
    hasher.finish()
}
