// SPDX-License-Identifier: Apache-2.0
//! Figures of runs, and what two programs differ by within rounds.

use serde_json::{Value, json};

use crate::statistics::quantile;

/// Ours less theirs, round by round.
pub(super) struct Compared {
    p50_us: Middle,
    mean_us: Middle,
    p99_pct: Middle,
    rate_pct: Middle,
}

/// What is in the middle of some values.
#[derive(Clone, Copy)]
struct Middle {
    median: f64,
    half_iqr: f64,
    /// Standard error of the median, whatever the distribution: half the distance of the
    /// values whose ranks are one standard deviation of Binomial(n, 1/2) away from it.
    error: f64,
}

impl Middle {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1) as f64;
        let at = |rank: f64| {
            let value = values.get(rank.clamp(0.0, last).round() as usize);
            value.copied().unwrap_or(f64::NAN)
        };
        let aside = (values.len() as f64).sqrt() / 2.0;
        Self {
            median: at(last / 2.0),
            half_iqr: (at(last * 0.75) - at(last * 0.25)) / 2.0,
            error: (at(last / 2.0 + aside) - at(last / 2.0 - aside)) / 2.0,
        }
    }
}

pub(super) fn compare(ours: &[PeerRun], theirs: &[PeerRun]) -> Compared {
    let of = |difference: fn(&PeerRun, &PeerRun) -> f64| {
        let rounds = ours.iter().zip(theirs);
        Middle::of(rounds.map(|(a, b)| difference(a, b)).collect())
    };
    Compared {
        p50_us: of(|a, b| a.p50_us - b.p50_us),
        mean_us: of(|a, b| a.mean_us - b.mean_us),
        p99_pct: of(|a, b| 100.0 * (a.p99_us / b.p99_us - 1.0)),
        rate_pct: of(|a, b| 100.0 * (a.rate / b.rate - 1.0)),
    }
}

impl Compared {
    pub(super) fn json(&self) -> Value {
        let middle = |of: Middle| {
            json!({
                "median": finite(of.median), "half_iqr": finite(of.half_iqr),
                "error": finite(of.error),
            })
        };
        json!({
            "p50_us": middle(self.p50_us), "mean_us": middle(self.mean_us),
            "p99_pct": middle(self.p99_pct), "rate_pct": middle(self.rate_pct),
        })
    }

    pub(super) fn text(&self) -> String {
        let part = |name: &str, of: Middle, unit: &str| match of.median.is_finite() {
            true => format!(
                "{name} {:+.1} {unit} (half IQR {:.1}, error {:.1})",
                of.median, of.half_iqr, of.error
            ),
            false => format!("{name} not reported"),
        };
        [
            part("p50", self.p50_us, "us"),
            part("mean", self.mean_us, "us"),
            part("p99", self.p99_pct, "%"),
            part("rate", self.rate_pct, "%"),
        ]
        .join(", ")
    }
}

/// qperf reports a mean and nothing else.
fn finite(value: f64) -> Value {
    if value.is_finite() {
        json!(value)
    } else {
        Value::Null
    }
}

/// Round trips of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerRun {
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Transactions per second.
    pub(super) rate: f64,
}

impl PeerRun {
    /// Figure by figure.
    pub(super) fn median(runs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            let values: Vec<f64> = runs.iter().map(figure).collect();
            quantile(&values, 0.5)
        };
        Self {
            mean_us: of(|r| r.mean_us),
            p50_us: of(|r| r.p50_us),
            p99_us: of(|r| r.p99_us),
            rate: of(|r| r.rate),
        }
    }

    /// Round by round, of two programs.
    pub(super) fn means(a: &[Self], b: &[Self]) -> Vec<Self> {
        let mean = |(a, b): (&Self, &Self)| Self {
            mean_us: f64::midpoint(a.mean_us, b.mean_us),
            p50_us: f64::midpoint(a.p50_us, b.p50_us),
            p99_us: f64::midpoint(a.p99_us, b.p99_us),
            rate: f64::midpoint(a.rate, b.rate),
        };
        a.iter().zip(b).map(mean).collect()
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "mean_us": finite(self.mean_us), "p50_us": finite(self.p50_us),
            "p99_us": finite(self.p99_us), "rate": finite(self.rate),
        })
    }

    pub(super) fn text(&self) -> String {
        let Self {
            mean_us,
            p50_us,
            p99_us,
            rate,
        } = self;
        match p50_us.is_finite() {
            true => {
                format!("p50 {p50_us:.1} us, p99 {p99_us:.1} us, mean {mean_us:.1} us, {rate:.0}/s")
            }
            false => format!("mean {mean_us:.1} us, {rate:.0}/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_medians_error_shrinks_with_the_root_of_the_rounds() {
        // Evenly spread, its standard deviation is 100 / sqrt(12); the median's error is
        // half of the range over the root of the number.
        for count in [25, 101, 401] {
            let value = |n: usize| 100.0 * n as f64 / (count - 1) as f64;
            let of = Middle::of((0..count).rev().map(value).collect());
            assert!((of.median - 50.0).abs() < 1e-9);
            assert!((of.half_iqr - 25.0).abs() < 1.1, "{}", of.half_iqr);
            let expected = 50.0 / (count as f64).sqrt();
            assert!((of.error / expected - 1.0).abs() < 0.15, "{}", of.error);
        }
        assert!(Middle::of(Vec::new()).median.is_nan());
    }
}
