// SPDX-License-Identifier: Apache-2.0
//! Latency histograms, bucket for bucket those of the data plane.
//!
//! The bucket function is `bpf/shared/hist.h`: sixteen linear buckets in each
//! power of two from 512 ns to 137 s. A value read from a histogram is the middle
//! of a bucket and within 1/32 (3.2 %) of the truth. Histograms of CPUs, reals and
//! balancers add up without further error, which averages and quantiles do not.

mod latencies;

use thiserror::Error;

pub use latencies::Latencies;

/// The number of buckets of every histogram.
pub const BUCKETS: usize = 448;
/// How many of them make one that is shown: half a power of two.
const SHOWN: usize = 8;

unsafe extern "C" {
    #[cfg(test)]
    safe fn causeway_hist_buckets() -> u32;
    safe fn causeway_hist_bucket(ns: u64) -> u32;
    safe fn causeway_hist_floor_ns(bucket: u32) -> u64;
}

/// Counts that do not come from a histogram of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a latency histogram has {BUCKETS} buckets, not {0}")]
pub struct WrongLength(pub usize);

/// A latency histogram. Counts saturate; they do not wrap.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// `None`: it is empty, as those of most of a million reals are.
    counts: Option<Box<[u64; BUCKETS]>>,
}

static EMPTY: [u64; BUCKETS] = [0; BUCKETS];

/// Some values of a histogram: those from `from_ns` on and below `to_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Lower bound, inclusive.
    pub from_ns: u64,
    /// Upper bound, exclusive; the last bucket also holds all that is longer.
    pub to_ns: u64,
    /// How many values it holds.
    pub count: u64,
}

impl Histogram {
    /// Buckets in a power of two.
    pub const LINEAR: u32 = 16;

    /// An empty histogram.
    pub fn new() -> Self {
        Self::default()
    }

    /// A histogram with these counts, as the data plane keeps them.
    pub fn from_counts(counts: &[u64]) -> Result<Self, WrongLength> {
        match counts.try_into() {
            Ok(counts) => Ok(Self::of(Box::new(counts))),
            Err(_) => Err(WrongLength(counts.len())),
        }
    }

    fn of(counts: Box<[u64; BUCKETS]>) -> Self {
        let counts = Some(counts).filter(|counts| **counts != EMPTY);
        Self { counts }
    }

    /// Adds one value.
    pub fn record(&mut self, ns: u64) {
        self.record_n(ns, 1);
    }

    /// Adds the same value `n` times.
    pub fn record_n(&mut self, ns: u64, n: u64) {
        if n > 0 {
            let counts = self.counts.get_or_insert_with(|| Box::new(EMPTY));
            let count = &mut counts[causeway_hist_bucket(ns) as usize];
            *count = count.saturating_add(n);
        }
    }

    /// Adds all values of `other`.
    pub fn merge(&mut self, other: &Self) {
        let Some(theirs) = &other.counts else {
            return;
        };
        let counts = self.counts.get_or_insert_with(|| Box::new(EMPTY));
        for (mine, theirs) in counts.iter_mut().zip(theirs.iter()) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    /// The values that came after `earlier`, a former state of this histogram.
    /// Where a count went down (the slot was given to another real) all of it is
    /// new.
    pub fn since(&self, earlier: &Self) -> Self {
        let (Some(mut new), Some(then)) = (self.counts.clone(), &earlier.counts) else {
            return self.clone();
        };
        for (now, then) in new.iter_mut().zip(then.iter()) {
            *now = now.checked_sub(*then).unwrap_or(*now);
        }
        Self::of(new)
    }

    /// How many values it holds.
    pub fn count(&self) -> u64 {
        self.counts()
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The value in ns that a share of `quantile` (0 to 1) of the values does not
    /// exceed: the nearest rank, read as the middle of its bucket. `None` when
    /// empty.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        quantile_of(self.buckets(), self.count(), quantile)
    }

    /// The mean in ns, every value taken as the middle of its bucket. `None` when
    /// empty.
    pub fn mean_ns(&self) -> Option<f64> {
        let count = self.count();
        let sum: f64 = self
            .buckets()
            .map(|b| b.count as f64 * b.middle_ns() as f64)
            .sum();
        (count > 0).then(|| sum / count as f64)
    }

    /// The buckets that hold something, shortest first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + Clone + '_ {
        (0_u32..)
            .zip(self.counts())
            .filter(|&(_, &count)| count > 0)
            .map(|(index, &count)| Bucket {
                from_ns: if index == 0 {
                    0
                } else {
                    causeway_hist_floor_ns(index)
                },
                to_ns: causeway_hist_floor_ns(index + 1),
                count,
            })
    }

    /// The counts of buckets of half a power of two that hold something, shortest first,
    /// with their places in [`Self::coarse_floors_ns`].
    pub fn coarse(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let sum = |counts: &[u64]| counts.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
        let sums = self.counts().chunks_exact(SHOWN).map(sum).enumerate();
        sums.filter(|&(_, count)| count > 0)
    }

    /// Where each of these buckets begins.
    pub fn coarse_floors_ns() -> impl Iterator<Item = u64> {
        (0..BUCKETS as u32)
            .step_by(SHOWN)
            .map(|bucket| causeway_hist_floor_ns(bucket))
    }

    /// The counts of all buckets.
    pub fn counts(&self) -> &[u64; BUCKETS] {
        self.counts.as_deref().unwrap_or(&EMPTY)
    }
}

impl Bucket {
    /// The value that stands for the bucket's.
    pub fn middle_ns(&self) -> u64 {
        self.from_ns.midpoint(self.to_ns)
    }
}

/// The nearest rank among `count` values in buckets, read as the middle of its bucket.
fn quantile_of(
    mut buckets: impl Iterator<Item = Bucket>,
    count: u64,
    quantile: f64,
) -> Option<u64> {
    let rank = ((quantile * count as f64).ceil() as u64).clamp(1, count.max(1));
    let mut seen = 0_u64;
    buckets.find_map(|bucket| {
        seen = seen.saturating_add(bucket.count);
        (seen >= rank).then(|| bucket.middle_ns())
    })
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.buckets()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIN_NS: u64 = 512;
    const MAX_NS: u64 = (1 << 37) - 1;

    /// Spread over the magnitudes as latencies are, not over the integers.
    fn latency() -> impl Strategy<Value = u64> {
        (9_u32..37, any::<u64>()).prop_map(|(bits, low)| 1 << bits | low & ((1 << bits) - 1))
    }

    fn histogram(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        values.iter().for_each(|&ns| histogram.record(ns));
        histogram
    }

    proptest! {
        #[test]
        fn every_value_lies_in_its_bucket_and_near_its_middle(ns in latency()) {
            let bucket = histogram(&[ns]).buckets().next().unwrap();
            let first = causeway_hist_bucket(ns) == 0;
            prop_assert!(ns < bucket.to_ns && (first || bucket.from_ns <= ns));
            let from_ns = if first { MIN_NS } else { bucket.from_ns };
            prop_assert!(from_ns.midpoint(bucket.to_ns).abs_diff(ns) * 32 <= ns);
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_values(
            mut values in prop::collection::vec(latency(), 1..300),
            quantile in 0.0..=1.0_f64,
        ) {
            let found = histogram(&values).quantile(quantile).unwrap();
            values.sort_unstable();
            let rank = (quantile * values.len() as f64).ceil() as usize;
            let exact = values[rank.max(1) - 1];
            prop_assume!(causeway_hist_bucket(exact) > 0);
            prop_assert!(found.abs_diff(exact) * 32 <= exact, "{found} for {exact}");
        }

        #[test]
        fn merging_is_recording_together(
            a in prop::collection::vec(latency(), 0..50),
            b in prop::collection::vec(latency(), 0..50),
        ) {
            let mut merged = histogram(&a);
            merged.merge(&histogram(&b));
            prop_assert_eq!(&merged, &histogram(&[&a[..], &b[..]].concat()));
            prop_assert_eq!(merged.since(&histogram(&a)), histogram(&b));
            prop_assert_eq!(merged.count(), (a.len() + b.len()) as u64);
        }

        #[test]
        fn longer_is_never_in_a_shorter_bucket(a in any::<u64>(), b in any::<u64>()) {
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(causeway_hist_bucket(low) <= causeway_hist_bucket(high));
            prop_assert!((causeway_hist_bucket(high) as usize) < BUCKETS);
        }
    }

    #[test]
    fn buckets_are_as_many_as_in_c_and_leave_no_gap() {
        assert_eq!(causeway_hist_buckets() as usize, BUCKETS);
        for index in 1..BUCKETS as u32 {
            let floor = causeway_hist_floor_ns(index);
            assert_eq!(causeway_hist_bucket(floor), index);
            assert_eq!(causeway_hist_bucket(floor - 1), index - 1);
        }
        assert_eq!(causeway_hist_floor_ns(BUCKETS as u32), MAX_NS + 1);
    }

    #[test]
    fn what_is_out_of_range_counts_at_the_ends() {
        for (ns, bucket) in [(0, 0), (1, 0), (MIN_NS, 0), (1_000, 15), (MAX_NS, 447)] {
            assert_eq!(causeway_hist_bucket(ns), bucket, "{ns}");
        }
        assert_eq!(causeway_hist_bucket(MAX_NS + 1), 447);
        assert_eq!(causeway_hist_bucket(u64::MAX), 447);
        const { assert!(MAX_NS > 100_000_000_000) };
    }

    #[test]
    fn an_empty_histogram_knows_nothing() {
        assert_eq!(Histogram::new().quantile(0.5), None);
        assert_eq!(Histogram::new().mean_ns(), None);
        assert_eq!(Histogram::from_counts(&[0; 3]), Err(WrongLength(3)));
        assert_eq!(Histogram::from_counts(&[0; BUCKETS]), Ok(Histogram::new()));
    }

    #[test]
    fn the_mean_is_the_mean_of_the_middles() {
        let mut histogram = Histogram::new();
        histogram.record_n(1_000_000, 3);
        histogram.record_n(5_000_000, 1);
        let mean = histogram.mean_ns().unwrap();
        assert!((mean / 2_000_000.0 - 1.0).abs() < 1.0 / 32.0, "{mean}");
    }

    #[test]
    fn coarse_buckets_hold_the_same_values() {
        let floors: Vec<u64> = Histogram::coarse_floors_ns().collect();
        let mut histogram = Histogram::new();
        for ns in [1_000, 5_000_000, 5_100_000, 70_000_000_000] {
            histogram.record(ns);
            let (place, _) = histogram.coarse().last().unwrap();
            assert!(floors[place] <= ns && ns < floors[place + 1]);
        }
        assert_eq!(histogram.coarse().map(|(_, count)| count).sum::<u64>(), 4);
        assert!(floors.windows(2).all(|two| two[0] < two[1]));
    }

    #[test]
    fn counts_saturate() {
        let mut histogram = Histogram::new();
        histogram.record_n(7, u64::MAX);
        histogram.record_n(1 << 20, 2);
        histogram.merge(&histogram.clone());
        assert_eq!(histogram.count(), u64::MAX);
        assert_eq!(histogram.quantile(0.0), Some(272));
    }
}
