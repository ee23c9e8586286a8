// SPDX-License-Identifier: Apache-2.0
//! Small cases worked out by hand.

use causeway_core::estimate::{
    Estimator, FixedGap, FixedGapConfig, Method, Modes, ModesConfig, ModesIbg, Packet, Sample,
};

use super::clients::{datagram, tally, tcp_ack, tcp_request, tcp_syn};

const US: u64 = 1000;
const MS: u64 = 1_000_000;

/// Datagrams with these gaps between them, in microseconds.
fn gaps(gaps_us: &[u64]) -> Vec<Packet> {
    let mut t_ns = MS;
    let mut packets = vec![datagram(t_ns, 200)];
    for gap in gaps_us {
        t_ns += gap * US;
        packets.push(datagram(t_ns, 200));
    }
    packets
}

fn modes_us(config: ModesConfig, gaps_us: &[u64]) -> Option<f64> {
    let mut flow = Modes::new(config);
    gaps(gaps_us).iter().for_each(|p| flow.packet(p));
    let samples = flow.end_epoch();
    let first: Option<Sample> = samples.iter().next().copied();
    first.and_then(|s| s.mean_ns()).map(|ns| ns / US as f64)
}

/// Section 3.3 of PIRATE: 100, 150 and 250 us with probabilities 0.4, 0.2 and 0.1
/// give 950 us.
const SECTION_3_3: [u64; 7] = [100, 250, 150, 100, 100, 150, 100];

#[test]
fn the_proportional_mode_sum_of_section_3_3() {
    let config = ModesConfig::paper(10 * US);
    assert_eq!(modes_us(config, &SECTION_3_3), Some(950.0));
}

#[test]
fn timeouts_and_idle_time_are_no_modes() {
    let mut noisy = SECTION_3_3.to_vec();
    noisy.extend([200_000, 204_000, 1_000_000]);
    assert_eq!(modes_us(ModesConfig::paper(10 * US), &noisy), Some(950.0));
    let config = ModesConfig {
        other_timeout_ns: 10_000 * MS,
        ..ModesConfig::paper(10 * US)
    };
    assert_eq!(modes_us(config, &noisy), Some(1_404_950.0));
}

#[test]
fn the_mode_with_the_most_time_can_be_the_gap_between_batches() {
    let config = ModesConfig {
        ibg: ModesIbg::MostTime,
        ..ModesConfig::paper(10 * US)
    };
    // 400 us in the 100 us mode: one latency for each of its four gaps.
    assert_eq!(modes_us(config, &SECTION_3_3), Some(100.0));
}

#[test]
fn epsilon_decides_what_is_one_mode() {
    let gaps_us = [100, 120, 140, 160];
    let narrow = ModesConfig::paper(10 * US);
    let wide = ModesConfig::paper(20 * US);
    let relative = ModesConfig {
        epsilon_ns: 0,
        epsilon_permille: 250,
        ..narrow
    };
    assert_eq!(modes_us(narrow, &gaps_us), Some(520.0));
    assert_eq!(modes_us(wide, &gaps_us), Some(130.0));
    assert_eq!(modes_us(relative, &gaps_us), Some(130.0));
}

#[test]
fn modes_that_meet_merge() {
    // 100 and 140 are apart until 120 comes in between.
    let config = ModesConfig::paper(20 * US);
    assert_eq!(modes_us(config, &[100, 140]), Some(240.0));
    assert_eq!(modes_us(config, &[100, 140, 120]), Some(120.0));
}

#[test]
fn what_a_mode_cannot_hold_is_discarded() {
    // 68.7 s of gaps in one mode, or in two that meet.
    assert_eq!(
        modes_us(ModesConfig::default(), &[15_000; 7000]),
        Some(15_000.0)
    );
    let mut gaps_us = [[10_000, 14_000]; 3500].concat();
    gaps_us.push(12_000);
    let found = modes_us(ModesConfig::paper(2_000 * US), &gaps_us).expect("an estimate");
    assert!((found - 24_003.4).abs() < 0.1, "{found} us");
}

#[test]
fn gaps_beyond_the_last_mode_are_discarded_and_counted() {
    let config = ModesConfig {
        modes: 2,
        ..ModesConfig::paper(US)
    };
    let mut flow = Modes::new(config);
    gaps(&[100, 200, 300, 400, 100])
        .iter()
        .for_each(|p| flow.packet(p));
    assert_eq!(flow.discarded(), 2);
    let samples = flow.end_epoch();
    let first = samples.iter().next().expect("an estimate");
    assert_eq!(
        (first.sum_halves_ns, first.weight_halves),
        (2 * 400 * US, 2)
    );
}

#[test]
fn only_gaps_after_a_packet_below_the_mtu_separate_batches() {
    // Full packets 300 us apart, then a short one and 200 us until the next.
    let mut packets = Vec::new();
    let mut t_ns = MS;
    for _ in 0..3 {
        for len in [1472, 1472, 400] {
            packets.push(datagram(t_ns, len));
            t_ns += if len == 1472 { 300 * US } else { 200 * US };
        }
    }
    let estimate = |mtu| {
        let config = ModesConfig {
            mtu,
            ..ModesConfig::paper(10 * US)
        };
        let mut flow = Modes::new(config);
        packets.iter().for_each(|p| flow.packet(p));
        let samples = flow.end_epoch();
        samples
            .iter()
            .next()
            .map(|s| (s.sum_halves_ns / 2, s.weight_halves / 2))
    };
    assert_eq!(estimate(1500), Some((2 * 200 * US, 2)));
    assert_eq!(estimate(0), Some((2 * 200 * US + 6 * 300 * US, 6)));
}

#[test]
fn an_epoch_forgets_its_modes_but_not_its_last_packet() {
    let mut flow = Modes::new(ModesConfig::paper(10 * US));
    flow.packet(&datagram(MS, 200));
    flow.packet(&datagram(2 * MS, 200));
    assert_eq!(flow.end_epoch().iter().count(), 1);
    assert_eq!(flow.end_epoch().iter().count(), 0);
    flow.packet(&datagram(5 * MS, 200));
    let samples = flow.end_epoch();
    let first = samples.iter().next().expect("an estimate");
    assert_eq!((first.when_ns, first.sum_halves_ns), (5 * MS, 6 * MS));
}

#[test]
fn fixed_gap_gives_the_time_between_batches() {
    let config = FixedGapConfig {
        delta_ns: 100 * US,
        idle_ns: 50 * MS,
    };
    let mut flow = FixedGap::new(config);
    let mut seen = Vec::new();
    // Batches at 0, 1, 3 ms; silence; a batch at 103 ms and one at 104 ms.
    for t_us in [0, 10, 20, 1000, 1010, 3000, 103_000, 104_000] {
        let samples = flow.packet(&datagram(MS + t_us * US, 200));
        seen.extend(
            samples
                .iter()
                .map(|s| (s.when_ns - MS, s.sum_halves_ns / 2, s.weight_halves)),
        );
    }
    let expected: Vec<_> = [(1000, 1000), (3000, 2000), (104_000, 1000)]
        .map(|(when, latency)| (when * US, latency * US, 2))
        .to_vec();
    assert_eq!(seen, expected);
}

#[test]
fn fixed_gap_does_not_see_pure_acks() {
    let mut flow = FixedGap::new(FixedGapConfig::default());
    flow.packet(&tcp_request(MS, 1, 100, 1));
    flow.packet(&tcp_ack(3 * MS, 101, 1001));
    let samples = flow.packet(&tcp_request(4 * MS, 101, 100, 1001));
    assert_eq!(samples.iter().next().map(|s| s.sum_halves_ns), Some(6 * MS));
}

#[test]
fn window_chain_cuts_out_the_clients_idle_time() {
    // Request, response acknowledged after 2 ms, 400 ms of reading, and again.
    let mut packets = vec![tcp_syn(0, 0), tcp_ack(30 * US, 1, 1)];
    for i in 0..50u32 {
        let t_ns = MS + u64::from(i) * 402 * MS;
        packets.push(tcp_request(t_ns, 1 + i * 100, 100, 1 + i * 5000));
        packets.push(tcp_ack(t_ns + 2 * MS, 101 + i * 100, 5001 + i * 5000));
    }
    let mean = tally(&mut Estimator::new(&Method::WindowChain), packets).mean_ns();
    let mean = mean.expect("an estimate");
    assert!((mean - 2e6).abs() < 5e3, "{mean} ns");
}

#[test]
fn window_chain_ignores_retransmissions() {
    let mut packets = vec![tcp_syn(0, 0), tcp_ack(30 * US, 1, 1)];
    for i in 0..100u32 {
        let t_ns = MS + u64::from(i) * 10 * MS;
        let request = tcp_request(t_ns, 1 + i * 100, 100, 1 + i * 5000);
        packets.push(request);
        packets.push(Packet {
            t_ns: t_ns + 4 * MS,
            ..request
        });
    }
    let tally = tally(&mut Estimator::new(&Method::WindowChain), packets);
    assert_eq!(tally.samples(), 99);
    let mean = tally.mean_ns().expect("an estimate");
    assert!((mean - 10e6).abs() < 5e3, "{mean} ns");
}

#[test]
fn an_opaque_packet_is_judged_by_time_and_size_alone() {
    let mut flow = Estimator::new(&Method::WindowChain);
    let packets = (0..100u32).map(|i| Packet {
        opaque: true,
        // Nonsense that must not be looked at.
        seq: i.wrapping_mul(2_654_435_761),
        ack: i.wrapping_mul(40_503),
        tcp_flags: Packet::SYN | Packet::RST,
        ..tcp_request(MS + u64::from(i) * 5 * MS, 0, 300, 0)
    });
    let tally = tally(&mut flow, packets);
    assert_eq!(tally.samples(), 99);
    let mean = tally.mean_ns().expect("an estimate");
    assert!((mean - 5e6).abs() < 5e3, "{mean} ns");
}

/// NTP's step, a leap second, a machine that goes on: one request at a time, and 5 ms each.
#[test]
fn a_clock_that_is_put_back_makes_no_latency_shorter() {
    const LATENCY_NS: u64 = 5 * MS;
    let gap = Method::FixedGap(FixedGapConfig::default());
    let modes = Method::Modes(ModesConfig::default());
    for (method, timed) in [
        (Method::WindowChain, true),
        (gap, true),
        (modes.clone(), true),
        (modes, false),
    ] {
        for back_ns in [20 * MS, 1_000 * MS, 30_000 * MS, 3_600_000 * MS] {
            let mut t_ns = 2 * 3_600_000 * MS;
            let mut packets = vec![tcp_syn(t_ns, 0), tcp_ack(t_ns + 30 * US, 1, 1)];
            for i in 0..400u32 {
                t_ns += LATENCY_NS;
                if i == 200 {
                    t_ns -= back_ns;
                }
                packets.push(match timed {
                    true => tcp_request(t_ns, 1 + i * 100, 100, 1 + i * 5000),
                    false => datagram(t_ns, 200),
                });
            }
            let mut flow = Estimator::new(&method);
            let (mut samples, mut before) = (0, 0);
            let mut look = |found: Vec<Sample>| {
                for sample in found {
                    samples += sample.weight_halves / 2;
                    let mean_ns = sample.mean_ns().expect("a mean");
                    assert!(
                        (mean_ns - LATENCY_NS as f64).abs() < 50e3,
                        "{method:?}, back by {back_ns}: {mean_ns} ns"
                    );
                }
            };
            for packet in &packets {
                if packet.t_ns / (200 * MS) != before {
                    before = packet.t_ns / (200 * MS);
                    look(flow.end_epoch().iter().copied().collect());
                }
                look(flow.packet(packet).iter().copied().collect());
            }
            look(flow.end_epoch().iter().copied().collect());
            assert!(samples > 380, "{method:?}, back by {back_ns}: {samples}");
        }
    }
}

#[test]
fn packets_of_two_cpus_are_of_one_time() {
    let mut packets = vec![tcp_syn(MS, 0), tcp_ack(MS + 30 * US, 1, 1)];
    for i in 0..100u32 {
        let t_ns = 10 * MS + u64::from(i) * 10 * MS;
        packets.push(tcp_request(t_ns, 1 + i * 100, 100, 1 + i * 5000));
        // An ACK that another CPU has had for 3 ms.
        packets.push(tcp_ack(t_ns - 3 * MS, 101 + i * 100, 1 + i * 5000));
    }
    let tally = tally(&mut Estimator::new(&Method::WindowChain), packets);
    assert_eq!(tally.samples(), 99);
    let mean = tally.mean_ns().expect("an estimate");
    assert!((mean - 10e6).abs() < 5e3, "{mean} ns");
}
