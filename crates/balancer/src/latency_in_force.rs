// SPDX-License-Identifier: Apache-2.0
//! The latency that a VIP's controller goes by, and what is known of the samples of each kind.

use crate::config::{LatencySource, VipConfig};

/// Time over which shares of samples are taken, where that brings enough of them.
const COVERAGE_NS: f64 = 10e9;
/// Samples below which shares say nothing: if fewer come in that time, shares are of about this
/// many.
const COVERAGE_SAMPLES: f64 = 20.0;
/// The shares of samples with a known path below which a VIP goes by responses, and from
/// which on by its servers again.
pub(super) const BY_PATH: Bar = Bar {
    leaves: 0.25,
    returns: 0.5,
};
/// The shares of samples graded better than low below which those graded low count, too, and
/// from which on they do not.
pub(super) const BY_GRADE: Bar = Bar {
    leaves: 0.05,
    returns: 0.1,
};
/// The shares of transactions that agents could time below which a VIP goes by packets, and
/// from which on by agents again.
pub(super) const BY_AGENT: Bar = BY_GRADE;

/// What a controller goes by, and for how long it had to do without what it should.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct InForce {
    /// What the last interval went by.
    pub(crate) source: LatencySource,
    /// Intervals that went by another one than the configuration says.
    pub(crate) fallbacks: u64,
    /// Whether samples graded low count, for want of better ones, and in how many intervals
    /// they did.
    pub(crate) takes_low: bool,
    pub(crate) low_intervals: u64,
    pub(super) by_path: Coverage,
    pub(super) by_grade: Coverage,
    pub(super) by_agent: Coverage,
}

impl InForce {
    /// What a VIP begins with.
    pub(crate) fn of(vip: &VipConfig) -> Self {
        Self {
            source: match vip.latency {
                LatencySource::Response => LatencySource::Response,
                // Until agents have reported something.
                LatencySource::Server | LatencySource::Client | LatencySource::Agent => {
                    LatencySource::Server
                }
            },
            fallbacks: 0,
            takes_low: false,
            low_intervals: 0,
            by_path: Coverage::default(),
            by_grade: Coverage::default(),
            by_agent: Coverage::default(),
        }
    }
}

/// Recent samples, and those of them of which something is known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Coverage {
    known: f64,
    all: f64,
}

/// Shares from which on a coverage suffices no longer, and does again.
pub(super) struct Bar {
    leaves: f64,
    returns: f64,
}

impl Coverage {
    /// After an interval with this many samples, doubled.
    pub(super) fn after(self, known_halves: f64, all_halves: f64, interval_ns: u64) -> Self {
        let enough = (COVERAGE_SAMPLES / self.all).min(1.0);
        let kept = (-(interval_ns as f64) / COVERAGE_NS).exp().max(enough);
        Self {
            known: self.known * kept + known_halves / 2.0,
            all: self.all * kept + all_halves / 2.0,
        }
    }

    /// Whether it is of too few samples to say anything.
    pub(super) fn is_small(self) -> bool {
        self.all < COVERAGE_SAMPLES
    }

    /// Whether it suffices, as it did or not `before`.
    pub(super) fn suffices(self, before: bool, bar: &Bar) -> bool {
        if self.is_small() {
            return before;
        }
        let least = if before { bar.leaves } else { bar.returns };
        self.known >= least * self.all
    }
}
