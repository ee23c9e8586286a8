// SPDX-License-Identifier: Apache-2.0
//! The simpler ways that the paper argues against (appendix A), for comparison only.

use std::ops::RangeInclusive;

use causeway_core::certes::{ClientRule, Trial};

/// Mean response time in seconds if drops were independent of the time (M/M/1, eq.
/// 32): `served_s` is service and queueing time, `p` the drop rate of the slot, the
/// retries those of RFC 1122.
pub fn queueing_mean_s(served_s: f64, p: f64) -> f64 {
    served_s * (1.0 - p.powi(3)) + 3.0 * p + 6.0 * p.powi(2) + 12.0 * p.powi(3)
}

/// Mean response time in seconds from the drop rates of earlier slots (eq. 33; its
/// second product as it must be: over the slots 6 and 9 s back). `rate_at` gives the
/// drop rate that many seconds before the present slot.
pub(super) fn sliding_window_mean_s(syn_to_end_s: f64, rate_at: impl Fn(f64) -> f64) -> f64 {
    let back = |s: f64| rate_at(syn_to_end_s + s);
    syn_to_end_s
        + 3.0 * back(3.0)
        + 6.0 * back(6.0) * back(9.0)
        + 12.0 * back(12.0) * back(18.0) * back(21.0)
}

/// The usual rule, for comparison: the queue is as long as what leaves it in the goal's
/// time, by the mean SYN-to-END.
#[derive(Clone, Debug)]
pub struct QueueingRule {
    limits: RangeInclusive<u32>,
    limit: u32,
    goal_s: f64,
}

impl QueueingRule {
    /// Keeps the mean SYN-to-END at `goal_s` seconds.
    pub fn new(limits: RangeInclusive<u32>, limit: u32, goal_s: f64) -> Self {
        Self {
            limit: limit.clamp(*limits.start(), *limits.end()),
            limits,
            goal_s,
        }
    }

    /// Takes in what the present limit gave; the limit to try next.
    pub fn step(&mut self, trial: Trial) -> u32 {
        if trial.completed < ClientRule::ENOUGH || trial.served_s <= 0.0 {
            return self.limit;
        }
        let ratio = self.goal_s / (trial.served_s / trial.completed);
        let next = f64::from(self.limit) * ratio.clamp(0.5, 2.0);
        self.limit = (next.round() as u32).clamp(*self.limits.start(), *self.limits.end());
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_comparators_are_the_printed_formulas() {
        let p = 0.2;
        let expected = 0.01 * (1.0 - 0.008) + 0.6 + 0.24 + 0.096;
        assert!(
            (queueing_mean_s(0.01, p) - expected).abs() < 1e-12,
            "figure 22: about 1 s at 20 %"
        );
        let same = sliding_window_mean_s(0.5, |_| p);
        assert!((same - (0.5 + 0.6 + 0.24 + 0.096)).abs() < 1e-12);
    }

    #[test]
    fn the_queueing_rule_keeps_its_goal_whatever_is_dropped() {
        let mut rule = QueueingRule::new(16..=4096, 1024, 0.25);
        let trial = Trial {
            transactions: 100.0,
            response_s: 2000.0,
            served_s: 50.0,
            completed: 100.0,
            dropped: 0.9,
        };
        // 0.5 s of service and queueing: half the queue, although 90 % are dropped.
        assert_eq!(rule.step(trial), 512);
        assert_eq!(rule.step(trial), 256);
    }
}
