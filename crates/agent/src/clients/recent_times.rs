// SPDX-License-Identifier: Apache-2.0
//! Response times of the last seconds by bucket, for percentiles.

use std::collections::VecDeque;

use causeway_core::certes::PercentileBucket;
use causeway_dataplane::RESPONSE_BOUNDS_US;

use crate::config::WINDOW_MAX;

/// Transactions by bucket.
pub(super) type Counts = [u64; RESPONSE_BOUNDS_US.len() + 1];

/// All that was counted up to each of the last seconds, the oldest first.
#[derive(Debug, Default)]
pub(super) struct RecentTimes(VecDeque<(u64, Counts)>);

impl RecentTimes {
    /// Takes in what has been counted by `second`.
    pub(super) fn push(&mut self, second: u64, counts: Counts) {
        self.0.push_back((second, counts));
        // The last one before a window begins is what it is counted from.
        let is_before = |of: &(u64, Counts)| of.0 + WINDOW_MAX.as_secs() <= second;
        while self.0.get(1).is_some_and(is_before) {
            self.0.pop_front();
        }
    }

    /// What so many percent of the transactions of the last seconds took less than, seconds.
    /// `None` without transactions.
    pub(super) fn percentile_s(&self, percent: f64, window_s: u64) -> Option<f64> {
        let (second, newest) = self.0.back()?;
        let before = self.0.iter().rev().find(|of| of.0 + window_s <= *second);
        let (_, before) = before.or(self.0.front())?;
        let counts = newest.iter().zip(before);
        let counts: Vec<u64> = counts
            .map(|(newest, before)| newest.saturating_sub(*before))
            .collect();
        let bounds_s = RESPONSE_BOUNDS_US.map(|us| us as f64 / 1e6);
        PercentileBucket::of(&counts, &bounds_s, percent).map(|of| of.value_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(usize, u64)]) -> Counts {
        let mut counts = Counts::default();
        of.iter().for_each(|&(at, count)| counts[at] = count);
        counts
    }

    #[test]
    fn a_window_has_what_was_counted_in_it_also_where_seconds_are_missing() {
        let mut recent = RecentTimes::default();
        let mut total = counts(&[(0, 1000)]);
        recent.push(100, total);
        assert_eq!(recent.percentile_s(50.0, 10), None, "not known before");
        for second in [101, 102, 105, 106] {
            total[7] += 10;
            recent.push(second, total);
        }
        // Since 102, as of 103 and 104 nothing is known.
        total[11] += 20;
        recent.push(107, total);
        assert!(recent.percentile_s(49.0, 4).unwrap() < 0.1);
        assert!(recent.percentile_s(51.0, 4).unwrap() > 1.0);
        assert!(recent.percentile_s(1.0, 1).unwrap() > 1.0, "the last alone");
        for second in 108..300 {
            recent.push(second, total);
        }
        assert_eq!(recent.0.len(), 61);
        assert_eq!(recent.percentile_s(50.0, 60), None);
    }
}
