// SPDX-License-Identifier: Apache-2.0
//! Histograms of latencies, in the buckets of Prometheus' text formats and, where protobuf is asked
//! for, in exponential ones besides: a native histogram.

use std::fmt;
use std::ops::RangeInclusive;

use causeway_core::hist::Bucket;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, NativeHistogram, NativeHistogramBuckets, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::DEFAULT_NATIVE_HISTOGRAM_ZERO_THRESHOLD;
use prometheus_client::registry::Unit;

/// The finest exponential buckets that there are: 2^8 of them in a power of two.
const FINEST: u32 = 8;
/// Empty buckets between two full ones are written up to this many: another span is longer.
const GAP_MAX: i32 = 2;

/// One histogram of latencies, ready to be written.
#[derive(Debug)]
pub struct LatencyRow {
    sum_s: f64,
    count: u64,
    /// Upper bounds, and counts of these buckets alone.
    classic: Vec<(f64, u64)>,
    native: Exponential,
}

impl LatencyRow {
    /// Of buckets in order, which are `linear` to a power of two. The classic ones are bounded by 2^k
    /// and 1.5 * 2^k ns with k of `powers`; where these are bounds of the given ones, counts are exact.
    pub fn of(
        sum_s: f64,
        buckets: impl Iterator<Item = Bucket> + Clone,
        powers: RangeInclusive<u32>,
        linear: u32,
    ) -> Self {
        let bounds: Vec<u64> = powers
            .flat_map(|power| [1 << power, 3 << (power - 1)])
            .collect();
        let ends_s = bounds.iter().map(|ns| *ns as f64 / 1e9);
        let mut classic: Vec<(f64, u64)> = ends_s.map(|end_s| (end_s, 0)).collect();
        classic.push((f64::INFINITY, 0));
        for bucket in buckets.clone() {
            classic[bounds.partition_point(|bound| *bound < bucket.to_ns)].1 += bucket.count;
        }
        Self {
            sum_s,
            count: classic.iter().map(|of| of.1).sum(),
            classic,
            native: Exponential::of(buckets, linear),
        }
    }
}

/// Sparse exponential buckets: the upper bound of number i is 2^(i / 2^schema) s.
#[derive(Debug, Default, PartialEq, Eq)]
struct Exponential {
    schema: i32,
    /// Runs of buckets: how many are left out before, and how many there are.
    spans: Vec<(i32, u32)>,
    /// What each bucket has more than the one before.
    deltas: Vec<i64>,
}

impl Exponential {
    /// The middles of linear buckets, in exponential ones that are twice as many: as narrow as the
    /// narrowest linear one or narrower, so that none takes in two of these.
    fn of(buckets: impl Iterator<Item = Bucket>, linear: u32) -> Self {
        let schema = (2 * linear).ilog2().min(FINEST);
        let mut all = Self {
            schema: schema as i32,
            ..Self::default()
        };
        let mut last: Option<(i32, u64)> = None;
        for bucket in buckets {
            let middle_s = bucket.middle_ns().max(1) as f64 / 1e9;
            let at = (middle_s.log2() * f64::from(1_u32 << schema)).ceil() as i32;
            let before = last.map_or(0, |(_, count)| count);
            match (last, all.spans.last_mut(), all.deltas.last_mut()) {
                // Below the range in which there are so many linear ones.
                (Some((same, _)), _, Some(delta)) if same == at => {
                    *delta += bucket.count as i64;
                    last = Some((at, before + bucket.count));
                    continue;
                }
                (Some((index, _)), Some(span), _) if at - index - 1 <= GAP_MAX => {
                    span.1 += (at - index) as u32;
                    let left_out = at - index - 1;
                    if left_out > 0 {
                        all.deltas.push(-(before as i64));
                        all.deltas.extend((1..left_out).map(|_| 0));
                        all.deltas.push(bucket.count as i64);
                    } else {
                        all.deltas.push(bucket.count as i64 - before as i64);
                    }
                }
                (last, ..) => {
                    all.spans.push((at - last.map_or(0, |of| of.0 + 1), 1));
                    all.deltas.push(bucket.count as i64 - before as i64);
                }
            }
            last = Some((at, bucket.count));
        }
        all
    }

    fn native(&self) -> NativeHistogram<'_> {
        NativeHistogram {
            schema: self.schema,
            // It says that this is a native histogram, also while it is empty.
            zero_threshold: DEFAULT_NATIVE_HISTOGRAM_ZERO_THRESHOLD,
            zero_count: 0,
            negative: NativeHistogramBuckets {
                spans: &[],
                deltas: &[],
            },
            positive: NativeHistogramBuckets {
                spans: &self.spans,
                deltas: &self.deltas,
            },
            created: None,
        }
    }
}

/// A family of histograms of latencies, each with its labels.
pub fn latencies<'a, L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl IntoIterator<Item = (L, &'a LatencyRow)>,
) -> fmt::Result {
    let seconds = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, seconds, MetricType::Histogram)?;
    for (labels, row) in rows {
        family
            .encode_family(&labels)?
            .encode_histogram_with_native::<NoLabelSet>(
                row.sum_s,
                row.count,
                &row.classic,
                None,
                row.native.native(),
            )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use causeway_core::hist::{Histogram, Latencies};

    use super::*;

    /// Upper bounds in s and counts of the buckets that hold something.
    fn read(of: &Exponential) -> Vec<(f64, u64)> {
        let mut at = 0;
        let indices = of.spans.iter().flat_map(|&(gap, length)| {
            at += gap;
            let span = at..at + length as i32;
            at = span.end;
            span
        });
        let indices: Vec<i32> = indices.collect();
        assert_eq!(indices.len(), of.deltas.len());
        let mut count = 0;
        let counts = of.deltas.iter().map(|delta| {
            count += delta;
            u64::try_from(count).expect("a count")
        });
        let bound_s = |index: i32| (f64::from(index) / f64::from(1 << of.schema)).exp2();
        let all = indices.into_iter().zip(counts);
        let full = all.filter(|(_, count)| *count > 0);
        full.map(|(index, count)| (bound_s(index), count)).collect()
    }

    #[test]
    fn every_linear_bucket_has_an_exponential_one_of_its_own() {
        let mut coarse = Histogram::new();
        let mut fine = Latencies::default();
        let mut ns = 600_u64;
        for n in 1_u64.. {
            coarse.record_n(ns, n % 7 + 1);
            fine.record_n(ns, n % 5 + 1);
            ns += ns / 200 + 1;
            if ns > 1 << 36 {
                break;
            }
        }
        let of = [
            (Exponential::of(coarse.buckets(), Histogram::LINEAR), 5),
            (Exponential::of(fine.buckets(), Latencies::LINEAR), 8),
        ];
        let given = [
            coarse.buckets().collect::<Vec<_>>(),
            fine.buckets().collect(),
        ];
        for ((exponential, schema), given) in of.iter().zip(given) {
            assert_eq!(exponential.schema, *schema);
            let read = read(exponential);
            assert_eq!(read.len(), given.len());
            let width = (-f64::from(1 << schema).recip()).exp2();
            for ((bound_s, count), bucket) in read.iter().zip(&given) {
                let middle_s = bucket.middle_ns() as f64 / 1e9;
                assert!(middle_s <= bound_s * 1.000_001 && middle_s >= bound_s * width * 0.999_999);
                assert_eq!(*count, bucket.count);
            }
        }
    }

    #[test]
    fn what_is_below_the_range_is_counted_together() {
        let mut latencies = Latencies::default();
        (0..200).for_each(|ns| latencies.record_n(ns, 1));
        let read = read(&Exponential::of(latencies.buckets(), Latencies::LINEAR));
        assert_eq!(read.iter().map(|of| of.1).sum::<u64>(), 200);
    }

    #[test]
    fn without_values_there_are_no_buckets() {
        let row = LatencyRow::of(0.0, Histogram::new().buckets(), 16..=17, 16);
        assert!(row.native.spans.is_empty() && row.native.deltas.is_empty());
        assert!(row.native.native().zero_threshold > 0.0);
        assert_eq!((row.count, row.classic.len()), (0, 5));
    }
}
