// SPDX-License-Identifier: Apache-2.0
//! Percentiles of response times that were counted by bucket.

/// Where a percentile lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PercentileBucket {
    /// From which time on the bucket counts, seconds.
    pub low_s: f64,
    /// Up to which; without a bound that is infinity.
    pub high_s: f64,
    /// The percentile as Prometheus reckons it: in proportion within the bucket; of one without
    /// a bound its beginning.
    pub value_s: f64,
}

impl PercentileBucket {
    /// The bucket that so many percent of the transactions lie in or below. `bounds_s` are the
    /// upper bounds of all but the last. `None` without transactions.
    pub fn of(counts: &[u64], bounds_s: &[f64], percent: f64) -> Option<Self> {
        let total: u64 = counts.iter().sum();
        let rank = total as f64 * percent / 100.0;
        let mut below = 0;
        for (at, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if (below + count) as f64 >= rank {
                let low_s = at.checked_sub(1).map_or(0.0, |at| bounds_s[at]);
                let high_s = bounds_s.get(at).copied().unwrap_or(f64::INFINITY);
                let share = (rank - below as f64) / count as f64;
                return Some(Self {
                    low_s,
                    high_s,
                    value_s: match high_s.is_finite() {
                        true => low_s + (high_s - low_s) * share,
                        false => low_s,
                    },
                });
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_lies_within_its_bucket_in_proportion() {
        let bounds_s = [0.05, 0.1, 1.0, 2.5];
        let value_s = |counts: &[u64], percent| {
            PercentileBucket::of(counts, &bounds_s, percent).map(|of| of.value_s)
        };
        let mixed = [0, 90, 0, 10, 0];
        for (percent, expected_s) in [(45.0, 0.075), (90.0, 0.1), (95.0, 1.75), (99.0, 2.35)] {
            let found_s = value_s(&mixed, percent).unwrap();
            assert!((found_s - expected_s).abs() < 1e-9, "{percent}: {found_s}");
        }
        assert_eq!(value_s(&[0; 5], 99.0), None);
        let last = PercentileBucket::of(&[0, 0, 0, 0, 3], &bounds_s, 50.0).unwrap();
        assert_eq!(
            (last.low_s, last.high_s, last.value_s),
            (2.5, f64::INFINITY, 2.5)
        );
    }
}
