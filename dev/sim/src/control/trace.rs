// SPDX-License-Identifier: Apache-2.0
//! What the neighbours leave of a CPU, second by second.
//!
//! Traces of shared machines (Google's 2011 and 2019 cluster traces, Alibaba's of 2018)
//! have three things in common: batch work comes and goes and stays for seconds to
//! minutes, what runs wavers from second to second around its own level, and the day
//! shows. So here: a neighbour that is busy or not (exponential stays), autoregressive
//! noise of first order, and a slow sine. The values are this model's, not a machine's.

use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp, StandardNormal};
use rand_pcg::Pcg64Mcg;

/// Mean stay of the neighbour, busy and idle, in seconds.
const BUSY_S: f64 = 8.0;
const IDLE_S: f64 = 12.0;
/// What a busy and an idle neighbour leave of the CPU.
const LEFT_BUSY: f64 = 0.45;
const LEFT_IDLE: f64 = 1.0;
/// What of the noise is left after a second, and its standard deviation.
const NOISE_KEPT: f64 = 0.7;
const NOISE_SD: f64 = 0.1;
/// Length of the day and how far it lifts and lowers the trace.
const DAY_S: f64 = 86_400.0;
const DAY_SWING: f64 = 0.1;
/// What is always left.
const LEAST: f64 = 0.2;

/// The share of its full capacity that a server has in each of `seconds` seconds; the
/// mean is near 0.8. Servers of one seed have traces of their own.
pub fn cpu(seed: u64, server: usize, seconds: usize) -> Vec<f64> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed ^ (server as u64 + 1).wrapping_mul(0x9e37_79b9));
    let mut busy = rng.random_bool(BUSY_S / (BUSY_S + IDLE_S));
    let mut changes_s = stay(&mut rng, busy);
    let mut noise = NOISE_SD * normal(&mut rng);
    let phase = rng.random::<f64>() * std::f64::consts::TAU;
    let innovation = NOISE_SD * (1.0 - NOISE_KEPT * NOISE_KEPT).sqrt();
    (0..seconds)
        .map(|second| {
            while changes_s <= second as f64 {
                busy = !busy;
                changes_s += stay(&mut rng, busy);
            }
            noise = NOISE_KEPT * noise + innovation * normal(&mut rng);
            let level = if busy { LEFT_BUSY } else { LEFT_IDLE };
            let day = DAY_SWING * (second as f64 / DAY_S * std::f64::consts::TAU + phase).sin();
            (level * (1.0 + noise + day)).max(LEAST)
        })
        .collect()
}

/// The mean of the model's trace, day and noise left out.
pub fn mean() -> f64 {
    (LEFT_BUSY * BUSY_S + LEFT_IDLE * IDLE_S) / (BUSY_S + IDLE_S)
}

fn stay(rng: &mut Pcg64Mcg, busy: bool) -> f64 {
    let mean = if busy { BUSY_S } else { IDLE_S };
    Exp::new(1.0 / mean).map_or(mean, |exp| exp.sample(rng))
}

fn normal(rng: &mut Pcg64Mcg) -> f64 {
    StandardNormal.sample(rng)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_changes_every_second_around_its_mean_and_stays_busy_for_a_while() {
        let trace = cpu(1, 0, 86_400);
        let average = trace.iter().sum::<f64>() / trace.len() as f64;
        assert!((average / mean() - 1.0).abs() < 0.03, "{average}");
        assert!(trace.windows(2).filter(|pair| pair[0] != pair[1]).count() > 80_000);
        let busy = |value: &&f64| **value < 0.7;
        let runs = trace
            .windows(2)
            .filter(|p| busy(&&p[0]) && !busy(&&p[1]))
            .count();
        let stay = trace.iter().filter(busy).count() as f64 / runs as f64;
        assert!((3.0..12.0).contains(&stay), "{stay}");
        assert_ne!(trace[..100], cpu(1, 1, 100)[..]);
        assert_eq!(trace[..100], cpu(1, 0, 100)[..]);
    }
}
