// SPDX-License-Identifier: Apache-2.0
//! Latency histograms for user space: finer than the data plane's, and with memory
//! for what they hold only, so that each flow and epoch can have one.
//!
//! 128 linear buckets in each power of two: a value read from one is the middle of
//! its bucket and within 1/256 (0.4 %) of the truth; below 128 ns it is exact.

use super::{Bucket, Histogram, quantile_of};
use crate::estimate::Sample;

const SUB_BITS: u32 = 7;

/// Many latencies. Counts saturate; they do not wrap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Buckets that hold something, in order, with their counts.
    counts: Vec<(u16, u64)>,
}

fn bucket(ns: u64) -> u16 {
    let octave = ns.max(1).ilog2();
    match octave.checked_sub(SUB_BITS) {
        None => ns as u16,
        Some(shift) => (((shift + 1) << SUB_BITS) | ((ns >> shift) as u32 & 0x7f)) as u16,
    }
}

/// The least value of a bucket; beyond `u64` that is `u64::MAX`.
fn floor_ns(bucket: u32) -> u64 {
    let (octave, sub) = (bucket >> SUB_BITS, u64::from(bucket & 0x7f));
    match octave.checked_sub(1) {
        None => sub,
        Some(shift) if shift <= 63 - SUB_BITS => (sub | 1 << SUB_BITS) << shift,
        Some(_) => u64::MAX,
    }
}

impl Latencies {
    /// Buckets in a power of two.
    pub const LINEAR: u32 = 1 << SUB_BITS;

    /// Adds the same value `n` times.
    pub fn record_n(&mut self, ns: u64, n: u64) {
        self.add(bucket(ns), n);
    }

    /// Adds the latencies of a group, in half counts.
    pub fn record(&mut self, sample: &Sample) {
        for (ns, halves) in sample.latencies() {
            self.record_n(ns, halves.into());
        }
    }

    fn add(&mut self, bucket: u16, n: u64) {
        if n == 0 {
            return;
        }
        match self.counts.binary_search_by_key(&bucket, |entry| entry.0) {
            Ok(at) => self.counts[at].1 = self.counts[at].1.saturating_add(n),
            Err(at) => self.counts.insert(at, (bucket, n)),
        }
    }

    /// Adds all values of `other`.
    pub fn merge(&mut self, other: &Self) {
        for &(bucket, count) in &other.counts {
            self.add(bucket, count);
        }
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// How many values it holds.
    pub fn count(&self) -> u64 {
        let counts = self.counts.iter().map(|entry| entry.1);
        counts.fold(0, u64::saturating_add)
    }

    /// The value in ns that a share of `quantile` (0 to 1) of the values does not
    /// exceed: the nearest rank, read as the middle of its bucket. `None` when
    /// empty.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        quantile_of(self.buckets(), self.count(), quantile)
    }

    /// The buckets that hold something, shortest first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + Clone + '_ {
        self.counts.iter().map(|&(bucket, count)| Bucket {
            from_ns: floor_ns(bucket.into()),
            to_ns: floor_ns(u32::from(bucket) + 1),
            count,
        })
    }
}

/// The data plane's histogram, each value taken as the middle of its bucket.
impl From<&Histogram> for Latencies {
    fn from(coarse: &Histogram) -> Self {
        let mut fine = Self::default();
        for bucket in coarse.buckets() {
            fine.record_n(bucket.middle_ns(), bucket.count);
        }
        fine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn latencies(values: &[u64]) -> Latencies {
        let mut latencies = Latencies::default();
        values.iter().for_each(|&ns| latencies.record_n(ns, 1));
        latencies
    }

    /// Spread over the magnitudes.
    fn latency() -> impl Strategy<Value = u64> {
        (0_u32..64, any::<u64>()).prop_map(|(bits, low)| 1 << bits | low & ((1 << bits) - 1))
    }

    proptest! {
        #[test]
        fn every_value_lies_in_its_bucket_and_near_its_middle(ns in latency()) {
            let bucket = latencies(&[ns]).buckets().next().unwrap();
            prop_assert!(bucket.from_ns <= ns && (ns < bucket.to_ns || bucket.to_ns == u64::MAX));
            prop_assert!(bucket.middle_ns().abs_diff(ns) <= ns / 256);
        }

        #[test]
        fn merged_parts_are_the_whole(
            parts in prop::collection::vec(prop::collection::vec(latency(), 0..40), 1..6),
        ) {
            let mut merged = Latencies::default();
            parts.iter().for_each(|part| merged.merge(&latencies(part)));
            prop_assert_eq!(&merged, &latencies(&parts.concat()));
            prop_assert_eq!(merged.count(), parts.concat().len() as u64);
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_values(
            mut values in prop::collection::vec(latency(), 1..300),
            quantile in 0.0..=1.0_f64,
        ) {
            let found = latencies(&values).quantile(quantile).unwrap();
            values.sort_unstable();
            let rank = (quantile * values.len() as f64).ceil() as usize;
            let exact = values[rank.max(1) - 1];
            prop_assert!(found.abs_diff(exact) <= exact / 256, "{found} for {exact}");
        }
    }

    #[test]
    fn buckets_leave_no_gap() {
        for index in 1..(64 - SUB_BITS + 1) << SUB_BITS {
            let floor = floor_ns(index);
            assert_eq!(u32::from(bucket(floor)), index);
            assert_eq!(u32::from(bucket(floor - 1)), index - 1);
        }
        assert_eq!(Latencies::default().quantile(0.5), None);
    }

    #[test]
    fn the_data_planes_histogram_keeps_its_counts() {
        let mut coarse = Histogram::new();
        coarse.record_n(1_000_000, 3);
        coarse.record_n(70_000_000, 2);
        let fine = Latencies::from(&coarse);
        assert_eq!(fine.count(), 5);
        assert!(fine.quantile(0.5).unwrap().abs_diff(1_000_000) < 32_000);
    }
}
