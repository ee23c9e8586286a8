// SPDX-License-Identifier: Apache-2.0
//! How far to trust an estimate.

use std::fmt;

use super::Tally;

/// Whole samples below which an estimate is [`Quality::Low`].
const FEW: u64 = 5;
/// The same where one request is outstanding at most: none is taken for another there.
const FEW_OF_ONE: u64 = 3;
/// Whole samples per request of the window from which an estimate is
/// [`Quality::High`].
const MANY_PER_REQUEST: u64 = 8;
/// Share of bounds, in percent, from which an estimate is [`Quality::Low`].
const BOUNDS_LOW: u64 = 10;
/// Mean latency in nanoseconds below which an estimate is [`Quality::Low`]: the client's own
/// time between a response and its next request is a part of it, and tens of microseconds.
const FAST_NS: u64 = 500_000;

/// One word for how far to trust an estimate, ordered from worst to best.
///
/// How often estimates of each grade are within 10 % of what the clients
/// measured, by workload, stands in `docs/design/accuracy.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quality {
    /// Not one whole sample: there is no estimate.
    #[default]
    None,
    /// Fewer than five samples (three where one request is outstanding at most), or a tenth of
    /// them and more are bounds: the client may have been idle for a part of the time, or have
    /// more streams than can be distinguished. Or so fast that the client's own time is a part
    /// of it.
    Low,
    /// Too few samples to average out that one request of the window is
    /// mistaken for another now and then, or the path alone bounds how far they are off.
    Medium,
    /// Eight samples or more for each request that the client keeps outstanding,
    /// none of them a bound.
    High,
}

impl Quality {
    /// The word for it in output: `none`, `low`, `medium`, `high`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What an estimate rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confidence {
    /// Whole samples.
    pub samples: u64,
    /// W, the requests that the client keeps outstanding at most; of several
    /// flows the largest. `None` where the estimator does not infer it.
    pub window: Option<u8>,
    /// The verdict.
    pub quality: Quality,
}

impl Confidence {
    pub(super) fn of(tally: &Tally) -> Self {
        let samples = tally.samples();
        let many = MANY_PER_REQUEST * u64::from(tally.window.max(1));
        let few = if tally.window == 1 { FEW_OF_ONE } else { FEW };
        let quality = if samples == 0 {
            Quality::None
        } else if samples < few
            || tally.bound_halves * 100 >= tally.weight_halves * BOUNDS_LOW
            || tally.sum_halves_ns < tally.weight_halves * FAST_NS
        {
            Quality::Low
        } else if samples < many || tally.bound_halves > 0 || tally.narrow {
            Quality::Medium
        } else {
            Quality::High
        };
        Self {
            samples,
            window: (tally.window > 0).then_some(tally.window),
            quality,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grade(samples: u64, bounds: u64, window: u8) -> Quality {
        let tally = Tally {
            sum_halves_ns: 2 * samples * 1_000_000,
            weight_halves: 2 * samples,
            bound_halves: 2 * bounds,
            window,
            ..Tally::default()
        };
        tally.confidence().quality
    }

    #[test]
    fn too_few_samples_give_none_and_no_mean() {
        let half = Tally {
            sum_halves_ns: 5_000,
            weight_halves: 1,
            window: 4,
            ..Tally::default()
        };
        assert_eq!(half.mean_ns(), None);
        assert_eq!(half.confidence().quality, Quality::None);
        assert_eq!(Tally::default().confidence(), Confidence::default());
    }

    #[test]
    fn grades_follow_samples_window_and_bounds() {
        assert_eq!(grade(1, 0, 1), Quality::Low);
        assert_eq!(grade(2, 0, 1), Quality::Low);
        assert_eq!(grade(3, 0, 1), Quality::Medium);
        assert_eq!(grade(7, 0, 1), Quality::Medium);
        assert_eq!(grade(8, 0, 1), Quality::High);
        // Also where the window is not known.
        for window in [0, 2] {
            assert_eq!(grade(4, 0, window), Quality::Low);
            assert_eq!(grade(5, 0, window), Quality::Medium);
        }
        assert_eq!(grade(8, 0, 4), Quality::Medium);
        assert_eq!(grade(32, 0, 4), Quality::High);
        assert_eq!(grade(32, 1, 4), Quality::Medium);
        assert_eq!(grade(32, 4, 4), Quality::Low);
        assert_eq!(grade(1000, 0, 0), Quality::High);
        let fast = Tally {
            sum_halves_ns: 2 * 1000 * 499_000,
            weight_halves: 2 * 1000,
            window: 1,
            ..Tally::default()
        };
        assert_eq!(fast.confidence().quality, Quality::Low);
        let narrow = Tally {
            sum_halves_ns: 2 * 1000 * 25_000_000,
            weight_halves: 2 * 1000,
            narrow: true,
            window: 1,
            ..Tally::default()
        };
        assert_eq!(narrow.confidence().quality, Quality::Medium);
    }

    #[test]
    fn a_sum_of_flows_has_the_largest_window() {
        let mut sum = Tally {
            weight_halves: 10,
            window: 2,
            ..Tally::default()
        };
        sum.merge(&Tally {
            weight_halves: 10,
            window: 6,
            ..Tally::default()
        });
        let confidence = sum.confidence();
        assert_eq!((confidence.samples, confidence.window), (10, Some(6)));
    }
}
