// SPDX-License-Identifier: Apache-2.0
//! Which real a new flow gets: by turns, by two choices, and without any memory.

use std::collections::BTreeMap;

use causeway_dataplane::abi::{
    PICK_HASH, PICK_TURN, PICK_TWO, RealLoad, VIP_COUNT_LOAD, VIP_FIRST_TCP, VIP_FORGET, Verdict,
};

use crate::frame::{ACK, FIN, Ip, Tcp, Tuple, arriving, leaving};
use crate::rig::{Rig, TCP, TUNNEL_SOURCE4, UDP};
use crate::verdict_tests;

const VIP: &str = "192.0.2.10";

fn client(port: u16) -> Tuple {
    Tuple::new("198.51.100.7", port, VIP, 80)
}

fn address(real: u32) -> String {
    format!("10.1.0.{}", 10 + real)
}

/// The packet in an outer header to `real`.
fn tunnelled(real: u32, inner: &[u8]) -> Vec<u8> {
    leaving(&Ip::OUTER.packet(
        TUNNEL_SOURCE4.parse().unwrap(),
        address(real).parse().unwrap(),
        4,
        inner,
    ))
}

/// A VIP whose ring holds each of the reals 0 to `reals` once.
fn pool(rig: &mut Rig, reals: u32, proto: u8, pick: u8, flags: u32) {
    let ids: Vec<u32> = (0..reals).collect();
    for id in &ids {
        rig.tunnel_real(*id, &address(*id));
    }
    rig.vip(5, VIP, 80, proto, &ids);
    rig.ring(5, &ids);
    rig.change_vip(VIP, 80, proto, |vip| {
        (vip.ring_size, vip.pick, vip.flags) = (reals, pick, flags);
    });
}

/// The real that an encapsulated frame goes to.
fn real_of(frame: &[u8]) -> u32 {
    u32::from(frame[14 + 19]) - 10
}

fn terms(load: i64, weight: u32) -> RealLoad {
    RealLoad {
        load,
        rise: 1,
        fall: 1,
        weight,
        ..RealLoad::default()
    }
}

/// Sends a SYN from each port; how many each real got.
fn shares(rig: &mut Rig, ports: std::ops::Range<u16>) -> BTreeMap<u32, u32> {
    let mut shares = BTreeMap::new();
    for port in ports {
        let (action, out) = rig.send(&arriving(&client(port).tcp(Tcp::syn(1))));
        assert_eq!(action, Verdict::Opened.action() as u32);
        *shares.entry(real_of(&out)).or_default() += 1;
    }
    shares
}

/// Mean over time of how far the fullest real is above the mean, when connections come
/// and go: 20 open on each of 16 reals, the one to end is chosen by chance.
fn imbalance(rig: &mut Rig, pick: u8, flags: u32) -> f64 {
    const REALS: u32 = 16;
    const OPEN: usize = 320;
    const ROUNDS: usize = 1600;
    pool(rig, REALS, TCP, pick, flags);
    for real in 0..REALS {
        rig.set_load(real, terms(0, 1));
    }
    let mut chance = 0x5eed_u64;
    let mut open: Vec<(u16, u32)> = Vec::new();
    let mut counts = [0_u32; REALS as usize];
    let mut excess = 0.0;
    for round in 0..OPEN + ROUNDS {
        if open.len() == OPEN {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            let (port, real) = open.swap_remove((chance % OPEN as u64) as usize);
            let end = client(port).tcp(Tcp {
                flags: FIN | ACK,
                seq: 2,
                ..Tcp::default()
            });
            rig.send(&arriving(&end));
            counts[real as usize] -= 1;
        }
        let port = 10_000 + round as u16;
        let (_, out) = rig.send(&arriving(&client(port).tcp(Tcp::syn(1))));
        let real = real_of(&out);
        counts[real as usize] += 1;
        open.push((port, real));
        if round >= OPEN + ROUNDS / 2 {
            let most = counts.iter().max().copied().unwrap_or(0);
            excess += f64::from(most) / (OPEN as f64 / f64::from(REALS)) - 1.0;
        }
    }
    excess / (ROUNDS / 2) as f64
}

verdict_tests! { Rig, Verdict:
    Opened turns_go_round_and_the_flow_stays(rig) {
        pool(rig, 3, TCP, PICK_TURN, 0);
        for (turn, port) in (4000..4010).enumerate() {
            let syn = client(port).tcp(Tcp::syn(1));
            rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(turn as u32 % 3, &syn));
        }
        for (turn, port) in (4000..4010).enumerate() {
            let again = client(port).tcp(Tcp::syn(1));
            rig.expect(Verdict::SynAgain, &arriving(&again), &tunnelled(turn as u32 % 3, &again));
            let ack = client(port).tcp(Tcp::ack(2, 1));
            rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(turn as u32 % 3, &ack));
        }
    }
    Adopted what_has_no_memory_takes_no_turn(rig) {
        pool(rig, 3, TCP, PICK_TURN, 0);
        let syn = client(4000).tcp(Tcp::syn(1));
        rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(0, &syn));
        // Two stray packets of one connection meet the same real, whichever it is.
        let end = client(4100).tcp(Tcp { flags: FIN | ACK, seq: 9, ..Tcp::default() });
        let (_, first) = rig.send(&arriving(&end));
        let (_, second) = rig.send(&arriving(&end));
        assert_eq!(real_of(&first), real_of(&second));
        let syn = client(4001).tcp(Tcp::syn(1));
        rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(1, &syn));
        let stray = client(4200).tcp(Tcp::ack(5, 6));
        let (_, out) = rig.send(&arriving(&stray));
        rig.expect(Verdict::Established, &arriving(&stray), &tunnelled(real_of(&out), &stray));
    }
    FirstDatagram datagrams_take_turns_too(rig) {
        pool(rig, 2, UDP, PICK_TURN, 0);
        for (turn, port) in (4000..4004).enumerate() {
            let datagram = client(port).udp(b"hello");
            rig.expect(Verdict::FirstDatagram, &arriving(&datagram), &tunnelled(turn as u32 % 2, &datagram));
            rig.expect(Verdict::Established, &arriving(&datagram), &tunnelled(turn as u32 % 2, &datagram));
        }
    }
    Opened of_two_the_less_loaded(rig) {
        pool(rig, 2, TCP, PICK_TWO, 0);
        for (idle, busy, port) in [(0, 1, 4000), (1, 0, 5000)] {
            rig.set_load(idle, terms(10, 1));
            rig.set_load(busy, terms(11, 1));
            assert_eq!(shares(rig, port..port + 32), [(idle, 32)].into());
        }
    }
    Opened load_counts_for_the_weight(rig) {
        pool(rig, 2, TCP, PICK_TWO, 0);
        // 20 for a weight of 4 is less than 10 for a weight of 1.
        rig.set_load(0, terms(20, 4));
        rig.set_load(1, terms(10, 1));
        assert_eq!(shares(rig, 4000..4032), [(0, 32)].into());
    }
    Opened open_connections_are_counted_as_they_come_and_go(rig) {
        pool(rig, 4, TCP, PICK_TWO, VIP_COUNT_LOAD);
        for real in 0..4 {
            rig.set_load(real, terms(0, 1));
        }
        let shares = shares(rig, 6000..6400);
        for (real, share) in &shares {
            assert_eq!(rig.load(*real).load, i64::from(*share));
        }
        // Two choices keep within a few of each other (Azar et al. 1994).
        let (least, most) = (shares.values().min().unwrap(), shares.values().max().unwrap());
        assert!(shares.len() == 4 && most - least <= 6, "{shares:?}");
        for port in 6000..6400 {
            let end = client(port).tcp(Tcp { flags: FIN | ACK, seq: 2, ..Tcp::default() });
            rig.send(&arriving(&end));
            rig.send(&arriving(&end));
        }
        assert!((0..4).all(|real| rig.load(real).load == 0));
    }
    Opened two_choices_spread_what_a_hash_piles_up(rig) {
        let two = imbalance(rig, PICK_TWO, VIP_COUNT_LOAD);
        let turn = imbalance(&mut Rig::new(), PICK_TURN, 0);
        let hash = imbalance(&mut Rig::new(), PICK_HASH, 0);
        println!("fullest real above the mean: hash {hash:.3}, turns {turn:.3}, two choices {two:.3}");
        assert!(hash > 1.5 * two && turn > two, "hash {hash}, turns {turn}, two {two}");
    }
    Opened repeated_syns_count_once(rig) {
        pool(rig, 1, TCP, PICK_TWO, VIP_COUNT_LOAD);
        rig.set_load(0, terms(0, 1));
        let syn = client(4000).tcp(Tcp::syn(1));
        for _ in 0..3 {
            rig.send(&arriving(&syn));
        }
        assert_eq!(rig.load(0).load, 1);
        let ack = client(4001).tcp(Tcp::ack(2, 1));
        rig.send(&arriving(&ack));
        assert_eq!(rig.load(0).load, 1);
    }
    Opened a_real_that_is_gone_is_not_chosen(rig) {
        pool(rig, 2, TCP, PICK_TWO, 0);
        rig.real(1, Default::default());
        assert_eq!(shares(rig, 4000..4032), [(0, 32)].into());
    }
    Adopted a_vip_that_forgets_follows_its_ring(rig) {
        pool(rig, 1, TCP, 0, VIP_FORGET);
        let syn = client(4000).tcp(Tcp::syn(1));
        rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(0, &syn));
        assert_eq!(rig.flow(client(4000), TCP), None);
        let ack = client(4000).tcp(Tcp::ack(2, 1));
        rig.expect(Verdict::Adopted, &arriving(&ack), &tunnelled(0, &ack));
        rig.tunnel_real(3, &address(3));
        rig.ring(5, &[3]);
        rig.expect(Verdict::Adopted, &arriving(&ack), &tunnelled(3, &ack));
        assert_eq!(rig.flow(client(4000), TCP), None);
    }
    Adopted what_a_vip_knew_before_it_forgets_is_not_looked_up(rig) {
        pool(rig, 1, TCP, 0, 0);
        rig.tunnel_real(3, &address(3));
        let syn = client(4000).tcp(Tcp::syn(1));
        rig.expect(Verdict::Opened, &arriving(&syn), &tunnelled(0, &syn));
        rig.ring(5, &[3]);
        let ack = client(4000).tcp(Tcp::ack(2, 1));
        rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(0, &ack));
        rig.change_vip(VIP, 80, TCP, |vip| vip.flags |= VIP_FORGET);
        rig.set_ctl(|ctl| ctl.vip_first = VIP_FIRST_TCP);
        rig.expect(Verdict::Adopted, &arriving(&ack), &tunnelled(3, &ack));
    }
}

/// Two balancers of one configuration, whose measurements or turns differ: what neither
/// remembers meets one real.
#[test]
fn what_nobody_remembers_goes_to_one_real_whoever_forwards_it() {
    for pick in [PICK_TURN, PICK_TWO] {
        let mut rigs = [[0, 1, 2, 3], [3, 3, 1, 0]].map(|ring| {
            let mut rig = Rig::new();
            pool(&mut rig, 4, TCP, pick, 0);
            rig.ring(5, &ring);
            rig.plain_ring(5, (VIP, 80, TCP), &[0, 1, 2, 3, 0, 1, 3]);
            rig
        });
        let mut met = [0; 4];
        for port in 4000..4200 {
            let packet = arriving(&client(port).tcp(Tcp::ack(1001, 1)));
            let [first, second] = rigs.each_mut().map(|rig| real_of(&rig.send(&packet).1));
            assert_eq!(first, second, "port {port}");
            met[first as usize] += 1;
        }
        // By the shares of the configured weights: 2, 2, 1 and 2 of seven.
        assert!((10..50).contains(&met[2]), "{met:?}");
        assert!(
            [0, 1, 3].iter().all(|real| (30..90).contains(&met[*real])),
            "{met:?}"
        );
        // What opens a flow goes by the scheduler's.
        let opened = rigs.each_mut().map(|rig| shares(rig, 5000..5040));
        assert_ne!(opened[0], opened[1]);
    }
}
