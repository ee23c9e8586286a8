// SPDX-License-Identifier: Apache-2.0
//! What a controller decided, and why, in figures.

use std::fmt;

use super::Law;
use super::tracker::Estimate;

/// The outcome of one interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Time of the interval's end, as given to `tick`.
    pub at_ns: u64,
    /// The law that decided.
    pub law: Law,
    /// Lowest average latency among the reals, from which the watermarks follow.
    pub lowest_ns: Option<f64>,
    /// Weight that changed hands, in units of configured weight.
    pub moved: f64,
    /// One entry per member, in the members' order.
    pub reals: Vec<RealDecision>,
}

/// One real's part of a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct RealDecision {
    /// The member's id.
    pub id: u32,
    /// Configured weight.
    pub configured: f64,
    /// Weight before this interval.
    pub before: f64,
    /// Weight from now on.
    pub weight: f64,
    /// Smoothed latency; for a suspect at least the length of its silence.
    pub latency_ns: Option<f64>,
    /// Effective number of samples behind `latency_ns`.
    pub samples: f64,
    /// Requests per active connection and interval, smoothed.
    pub freshness: f64,
    /// Why the weight is what it is.
    pub reason: Reason,
}

impl RealDecision {
    /// Standard error of the latency, relative to it: the confidence that it deserves.
    pub fn error(&self) -> Option<f64> {
        self.latency_ns?;
        let (latency_ns, samples) = (1.0, self.samples);
        let estimate = Estimate {
            latency_ns,
            samples,
        };
        Some(estimate.error())
    }

    /// Whether the weight changed by more than rounding.
    pub fn changed(&self) -> bool {
        (self.weight - self.before).abs() > 1e-9 * self.configured.max(1.0)
    }
}

/// Why a real's weight is what it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// Drained, or configured with weight 0: not controlled.
    Drained,
    /// No estimate yet, or none for too long.
    Unknown,
    /// No estimate, because next to all its latencies are graded low: it has its configured
    /// weight.
    LowQuality {
        /// Their part of its answers.
        low: f64,
    },
    /// Too few new samples to act on: the weight is held.
    FewSamples {
        /// Samples gathered since the last estimate.
        have: u32,
        /// Samples that an estimate needs.
        need: u32,
    },
    /// Latency lies between or below the watermarks; nothing to do.
    Steady,
    /// Latency is above the high watermark: weight was taken.
    High {
        /// The latency.
        latency_ns: f64,
        /// The high watermark.
        watermark_ns: f64,
    },
    /// Above the high watermark, but no other real can take its weight.
    NoReceiver,
    /// Above the high watermark, and already at the floor.
    Floor,
    /// Requests go in and no estimates come out: weight was taken.
    Suspect {
        /// Requests since the last estimate.
        requests: u64,
        /// Time since the first of them.
        silent_ns: u64,
    },
    /// Took a share of what slow reals gave.
    Received,
    /// Gave to reals that were meant to have more.
    Gave,
    /// Fast, but its measurement is staler than a slow real's.
    NotFresh {
        /// Requests per connection and interval.
        freshness: f64,
        /// What it would have to reach.
        needed: f64,
    },
    /// Fast, and already at the cap.
    Cap,
    /// One real alone is far below all others, now or as long as they are known: it may
    /// be failing fast.
    LoneFast,
    /// Slower than the pool: is meant to have less.
    Above {
        /// The latency.
        latency_ns: f64,
        /// The pool's median.
        median_ns: f64,
    },
    /// Faster than the pool: is meant to have more.
    Below {
        /// The latency.
        latency_ns: f64,
        /// The pool's median.
        median_ns: f64,
    },
    /// Slow, but another real is slower still, and no other one can take its load.
    Recalled {
        /// The slower one's latency.
        other_ns: f64,
    },
    /// Nothing speaks against it: part of the way back to the configured weight.
    Regressed,
}

impl Reason {
    /// The reason as one word, for metrics and machines.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Unknown => "unknown",
            Self::LowQuality { .. } => "low_quality",
            Self::FewSamples { .. } => "few_samples",
            Self::Steady => "steady",
            Self::High { .. } => "high",
            Self::NoReceiver => "no_receiver",
            Self::Floor => "floor",
            Self::Suspect { .. } => "suspect",
            Self::Received => "received",
            Self::Gave => "gave",
            Self::NotFresh { .. } => "not_fresh",
            Self::Cap => "cap",
            Self::LoneFast => "lone_fast",
            Self::Above { .. } => "above",
            Self::Below { .. } => "below",
            Self::Recalled { .. } => "recalled",
            Self::Regressed => "regressed",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drained => f.write_str("takes no new connections"),
            Self::Unknown => f.write_str("no estimate"),
            Self::LowQuality { low } => write!(
                f,
                "no estimate: {:.1} % of its latencies are graded low",
                low * 100.0
            ),
            Self::FewSamples { have, need } => write!(f, "held: {have} of {need} new samples"),
            Self::Steady => f.write_str("steady"),
            Self::High {
                latency_ns,
                watermark_ns,
            } => write!(
                f,
                "gave weight: {:.2} ms is above {:.2} ms",
                latency_ns / 1e6,
                watermark_ns / 1e6
            ),
            Self::NoReceiver => f.write_str("slow, but no other real can take more"),
            Self::Floor => f.write_str("slow, held at the floor"),
            Self::Suspect {
                requests,
                silent_ns,
            } => write!(
                f,
                "suspect: {requests} requests without an estimate in {:.1} s",
                *silent_ns as f64 / 1e9
            ),
            Self::Received => f.write_str("took weight from slower reals"),
            Self::Gave => f.write_str("gave weight to reals that come back"),
            Self::NotFresh { freshness, needed } => {
                write!(
                    f,
                    "not fresh: {freshness:.2} requests per connection, {needed:.2} needed"
                )
            }
            Self::Cap => f.write_str("fast, held at the cap"),
            Self::LoneFast => f.write_str("held: much faster than any other, it may be failing"),
            Self::Above {
                latency_ns,
                median_ns,
            } => write!(
                f,
                "gave weight: {:.2} ms, the pool's median is {:.2} ms",
                latency_ns / 1e6,
                median_ns / 1e6
            ),
            Self::Below {
                latency_ns,
                median_ns,
            } => write!(
                f,
                "took weight: {:.2} ms, the pool's median is {:.2} ms",
                latency_ns / 1e6,
                median_ns / 1e6
            ),
            Self::Recalled { other_ns } => write!(
                f,
                "took weight: {:.2} ms elsewhere, and no other real can help",
                other_ns / 1e6
            ),
            Self::Regressed => {
                f.write_str("nothing against it: moved towards the configured weight")
            }
        }
    }
}
