// SPDX-License-Identifier: Apache-2.0
//! A real of a VIP at work, and what is remembered of it.

use std::collections::VecDeque;

use causeway_api::Moment;
use causeway_api::balancer::{EpochView, Grade};
use causeway_dataplane::RealId;

use super::decisions::Decisions;
use super::samples::mean_us;
use super::timeline;

/// A real of a pool.
#[derive(Debug)]
pub struct PoolMember {
    /// Index in the data plane.
    pub id: RealId,
    /// Weight in force.
    pub weight: f64,
    /// What it is before latency or load moves it.
    pub meant: f64,
    /// Whether its health lets it get new connections.
    pub fit: bool,
    /// Whether it is new here, and waits for its first probe while others serve.
    pub waits: bool,
    /// The weight that it says it should have, where its VIP goes by that.
    pub told: Option<u32>,
    /// Whether it has been asked. Before that it counts as one of those who have, in proportion
    /// to this.
    pub(super) asked: bool,
    pub(super) prior: f64,
    /// Whether it waits for others to fail.
    pub standby: bool,
    /// Time that is left of its slow start, ns.
    pub warms_ns: u64,
    /// Whether it has all of it before, as most of the pool returned.
    pub whole: bool,
    /// Load by the last interval; `None` if it is not known or of no interest.
    pub load: Option<f64>,
    /// Part of a half sample of its clients that is left for the next interval.
    pub latency_rest: f64,
    /// Part of a flow that ageing has still to take off its load.
    pub aged: f64,
    /// What is remembered of it; `None` before it is looked at.
    pub(super) past: Option<Box<Past>>,
}

impl PoolMember {
    /// Time until it has all of its weight again, ns, if it has not.
    pub(super) fn warms(&self) -> Option<u64> {
        (self.warms_ns > 0 && !self.whole).then_some(self.warms_ns)
    }
}

/// What is remembered of a real.
#[derive(Debug, Default)]
pub struct Past {
    /// What happened, oldest epoch first.
    pub history: VecDeque<Epoch>,
    /// What the controller decided about it.
    pub decisions: Decisions,
}

impl Past {
    /// Adds an epoch to the history, of which the newest `keep` are kept.
    pub(super) fn record(&mut self, epoch: Epoch, keep: usize) {
        timeline::push(&mut self.history, epoch, keep);
    }
}

/// What an interval brought, in little room: a million reals have some of them each. Counts
/// saturate.
#[derive(Debug, Clone, Copy)]
pub struct Epoch {
    /// Its start.
    pub start: Moment,
    /// Sum of its latencies, doubled, ns.
    pub sum_halves_ns: u64,
    /// Their weight, doubled.
    pub weight_halves: u32,
    /// Weight of those graded low, and of upper bounds, doubled.
    pub low_halves: u32,
    /// Requests.
    pub requests: u32,
    /// Connections that began.
    pub opened: u32,
    /// Open connections at its end.
    pub active: u32,
    /// How far to trust the mean.
    pub quality: Grade,
    /// Configured weight.
    pub configured: f64,
    /// Weight in force.
    pub weight: f64,
}

impl Epoch {
    /// As it is told.
    pub fn view(&self) -> EpochView {
        EpochView {
            start_ns: self.start.realtime_ns,
            start_monotonic_ns: self.start.monotonic_ns,
            estimate_us: mean_us(self.sum_halves_ns, self.weight_halves.into()),
            samples: f64::from(self.weight_halves) / 2.0,
            low: f64::from(self.low_halves) / 2.0,
            quality: self.quality,
            requests: self.requests.into(),
            opened: self.opened.into(),
            active: self.active.into(),
            configured: self.configured,
            weight: self.weight,
        }
    }
}

static NO_PAST: Past = Past {
    history: VecDeque::new(),
    decisions: Decisions::NONE,
};

impl PoolMember {
    /// Whether it gets no new connections before its first probe.
    pub fn waits_for_probe(&self) -> bool {
        self.waits && self.weight == 0.0
    }

    /// What is remembered of it.
    pub fn past(&self) -> &Past {
        self.past.as_deref().unwrap_or(&NO_PAST)
    }

    pub(super) fn past_mut(&mut self) -> &mut Past {
        self.past.get_or_insert_default()
    }
}
