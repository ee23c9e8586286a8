// SPDX-License-Identifier: Apache-2.0
//! Times of requests and their percentiles.

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::cpu::Steal;

/// Times of requests, in milliseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct RequestTimes {
    pub requests: usize,
    /// Of these, not answered within 20 s, or broken.
    pub failed: usize,
    /// Percentiles.
    pub p50_ms: f64,
    /// See `p50_ms`.
    pub p90_ms: f64,
    /// See `p50_ms`.
    pub p99_ms: f64,
    /// See `p50_ms`.
    pub p999_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// How late requests of a timetable began, 99th percentile: clients wait for a CPU, too,
    /// and whatever does in between.
    pub late_p99_ms: f64,
    /// CPU time that the hypervisor gave to others meanwhile, in percent.
    pub stolen_pct: f64,
    #[serde(skip)]
    pub(super) samples: Samples,
}

/// What the percentiles are of.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples {
    times_ns: Vec<u64>,
    late_ns: Vec<u64>,
    steal: Steal,
}

impl RequestTimes {
    /// Of requests' times and how late they began (nothing where there is no timetable), in
    /// nanoseconds, and how many failed.
    pub(super) fn of(
        mut times_ns: Vec<u64>,
        mut late_ns: Vec<u64>,
        failed: usize,
        steal: Steal,
    ) -> Result<Self> {
        ensure!(!times_ns.is_empty(), "no request was answered");
        times_ns.sort_unstable();
        late_ns.sort_unstable();
        let time = |q| quantile_ms(&times_ns, q);
        Ok(Self {
            requests: times_ns.len(),
            failed,
            p50_ms: time(0.5),
            p90_ms: time(0.9),
            p99_ms: time(0.99),
            p999_ms: time(0.999),
            max_ms: time(1.0),
            late_p99_ms: quantile_ms(&late_ns, 0.99),
            stolen_pct: steal.pct(),
            samples: Samples {
                times_ns,
                late_ns,
                steal,
            },
        })
    }

    /// Of the requests of several blocks together.
    pub(super) fn pooled<'a>(blocks: impl IntoIterator<Item = &'a Self>) -> Result<Self> {
        let (mut all, mut failed) = (Samples::default(), 0);
        for block in blocks {
            all.times_ns.extend(&block.samples.times_ns);
            all.late_ns.extend(&block.samples.late_ns);
            all.steal = all.steal.and(block.samples.steal);
            failed += block.failed;
        }
        Self::of(all.times_ns, all.late_ns, failed, all.steal)
    }

    /// CPU time that was stolen meanwhile.
    pub(super) fn steal(&self) -> Steal {
        self.samples.steal
    }
}

/// Of sorted times; 0 without any.
fn quantile_ms(sorted_ns: &[u64], q: f64) -> f64 {
    let last = sorted_ns.len().saturating_sub(1);
    let at = (last as f64 * q).ceil() as usize;
    sorted_ns.get(at).map_or(0.0, |&ns| ns as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_pooled_by_their_requests() {
        let block = |slow: u64, stolen| {
            let mut times = vec![1_000_000; 999];
            times.push(slow * 1_000_000);
            RequestTimes::of(times, vec![0; 1000], 1, Steal::of(stolen, 100)).unwrap()
        };
        let blocks = [block(7, 0), block(90, 0), block(8, 3)];
        assert_eq!(blocks[1].p999_ms, 90.0);
        let all = RequestTimes::pooled(&blocks).unwrap();
        assert_eq!((all.requests, all.failed), (3000, 3));
        assert_eq!((all.p99_ms, all.p999_ms, all.max_ms), (1.0, 7.0, 90.0));
        assert_eq!(all.stolen_pct, 1.0);
        assert_eq!(all.steal().worst_pct(), 3.0);
        assert!(RequestTimes::pooled(&[]).is_err());
    }
}
