// SPDX-License-Identifier: Apache-2.0
//! How long a listener's accept queue should be (Certes, section 5.3).
//!
//! The usual rule keeps the time in the queue at a goal: it shortens the queue, and so
//! drops SYNs, whose clients then wait for seconds that the server does not see (figure 21). The
//! rule here goes by client latency, whatever that is made of: it tries another
//! limit for a while, and keeps going while the mean response time falls.

use std::ops::RangeInclusive;

/// What one limit gave while it held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Trial {
    /// Transactions that ended.
    pub transactions: f64,
    /// Sum of their client latencies, seconds.
    pub response_s: f64,
    /// Sum of SYN-to-END, seconds.
    pub served_s: f64,
    /// Connections completed.
    pub completed: f64,
    /// Share of SYNs that were dropped.
    pub dropped: f64,
}

impl Trial {
    fn mean_s(&self) -> f64 {
        self.response_s / self.transactions
    }
}

/// Doubles or halves the limit, in the direction that makes client latency lower. While nothing is
/// dropped it leaves the limit alone, whatever that is.
#[derive(Clone, Debug)]
pub struct ClientRule {
    limits: RangeInclusive<u32>,
    longer: bool,
    before: Option<Trial>,
    /// Trials in a row of the longest limit.
    longest_trials: u32,
    /// What was to hold since the last trial.
    wanted: Option<u32>,
    /// What the kernel gave where more was wanted.
    bound: Option<u32>,
}

impl ClientRule {
    /// Fewer transactions than this say nothing about a limit.
    pub const ENOUGH: f64 = 30.0;
    /// A mean that changed by less, as a share, did not change.
    const NOISE: f64 = 0.05;
    /// Below this share of dropped SYNs the queue's limit does not show in client latency.
    const DROPS: f64 = 0.005;
    /// Trials after which the longest limit is held against a shorter one again.
    const TRIALS_OF_LONGEST: u32 = 8;

    /// Keeps to `limits`.
    pub fn new(limits: RangeInclusive<u32>) -> Self {
        Self {
            limits,
            longer: true,
            before: None,
            // Of the limit that is in force nothing is known: if it is the longest, a
            // shorter one is tried first.
            longest_trials: Self::TRIALS_OF_LONGEST,
            wanted: None,
            bound: None,
        }
    }

    /// Takes in what the limit in force gave, which the kernel may have bounded; the limit to try
    /// next, if that is another.
    pub fn step(&mut self, in_force: u32, trial: Trial) -> Option<u32> {
        if self.wanted.take().is_some_and(|wanted| in_force < wanted) {
            self.bound = Some(in_force);
        }
        if trial.transactions < Self::ENOUGH {
            return None;
        }
        let before = self.before.replace(trial);
        if trial.dropped < Self::DROPS {
            // Nothing is dropped: the limit does no harm, and the next burst may need it.
            self.before = None;
            self.longer = true;
            return None;
        }
        if let Some(before) = before {
            let change = trial.mean_s() / before.mean_s() - 1.0;
            // Within the noise the longer queue is the better: it drops less.
            let worse = change > Self::NOISE;
            let same = change.abs() <= Self::NOISE;
            if worse || (same && !self.longer) {
                self.longer = !self.longer;
            }
        }
        let end = *self.limits.end();
        let longest = self.bound.map_or(end, |bound| bound.min(end));
        if self.longer && in_force >= longest {
            self.longer = self.longest_trials < Self::TRIALS_OF_LONGEST;
            self.longest_trials += 1;
            if !self.longer {
                // It may be another by the time that longer ones are tried again.
                self.bound = None;
            }
        } else {
            self.longest_trials = 0;
        }
        let next = match self.longer {
            true => in_force.saturating_mul(2),
            false => in_force / 2,
        };
        let next = next.clamp(*self.limits.start(), end).min(longest);
        self.wanted = (next != in_force).then_some(next);
        self.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(mean_s: f64, dropped: f64) -> Trial {
        Trial {
            transactions: 100.0,
            response_s: 100.0 * mean_s,
            served_s: 50.0,
            completed: 100.0,
            dropped,
        }
    }

    /// Runs the rule against a server whose mean by limit is known; the limits in force.
    fn settle(
        rule: &mut ClientRule,
        begin: u32,
        mean_s: impl Fn(u32) -> f64,
        rounds: usize,
    ) -> Vec<u32> {
        let mut limit = begin;
        (0..rounds)
            .map(|_| {
                let next = rule.step(limit, trial(mean_s(limit), 0.2));
                limit = next.unwrap_or(limit);
                limit
            })
            .collect()
    }

    #[test]
    fn it_finds_the_limit_that_clients_feel_to_be_best() {
        // Short queues drop, long ones keep clients waiting.
        let mean_s = |limit: u32| 200.0 / f64::from(limit) + f64::from(limit) / 100.0;
        for begin in [16, 128, 4096] {
            let mut rule = ClientRule::new(16..=4096);
            let limits = settle(&mut rule, begin, mean_s, 60);
            let late = &limits[20..];
            assert!(
                late.iter().all(|limit| (64..=512).contains(limit)),
                "{begin}: {limits:?}"
            );
        }
    }

    #[test]
    fn where_a_longer_queue_is_never_worse_it_grows_to_the_end_and_stays() {
        let mut rule = ClientRule::new(16..=1024);
        let limits = settle(&mut rule, 32, |limit| 1.0 + 100.0 / f64::from(limit), 30);
        assert_eq!(*limits.last().unwrap_or(&0), 1024, "{limits:?}");
    }

    #[test]
    fn the_longest_limit_is_held_against_a_shorter_one_from_time_to_time() {
        let mut rule = ClientRule::new(16..=1024);
        let good = settle(&mut rule, 1024, |limit| 1.0 + 100.0 / f64::from(limit), 30);
        assert_eq!(good[0], 512, "{good:?}");
        let shorter = good.iter().filter(|limit| **limit < 1024).count();
        assert!((2..=4).contains(&shorter), "{good:?}");
        // Later the server is such that a long queue is bad.
        let last = good.last().copied().expect("rounds");
        let bad = settle(&mut rule, last, |limit| f64::from(limit) / 100.0, 30);
        assert!(bad[15..].iter().all(|limit| *limit <= 64), "{bad:?}");
    }

    /// A service may have a longer queue than the limits that a managed one is kept in.
    #[test]
    fn without_drops_and_with_too_few_transactions_nothing_is_set() {
        let mut rule = ClientRule::new(16..=1024);
        let few = Trial {
            transactions: 5.0,
            ..trial(5.0, 0.5)
        };
        for limit in [8, 64, 16_384] {
            assert_eq!(rule.step(limit, trial(5.0, 0.0)), None);
            assert_eq!(rule.step(limit, few), None);
        }
        assert_eq!(rule.step(16_384, trial(5.0, 0.2)), Some(1024));
    }

    /// `net.core.somaxconn`, say.
    #[test]
    fn a_limit_that_the_kernel_does_not_give_is_not_asked_for_each_time() {
        let mut rule = ClientRule::new(16..=4096);
        let mut limit = 64;
        let mut wanted = Vec::new();
        for _ in 0..12 {
            let next = rule.step(limit, trial(1.0 + 100.0 / f64::from(limit), 0.2));
            wanted.extend(next);
            limit = next.map_or(limit, |next| next.min(128));
        }
        let beyond = wanted.iter().filter(|limit| **limit > 128).count();
        assert_eq!((limit, beyond), (128, 1), "{wanted:?}");
    }
}
