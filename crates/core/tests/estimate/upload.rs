// SPDX-License-Identifier: Apache-2.0
//! Uploads: many segments of one request, over a link that takes its time.

use causeway_core::estimate::{Estimator, Method, Packet};

use super::against_oracle::{by_the_c, by_the_oracle};
use super::clients::{tcp_ack, tcp_request, tcp_syn};

const MS: u64 = 1_000_000;
const START_NS: u64 = 1_700_000_000_123_456_789;
const SERVICE_NS: u64 = 20 * MS;

/// `segments` of `len` bytes `gap_ns` apart, then `turns` small requests, each one
/// sent when the response to what came before it has arrived, 20 ms after it.
fn upload(segments: u32, len: u32, gap_ns: u64, turns: u32) -> Vec<Packet> {
    let mut packets = vec![tcp_syn(START_NS, 0), tcp_ack(START_NS + 50_000, 1, 1)];
    let begin_ns = START_NS + MS;
    for i in 0..segments {
        let t_ns = begin_ns + u64::from(i) * gap_ns;
        packets.push(tcp_request(t_ns, 1 + i * len, len, 1));
    }
    let mut t_ns = begin_ns + u64::from(segments - 1) * gap_ns + SERVICE_NS;
    for i in 0..turns {
        let (seq, ack) = (1 + segments * len + i * 100, 1 + (i + 1) * 1000);
        packets.push(tcp_ack(t_ns - 20_000, seq, ack));
        packets.push(tcp_request(t_ns, seq, 100, ack));
        t_ns += SERVICE_NS;
    }
    packets
}

/// Latencies and weights, in the order in which they became known.
fn samples(packets: &[Packet]) -> Vec<(f64, u32)> {
    let mut flow = Estimator::new(&Method::WindowChain);
    packets
        .iter()
        .flat_map(|p| flow.packet(p).iter().copied().collect::<Vec<_>>())
        .filter_map(|s| Some((s.mean_ns()? / MS as f64, s.weight_halves)))
        .collect()
}

#[test]
fn an_upload_is_one_request_however_slow_its_link() {
    for (segments, gap_us) in [(3, 500), (20, 1200), (800, 1200), (800, 30_000)] {
        let packets = upload(segments, 1400, gap_us * 1000, 50);
        let got = samples(&packets);
        assert_eq!(got.len(), 49, "{segments} segments {gap_us} us apart");
        let sending_ms = f64::from(segments - 1) * gap_us as f64 / 1000.0;
        let (first, weight) = got[0];
        assert_eq!(weight, 2);
        // From the first byte of the request, as every latency.
        let error = first / (sending_ms + 20.0) - 1.0;
        assert!(error.abs() < 0.002, "{first} ms, {sending_ms} to send");
        for (later, weight) in &got[1..] {
            assert!((later - 20.0).abs() < 0.2 && *weight == 2, "{later} ms");
        }
    }
}

#[test]
fn a_burst_beyond_counting_keeps_its_send_times_within_itself() {
    // Segments too small to be parts of one request; a burst counts 255 of them.
    for (segments, gap_ns) in [(254, MS), (255, MS), (256, MS), (600, MS), (5000, MS)] {
        let packets = upload(segments, 200, gap_ns, 50);
        // It looks like a window of 16, so the next requests seem to wait for 16 others.
        let lasts_ms = f64::from(segments) + 16.0 * 20.0;
        for (latency, _) in samples(&packets) {
            assert!(latency < lasts_ms, "{segments} segments: {latency} ms");
        }
    }
}

#[test]
fn the_oracle_measures_uploads_alike() {
    for (segments, len, gap_ns) in [
        (20, 1400, 6 * MS / 5),
        (800, 1400, 6 * MS / 5),
        (255, 200, MS),
        (600, 200, MS),
    ] {
        let packets = upload(segments, len, gap_ns, 50);
        let (c, oracle) = (by_the_c(&packets), by_the_oracle(&packets));
        assert_eq!(
            c.keys().collect::<Vec<_>>(),
            oracle.keys().collect::<Vec<_>>()
        );
        for (epoch, (sum_halves, weight_halves)) in c {
            let (oracle_sum_halves, oracle_weight_halves) = oracle[&epoch];
            assert_eq!(
                weight_halves, oracle_weight_halves,
                "{segments} segments of {len} bytes"
            );
            let off = sum_halves.abs_diff(oracle_sum_halves) / weight_halves;
            assert!(
                off < 131_072,
                "{segments} segments of {len} bytes: {off} ns"
            );
        }
    }
}
