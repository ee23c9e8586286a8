// SPDX-License-Identifier: Apache-2.0
//! Response latency by the server's clock: it must not hold the client's pauses.

use causeway_core::estimate::{Packet, Segment, Side, Technique};

use super::conversation::segment;
use super::run;

/// One connection: the server answers after `service_us`, its clock ticks every
/// `tick_us`; the client thinks for `think_us` before its next request, and its
/// kernel acknowledges only then. The path takes no time.
fn client(
    service_us: impl Fn(u64) -> u64,
    think_us: impl Fn(u64) -> u64,
    tick_us: u64,
) -> Vec<Segment> {
    let mut now_us = 5_000_000;
    let mut packets = Vec::new();
    let mut stamp = now_us / tick_us;
    for n in 0..600 {
        let mut request = segment(
            Side::Client,
            now_us * 1000,
            100 * n as u32,
            100,
            1000 * n as u32,
        );
        request.packet.tsecr = stamp as u32;
        packets.push(request);
        now_us += service_us(n);
        stamp = now_us / tick_us;
        now_us += think_us(n);
    }
    packets
}

fn mean(found: &[(u64, f64)]) -> f64 {
    found.iter().map(|s| s.1).sum::<f64>() / found.len() as f64
}

#[test]
fn pauses_of_the_client_do_not_count() {
    let service = |n| 4_000 + n % 7 * 1_300;
    let think = |n| if n % 3 == 0 { 0 } else { n % 11 * 5_000 };
    let found = run(&Technique::TsEcho, &client(service, think, 1000));
    let truth = (0..599).map(|n| service(n) as f64 * 1000.0).sum::<f64>() / 599.0;
    assert!(found.len() >= 595, "{}", found.len());
    assert!(
        (mean(&found) - truth).abs() < 0.5e6,
        "{} for {truth}",
        mean(&found)
    );
    let worst = found.iter().map(|&(_, ns)| ns).fold(0.0, f64::max);
    assert!(worst < 13.5e6, "{worst}");
}

#[test]
fn a_clock_that_does_not_tick_in_milliseconds_is_left_alone() {
    for tick_us in [4_000, 10_000, 10] {
        let found = run(&Technique::TsEcho, &client(|_| 5_000, |_| 3_000, tick_us));
        // Until the clock is found out: 256 ticks.
        let told = found
            .iter()
            .filter(|(when, _)| *when > 8_000_000_000)
            .count();
        assert_eq!(told, 0, "{tick_us}");
    }
}

#[test]
fn a_request_in_two_packets_is_one_request() {
    let mut packets = Vec::new();
    for request in client(|_| 8_000, |n| n % 4 * 1_000, 1000) {
        let mut rest = request;
        rest.packet.t_ns += 20_000;
        rest.packet.seq += 50;
        packets.extend([request, rest]);
    }
    let found = run(&Technique::TsEcho, &packets);
    assert!((mean(&found) - 8e6).abs() < 0.6e6, "{}", mean(&found));
    assert!(packets.iter().all(|p| p.packet.tcp_flags == Packet::ACK));
}
