// SPDX-License-Identifier: Apache-2.0
//! The few figures that an outcome comes down to: `summary.json`.

use serde::{Deserialize, Serialize};

use super::{DegradeOutcome, RealEpoch, Run, RunConditions};

/// An epoch counts in the estimate's error when the clients' mean rests on at
/// least this many responses; fewer make the truth itself a guess.
const MIN_SAMPLES: u64 = 10;

/// `summary.json`. Times in milliseconds, shares in percent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DegradeSummary {
    /// Under plain hashing.
    pub baseline: RunSummary,
    /// Under the latency-aware scheduler.
    pub latency_aware: RunSummary,
    /// How much lower the latency-aware p99 is.
    pub p99_reduction_pct: f64,
    /// Causeway's estimate against the clients.
    pub estimate: EstimateSummary,
    /// What was set up.
    #[serde(flatten)]
    pub conditions: RunConditions,
}

/// One run, without its curves.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "documented at Run")]
pub struct RunSummary {
    pub scheduler: String,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub requests: u64,
    pub requests_per_s: f64,
    pub broken_connections: u64,
    pub cpu_busy_pct: f64,
}

/// The error over every real and epoch of both runs in which the clients had at
/// least ten responses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EstimateSummary {
    /// Median of the absolute relative error.
    pub median_error_pct: f64,
    /// Median of the absolute error.
    pub median_error_ms: f64,
    /// The floor: the same median for the request-to-request proxy as the
    /// clients logged it.
    pub proxy_floor_pct: Option<f64>,
    /// Epochs that count.
    pub epochs: usize,
    /// Epochs in which the clients had enough responses and Causeway gave no
    /// estimate.
    pub epochs_without_estimate: usize,
    /// Each real.
    pub per_real: Vec<RealSummary>,
}

/// One real over both runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RealSummary {
    /// Its address.
    pub real: String,
    /// Mean of the estimates over epochs that count, weighted by the clients'
    /// responses, so that both means weigh the same epochs alike.
    pub estimate_ms: f64,
    /// Mean of the clients' own measurement over the same epochs.
    pub client_ms: f64,
    /// Median over epochs of the absolute relative error.
    pub error_pct: f64,
    /// Epochs that count.
    pub epochs: usize,
}

impl DegradeOutcome {
    /// Comes down to the few figures.
    #[must_use]
    pub fn summary(&self) -> DegradeSummary {
        let (before, after) = (self.baseline.p99_ms, self.latency_aware.p99_ms);
        DegradeSummary {
            baseline: self.baseline.summary(),
            latency_aware: self.latency_aware.summary(),
            p99_reduction_pct: 100.0 * (before - after) / before,
            estimate: self.estimate(),
            conditions: self.conditions.clone(),
        }
    }

    fn estimate(&self) -> EstimateSummary {
        let names = self.latency_aware.reals.iter().map(|r| r.real.as_str());
        let all: Vec<RealEpoch> = names.clone().flat_map(|n| self.epochs_of(n)).collect();
        let pairs = || all.iter().filter_map(pair);
        let answered = pairs().count();
        EstimateSummary {
            median_error_pct: median(pairs().map(|p| p.relative_pct())).unwrap_or(f64::NAN),
            median_error_ms: median(pairs().map(|p| p.absolute_ms())).unwrap_or(f64::NAN),
            proxy_floor_pct: median(all.iter().filter_map(floor_pct)),
            epochs: answered,
            epochs_without_estimate: all.len() - answered,
            per_real: names.map(|n| self.real(n)).collect(),
        }
    }

    /// The epochs of one real, of both runs, in which the clients know enough.
    fn epochs_of(&self, real: &str) -> Vec<RealEpoch> {
        [&self.baseline, &self.latency_aware]
            .into_iter()
            .flat_map(|run| run.reals.iter().filter(|r| r.real == real))
            .flat_map(|r| r.epochs.iter().copied())
            .filter(|e| e.client_samples >= MIN_SAMPLES && e.client_ms.is_some())
            .collect()
    }

    fn real(&self, real: &str) -> RealSummary {
        let pairs: Vec<Pair> = self.epochs_of(real).iter().filter_map(pair).collect();
        let weight: f64 = pairs.iter().map(|p| p.weight).sum();
        let mean =
            |of: fn(&Pair) -> f64| pairs.iter().map(|p| p.weight * of(p)).sum::<f64>() / weight;
        RealSummary {
            real: real.to_owned(),
            estimate_ms: mean(|p| p.estimate_ms),
            client_ms: mean(|p| p.client_ms),
            error_pct: median(pairs.iter().map(Pair::relative_pct)).unwrap_or(f64::NAN),
            epochs: pairs.len(),
        }
    }
}

impl Run {
    fn summary(&self) -> RunSummary {
        RunSummary {
            scheduler: self.scheduler.clone(),
            p50_ms: self.p50_ms,
            p90_ms: self.p90_ms,
            p99_ms: self.p99_ms,
            requests: self.requests,
            requests_per_s: self.requests_per_s,
            broken_connections: self.broken_connections,
            cpu_busy_pct: self.cpu_busy_pct,
        }
    }
}

/// An epoch in which both sides have a value.
#[derive(Clone, Copy, Debug)]
struct Pair {
    estimate_ms: f64,
    client_ms: f64,
    weight: f64,
}

impl Pair {
    fn absolute_ms(&self) -> f64 {
        (self.estimate_ms - self.client_ms).abs()
    }

    fn relative_pct(&self) -> f64 {
        100.0 * self.absolute_ms() / self.client_ms
    }
}

fn pair(epoch: &RealEpoch) -> Option<Pair> {
    Some(Pair {
        estimate_ms: epoch.estimate_ms?,
        client_ms: epoch.client_ms?,
        #[allow(clippy::cast_precision_loss, reason = "counts of one epoch")]
        weight: epoch.client_samples as f64,
    })
}

fn floor_pct(epoch: &RealEpoch) -> Option<f64> {
    let (proxy, truth) = (epoch.client_req_to_req_ms?, epoch.client_ms?);
    Some(100.0 * (proxy - truth).abs() / truth)
}

/// The lower median; none of nothing.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::RealTrack;

    fn epoch(estimate_ms: Option<f64>, client_ms: f64, client_samples: u64) -> RealEpoch {
        RealEpoch {
            estimate_ms,
            client_ms: Some(client_ms),
            client_samples,
            ..RealEpoch::default()
        }
    }

    fn outcome(epochs: Vec<RealEpoch>) -> DegradeOutcome {
        let run = |p99_ms, epochs| Run {
            p99_ms,
            reals: vec![RealTrack {
                real: "10.0.0.1".into(),
                epochs,
            }],
            ..Run::default()
        };
        DegradeOutcome {
            baseline: run(100.0, vec![]),
            latency_aware: run(40.0, epochs),
            conditions: RunConditions::default(),
        }
    }

    #[test]
    fn errors_are_absolute_and_the_median_is_taken_over_epochs() {
        let summary = outcome(vec![
            epoch(Some(11.0), 10.0, 10),
            epoch(Some(8.0), 10.0, 30),
            epoch(Some(10.0), 10.0, 10),
        ])
        .summary();
        assert!((summary.p99_reduction_pct - 60.0).abs() < 1e-9);
        assert!((summary.estimate.median_error_pct - 10.0).abs() < 1e-9);
        let real = &summary.estimate.per_real[0];
        assert!(
            (real.estimate_ms - 9.0).abs() < 1e-9,
            "weighted: {}",
            real.estimate_ms
        );
        assert_eq!(real.epochs, 3);
    }

    #[test]
    fn epochs_with_few_responses_do_not_count_and_missing_estimates_are_told() {
        let summary = outcome(vec![
            epoch(Some(50.0), 10.0, 9),
            epoch(None, 10.0, 10),
            epoch(Some(10.1), 10.0, 10),
        ])
        .summary();
        assert_eq!(summary.estimate.epochs, 1);
        assert_eq!(summary.estimate.epochs_without_estimate, 1);
        assert!((summary.estimate.median_error_pct - 1.0).abs() < 1e-6);
    }

    #[test]
    fn summary_json_has_the_agreed_keys() {
        let json = serde_json::to_value(outcome(vec![epoch(Some(10.0), 10.0, 10)]).summary());
        let json = json.expect("serialises");
        for key in [
            "/baseline/p99_ms",
            "/latency_aware/broken_connections",
            "/p99_reduction_pct",
            "/estimate/median_error_pct",
            "/estimate/per_real/0/client_ms",
            "/seed",
            "/factor",
        ] {
            assert!(json.pointer(key).is_some(), "{key} missing in {json}");
        }
    }
}
