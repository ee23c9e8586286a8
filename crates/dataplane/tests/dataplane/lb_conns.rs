// SPDX-License-Identifier: Apache-2.0
//! Stateful mode: a SYN gets a slot, its server gets the token, and from then on that token in the
//! echoed timestamp finds the connection without the flow table.

use causeway_core::cookie;
use causeway_dataplane::abi::{REAL_GUE, RealValue, Verdict};
use nix::sched::{CpuSet, sched_getcpu as getcpu, sched_setaffinity};
use nix::unistd::Pid;

use crate::frame::{ACK, FIN, Ip, RST, Tcp, Tuple, arriving, icmp, leaving, timestamp};
use crate::rig::{HASH_KEY, PARTITIONS, Rig, TCP, TUNNEL_SOURCE4, UDP, tunnel_real};
use crate::verdict_tests;

const VIPS: [(&str, &str); 2] = [
    ("198.51.100.7", "192.0.2.10"),
    ("2001:db8:c::7", "2001:db8::10"),
];
const REAL0: &str = "10.1.0.10";
const REAL1: &str = "10.1.0.11";
const TOKEN_SOURCE4: [u8; 4] = [10, 8, 0, 0];

/// A stateful balancer whose CPUs have `slots` free slots in each partition.
pub(crate) struct Stateful(Rig);

impl Stateful {
    pub(crate) fn new() -> Self {
        stay_on_this_cpu();
        let mut rig = Rig::stateful(0, 0);
        for (_, vip) in VIPS {
            serve(&mut rig, vip, REAL0);
        }
        rig.fill_rings(&[7, 9, 11, 13]);
        Self(rig)
    }

    pub(crate) fn counters(&self) -> crate::rig::Counters {
        self.0.counters()
    }
}

/// Free slots lie with a CPU, and a test counts them.
fn stay_on_this_cpu() {
    let mut here = CpuSet::new();
    here.set(getcpu().expect("a CPU")).expect("a CPU");
    sched_setaffinity(Pid::from_raw(0), &here).expect("setting the affinity");
}

fn serve(rig: &mut Rig, vip: &str, real: &str) {
    let plain = tunnel_real(real);
    let id = u32::from(real == REAL1) + 3;
    rig.real(
        id,
        RealValue {
            flags: plain.flags | REAL_GUE,
            ..plain
        },
    );
    rig.vip(5, vip, 80, TCP, &[id]);
    rig.change_vip(vip, 80, TCP, |vip| {
        vip.flags |= causeway_dataplane::abi::VIP_STATEFUL
    });
}

fn client(vip: &str) -> Tuple {
    let (client, vip) = VIPS.into_iter().find(|(_, known)| *known == vip).unwrap();
    Tuple::new(client, 4000, vip, 80)
}

fn syn(tuple: Tuple) -> Vec<u8> {
    tuple.tcp(Tcp {
        options: &timestamp(100, 0),
        ..Tcp::syn(1000)
    })
}

/// A packet whose timestamp echoes one that ends in `token`.
fn echo(tuple: Tuple, token: u16, flags: u8) -> Vec<u8> {
    let options = timestamp(101, 0x0123_0000 | u32::from(token));
    tuple.tcp(Tcp {
        flags,
        seq: 1001,
        ack: 1,
        options: &options,
        payload: b"GET /",
    })
}

/// The token that the server of a tunnelled SYN is sent: GUE variant 0 over IPv4.
fn token_of(frame: &[u8]) -> Option<u16> {
    let gue = &frame[14 + 20 + 8..];
    (gue[0] == 1).then(|| {
        assert_eq!(gue[2..6], [0, 0, 0x43, 0x57], "no flags, the kind of data");
        u16::from_be_bytes([gue[6], gue[7]])
    })
}

/// The inner packet in UDP to `real`, behind `head`.
fn wrapped(real: &str, frame: &[u8], head: &[u8], inner: &[u8]) -> Vec<u8> {
    let sport = u16::from_be_bytes([frame[34], frame[35]]);
    let mut udp = [sport.to_be_bytes(), 6080u16.to_be_bytes()].concat();
    udp.extend(((8 + head.len() + inner.len()) as u16).to_be_bytes());
    udp.extend([0, 0]);
    let payload = [&udp[..], head, inner].concat();
    leaving(&Ip::OUTER.packet(
        TUNNEL_SOURCE4.parse().unwrap(),
        real.parse().unwrap(),
        UDP,
        &payload,
    ))
}

fn open(rig: &mut Rig, tuple: Tuple) -> u16 {
    let (_, frame) = rig.send(&arriving(&syn(tuple)));
    token_of(&frame).expect("a token")
}

fn expect_at(rig: &mut Rig, verdict: Verdict, real: &str, packet: &[u8]) {
    let (_, probe) = rig.send(&arriving(packet));
    rig.expect(
        verdict,
        &arriving(packet),
        &wrapped(real, &probe, &[], packet),
    );
}

verdict_tests! { Stateful, Verdict:
    Opened a_syn_takes_a_slot_and_its_server_is_told(stateful) {
        let rig = &mut stateful.0;
        for (_, vip) in VIPS {
            let tuple = client(vip);
            let packet = syn(tuple);
            let (_, probe) = rig.send(&arriving(&syn(Tuple { sport: 1, ..tuple })));
            let first = token_of(&probe).expect("a token");
            assert!([7, 9, 11, 13].contains(&(first & 0xff)), "a slot that was free: {first}");
            let token = open(rig, tuple);
            let proto = if tuple.src.is_ipv4() { 4 } else { 41 };
            let head = [&[1, proto, 0, 0, 0x43, 0x57][..], &token.to_be_bytes()].concat();
            // The same SYN again: the same slot, the same token.
            let (_, probe) = rig.send(&arriving(&packet));
            rig.expect(Verdict::SynAgain, &arriving(&packet), &wrapped(REAL0, &probe, &head, &packet));
            let slot = rig.conn(tuple, token).expect("a slot");
            assert_eq!((slot.real, slot.vip, slot.isn), (3, 5, 1000));
        }
        let one = client(VIPS[0].1);
        let packet = syn(Tuple { sport: 2, ..one });
        let (_, probe) = rig.send(&arriving(&packet));
        let head = &probe[42..50];
        assert_eq!(probe, wrapped(REAL0, &probe, head, &packet));
    }
    Opened user_space_knows_where_a_tuple_s_word_leads(stateful) {
        let rig = &mut stateful.0;
        let mut seen = [0; PARTITIONS as usize];
        for (n, (_, vip)) in VIPS.into_iter().cycle().take(6).enumerate() {
            let tuple = Tuple { sport: 7000 + n as u16, ..client(vip) };
            let (_, frame) = rig.send(&arriving(&syn(tuple)));
            let Some(token) = token_of(&frame) else { continue };
            let (partition, _) = rig.placed(tuple, token).expect("a slot");
            let known = cookie::Tuple::from(tuple).partition(HASH_KEY[1], PARTITIONS);
            assert_eq!(known, partition, "{tuple:?}");
            seen[partition as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}: both partitions");
    }
    Established a_token_finds_its_connection_without_the_table(stateful) {
        let rig = &mut stateful.0;
        for (_, vip) in VIPS {
            let tuple = client(vip);
            let token = open(rig, tuple);
            serve(rig, vip, REAL1);
            rig.forget_flows();
            // The epoch bit, and whatever is above it, are not the slot's.
            for token in [token, token | 0x8000] {
                expect_at(rig, Verdict::Established, REAL0, &echo(tuple, token, ACK));
            }
            let slot = rig.conn(tuple, token).expect("a slot");
            assert_eq!(slot.packets, 4);
            // Options in another order, which are walked.
            let options = [&[1u8, 1, 1, 1][..], &[8, 10, 0, 0, 0, 1, 0, 0], &token.to_be_bytes(), &[1, 1]].concat();
            let packet = tuple.tcp(Tcp { flags: ACK, seq: 1001, ack: 1, options: &options, payload: b"x" });
            expect_at(rig, Verdict::Established, REAL0, &packet);
            serve(rig, vip, REAL0);
        }
    }
    Established an_end_counts_once_also_without_a_timestamp(stateful) {
        let rig = &mut stateful.0;
        for (nth, (_, vip)) in (1..).zip(VIPS) {
            let tuple = client(vip);
            let token = open(rig, tuple);
            expect_at(rig, Verdict::Established, REAL0, &echo(tuple, token, FIN | ACK));
            // As Linux answers what comes for a socket that is gone.
            let reset = tuple.tcp(Tcp { flags: RST, seq: 1002, ..Tcp::default() });
            expect_at(rig, Verdict::Established, REAL0, &reset);
            assert_eq!(rig.real_stats(3).conns_closed, nth);
        }
    }
    IcmpError an_icmp_error_goes_where_the_quoted_token_says(stateful) {
        let rig = &mut stateful.0;
        let (_, vip) = VIPS[0];
        let tuple = client(vip);
        let token = open(rig, tuple);
        serve(rig, vip, REAL1);
        rig.forget_flows();
        let before = rig.conn(tuple, token).expect("a slot").packets;
        let options = timestamp(u32::from(token), 0);
        let answer = tuple.reversed().tcp(Tcp { flags: ACK, options: &options, ..Tcp::default() });
        let router = "203.0.113.1".parse().unwrap();
        let message = icmp(router, tuple.dst, 3, 4, [0, 0, 5, 0], &answer);
        let error = Ip::CLIENT.packet(router, tuple.dst, 1, &message);
        expect_at(rig, Verdict::IcmpError, REAL0, &error);
        assert_eq!(rig.conn(tuple, token).expect("a slot").packets, before, "nor does it keep the slot");
    }
    Adopted a_token_of_another_is_no_use(stateful) {
        let rig = &mut stateful.0;
        for (_, vip) in VIPS {
            let tuple = client(vip);
            let token = open(rig, tuple);
            serve(rig, vip, REAL1);
            rig.forget_flows();
            for (other, token) in [
                (Tuple { sport: 4001, ..tuple }, token),
                (Tuple { sport: 4002, ..tuple }, token ^ 1),
                (Tuple { sport: 4003, ..tuple }, 0x7fff),
            ] {
                let packet = echo(other, token, ACK);
                rig.send(&arriving(&packet));
                expect_at(rig, Verdict::Established, REAL1, &packet);
            }
            rig.forget_flows();
            let packet = tuple.tcp(Tcp { flags: ACK, seq: 1, ack: 1, ..Tcp::default() });
            rig.send(&arriving(&packet));
            expect_at(rig, Verdict::Established, REAL1, &packet);
            serve(rig, vip, REAL0);
        }
        let lost = client(VIPS[0].1);
        let packet = echo(Tuple { sport: 9, ..lost }, 7, ACK);
        let (_, probe) = rig.send(&arriving(&packet));
        assert_eq!(probe, wrapped(REAL0, &probe, &[], &packet));
    }
    Opened without_a_free_slot_the_flow_table_serves(stateful) {
        let rig = &mut stateful.0;
        let tuple = client(VIPS[0].1);
        let slots: Vec<u16> = (0..100).filter_map(|n| {
            let (_, frame) = rig.send(&arriving(&syn(Tuple { sport: 100 + n, ..tuple })));
            token_of(&frame)
        }).collect();
        // Two partitions of four slots each, and none is given out twice.
        assert_eq!(slots.len(), 8);
        assert_eq!(rig.places_refused(), 92);
        serve(rig, VIPS[0].1, REAL1);
        let late = Tuple { sport: 199, ..tuple };
        expect_at(rig, Verdict::Established, REAL0, &echo(late, 7, ACK));
    }
    Opened clients_without_timestamps_take_no_slot(stateful) {
        let rig = &mut stateful.0;
        let tuple = client(VIPS[0].1);
        let packet = tuple.tcp(Tcp::syn(1000));
        let (_, probe) = rig.send(&arriving(&packet));
        assert_eq!(probe, wrapped(REAL0, &probe, &[], &packet));
        serve(rig, VIPS[0].1, REAL1);
        expect_at(rig, Verdict::Established, REAL0, &tuple.tcp(Tcp::ack(1001, 1)));
    }
    Established the_slot_holds_the_measurement(stateful) {
        let rig = &mut stateful.0;
        let tuple = client(VIPS[0].1);
        let token = open(rig, tuple);
        rig.forget_flows();
        for n in 0..5u32 {
            rig.now_ns += 5_000_000;
            let options = timestamp(101 + n, 0x0123_0000 | u32::from(token));
            let packet = tuple.tcp(Tcp { flags: ACK, seq: 1001 + 5 * n, ack: 1 + 100 * n, options: &options, payload: b"GET /" });
            rig.send(&arriving(&packet));
        }
        let stats = rig.real_stats(3);
        assert!(stats.requests > 0);
        assert_ne!(rig.conn(tuple, token).expect("a slot").chain, [0; 16]);
        rig.send(&arriving(&echo(tuple, token, FIN | ACK)));
        rig.send(&arriving(&echo(tuple, token, FIN | ACK)));
        assert_eq!((rig.real_stats(3).conns_opened, rig.real_stats(3).conns_closed), (1, 1));
        assert_eq!(rig.conn(tuple, token).expect("a slot").bits & 2, 2, "closed, for user space to see");
    }
    Moved a_place_on_a_removed_real_is_left(stateful) {
        let rig = &mut stateful.0;
        let tuple = client(VIPS[0].1);
        let token = open(rig, tuple);
        serve(rig, VIPS[0].1, REAL1);
        rig.real(3, RealValue::default());
        let packet = echo(tuple, token, ACK);
        let (_, probe) = rig.send(&arriving(&packet));
        assert_eq!(probe, wrapped(REAL1, &probe, &[], &packet));
        expect_at(rig, Verdict::Established, REAL1, &packet);
    }
    Opened over_ip_in_ip_the_source_address_tells(stateful) {
        let rig = &mut stateful.0;
        rig.tunnel_real(3, REAL0);
        rig.set_ctl(|ctl| ctl.token4_be = TOKEN_SOURCE4);
        let tuple = client(VIPS[0].1);
        let packet = syn(tuple);
        let (_, frame) = rig.send(&arriving(&packet));
        let source: [u8; 4] = frame[26..30].try_into().unwrap();
        assert_eq!(source[..2], TOKEN_SOURCE4[..2]);
        let token = u16::from_be_bytes([source[2], source[3]]);
        let outer = Ip::OUTER.packet(source.into(), REAL0.parse().unwrap(), 4, &packet);
        rig.expect(Verdict::SynAgain, &arriving(&packet), &leaving(&outer));
        rig.forget_flows();
        let packet = echo(tuple, token, ACK);
        let outer = Ip::OUTER.packet(TUNNEL_SOURCE4.parse().unwrap(), REAL0.parse().unwrap(), 4, &packet);
        rig.expect(Verdict::Established, &arriving(&packet), &leaving(&outer));
    }
}

#[test]
fn tokens_of_second_tier_balancers_are_hidden() {
    let mut rig = Rig::stateful(2, 3);
    serve(&mut rig, VIPS[0].1, REAL0);
    rig.fill_rings(&[7, 9]);
    let tuple = client(VIPS[0].1);
    let token = open(&mut rig, tuple);
    // By number 3, and the slot that is given out first; neither is to be seen by the client.
    let mask = cookie::Tuple::from(tuple).token_mask(HASH_KEY);
    // Bits 8 to 12 are the CPU's, see fill_rings.
    assert_eq!((token ^ mask) & !0x1f00, 3 << 13 | 7);
    assert_ne!(mask >> 13, 0, "a tuple whose number is hidden");
    serve(&mut rig, VIPS[0].1, REAL1);
    rig.forget_flows();
    expect_at(
        &mut rig,
        Verdict::Established,
        REAL0,
        &echo(tuple, token, ACK),
    );
    // Another balancer's token: nothing here.
    let packet = echo(tuple, token ^ 0x2000, ACK);
    rig.send(&arriving(&packet));
    expect_at(&mut rig, Verdict::Established, REAL1, &packet);
}
