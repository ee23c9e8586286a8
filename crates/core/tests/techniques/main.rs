// SPDX-License-Identifier: Apache-2.0
//! The techniques beside the estimators: each against a slow, obvious version or
//! against a conversation whose latencies are known.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

mod conversation;
mod oracle;
mod spin;
mod ts_echo;

use causeway_core::estimate::{Follower, Packet, Segment, Side, Technique};
use proptest::prelude::*;

use conversation::{segment, segments};

/// All samples of a conversation: when, latency; several at once as their mean.
fn run(technique: &Technique, segments: &[Segment]) -> Vec<(u64, f64)> {
    let mut follower = Follower::new(technique, 7);
    let mut found = Vec::new();
    for segment in segments {
        let samples = follower.packet(segment);
        found.extend(samples.iter().map(|s| (s.when_ns, s.mean_ns().unwrap())));
    }
    found
}

proptest! {
    #[test]
    fn acknowledgements_match_as_in_the_oracle(segments in segments()) {
        for side in [Side::Client, Side::Server] {
            prop_assert_eq!(
                run(&Technique::SeqAck(side), &segments),
                oracle::seq_ack(side, &segments)
            );
        }
    }

    #[test]
    fn timestamps_match_as_in_the_oracle(segments in segments()) {
        for side in [Side::Client, Side::Server] {
            prop_assert_eq!(
                run(&Technique::Timestamps(side), &segments),
                oracle::timestamps(side, &segments)
            );
        }
    }

    /// A sampler that looks at every packet is a plain matching.
    #[test]
    fn sampling_everything_matches_as_in_the_oracle(segments in segments()) {
        for side in [Side::Client, Side::Server] {
            prop_assert_eq!(
                run(&Technique::Sampled(side, 1), &segments),
                oracle::every_segment(side, &segments)
            );
        }
    }

    /// Whatever the packets, a latency is never longer than the capture, and one
    /// handshake gives one sample at most.
    #[test]
    fn arbitrary_segments_give_sane_samples(segments in segments()) {
        let span = (segments[segments.len() - 1].packet.t_ns - segments[0].packet.t_ns) as f64;
        let syns = segments.iter().filter(|s| s.packet.tcp_flags & Packet::SYN != 0).count();
        for technique in [
            Technique::Handshake,
            Technique::TsEcho,
            Technique::SeqAck(Side::Server),
            Technique::Timestamps(Side::Client),
            Technique::Sampled(Side::Server, 4),
        ] {
            let found = run(&technique, &segments);
            prop_assert!(found.iter().all(|&(_, ns)| ns >= 0.0 && ns <= span), "{technique:?}");
            prop_assert!(technique != Technique::Handshake || found.len() <= syns);
        }
    }
}

/// A connection that opens in 3 ms; the client's flags and times.
fn opening(packets: &[(u64, u8)]) -> Vec<Segment> {
    let packet = |&(ms, flags): &(u64, u8)| Segment {
        packet: Packet {
            tcp_flags: flags,
            ..segment(Side::Client, ms * 1_000_000, 1, 0, 1).packet
        },
        ..segment(Side::Client, 0, 1, 0, 1)
    };
    packets.iter().map(packet).collect()
}

#[test]
fn a_handshake_is_timed_once_and_not_when_its_syn_was_repeated() {
    let (syn, ack, rst) = (Packet::SYN, Packet::ACK, Packet::RST);
    let handshake = |packets: &[_]| run(&Technique::Handshake, &opening(packets));
    let once = handshake(&[(5, syn), (8, ack), (9, ack)]);
    assert_eq!(once, [(8_000_000, 3e6)]);
    assert_eq!(
        handshake(&[(5, syn), (1005, syn), (1008, ack), (1009, ack)]),
        []
    );
    assert_eq!(handshake(&[(5, syn), (8, rst)]), []);
    assert_eq!(handshake(&[(5, ack), (8, ack)]), []);
    let again = handshake(&[(5, syn), (8, ack), (50, syn), (54, ack)]);
    assert_eq!(again, [(8_000_000, 3e6), (54_000_000, 4e6)]);
}

#[test]
fn the_two_sides_of_the_observer_are_told_apart() {
    // The observer is 1 ms from the server and 10 ms from the client.
    let mut talk = Vec::new();
    for n in 0..20u64 {
        let t_ns = n * 100_000_000;
        let (seq, ack) = (100 * n as u32, 1000 * n as u32);
        talk.push(segment(Side::Client, t_ns, seq, 100, ack));
        talk.push(segment(Side::Server, t_ns + 1_000_000, ack, 0, seq + 100));
        talk.push(segment(
            Side::Server,
            t_ns + 30_000_000,
            ack,
            1000,
            seq + 100,
        ));
        talk.push(segment(
            Side::Client,
            t_ns + 40_000_000,
            seq + 100,
            0,
            ack + 1000,
        ));
    }
    for (side, expected) in [(Side::Server, 1e6), (Side::Client, 10e6)] {
        for technique in [Technique::SeqAck(side), Technique::Timestamps(side)] {
            let found = run(&technique, &talk);
            assert_eq!(found.len(), 20, "{technique:?}");
            assert!(
                found.iter().all(|&(_, ns)| ns == expected),
                "{technique:?} {found:?}"
            );
        }
    }
}

#[test]
fn a_sampler_picks_one_in_so_many_and_may_report_the_applications_time() {
    // The kernel acknowledges after 0.1 ms, the application answers after 20 ms.
    let mut talk = Vec::new();
    for n in 0..4000u64 {
        let t_ns = n * 25_000_000;
        let (seq, ack) = (100 * n as u32, 1000 * n as u32);
        talk.push(segment(Side::Client, t_ns, seq, 100, ack));
        talk.push(segment(Side::Server, t_ns + 100_000, ack, 0, seq + 100));
        talk.push(segment(
            Side::Server,
            t_ns + 20_000_000,
            ack,
            1000,
            seq + 100,
        ));
    }
    let found = run(&Technique::Sampled(Side::Server, 4), &talk);
    // A sampled ACK gives a value if sampled data precedes it since the one before
    // it. Going back from a round's first ACK that has the chance
    // p = 1/4 + 3/4 (3/4)^2 p = 0.432, from its second 3/4 p: 0.189 values a round.
    assert!((700..=815).contains(&found.len()), "{}", found.len());
    let quick = found.iter().filter(|s| s.1 == 100_000.0).count();
    let slow = found.iter().filter(|s| s.1 == 20_000_000.0).count();
    assert!(quick > 100 && slow > 100, "{quick} {slow}");
}

#[test]
fn what_is_not_tcp_or_not_to_be_read_gives_nothing() {
    let mut talk = vec![
        segment(Side::Client, 1_000_000, 0, 100, 0),
        segment(Side::Server, 2_000_000, 0, 100, 100),
        segment(Side::Client, 3_000_000, 100, 100, 100),
    ];
    for change in [
        |p: &mut Packet| p.opaque = true,
        |p: &mut Packet| p.proto = Packet::UDP,
    ] {
        talk.iter_mut().for_each(|s| change(&mut s.packet));
        for technique in [
            Technique::Handshake,
            Technique::TsEcho,
            Technique::Spin,
            Technique::SeqAck(Side::Server),
            Technique::Timestamps(Side::Server),
            Technique::Sampled(Side::Server, 1),
        ] {
            assert_eq!(run(&technique, &talk), [], "{technique:?}");
        }
    }
}
