// SPDX-License-Identifier: Apache-2.0
//! A balancer: what it sees of each server, its controller, its ring.

use causeway_core::control::{Controller, GradedLatencies, MeasuredInterval, Member, Reading};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::scenario::Experiment;

/// What a balancer has seen of a server in this interval.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub good: Samples,
    /// Those graded low.
    pub low: Samples,
    pub requests: u64,
    /// Connections that are open.
    pub active: u64,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Samples {
    sum_halves_ns: u64,
    weight_halves: u64,
    /// Sum of the paths, as handshakes showed them.
    path_sum_halves_ns: u64,
}

impl Samples {
    pub(super) fn take(&mut self, latency_ns: u64, path_ns: u64) {
        self.sum_halves_ns += 2 * latency_ns;
        self.weight_halves += 2;
        self.path_sum_halves_ns += 2 * path_ns.min(latency_ns);
    }

    fn and(self, other: Self) -> Self {
        Self {
            sum_halves_ns: self.sum_halves_ns + other.sum_halves_ns,
            weight_halves: self.weight_halves + other.weight_halves,
            path_sum_halves_ns: self.path_sum_halves_ns + other.path_sum_halves_ns,
        }
    }

    /// As an estimator reports them that is off by this factor.
    fn estimated(self, factor: f64) -> GradedLatencies {
        let sum_halves_ns = (self.sum_halves_ns as f64 * factor) as u64;
        GradedLatencies {
            sum_halves_ns,
            weight_halves: self.weight_halves,
            server_sum_halves_ns: sum_halves_ns.saturating_sub(self.path_sum_halves_ns),
            path_sum_halves_ns: self.path_sum_halves_ns.min(sum_halves_ns),
            path_weight_halves: self.weight_halves,
        }
    }
}

impl Seen {
    pub(super) fn end(&mut self, factor: f64, by_grade: bool) -> MeasuredInterval {
        let good = std::mem::take(&mut self.good);
        let low = std::mem::take(&mut self.low);
        let requests = std::mem::take(&mut self.requests);
        let (good, low) = match by_grade {
            true => (good, low),
            false => (good.and(low), Samples::default()),
        };
        MeasuredInterval {
            good: good.estimated(factor),
            low: low.estimated(factor),
            bound_halves: 0,
            counts: Reading {
                requests,
                active: self.active,
                ..Reading::default()
            },
        }
    }
}

/// One of the balancers before the servers.
#[derive(Debug)]
pub(super) struct Balancer {
    pub seen: Vec<Seen>,
    pub controller: Option<Controller>,
    /// Weights of its ring, and their sums up to each server.
    in_ring: Vec<f64>,
    upto: Vec<f64>,
    /// By how many turns each server is behind its share.
    behind: Vec<f64>,
    /// Each interval's time and weights, relative to the configured ones.
    pub history: Vec<(u64, Vec<f32>)>,
}

impl Balancer {
    /// One of several; they do not begin alike.
    pub(super) fn new(scenario: &Experiment, index: usize) -> Self {
        let servers = scenario.servers.iter();
        let configured: Vec<f64> = servers.map(|server| server.weight).collect();
        let controller = scenario.control.as_ref().map(|(law, params)| {
            let mut controller = Controller::new(*law, params.clone());
            let members = configured.iter().zip(0..);
            let members: Vec<Member> = members
                .map(|(&configured, id)| Member { id, configured })
                .collect();
            controller.set_members(&members);
            controller
        });
        let mut balancer = Self {
            seen: configured.iter().map(|_| Seen::default()).collect(),
            controller,
            in_ring: Vec::new(),
            upto: Vec::new(),
            behind: behind(scenario.seed, index, configured.len()),
            history: Vec::new(),
        };
        balancer.weigh(&configured);
        balancer
    }

    /// A server drawn by weight.
    pub(super) fn drawn(&self, rng: &mut Pcg64Mcg) -> usize {
        let total = self.upto.last().copied().unwrap_or(0.0);
        let mark = rng.random::<f64>() * total;
        let server = self.upto.partition_point(|&upto| upto <= mark);
        server.min(self.upto.len() - 1)
    }

    /// The server that is furthest behind its share: interleaved, as a ring of turns is.
    pub(super) fn next(&mut self) -> usize {
        let total: f64 = self.in_ring.iter().sum();
        for (behind, weight) in self.behind.iter_mut().zip(&self.in_ring) {
            *behind += weight / total;
        }
        let furthest = self.behind.iter().enumerate();
        let furthest = furthest.max_by(|a, b| a.1.total_cmp(b.1));
        let server = furthest.map_or(0, |(index, _)| index);
        self.behind[server] -= 1.0;
        server
    }

    /// Lets the controller decide; whether that has a ring built.
    pub(super) fn tick(&mut self, now_ns: u64, readings: &[Reading]) -> bool {
        let Some(controller) = &mut self.controller else {
            return false;
        };
        let decision = controller.tick(now_ns, readings);
        let reals = || decision.reals.iter();
        let relative = reals().map(|real| (real.weight / real.configured) as f32);
        self.history.push((decision.at_ns, relative.collect()));
        // As the daemon: a ring is built when a weight is off by 1 % of the configured one.
        let stale = reals()
            .zip(&self.in_ring)
            .any(|(real, then)| (real.weight - then).abs() > 0.01 * real.configured);
        if stale {
            let weights: Vec<f64> = reals().map(|real| real.weight).collect();
            self.weigh(&weights);
        }
        stale
    }

    pub(super) fn weigh(&mut self, weights: &[f64]) {
        self.upto.clear();
        let mut sum = 0.0;
        for weight in weights {
            sum += weight;
            self.upto.push(sum);
        }
        self.in_ring = weights.to_vec();
    }
}

/// Where a balancer's turns begin.
fn behind(seed: u64, index: usize, servers: usize) -> Vec<f64> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(index as u64));
    let mut begin = || match index {
        0 => 0.0,
        _ => rng.random::<f64>(),
    };
    (0..servers).map(|_| begin()).collect()
}
