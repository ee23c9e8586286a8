// SPDX-License-Identifier: Apache-2.0
//! A latency histogram for measurements at the ends: finer than the data plane's
//! ([`crate::hist`]), still of constant size.

use hdrhistogram::Histogram;

/// Longest value recorded: one hour. Longer ones count as that.
const MAX_NS: u64 = 3_600_000_000_000;
/// Values are kept to three significant digits (within 0.1 %).
const DIGITS: u8 = 3;

/// Latencies in nanoseconds: an HdrHistogram (three significant digits, up to an
/// hour, about 260 kB however many values it holds), with exact ends, mean and
/// deviation beside it.
#[derive(Clone, Debug)]
pub struct RttLatencies {
    histogram: Histogram<u64>,
    min_ns: u64,
    max_ns: u64,
    mean_ns: f64,
    /// Sum of squared distances from the mean (Welford, 1962).
    squares: f64,
    count: u64,
}

/// The figures of [`RttLatencies`] that people ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencySummary {
    /// How many values.
    pub count: u64,
    /// The least, exact.
    pub min_ns: u64,
    /// The mean, exact.
    pub mean_ns: f64,
    /// Median, within 0.1 %; so are the other quantiles.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// The largest, exact.
    pub max_ns: u64,
    /// Standard deviation, exact.
    pub stddev_ns: f64,
}

impl Default for RttLatencies {
    fn default() -> Self {
        Self::new()
    }
}

impl RttLatencies {
    /// An empty one.
    pub fn new() -> Self {
        #[allow(clippy::expect_used)]
        let histogram = Histogram::new_with_bounds(1, MAX_NS, DIGITS)
            .expect("constant bounds that HdrHistogram accepts");
        Self {
            histogram,
            min_ns: u64::MAX,
            max_ns: 0,
            mean_ns: 0.0,
            squares: 0.0,
            count: 0,
        }
    }

    /// Adds a value.
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.max(1));
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.count += 1;
        let value = ns as f64;
        let distance = value - self.mean_ns;
        self.mean_ns += distance / self.count as f64;
        self.squares += distance * (value - self.mean_ns);
    }

    /// Adds all values of `other` (Chan, Golub and LeVeque, 1979, for the
    /// deviation).
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        // The bounds are the same constants.
        let added = self.histogram.add(&other.histogram);
        debug_assert!(added.is_ok(), "histograms of the same bounds");
        let (a, b) = (self.count as f64, other.count as f64);
        let distance = other.mean_ns - self.mean_ns;
        self.mean_ns += distance * b / (a + b);
        self.squares += other.squares + distance * distance * a * b / (a + b);
        self.count += other.count;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many values it holds.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The value that a share of `quantile` (0 to 1) does not exceed; `None` when
    /// empty.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        (self.count > 0).then(|| {
            let ns = self.histogram.value_at_quantile(quantile);
            ns.clamp(self.min_ns, self.max_ns)
        })
    }

    /// Requests of at least this length took `share` (0 to 1) of the time, where each is
    /// followed by a pause of `pause_ns`; 0 where all together took less. `None` when
    /// empty.
    ///
    /// In a closed loop a bad moment holds few requests, and quantiles by their number
    /// hide it (coordinated omission); it holds as much time as it lasts.
    pub fn by_time(&self, share: f64, pause_ns: u64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let total_ns = self.count as f64 * (self.mean_ns + pause_ns as f64);
        let buckets: Vec<(u64, u64)> = self
            .histogram
            .iter_recorded()
            .map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
            .collect();
        let mut taken_ns = 0.0;
        let longest = buckets.into_iter().rev().find(|&(ns, count)| {
            taken_ns += ns as f64 * count as f64;
            taken_ns >= share * total_ns
        });
        Some(longest.map_or(0, |(ns, _)| ns.clamp(self.min_ns, self.max_ns)))
    }

    /// The usual figures; `None` when empty.
    pub fn summary(&self) -> Option<LatencySummary> {
        Some(LatencySummary {
            count: self.count,
            min_ns: self.min_ns,
            mean_ns: self.mean_ns,
            p50_ns: self.quantile(0.5)?,
            p90_ns: self.quantile(0.9)?,
            p99_ns: self.quantile(0.99)?,
            max_ns: self.max_ns,
            stddev_ns: (self.squares / self.count as f64).sqrt(),
        })
    }

    /// The HdrHistogram itself, in nanoseconds.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn latencies(values: &[u64]) -> RttLatencies {
        let mut latencies = RttLatencies::new();
        values.iter().for_each(|&ns| latencies.record(ns));
        latencies
    }

    proptest! {
        #[test]
        fn the_summary_is_that_of_the_sorted_values(
            mut values in prop::collection::vec(1_000_u64..10_000_000_000, 1..300),
        ) {
            let found = latencies(&values).summary().unwrap();
            values.sort_unstable();
            let n = values.len() as f64;
            let mean = values.iter().map(|&v| v as f64).sum::<f64>() / n;
            let variance = values.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / n;
            prop_assert_eq!(found.count, values.len() as u64);
            prop_assert_eq!((found.min_ns, found.max_ns), (values[0], values[values.len() - 1]));
            prop_assert!((found.mean_ns / mean - 1.0).abs() < 1e-9);
            prop_assert!((found.stddev_ns - variance.sqrt()).abs() <= 1e-6 * mean);
            for (quantile, ns) in [(0.5, found.p50_ns), (0.9, found.p90_ns), (0.99, found.p99_ns)] {
                let exact = values[(quantile * n).ceil() as usize - 1];
                prop_assert!(ns.abs_diff(exact) * 1000 <= exact, "{ns} for {exact}");
            }
        }

        #[test]
        fn merging_is_recording_together(
            a in prop::collection::vec(1_u64..1 << 40, 0..50),
            b in prop::collection::vec(1_u64..1 << 40, 0..50),
        ) {
            let mut merged = latencies(&a);
            merged.merge(&latencies(&b));
            let together = latencies(&[&a[..], &b[..]].concat());
            let (one, two) = (merged.summary(), together.summary());
            prop_assert_eq!(one.map(|s| (s.count, s.min_ns, s.p50_ns, s.p99_ns, s.max_ns)),
                            two.map(|s| (s.count, s.min_ns, s.p50_ns, s.p99_ns, s.max_ns)));
            if let (Some(one), Some(two)) = (one, two) {
                prop_assert!((one.mean_ns / two.mean_ns - 1.0).abs() < 1e-9);
                prop_assert!((one.stddev_ns - two.stddev_ns).abs() <= 1e-6 * two.mean_ns);
            }
        }
    }

    #[test]
    fn memory_does_not_grow() {
        let mut latencies = RttLatencies::new();
        let bytes = |l: &RttLatencies| l.histogram.distinct_values() * size_of::<u64>();
        let empty = bytes(&latencies);
        assert!(latencies.summary().is_none());
        for i in 0..1_000_000_u64 {
            latencies.record(1 + i * 3_571);
        }
        latencies.record(u64::MAX);
        assert_eq!(bytes(&latencies), empty);
        assert!(empty < 300_000, "{empty}");
        assert_eq!(latencies.summary().unwrap().max_ns, u64::MAX);
    }

    #[test]
    fn time_weighs_what_numbers_hide() {
        // 900 quick requests and 10 of 100 ms: one in ninety, half of the time.
        let mut both = RttLatencies::new();
        (0..900).for_each(|_| both.record(100_000));
        (0..10).for_each(|_| both.record(100_000_000));
        assert_eq!(both.quantile(0.9), both.quantile(0.5));
        let tenth = both.by_time(0.1, 1_000_000).unwrap();
        assert!(tenth.abs_diff(100_000_000) <= 100_000, "{tenth}");
        let most = both.by_time(0.52, 1_000_000).unwrap();
        assert!(most.abs_diff(100_000) <= 100, "{most}");
        // The rest of the time is pauses.
        assert_eq!(both.by_time(0.6, 1_000_000), Some(0));
        assert_eq!(RttLatencies::new().by_time(0.1, 0), None);
    }
}
