// SPDX-License-Identifier: Apache-2.0
//! Causeway's own numbers over time beside what the clients measured in exactly
//! the same intervals.

use std::collections::HashMap;

use causeway_api::balancer::{EpochView, History};
use serde::{Deserialize, Serialize};

use crate::load::log::Log;
use crate::load::report::{self, EpochTruth};
use crate::outcome::{RealEpoch, RealTrack};
use crate::statistics::quantile;

/// Some of the daemon's epochs put together, from the start of the first to the
/// start of the one after the last.
struct Interval {
    start_ns: u64,
    end_ns: u64,
}

/// Per real in `reals`: the daemon's epochs, put together to intervals of about
/// `interval_ns` that cover the load, and the clients' truth in these.
pub fn tracks(log: &Log, history: &History, reals: &[String], interval_ns: u64) -> Vec<RealTrack> {
    reals
        .iter()
        .map(|real| track(log, history, real, interval_ns))
        .collect()
}

fn track(log: &Log, history: &History, real: &str, interval_ns: u64) -> RealTrack {
    let series = history.series.iter().find(|s| s.real == real);
    let epochs = series.map_or(&[][..], |s| &s.epochs);
    let intervals = intervals(log, epochs, interval_ns);
    let truth: HashMap<u64, EpochTruth> = report::truth_in(log, |ns| {
        let after = intervals.partition_point(|i| i.start_ns <= ns);
        let interval = &intervals[after.checked_sub(1)?];
        (ns < interval.end_ns).then_some(interval.start_ns)
    })
    .into_iter()
    .filter(|t| t.real == real)
    .map(|t| (t.start_ns, t))
    .collect();
    let join = |interval: &Interval| {
        let truth = truth.get(&interval.start_ns);
        RealEpoch {
            at_s: (interval.start_ns as i64 - log.start_ns as i64) as f64 / 1e9,
            client_ms: truth.map(|t| t.req_to_res_ms),
            client_req_to_req_ms: truth.and_then(|t| t.req_to_req_ms),
            client_samples: truth.map_or(0, |t| t.responses),
            ..estimate(epochs, interval)
        }
    };
    RealTrack {
        real: real.to_owned(),
        epochs: intervals.iter().map(join).collect(),
    }
}

fn intervals(log: &Log, epochs: &[EpochView], interval_ns: u64) -> Vec<Interval> {
    let mut intervals: Vec<Interval> = Vec::new();
    for pair in epochs.windows(2) {
        let (start_ns, end_ns) = (pair[0].start_monotonic_ns, pair[1].start_monotonic_ns);
        if start_ns < log.start_ns || start_ns >= log.end_ns {
            continue;
        }
        // Half an epoch of tolerance, so that jitter does not change the count.
        let nearly_ns = interval_ns.saturating_sub((end_ns - start_ns) / 2);
        match intervals.last_mut() {
            Some(open) if open.end_ns == start_ns && open.end_ns - open.start_ns < nearly_ns => {
                open.end_ns = end_ns;
            }
            _ => intervals.push(Interval { start_ns, end_ns }),
        }
    }
    intervals
}

/// What Causeway says about an interval.
fn estimate(epochs: &[EpochView], interval: &Interval) -> RealEpoch {
    let from = epochs.partition_point(|e| e.start_monotonic_ns < interval.start_ns);
    let to = epochs.partition_point(|e| e.start_monotonic_ns < interval.end_ns);
    let inside = &epochs[from..to];
    let samples: f64 = inside.iter().map(|e| e.samples).sum();
    let sum_us: f64 = inside
        .iter()
        .filter_map(|e| Some(e.estimate_us? * e.samples))
        .sum();
    RealEpoch {
        estimate_ms: (samples > 0.0).then(|| sum_us / samples / 1000.0),
        estimate_samples: samples as u64,
        weight: inside.last().map_or(0.0, |e| e.weight),
        ..RealEpoch::default()
    }
}

/// How far estimates were from the truth, over all servers and intervals.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EstimateError {
    /// Median of the absolute relative error, percent.
    pub median_pct: f64,
    /// 90 % of intervals were as near or nearer, percent.
    pub p90_pct: f64,
    /// Median of the signed relative error, percent: above 0 the estimate was
    /// too long.
    pub bias_pct: f64,
    /// Median of the absolute relative error of the clients' own
    /// request-to-request times: no estimator that sees requests only can be
    /// expected below this.
    pub proxy_floor_pct: Option<f64>,
    /// Share of intervals with a truth that had an estimate, 0 to 1.
    pub coverage: f64,
    /// Intervals with a truth.
    pub intervals: usize,
}

/// Over intervals in which clients had at least `min_samples` responses.
pub fn error(tracks: &[RealTrack], min_samples: u64) -> EstimateError {
    let counted: Vec<&RealEpoch> = tracks
        .iter()
        .flat_map(|t| &t.epochs)
        .filter(|e| e.client_samples >= min_samples && e.client_ms.is_some())
        .collect();
    let relative = |of: fn(&RealEpoch) -> Option<f64>| -> Vec<f64> {
        let pairs = counted.iter().filter_map(|e| Some((of(e)?, e.client_ms?)));
        pairs
            .map(|(value, truth)| (value - truth) / truth * 100.0)
            .collect()
    };
    let signed = relative(|e| e.estimate_ms);
    let absolute: Vec<f64> = signed.iter().map(|e| e.abs()).collect();
    let floor: Vec<f64> = relative(|e| e.client_req_to_req_ms)
        .iter()
        .map(|e| e.abs())
        .collect();
    EstimateError {
        median_pct: quantile(&absolute, 0.5),
        p90_pct: quantile(&absolute, 0.9),
        bias_pct: quantile(&signed, 0.5),
        proxy_floor_pct: (!floor.is_empty()).then(|| quantile(&floor, 0.5)),
        coverage: signed.len() as f64 / counted.len().max(1) as f64,
        intervals: counted.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::log::LoggedResponse;
    use causeway_api::balancer::RealHistory;

    const MS: u64 = 1_000_000;

    fn epoch(start_ms: u64, estimate_us: f64, samples: f64) -> EpochView {
        EpochView {
            start_monotonic_ns: start_ms * MS,
            estimate_us: (samples > 0.0).then_some(estimate_us),
            samples,
            weight: start_ms as f64,
            ..EpochView::default()
        }
    }

    #[test]
    fn epochs_are_put_together_and_truth_is_cut_at_the_same_moments() {
        let epochs = (0..5).map(|i| epoch(1000 + i * 101, 5_000.0 + i as f64 * 1000.0, 2.0));
        let history = History {
            epoch_ns: 0,
            series: vec![RealHistory {
                vip: "web".into(),
                id: 0,
                real: "s0".into(),
                epochs: epochs.collect(),
            }],
            next_since_monotonic_ns: None,
        };
        let response = |last_ms: u64, latency_ms: u64| LoggedResponse {
            connection: 0,
            page: 0,
            id: last_ms as u32,
            parent: None,
            intended_ns: 0,
            send_ns: (last_ms - latency_ms) * MS,
            last_ns: last_ms * MS,
            size: 0,
            real: 0,
            srtt_us: 0,
        };
        let log = Log {
            reals: vec!["s0".into()],
            // On the border between two intervals, the later one counts.
            responses: vec![response(1100, 4), response(1201, 6), response(1202, 8)],
            start_ns: 1000 * MS,
            end_ns: 2000 * MS,
            ..Log::default()
        };
        let track = tracks(&log, &history, &["s0".into()], 200 * MS).remove(0);
        let rows: Vec<_> = track
            .epochs
            .iter()
            .map(|e| (e.estimate_ms, e.client_ms, e.client_samples))
            .collect();
        assert_eq!(rows, [(Some(5.5), Some(5.0), 2), (Some(7.5), Some(8.0), 1)]);
        assert_eq!(track.epochs[1].weight, 1303.0);
        let error = error(&[track], 1);
        assert!((error.median_pct - 10.0).abs() < 1e-9 || (error.median_pct - 6.25).abs() < 1e-9);
        assert_eq!((error.coverage, error.intervals), (1.0, 2));
    }
}
