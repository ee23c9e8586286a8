// SPDX-License-Identifier: Apache-2.0
//! Distributions are of responses: those that come together count each by itself.

use causeway_core::estimate::{Packet, Sample, WindowChain};
use causeway_core::hist::Latencies;

use super::clients::{tcp_ack, tcp_request, tcp_syn};
use super::oracle::Oracle;
use super::workload::{Client, Rng};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const START_NS: u64 = 1_700_000_000_123_456_789;
const REQUEST: u32 = 94;
const RESPONSE: u32 = 900;

/// The distribution of a flow, and its samples.
fn measured(packets: &[Packet]) -> (Latencies, Vec<Sample>) {
    let mut flow = WindowChain::default();
    let mut steps: Vec<_> = packets.iter().map(|p| flow.packet(p)).collect();
    steps.push(flow.finish());
    let samples: Vec<Sample> = steps.iter().flat_map(|s| s.iter()).copied().collect();
    let mut latencies = Latencies::default();
    samples.iter().for_each(|s| latencies.record(s));
    (latencies, samples)
}

/// A connection that asks for as much as has come.
struct Connection {
    packets: Vec<Packet>,
    seq: u32,
    ack: u32,
}

impl Connection {
    fn new() -> Self {
        Self {
            packets: vec![tcp_syn(START_NS, 0), tcp_ack(START_NS + 50 * US, 1, 1)],
            seq: 1,
            ack: 1,
        }
    }

    /// `n` responses came at `t_ns` since the start, and as many requests leave.
    fn turn(&mut self, t_ns: u64, n: u32) {
        self.ack += n * RESPONSE;
        self.asks(t_ns, n);
    }

    fn asks(&mut self, t_ns: u64, n: u32) {
        for _ in 0..n {
            let at = START_NS + t_ns;
            self.packets
                .push(tcp_request(at, self.seq, REQUEST, self.ack));
            self.seq += REQUEST;
        }
    }
}

/// Four requests in flight, answered one by one 2, 20, 21 and 22 ms later; then their
/// successors all at once, which is 30, 12, 11 and 10 ms after they were sent.
fn answered_in_batches(rounds: u64) -> Vec<Packet> {
    let mut connection = Connection::new();
    connection.asks(MS, 4);
    for round in 0..rounds {
        let start_ns = MS + round * 32 * MS;
        for alone_ms in [2, 20, 21, 22] {
            connection.turn(start_ns + alone_ms * MS, 1);
        }
        connection.turn(start_ns + 32 * MS, 4);
    }
    connection.packets
}

/// One in eight responses takes 30 ms, and came with three that took 10 to 12.
#[test]
fn responses_of_a_batch_count_each_by_itself() {
    let (latencies, samples) = measured(&answered_in_batches(200));
    let mean_ms = samples.iter().map(|s| s.sum_halves_ns).sum::<u64>() as f64
        / samples
            .iter()
            .map(|s| f64::from(s.weight_halves))
            .sum::<f64>()
        / 1e6;
    assert!((mean_ms - 16.0).abs() < 0.1, "mean {mean_ms} ms");
    for (quantile, expected_ms) in [(0.05, 2), (0.2, 10), (0.45, 12), (0.86, 22), (0.99, 30)] {
        let found_ns = latencies.quantile(quantile).unwrap();
        let off_ns = found_ns.abs_diff(expected_ms * MS);
        assert!(
            off_ns < MS / 2,
            "p{}: {found_ns} ns, expected {expected_ms} ms",
            quantile * 100.0
        );
    }
}

/// What a group says of its latencies is no more and no less than its sum and weight.
#[test]
fn single_latencies_add_up_to_their_group() {
    let mut rng = Rng(41);
    let mut several = 0;
    for _ in 0..60 {
        let client = Client::random(&mut rng);
        let (latencies, samples) = measured(&client.packets(&mut rng, START_NS));
        let weight: u64 = samples.iter().map(|s| u64::from(s.weight_halves)).sum();
        assert_eq!(latencies.count(), weight);
        for sample in samples.iter().filter(|s| s.weight_halves > 0) {
            let each: Vec<(u64, u32)> = sample.latencies().collect();
            several += usize::from(each.len() > 1);
            let halves: u32 = each.iter().map(|l| l.1).sum();
            let sum: u64 = each.iter().map(|l| l.0 * u64::from(l.1)).sum();
            assert_eq!(halves, sample.weight_halves);
            assert!(sum.abs_diff(sample.sum_halves_ns) <= u64::from(halves));
        }
    }
    assert!(several > 100, "{several} groups of several latencies");
}

/// Quantiles of random clients against those of the slow oracle, which keeps each response.
#[test]
fn quantiles_are_those_of_each_response() {
    let mut rng = Rng(42);
    let (mut compared, mut off) = (0, 0);
    for _ in 0..200 {
        let client = Client::random(&mut rng);
        let packets = client.packets(&mut rng, START_NS);
        let (latencies, _) = measured(&packets);
        let mut oracle = Oracle::default();
        packets.iter().for_each(|p| oracle.packet(p));
        oracle.finish(client.tcp);
        let mut each = Latencies::default();
        for &(_, sum, weight) in &oracle.committed {
            each.record_n(sum / weight.max(1), weight);
        }
        for quantile in [0.1, 0.5, 0.9, 0.99] {
            let (Some(found), Some(true_ns)) =
                (latencies.quantile(quantile), each.quantile(quantile))
            else {
                continue;
            };
            compared += 1;
            let most = true_ns / 50 + 8 * US;
            off += usize::from(found.abs_diff(true_ns) > most);
        }
    }
    assert!(compared > 500, "{compared}");
    assert!(
        off * 50 <= compared,
        "{off} of {compared} quantiles are off"
    );
}
