// SPDX-License-Identifier: Apache-2.0
//! The C against the slow oracle on random workloads. They may differ by what
//! the C rounds away: send times to 4.1 us (131 us beyond 250 ms), weights of ACKs
//! to 64 bytes. Where a rounded time tips a decision, a sample moves; that must
//! stay rare.

use std::collections::BTreeMap;

use causeway_core::estimate::{Packet, WindowChain};

use super::oracle::Oracle;
use super::workload::{Client, Rng, nonsense};

const EPOCH_NS: u64 = 200_000_000;

/// Half-sample sums by epoch.
pub(crate) type Epochs = BTreeMap<u64, (u64, u64)>;

fn add(epochs: &mut Epochs, when_ns: u64, sum_halves: u64, weight_halves: u64) {
    let epoch = epochs.entry(when_ns / EPOCH_NS).or_default();
    epoch.0 += sum_halves;
    epoch.1 += weight_halves;
}

pub(crate) fn by_the_c(packets: &[Packet]) -> Epochs {
    let mut flow = WindowChain::default();
    let mut epochs = Epochs::new();
    let mut samples: Vec<_> = packets.iter().map(|p| flow.packet(p)).collect();
    samples.push(flow.finish());
    for sample in samples.iter().flat_map(|s| s.iter()) {
        add(
            &mut epochs,
            sample.when_ns,
            sample.sum_halves_ns,
            u64::from(sample.weight_halves),
        );
    }
    epochs
}

pub(crate) fn by_the_oracle(packets: &[Packet]) -> Epochs {
    let mut oracle = Oracle::default();
    packets.iter().for_each(|p| oracle.packet(p));
    oracle.finish(packets[0].proto == Packet::TCP);
    let mut epochs = Epochs::new();
    for (when, sum_halves, weight_halves) in oracle.committed {
        add(&mut epochs, when, sum_halves, weight_halves);
    }
    epochs
}

#[derive(Default, Debug)]
struct Difference {
    epochs: usize,
    /// Epochs with another number of samples.
    counts: usize,
    /// Epochs whose means differ by more than the rounding of their sends.
    means: usize,
    sum: f64,
    oracle_sum: f64,
}

fn compare(clients: impl Iterator<Item = Client>, rng: &mut Rng) -> Difference {
    let mut difference = Difference::default();
    for client in clients {
        let start_ns = 1_700_000_000_000_000_000 + rng.below(1 << 40);
        let packets = client.packets(rng, start_ns);
        let (c, oracle) = (by_the_c(&packets), by_the_oracle(&packets));
        for epoch in c.keys().chain(oracle.keys().filter(|e| !c.contains_key(e))) {
            let get = |epochs: &Epochs| epochs.get(epoch).copied().unwrap_or_default();
            let ((c_sum, c_count), (o_sum, o_count)) = (get(&c), get(&oracle));
            difference.epochs += 1;
            difference.counts += usize::from(c_count != o_count);
            let mean = |sum: u64, count: u64| sum as f64 / count.max(1) as f64;
            let (c_mean, o_mean) = (mean(c_sum, c_count), mean(o_sum, o_count));
            let rounding = if o_mean > 100e6 { 131_072.0 } else { 4_096.0 };
            difference.means += usize::from((c_mean - o_mean).abs() > rounding);
            difference.sum += c_sum as f64;
            difference.oracle_sum += o_sum as f64;
        }
    }
    difference
}

/// The limits are about twice what this seed and others show. In sum the C has less: ACKs more than
/// 268 ms back do not show when the last responses of a page came.
fn assert_close(difference: &Difference, counts: f64, means: f64, total: f64) {
    let share = |count: usize| count as f64 / difference.epochs as f64;
    assert!(difference.epochs > 1_000, "{difference:?}");
    assert!(share(difference.counts) < counts, "{difference:?}");
    assert!(share(difference.means) < means, "{difference:?}");
    let off = difference.sum / difference.oracle_sum - 1.0;
    assert!(off.abs() < total, "{difference:?}");
}

#[test]
fn random_clients_are_measured_as_the_oracle_measures_them() {
    let mut rng = Rng(1);
    let clients: Vec<_> = (0..1500).map(|_| Client::random(&mut rng)).collect();
    let difference = compare(clients.into_iter(), &mut rng);
    assert_close(&difference, 0.007, 0.02, 0.01);
}

#[test]
fn on_sound_paths_the_oracle_and_the_c_hardly_differ() {
    let mut rng = Rng(2);
    let sound = |client: &Client| client.service_ns <= 20_000_000 && client.request_bytes < 1400;
    let clients: Vec<_> = (0..1500)
        .map(|_| Client {
            loss_permille: 0,
            reorder_permille: 0,
            ..Client::random(&mut rng)
        })
        .filter(sound)
        .collect();
    let difference = compare(clients.into_iter(), &mut rng);
    assert_close(&difference, 0.005, 0.015, 0.0002);
}

#[test]
fn nonsense_neither_crashes_nor_gives_absurd_latencies() {
    let mut rng = Rng(3);
    for _ in 0..200 {
        let packets = nonsense(&mut rng, 1_700_000_000_000_000_000, 2_000);
        let first = packets.iter().map(|p| p.t_ns).min().expect("packets");
        for (epoch, (sum_halves, weight_halves)) in by_the_c(&packets) {
            assert!(epoch >= first / EPOCH_NS);
            if weight_halves == 0 {
                assert_eq!(sum_halves, 0, "an epoch of bounds alone");
                continue;
            }
            // The ring holds 258 s; requests may come up to 69 s after their burst's start.
            assert!(
                sum_halves / weight_halves < 327_000_000_000,
                "{} ns",
                sum_halves / weight_halves
            );
        }
    }
}
