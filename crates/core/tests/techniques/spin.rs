// SPDX-License-Identifier: Apache-2.0
//! The spin bit: hosts that spin as RFC 9000 says, that rest, and that do not spin.

use causeway_core::estimate::{Packet, Segment, Side, Technique};

use super::run;

const SHORT: u8 = 0x40;
const LONG: u8 = 0xc0;

fn datagram(t_ns: u64, first_byte: u8) -> Segment {
    Segment {
        from: Side::Client,
        packet: Packet {
            t_ns,
            ip_len: 128,
            payload_len: 100,
            proto: Packet::UDP,
            ..Packet::default()
        },
        tsval: 0,
        first_byte: Some(first_byte),
    }
}

fn spinning(bit: bool) -> u8 {
    SHORT | u8::from(bit) << 5
}

/// Packets of a client whose bit turns every `rtt_us`, one each `gap_us`.
fn client(rtt_us: u64, gap_us: u64, count: u64) -> Vec<Segment> {
    let mut packets = vec![datagram(1, LONG)];
    packets.extend((0..count).map(|n| {
        let us = 1000 + n * gap_us;
        datagram(us * 1000, spinning(us / rtt_us % 2 == 1))
    }));
    packets
}

#[test]
fn each_turn_is_a_round_trip() {
    let found = run(&Technique::Spin, &client(20_000, 500, 4000));
    assert!((98..=99).contains(&found.len()), "{}", found.len());
    assert!(found.iter().all(|&(_, ns)| ns == 20e6), "{found:?}");
}

#[test]
fn a_straggler_at_a_turn_is_no_turn() {
    let mut packets = client(20_000, 500, 4000);
    let turns: Vec<usize> = (201..packets.len() - 1)
        .filter(|&n| packets[n].first_byte != packets[n - 1].first_byte)
        .collect();
    for turn in turns {
        // The turn's packet and the one before it change places.
        let bytes = (packets[turn - 1].first_byte, packets[turn].first_byte);
        (packets[turn].first_byte, packets[turn - 1].first_byte) = bytes;
    }
    let found = run(&Technique::Spin, &packets);
    assert!((98..=99).contains(&found.len()), "{}", found.len());
    assert!(
        found.iter().all(|&(_, ns)| (ns - 20e6).abs() <= 0.5e6),
        "{found:?}"
    );
}

#[test]
fn a_bit_at_rest_or_at_random_says_nothing() {
    let mut resting = client(20_000, 500, 4000);
    resting
        .iter_mut()
        .skip(1)
        .for_each(|p| p.first_byte = Some(SHORT));
    assert_eq!(run(&Technique::Spin, &resting), []);

    // Bursts of four packets, the bit by a linear congruential generator.
    let mut random = vec![datagram(1, LONG)];
    let mut state = 1u32;
    for n in 0..4000u64 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let t_ns = n / 4 * 10_000_000 + n % 4 * 1000 + 1000;
        random.push(datagram(t_ns, spinning(state >> 31 == 1)));
    }
    let found = run(&Technique::Spin, &random);
    assert!(
        found.len() < 60,
        "{} samples of a bit that means nothing",
        found.len()
    );
}

#[test]
fn other_datagrams_are_not_taken_for_quic() {
    let mut packets = client(20_000, 500, 4000);
    // One whose fixed bit is not set, as in DNS with any identifier.
    packets[3].first_byte = Some(0x20);
    assert_eq!(run(&Technique::Spin, &packets), []);
    // A capture that begins late has no long header; eight packets convince.
    let late = client(20_000, 500, 4000).split_off(50);
    assert!(run(&Technique::Spin, &late).len() > 90);
}
