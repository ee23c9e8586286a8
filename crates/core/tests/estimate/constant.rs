// SPDX-License-Identifier: Apache-2.0
//! A server that always takes the same time. A slow one must never look fast:
//! 16-bit send times in one unit of 4.1 us would show 270 ms as 1.56 ms.

use causeway_core::estimate::{Estimator, Method, Packet};

use super::clients::{datagram, tally, tcp_ack, tcp_request, tcp_syn};

const MS: u64 = 1_000_000;
const START_NS: u64 = 1_700_000_000_123_456_789;
const LATENCIES_MS: [u64; 11] = [1, 20, 100, 250, 270, 300, 550, 1100, 1000, 5000, 20_000];

/// One connection that loads ten pages. In a page it keeps `window` requests
/// outstanding for `rounds` rounds: each response brings an ACK and then, at once,
/// the next request. A page's first requests go out `stagger_ns` apart; between
/// pages the client pauses for 7 ms, with everything acknowledged.
fn closed_loop(latency_ns: u64, window: u64, rounds: u64, stagger_ns: u64) -> Vec<Packet> {
    const PAUSE_NS: u64 = 7 * MS;
    let mut packets = vec![tcp_syn(START_NS, 0), tcp_ack(START_NS + 50_000, 1, 1)];
    let mut page_ns = START_NS + MS;
    let (mut sent, mut acked) = (0u32, 0u32);
    for _ in 0..10 {
        for i in 0..(rounds + 1) * window {
            let t_ns = page_ns + i % window * stagger_ns + i / window * latency_ns;
            if i >= window {
                acked += 1;
                packets.push(tcp_ack(t_ns - 20_000, 1 + sent * 100, 1 + acked * 1000));
            }
            if i < rounds * window {
                packets.push(tcp_request(t_ns, 1 + sent * 100, 100, 1 + acked * 1000));
                sent += 1;
            }
        }
        page_ns += rounds * latency_ns + window * stagger_ns + PAUSE_NS;
    }
    packets
}

fn measured_ms(packets: Vec<Packet>) -> f64 {
    let mut flow = Estimator::new(&Method::WindowChain);
    let mean = tally(&mut flow, packets).mean_ns();
    mean.expect("an estimate") / MS as f64
}

#[test]
fn one_outstanding_request_is_measured_at_any_latency() {
    for latency_ms in LATENCIES_MS {
        let got = measured_ms(closed_loop(latency_ms * MS, 1, 20, 0));
        let error = got / latency_ms as f64 - 1.0;
        assert!(error.abs() < 0.002, "{latency_ms} ms read as {got} ms");
    }
}

#[test]
fn staggered_windows_scale_with_the_latency() {
    for window in [2, 4, 8, 16] {
        let relative = |latency_ms: u64| {
            // Requests, and so responses, spread over the whole latency.
            let stagger_ns = latency_ms * MS / (window + 1);
            measured_ms(closed_loop(latency_ms * MS, window, 3, stagger_ns)) / latency_ms as f64
        };
        // How a page ends is partly guessed; but the guess must be the same.
        let base = relative(20);
        assert!((0.8..1.01).contains(&base), "W={window}: {base}");
        for latency_ms in LATENCIES_MS {
            let got = relative(latency_ms);
            assert!(
                (got - base).abs() < 0.03,
                "W={window}, {latency_ms} ms: {got} instead of {base}"
            );
        }
    }
}

#[test]
fn a_server_that_turns_slow_is_followed_at_once() {
    for slow_ms in [250, 270, 300, 550, 1100, 5000] {
        let mut packets = closed_loop(2 * MS, 1, 20, 0);
        packets.pop(); // the ACK of the last response
        let (end, last) = packets.last().map(|p| (p.t_ns, *p)).expect("packets");
        for i in 1..=20u32 {
            packets.push(tcp_request(
                end + u64::from(i) * slow_ms * MS,
                last.seq + i * 100,
                100,
                last.ack + i * 1000,
            ));
        }
        let mut flow = Estimator::new(&Method::WindowChain);
        let slow: Vec<f64> = packets
            .iter()
            .flat_map(|p| flow.packet(p).iter().copied().collect::<Vec<_>>())
            .filter(|sample| sample.when_ns > end)
            .filter_map(|sample| sample.mean_ns())
            .collect();
        assert!(slow.len() >= 18, "{slow_ms} ms: {} samples", slow.len());
        for got in slow {
            let error = got / (slow_ms * MS) as f64 - 1.0;
            assert!(error.abs() < 0.002, "{slow_ms} ms read as {got} ns");
        }
    }
}

#[test]
fn a_latency_beyond_two_minutes_gives_none_instead_of_a_guess() {
    let packets = closed_loop(300_000 * MS, 1, 2, 0);
    let mut flow = Estimator::new(&Method::WindowChain);
    assert_eq!(tally(&mut flow, packets).mean_ns(), None);
}

/// A QUIC client that sends one request at a time. Where it answers a response
/// with the next request, the ACK goes along; where it pauses, an ACK goes alone
/// after 25 ms.
fn quic(latency_ns: u64, pause_ns: u64) -> Vec<Packet> {
    let mut packets = vec![datagram(START_NS, 40)];
    let mut t_ns = START_NS + MS;
    for _ in 0..40 {
        for _ in 0..5 {
            packets.push(datagram(t_ns, 120));
            t_ns += latency_ns;
        }
        packets.push(datagram(t_ns + 25 * MS, 35));
        t_ns += pause_ns;
    }
    packets
}

#[test]
fn a_slow_quic_server_is_told_from_an_idle_client() {
    for latency_ms in [1, 20, 250, 270, 300, 550, 1100, 1000, 5000] {
        for pause_ms in [230, 400, 3_000] {
            let got = measured_ms(quic(latency_ms * MS, pause_ms * MS));
            let error = got / latency_ms as f64 - 1.0;
            assert!(error.abs() < 0.002, "{latency_ms} ms read as {got} ms");
        }
    }
}

#[test]
fn datagrams_without_lone_acks_leave_long_gaps_unread() {
    let packets = (0..20).map(|i| datagram(START_NS + i * 250 * MS, 120));
    let mut flow = Estimator::new(&Method::WindowChain);
    assert_eq!(tally(&mut flow, packets).mean_ns(), None);
}
