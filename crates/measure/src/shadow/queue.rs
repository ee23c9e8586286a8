// SPDX-License-Identifier: Apache-2.0
//! A server as a queue: how many requests it works on at a time, and how long on each,
//! from when requests came and when they were answered.
//!
//! A server that works on `c` requests at a time, in the order they came, begins the next
//! when it has come and one of the `c` is done. By that each request's service time follows
//! from its answer. The right `c` is the one by which service times do not depend on how many
//! requests were there: too large, and waiting passes for service; too small, and service
//! passes for waiting.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::recording::Request;

/// Numbers of requests at a time that are tried.
const WORKERS: [usize; 16] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// Requests that must have waited before the number counts as known.
const WAITED: usize = 30;
/// Standard errors by which service times must seem to go with the requests there, if all
/// that came were worked on at once, before anything is taken to wait.
const SURE: f64 = 4.0;
/// Answers that must be expected to overtake another, if requests were worked on side by side,
/// before it says something that they do not; and the part of them that may.
const OVERTAKING: f64 = 10.0;
const IN_ORDER: f64 = 0.25;
/// By how much of a mean service time one must be done before the other: when answers came is
/// known from what clients sent then, and two that left together may seem to have changed places.
const CLEARLY: f64 = 0.1;

/// Requests under way at a server that works on some at a time.
#[derive(Clone, Debug)]
pub(super) struct Workers {
    /// When each will be free.
    free_ns: BinaryHeap<Reverse<u64>>,
    limit: usize,
    /// What a request takes longer that nobody had to wait for.
    wakes_ns: u64,
}

impl Workers {
    /// `None`: as many as come.
    pub(super) fn new(limit: Option<usize>) -> Self {
        Self {
            free_ns: BinaryHeap::new(),
            limit: limit.unwrap_or(usize::MAX),
            wakes_ns: 0,
        }
    }

    pub(super) fn of(model: &ServerModel) -> Self {
        Self {
            wakes_ns: model.wakes_ns,
            ..Self::new(model.workers)
        }
    }

    /// When a request that comes now can begin; requests are given in the order they come.
    fn begin(&mut self, now_ns: u64) -> u64 {
        while let Some(&Reverse(free)) = self.free_ns.peek()
            && free <= now_ns
        {
            self.free_ns.pop();
        }
        match self.free_ns.len() < self.limit {
            true => now_ns,
            false => self.free_ns.pop().map_or(now_ns, |Reverse(free)| free),
        }
    }

    /// When a request that comes now and takes so long is done.
    pub(super) fn serve(&mut self, now_ns: u64, service_ns: u64) -> u64 {
        let begin_ns = self.begin(now_ns);
        let wakes_ns = u64::from(begin_ns == now_ns) * self.wakes_ns;
        let done_ns = begin_ns + wakes_ns + service_ns;
        self.free_ns.push(Reverse(done_ns));
        done_ns
    }
}

/// A server as far as it can be seen.
#[derive(Clone, Debug)]
pub(super) struct ServerModel {
    /// Requests that it works on at a time; `None`: it has never been seen to reach a limit.
    pub workers: Option<usize>,
    /// Most requests that were there at once.
    pub most_at_once: usize,
    /// How much longer a request takes that comes to a free worker than one that waited: the
    /// worker, or its processor, slept.
    wakes_ns: u64,
    /// Service times in order of size, without that.
    services_ns: Vec<u64>,
}

impl ServerModel {
    /// From its requests, in any order; also each one's place among the service times, from
    /// 0 to 1, in the order given.
    pub(super) fn learn(requests: &[Request]) -> (Self, Vec<f64>) {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|&at| (requests[at].sent_ns, requests[at].done_ns));
        let present = present(requests, &order);
        let most_at_once = present.iter().copied().max().unwrap_or(0);
        let fits = WORKERS
            .iter()
            .filter(|&&workers| workers <= most_at_once.max(1))
            .map(|&workers| Fit::of(workers, requests, &order, &present));
        let unlimited = Fit::of(usize::MAX, requests, &order, &present);
        let told = match one_after_another(requests, &order, &present) {
            true => Some(Fit::of(1, requests, &order, &present)),
            false => {
                let chance = SURE / (requests.len().max(1) as f64).sqrt();
                let best = fits.min_by(|a, b| a.dependence.total_cmp(&b.dependence));
                best.filter(|best| {
                    best.dependence < unlimited.dependence && unlimited.dependence > chance
                })
            }
        };
        let told = told.filter(|told| told.waited >= WAITED);
        let workers = told.as_ref().map(|best| best.workers);
        let wakes_ns = told.as_ref().map_or(0, Fit::wakes_ns);
        let fit = told.unwrap_or(unlimited);
        let services: Vec<u64> = fit
            .services_ns
            .iter()
            .zip(&fit.begun_at_once)
            .map(|(ns, at_once)| ns.saturating_sub(u64::from(*at_once) * wakes_ns))
            .collect();
        let mut by_size: Vec<usize> = (0..services.len()).collect();
        by_size.sort_by_key(|&at| services[at]);
        let mut ranks = vec![0.0; services.len()];
        for (place, &at) in by_size.iter().enumerate() {
            ranks[order[at]] = (place as f64 + 0.5) / services.len() as f64;
        }
        let model = Self {
            workers,
            most_at_once,
            wakes_ns,
            services_ns: by_size.iter().map(|&at| services[at]).collect(),
        };
        (model, ranks)
    }

    /// Service time of a request that is longer than so much of the others.
    pub(super) fn service_ns(&self, rank: f64) -> u64 {
        let last = self.services_ns.len().saturating_sub(1);
        let at = (rank * self.services_ns.len() as f64) as usize;
        self.services_ns.get(at.min(last)).copied().unwrap_or(0)
    }

    /// Mean service time.
    pub(super) fn mean_service_ns(&self) -> f64 {
        let sum: f64 = self.services_ns.iter().map(|&ns| ns as f64).sum();
        sum / self.services_ns.len().max(1) as f64
    }
}

/// Requests at the server when each came, itself included, in `order`.
fn present(requests: &[Request], order: &[usize]) -> Vec<usize> {
    let mut under_way: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let mut present = Vec::with_capacity(order.len());
    for request in order.iter().map(|&at| requests[at]) {
        while let Some(&Reverse(done)) = under_way.peek()
            && done <= request.sent_ns
        {
            under_way.pop();
        }
        under_way.push(Reverse(request.done_ns));
        present.push(under_way.len());
    }
    present
}

/// Whether answers keep the order of their requests where they would not if the server worked
/// on several: of two requests that come to an otherwise idle server, the second is then done
/// first as often as service times say that differ so much.
fn one_after_another(requests: &[Request], order: &[usize], present: &[usize]) -> bool {
    let in_order = || order.iter().map(|&at| requests[at]);
    let alone = in_order().zip(present).filter(|(_, there)| **there == 1);
    let mut alone_ns: Vec<u64> = alone.map(|(of, _)| of.latency_ns()).collect();
    alone_ns.sort_unstable();
    let mean_ns = alone_ns.iter().sum::<u64>() as f64 / alone_ns.len().max(1) as f64;
    let clearly_ns = (CLEARLY * mean_ns) as u64;
    let (mut expected, mut overtook) = (0.0, 0.0);
    let pairs = in_order().zip(in_order().skip(1)).zip(present.windows(2));
    for ((first, second), there) in pairs {
        if *there == [1, 2] {
            expected += overtakes(&alone_ns, second.sent_ns - first.sent_ns + clearly_ns);
            overtook += f64::from(u8::from(second.done_ns + clearly_ns < first.done_ns));
        }
    }
    expected >= OVERTAKING && overtook <= IN_ORDER * expected
}

/// How probably a request is done before one that is ahead of it by this time and still there, by
/// the service times of all, in order of size.
fn overtakes(services_ns: &[u64], ahead_ns: u64) -> f64 {
    let longer = &services_ns[services_ns.partition_point(|&ns| ns <= ahead_ns)..];
    // A few of them say it as well as all.
    let step = longer.len() / 32 + 1;
    let shorter = |first: &u64| services_ns.partition_point(|ns| ns + ahead_ns < *first);
    let taken = longer.iter().skip(step / 2).step_by(step);
    let (sum, count) = taken.fold((0, 0), |(sum, count), of| (sum + shorter(of), count + 1));
    sum as f64 / (count * services_ns.len()).max(1) as f64
}

/// What a number of workers makes of the requests.
struct Fit {
    workers: usize,
    /// In the order of arrival.
    services_ns: Vec<u64>,
    begun_at_once: Vec<bool>,
    waited: usize,
    /// How far service times go with the number of requests there, from 0 to 1.
    dependence: f64,
}

impl Fit {
    fn of(workers: usize, requests: &[Request], order: &[usize], present: &[usize]) -> Self {
        let mut server = Workers::new(Some(workers));
        let mut begun_at_once = Vec::with_capacity(order.len());
        let services_ns: Vec<u64> = order
            .iter()
            .map(|&at| {
                let Request { sent_ns, done_ns } = requests[at];
                let begin_ns = server.begin(sent_ns);
                begun_at_once.push(begin_ns == sent_ns);
                server.free_ns.push(Reverse(done_ns.max(begin_ns)));
                done_ns.saturating_sub(begin_ns)
            })
            .collect();
        // A few long ones must not decide, nor how exactly short ones are known.
        let sum: f64 = services_ns.iter().map(|&ns| ns as f64).sum();
        let mean = sum / services_ns.len().max(1) as f64;
        let logs: Vec<f64> = services_ns
            .iter()
            .map(|&ns| (ns as f64 + mean + 1.0).ln())
            .collect();
        let counts: Vec<f64> = present.iter().map(|&n| n as f64).collect();
        Self {
            workers,
            dependence: correlation(&logs, &counts).abs(),
            services_ns,
            waited: begun_at_once.iter().filter(|at_once| !**at_once).count(),
            begun_at_once,
        }
    }

    /// The low end of service times tells it best: most of them lie there, and the long ones
    /// differ by chance.
    fn wakes_ns(&self) -> u64 {
        let low_end = |at_once: bool| {
            let each = self.services_ns.iter().zip(&self.begun_at_once);
            let of_these = each.filter(|(_, of)| **of == at_once);
            let mut ns: Vec<u64> = of_these.map(|(ns, _)| *ns).collect();
            let place = ns.len() / 10;
            (ns.len() >= WAITED).then(|| *ns.select_nth_unstable(place).1)
        };
        match (low_end(true), low_end(false)) {
            (Some(at_once), Some(waited)) => at_once.saturating_sub(waited),
            _ => 0,
        }
    }
}

/// Pearson's; 0 where one of them does not vary.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let count = a.len().max(1) as f64;
    let mean = |of: &[f64]| of.iter().sum::<f64>() / count;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut both, mut own_a, mut own_b) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        both += (x - mean_a) * (y - mean_b);
        own_a += (x - mean_a).powi(2);
        own_b += (y - mean_b).powi(2);
    }
    match own_a * own_b > 0.0 {
        true => both / (own_a * own_b).sqrt(),
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::chance::Chance;
    use super::*;

    /// Requests that come by chance to a server with this many workers; its utilisation.
    fn served(workers: Option<usize>, count: usize, load: f64, seed: u64) -> Vec<Request> {
        let mut chance = Chance(seed);
        let mut server = Workers::new(workers);
        let (mean_ns, mut now_ns) = (5e6, 0);
        let gap_ns = mean_ns / load / workers.unwrap_or(4) as f64;
        let mut request = || {
            now_ns += chance.exponential(gap_ns);
            let done_ns = server.serve(now_ns, chance.exponential(mean_ns));
            Request {
                sent_ns: now_ns,
                done_ns,
            }
        };
        (0..count).map(|_| request()).collect()
    }

    #[test]
    fn the_number_of_workers_shows_in_what_waits() {
        for workers in [1, 2, 4] {
            for seed in 1..4 {
                let requests = served(Some(workers), 4000, 0.8, seed);
                let (model, _) = ServerModel::learn(&requests);
                assert_eq!(model.workers, Some(workers), "seed {seed}");
                let mean_ms = model.mean_service_ns() / 1e6;
                assert!((4.5..5.5).contains(&mean_ms), "{mean_ms} ms, 5 in truth");
            }
        }
    }

    /// One that sleeps when it is idle, and begins two milliseconds later for it.
    #[test]
    fn a_server_that_must_wake_up_is_still_one_worker() {
        for seed in 1..4 {
            let mut chance = Chance(seed);
            let (mut sent_ns, mut done_ns) = (0, 0);
            let mut request = || {
                sent_ns += chance.exponential(12e6);
                let wakes_ns = u64::from(sent_ns >= done_ns) * 2_000_000;
                done_ns = done_ns.max(sent_ns) + wakes_ns + chance.exponential(5e6);
                Request { sent_ns, done_ns }
            };
            let requests: Vec<Request> = (0..4000).map(|_| request()).collect();
            assert_eq!(
                ServerModel::learn(&requests).0.workers,
                Some(1),
                "seed {seed}"
            );
        }
    }

    /// Answers keep their order, too, where all take the same time.
    #[test]
    fn order_says_nothing_where_all_take_as_long() {
        let mut server = Workers::new(Some(2));
        let mut chance = Chance(1);
        let mut sent_ns = 0;
        let mut request = || {
            sent_ns += chance.exponential(3e6);
            let done_ns = server.serve(sent_ns, 5_000_000);
            Request { sent_ns, done_ns }
        };
        let requests: Vec<Request> = (0..4000).map(|_| request()).collect();
        assert_eq!(ServerModel::learn(&requests).0.workers, Some(2));
    }

    #[test]
    fn of_a_server_that_nothing_waited_for_no_limit_is_told() {
        let (model, _) = ServerModel::learn(&served(None, 4000, 0.7, 1));
        assert_eq!(model.workers, None);
        let (idle, _) = ServerModel::learn(&served(Some(1), 100, 0.02, 1));
        assert_eq!(idle.workers, None, "of 100 requests hardly one waited");
        assert_eq!(ServerModel::learn(&[]).0.service_ns(0.5), 0);
    }

    #[test]
    fn ranks_give_each_request_its_own_service_back() {
        let requests = served(Some(1), 500, 0.5, 2);
        let (model, ranks) = ServerModel::learn(&requests);
        assert_eq!(model.workers, Some(1));
        let mut server = Workers::of(&model);
        for (request, rank) in requests.iter().zip(&ranks) {
            let done_ns = server.serve(request.sent_ns, model.service_ns(*rank));
            assert_eq!(done_ns, request.done_ns);
        }
    }
}
