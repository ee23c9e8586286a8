// SPDX-License-Identifier: Apache-2.0
//! One real behind several balancers: each reports what it has counted, all add it up.
//!
//! A [`Share`] holds one balancer's totals since it began to count. Totals only grow, so that
//! the newer of two shares of one balancer knows all that the older one knew: one that is lost
//! is made up for by the next, and the order in which they come does not matter. [`Merged`]
//! keeps the newest of each balancer, and gives what they have counted since it was last asked.
//!
//! Sums add up without error; means would not.

use std::collections::BTreeMap;

use super::{GradedLatencies, MeasuredInterval, Reading};

/// Names a balancer among those that serve the same VIPs.
pub type BalancerId = u64;

/// Totals of one grade. They go round: sums of half nanoseconds after months, counts after some
/// 2 billion samples, and only differences mean something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GradedTotals {
    /// See [`GradedLatencies`].
    pub sum_halves_ns: u64,
    /// See [`GradedLatencies`].
    pub server_sum_halves_ns: u64,
    /// See [`GradedLatencies`].
    pub path_sum_halves_ns: u64,
    /// See [`GradedLatencies`].
    pub weight_halves: u32,
    /// See [`GradedLatencies`].
    pub path_weight_halves: u32,
}

/// All that a balancer has counted of a real. Every number goes round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeasuredTotals {
    /// Latencies but those graded low.
    pub good: GradedTotals,
    /// Those graded low.
    pub low: GradedTotals,
    /// Weight of upper bounds.
    pub bound_halves: u32,
    /// Requests of measured connections.
    pub requests: u32,
    /// Requests of all connections, by estimate.
    pub all_requests: u32,
    /// Weight of what was over long before it was known.
    pub late_halves: u32,
    /// Answers that clients acknowledged before they asked again.
    pub answers_acked: u32,
}

/// What one balancer reports of one real.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share {
    /// What it has counted since it began to.
    pub totals: MeasuredTotals,
    /// Connections that are open.
    pub active: u32,
    /// The weight that its controller gives the real, in millionths of the configured one; `None`
    /// where it has none, or knows no better than the configuration.
    pub weight_millionths: Option<u32>,
    /// Whether it finds the real up; `None`: it does not probe it, or does not know yet.
    pub vote: Option<bool>,
}

/// One real as the other balancers see it.
#[derive(Debug, Clone, Default)]
pub struct Merged {
    shares: BTreeMap<BalancerId, LastShare>,
}

#[derive(Debug, Clone, Copy)]
struct LastShare {
    share: Share,
    /// Of two shares the one with the higher number is the newer one.
    number: u64,
    at_ns: u64,
    /// Totals that have been given away.
    taken: MeasuredTotals,
}

impl GradedTotals {
    fn add(&mut self, of: &GradedLatencies) {
        let (sum, count) = (u64::wrapping_add, |old: u32, new: u64| {
            old.wrapping_add(new as u32)
        });
        self.sum_halves_ns = sum(self.sum_halves_ns, of.sum_halves_ns);
        self.server_sum_halves_ns = sum(self.server_sum_halves_ns, of.server_sum_halves_ns);
        self.path_sum_halves_ns = sum(self.path_sum_halves_ns, of.path_sum_halves_ns);
        self.weight_halves = count(self.weight_halves, of.weight_halves);
        self.path_weight_halves = count(self.path_weight_halves, of.path_weight_halves);
    }

    fn since(&self, then: &Self) -> GradedLatencies {
        let sum = u64::wrapping_sub;
        let count = |now: u32, then: u32| now.wrapping_sub(then).into();
        GradedLatencies {
            sum_halves_ns: sum(self.sum_halves_ns, then.sum_halves_ns),
            server_sum_halves_ns: sum(self.server_sum_halves_ns, then.server_sum_halves_ns),
            path_sum_halves_ns: sum(self.path_sum_halves_ns, then.path_sum_halves_ns),
            weight_halves: count(self.weight_halves, then.weight_halves),
            path_weight_halves: count(self.path_weight_halves, then.path_weight_halves),
        }
    }
}

impl MeasuredTotals {
    /// Counts an interval in.
    pub fn add(&mut self, of: &MeasuredInterval) {
        let count = |old: u32, new: u64| old.wrapping_add(new as u32);
        self.good.add(&of.good);
        self.low.add(&of.low);
        self.bound_halves = count(self.bound_halves, of.bound_halves);
        self.requests = count(self.requests, of.counts.requests);
        self.all_requests = count(self.all_requests, of.counts.all_requests);
        self.late_halves = count(self.late_halves, of.counts.late_weight_halves);
        self.answers_acked = count(self.answers_acked, of.counts.answers_acked);
    }

    /// Whether it may have been counted on from `then`: no interval brings half of what a count holds.
    fn follows(&self, then: &Self) -> bool {
        let grew = |now: u32, then: u32| now.wrapping_sub(then) <= u32::MAX / 2;
        grew(self.good.weight_halves, then.good.weight_halves)
            && grew(self.low.weight_halves, then.low.weight_halves)
            && grew(self.bound_halves, then.bound_halves)
            && grew(self.all_requests, then.all_requests)
    }

    /// What was counted after `then`, former totals of the same balancer.
    pub fn since(&self, then: &Self) -> MeasuredInterval {
        let count = |now: u32, then: u32| u64::from(now.wrapping_sub(then));
        MeasuredInterval {
            good: self.good.since(&then.good),
            low: self.low.since(&then.low),
            bound_halves: count(self.bound_halves, then.bound_halves),
            counts: Reading {
                requests: count(self.requests, then.requests),
                all_requests: count(self.all_requests, then.all_requests),
                late_weight_halves: count(self.late_halves, then.late_halves),
                answers_acked: count(self.answers_acked, then.answers_acked),
                ..Reading::default()
            },
        }
    }
}

impl Merged {
    /// Takes in a balancer's share, unless a newer one is there; whether it did. A balancer that
    /// was not there before brings only what it counts from now on.
    pub fn put(&mut self, balancer: BalancerId, number: u64, share: Share, now_ns: u64) -> bool {
        let known = self.shares.get(&balancer);
        if known.is_some_and(|known| known.number >= number) {
            return false;
        }
        let taken = known.map_or(share.totals, |known| known.taken);
        let held = LastShare {
            share,
            number,
            at_ns: now_ns,
            taken,
        };
        self.shares.insert(balancer, held);
        true
    }

    /// Forgets a balancer: one that is gone, or has begun to count again.
    pub fn forget(&mut self, balancer: BalancerId) {
        self.shares.remove(&balancer);
    }

    /// Forgets what has not come again since `before_ns`.
    pub fn forget_before(&mut self, before_ns: u64) {
        self.shares.retain(|_, held| held.at_ns >= before_ns);
    }

    /// What the balancers have counted since this was last called. One whose totals fell has begun
    /// to count again.
    pub fn take(&mut self) -> MeasuredInterval {
        let mut sum = MeasuredInterval::default();
        for held in self.shares.values_mut() {
            let mut measured = match held.share.totals.follows(&held.taken) {
                true => held.share.totals.since(&held.taken),
                false => MeasuredInterval::default(),
            };
            measured.counts.active = held.share.active.into();
            held.taken = held.share.totals;
            sum = sum.and(measured);
        }
        sum
    }

    /// The newest share of each balancer.
    pub fn shares(&self) -> impl Iterator<Item = &Share> {
        self.shares.values().map(|held| &held.share)
    }

    /// That of one balancer.
    pub fn share(&self, balancer: BalancerId) -> Option<&Share> {
        self.shares.get(&balancer).map(|held| &held.share)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interval(samples: u64, latency_ns: u64) -> MeasuredInterval {
        let good = GradedLatencies {
            sum_halves_ns: 2 * samples * latency_ns,
            weight_halves: 2 * samples,
            ..GradedLatencies::default()
        };
        MeasuredInterval {
            good,
            low: GradedLatencies {
                path_weight_halves: samples,
                ..GradedLatencies::default()
            },
            bound_halves: samples,
            counts: Reading {
                requests: samples,
                all_requests: 3 * samples,
                late_weight_halves: samples / 2,
                answers_acked: samples / 3,
                ..Reading::default()
            },
        }
    }

    /// The shares that a balancer sends after each of these intervals.
    fn told(begin: MeasuredTotals, intervals: &[MeasuredInterval]) -> Vec<Share> {
        let mut totals = begin;
        let mut tell = |of: Option<&MeasuredInterval>| {
            of.into_iter().for_each(|of| totals.add(of));
            Share {
                totals,
                active: 2,
                ..Share::default()
            }
        };
        let mut shares = vec![tell(None)];
        shares.extend(intervals.iter().map(|of| tell(Some(of))));
        shares
    }

    proptest! {
        /// Whatever of the shares is lost, doubled or overtaken: once the last has come, all has
        /// been counted once.
        #[test]
        fn nothing_is_lost_and_nothing_counts_twice(
            samples in prop::collection::vec(0..1_000_u64, 1..20),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
            begin in any::<u32>(),
        ) {
            let intervals: Vec<_> = samples.iter().map(|of| interval(*of, 5_000)).collect();
            // Near where numbers go round.
            let mut totals = MeasuredTotals::default();
            totals.good.sum_halves_ns = u64::MAX - u64::from(begin);
            totals.requests = u32::MAX - begin % 1_000;
            let shares = told(totals, &intervals);
            let mut merged = Merged::default();
            merged.put(7, 0, shares[0], 0);
            let mut found = MeasuredInterval::default();
            for index in order {
                let number = index.index(shares.len());
                merged.put(7, number as u64, shares[number], 0);
                found = found.and(merged.take());
            }
            merged.put(7, samples.len() as u64, shares[samples.len()], 0);
            found = found.and(merged.take());
            let mut all = intervals.iter().fold(MeasuredInterval::default(), |sum, of| sum.and(*of));
            all.counts.active = found.counts.active;
            prop_assert_eq!(found, all);
        }
    }

    #[test]
    fn readings_of_several_balancers_add_up() {
        let mut merged = Merged::default();
        let of = |samples: &[u64]| {
            let intervals: Vec<_> = samples.iter().map(|of| interval(*of, 5_000)).collect();
            told(MeasuredTotals::default(), &intervals)
        };
        let (one, two) = (of(&[100, 60]), of(&[50, 20]));
        assert!(merged.put(1, 1, one[1], 10));
        assert!(merged.put(2, 1, two[1], 10));
        // What they had counted before says nothing about now.
        assert_eq!(merged.take().good, GradedLatencies::default());
        assert!(merged.put(1, 2, one[2], 20));
        assert!(merged.put(2, 2, two[2], 20));
        assert!(!merged.put(2, 1, two[1], 21));
        let taken = merged.take();
        assert_eq!(taken.good.weight_halves, 2 * (60 + 20));
        assert_eq!(taken.good.sum_halves_ns, 2 * 80 * 5_000);
        assert_eq!((taken.counts.requests, taken.counts.active), (80, 4));
        assert_eq!(merged.take().counts.requests, 0);
    }

    #[test]
    fn one_that_falls_silent_leaves_and_comes_back_without_a_lump() {
        let mut merged = Merged::default();
        let shares = told(
            MeasuredTotals::default(),
            &[interval(5, 1), interval(1_000, 1)],
        );
        merged.put(1, 0, shares[0], 10);
        merged.put(2, 0, shares[0], 30);
        merged.forget_before(20);
        assert!(merged.share(1).is_none() && merged.share(2).is_some());
        merged.put(1, 2, shares[2], 40);
        assert_eq!(merged.take().counts.requests, 0);
        merged.forget(1);
        merged.forget(2);
        assert_eq!(merged.take(), MeasuredInterval::default());
    }
}
