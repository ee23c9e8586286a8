// SPDX-License-Identifier: Apache-2.0
//! The constants of the controller.

/// What a [`Controller`](super::Controller) is tuned by; which law uses what stands in
/// docs/explanation/steering.md.
///
/// The watermarks and `regress_after` are the paper's; the rest was chosen by
/// simulation, see docs/explanation/steering.md.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlParams {
    /// Length of an interval in nanoseconds.
    pub interval_ns: u64,
    /// A real gives weight when its latency exceeds this many times the lowest.
    pub alpha_high: f64,
    /// A real may receive weight when its latency is below this many times the lowest.
    pub alpha_low: f64,
    /// Fraction of its weight that a real gives per interval and per multiple of
    /// the lowest latency above the high watermark: at ten times it gives
    /// `(10 - alpha_high) * step`.
    pub step: f64,
    /// Upper bound of that fraction, so that no interval empties a real.
    pub max_decrease: f64,
    /// What a real may gain in one interval, as a fraction of its configured weight;
    /// three times that under the law `equalise`.
    pub max_increase: f64,
    /// Lowest effective weight, as a fraction of the configured one. The
    /// trickle that it leaves is what shows a recovery.
    pub floor: f64,
    /// Highest effective weight, as a multiple of the configured one.
    pub cap: f64,
    /// Intervals without a change of latency after which weights regress.
    pub regress_after: u32,
    /// Part of the way to the configured weights that is gone per interval of regression.
    pub regress_rate: f64,
    /// Weight of the newest interval in the smoothed latency, in (0, 1].
    pub smoothing: f64,
    /// Samples that an estimate needs before anything is done about it.
    pub min_samples: u32,
    /// Standard errors by which a latency must differ before it counts as different.
    pub confidence: f64,
    /// The law `equalise`: requests that come at a time, on the mean. What a real has
    /// left is this many requests per latency.
    pub burst: f64,
    /// The law `equalise`: part by which latencies may differ from the pool's median
    /// without any consequence.
    pub tolerance: f64,
    /// The law `equalise`: standard errors that count for nothing, as `confidence`
    /// does for the watermarks.
    pub margin: f64,
    /// The law `equalise`: part of the way back to the configured weight that is gone
    /// per interval, at least, while a real gives too few samples to say that it has recovered.
    pub return_rate: f64,
}

impl Default for ControlParams {
    fn default() -> Self {
        Self {
            interval_ns: 100_000_000,
            alpha_high: 1.5,
            alpha_low: 1.2,
            step: 0.06,
            max_decrease: 0.5,
            max_increase: 0.1,
            floor: 0.02,
            cap: 2.0,
            regress_after: 3,
            regress_rate: 0.2,
            smoothing: 0.2,
            min_samples: 3,
            confidence: 3.0,
            burst: 8.0,
            tolerance: 0.4,
            margin: 4.0,
            return_rate: 0.02,
        }
    }
}
