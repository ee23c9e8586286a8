// SPDX-License-Identifier: Apache-2.0
//! What two runs of one load under two schedulers gave: the result of the
//! `degrade` scenario, and what `causeway-lab demo` prints, plots and saves.

mod summary;

use serde::{Deserialize, Serialize};

pub use summary::{DegradeSummary, EstimateSummary, RealSummary, RunSummary};

/// Both runs and the conditions they share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DegradeOutcome {
    /// The run under plain hashing.
    pub baseline: Run,
    /// The run under the latency-aware scheduler.
    pub latency_aware: Run,
    /// What was equal in both.
    pub conditions: RunConditions,
}

/// What was set up, in words and figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunConditions {
    /// Seed of the load; seed and parameters reproduce it.
    pub seed: u64,
    /// What happened to which server, as a sentence.
    pub degradation: String,
    /// The address of the degraded real.
    pub degraded_real: String,
    /// Service time after the degradation as a multiple of that before.
    pub factor: f64,
    /// The load, as a sentence.
    pub load: String,
    /// Length of one run in seconds.
    pub run_s: f64,
    /// When the server slows down, seconds after a run's start.
    pub degraded_at_s: f64,
    /// Requests count from this long after the degradation.
    pub settle_s: f64,
    /// Length of an epoch of [`RealEpoch`] in seconds.
    pub epoch_s: f64,
}

/// One run of the load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// The VIP's scheduler.
    pub scheduler: String,
    /// Percentiles of request to last byte, at the clients, over requests sent
    /// from `settle_s` after the degradation.
    pub p50_ms: f64,
    /// See `p50_ms`.
    pub p90_ms: f64,
    /// See `p50_ms`.
    pub p99_ms: f64,
    /// Responses that those percentiles count.
    pub requests: u64,
    /// The same, per second.
    pub requests_per_s: f64,
    /// Connections that ended by reset, timeout, short read or refusal, over
    /// the whole run.
    pub broken_connections: u64,
    /// Busy share of all processors over the whole run, percent.
    pub cpu_busy_pct: f64,
    /// CPU time of the load generator as a share of one processor, percent.
    pub client_cpu_pct: f64,
    /// Median of actual minus intended send time, microseconds.
    pub send_delay_p50_us: f64,
    /// The clients' view second by second.
    pub seconds: Vec<RunSecond>,
    /// (quantile, milliseconds), ascending, over the same requests as `p99_ms`.
    pub quantiles: Vec<(f64, f64)>,
    /// Each real, in the configuration's order.
    pub reals: Vec<RealTrack>,
}

/// One second of a run, by the time at which requests were sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RunSecond {
    /// Start, seconds since the run's start.
    pub at_s: f64,
    /// Median latency.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Requests sent.
    pub requests: u64,
}

/// One real over a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RealTrack {
    /// The real's address.
    pub real: String,
    /// Its epochs, ascending, without gaps.
    pub epochs: Vec<RealEpoch>,
}

/// One real in one epoch: what Causeway said and what the clients measured.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct RealEpoch {
    /// Start, seconds since the run's start.
    pub at_s: f64,
    /// Mean response latency as Causeway estimates it.
    pub estimate_ms: Option<f64>,
    /// Samples behind the estimate.
    pub estimate_samples: u64,
    /// Mean of request to last byte over responses whose last byte fell in the
    /// epoch, as the clients measured it.
    pub client_ms: Option<f64>,
    /// Mean of request to the request that its response triggered: what the
    /// estimator's proxy would give with perfect knowledge.
    pub client_req_to_req_ms: Option<f64>,
    /// Responses behind `client_ms`.
    pub client_samples: u64,
    /// The real's effective weight at the epoch's end.
    pub weight: f64,
}
