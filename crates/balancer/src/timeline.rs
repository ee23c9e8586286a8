// SPDX-License-Identifier: Apache-2.0
//! The last quarter of an hour in steps, for people: percentiles of each real, and what was
//! dropped. The history of a pool has every control interval, and means alone.

use std::collections::{BTreeMap, VecDeque};

use causeway_api::Moment;
use causeway_api::balancer::{DropStep, RealState, StepView};
use causeway_core::estimate::Tally;
use causeway_core::hist::Histogram;
use causeway_dataplane::RealStats;
use causeway_dataplane::abi::{Action, PacketsBytes, Verdict};

use super::samples::{mean_us, since, tally};

/// Length of a step.
pub(crate) const STEP_NS: u64 = 2_000_000_000;
/// Steps that are remembered: a quarter of an hour.
const KEPT: usize = 450;
/// Steps that are remembered over all reals: about 50 MB.
const KEPT_MAX: usize = 1 << 18;

/// How many steps of each real are remembered, for this many reals.
pub(crate) fn kept(reals: usize) -> usize {
    KEPT.min(KEPT_MAX / reals.max(1)).max(1)
}

/// How a real stands when a step ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    /// Configured weight.
    pub(crate) configured: f64,
    /// Weight in force.
    pub(crate) weight: f64,
    /// Its state.
    pub(crate) state: RealState,
    /// Estimate of open connections.
    pub(crate) active: u64,
}

/// One real's steps, oldest first, and where the one that is under way began.
#[derive(Debug)]
pub(crate) struct Steps {
    done: VecDeque<Step>,
    totals: RealStats,
    histogram: Histogram,
}

#[derive(Debug)]
struct Step {
    end: Moment,
    p50_us: Option<f32>,
    p99_us: Option<f32>,
    tally: Tally,
    buckets: Box<[(u8, u64)]>,
    requests: u64,
    opened: u64,
    standing: Standing,
}

impl Steps {
    /// Begins the first step.
    pub(crate) fn begin(totals: RealStats, histogram: Histogram) -> Self {
        Self {
            done: VecDeque::new(),
            totals,
            histogram,
        }
    }

    /// Ends a step and begins the next; at most `keep` are remembered.
    pub(crate) fn end(
        &mut self,
        end: Moment,
        (totals, histogram): (&RealStats, &Histogram),
        standing: Standing,
        keep: usize,
    ) {
        let delta = since(*totals, self.totals);
        let samples = histogram.since(&self.histogram);
        let quantile_us = |q| samples.quantile(q).map(|ns| ns as f32 / 1e3);
        let step = Step {
            end,
            p50_us: quantile_us(0.50),
            p99_us: quantile_us(0.99),
            tally: tally(&delta),
            // 56 of them.
            buckets: samples.coarse().map(|(at, n)| (at as u8, n)).collect(),
            requests: delta.requests,
            opened: delta.conns_opened,
            standing,
        };
        (self.totals, self.histogram) = (*totals, histogram.clone());
        push(&mut self.done, step, keep);
    }

    /// Those that ended after `since_ns` (CLOCK_MONOTONIC), of these the newest `most`.
    pub(crate) fn views(&self, since_ns: u64, most: usize) -> Vec<StepView> {
        let from = self
            .done
            .partition_point(|step| step.end.monotonic_ns <= since_ns);
        let from = from.max(self.done.len().saturating_sub(most));
        self.done.range(from..).map(Step::view).collect()
    }
}

impl Step {
    fn view(&self) -> StepView {
        StepView {
            end: self.end,
            p50_us: self.p50_us.map(f64::from),
            p99_us: self.p99_us.map(f64::from),
            mean_us: mean_us(self.tally.sum_halves_ns, self.tally.weight_halves),
            samples: self.tally.samples(),
            quality: self.tally.confidence().quality.name().to_owned(),
            buckets: self.buckets.to_vec(),
            requests: self.requests,
            opened: self.opened,
            active: self.standing.active,
            configured: self.standing.configured,
            weight: self.standing.weight,
            state: self.standing.state.word().to_owned(),
        }
    }
}

/// What was dropped, step by step.
#[derive(Debug, Default)]
pub(crate) struct DropSteps {
    done: VecDeque<DropStep>,
    /// Packets by verdict at the begin of the step that is under way.
    before: BTreeMap<&'static str, u64>,
    begun: bool,
}

impl DropSteps {
    /// Ends a step at these totals; the first begins with them.
    pub(crate) fn end(&mut self, end: Moment, totals: Vec<(Verdict, PacketsBytes)>) {
        let drops = totals.into_iter();
        let now: BTreeMap<&str, u64> = drops
            .filter(|(verdict, _)| verdict.action() == Action::Drop)
            .map(|(verdict, counter)| (verdict.as_str(), counter.packets))
            .collect();
        if std::mem::replace(&mut self.begun, true) {
            let before = |name| self.before.get(name).copied().unwrap_or_default();
            let packets = now
                .iter()
                .map(|(name, packets)| ((*name).to_owned(), packets.saturating_sub(before(name))))
                .filter(|(_, packets)| *packets > 0)
                .collect();
            push(&mut self.done, DropStep { end, packets }, KEPT);
        }
        self.before = now;
    }

    /// Those that ended after `since_ns` (CLOCK_MONOTONIC).
    pub(crate) fn views(&self, since_ns: u64) -> Vec<DropStep> {
        let from = self
            .done
            .partition_point(|step| step.end.monotonic_ns <= since_ns);
        self.done.range(from..).cloned().collect()
    }
}

/// Appends to what is remembered, of which the newest `keep` stay. A million reals remember few
/// things each: room for four, the least that a deque takes by itself, would be 400 MB of nothing.
pub(crate) fn push<T>(kept: &mut VecDeque<T>, newest: T, keep: usize) {
    while kept.len() >= keep {
        kept.pop_front();
    }
    if kept.capacity() > 2 * keep {
        kept.shrink_to(keep);
    }
    if kept.capacity() == 0 && keep < 4 {
        kept.reserve_exact(keep);
    }
    kept.push_back(newest);
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANDING: Standing = Standing {
        configured: 1.0,
        weight: 0.5,
        state: RealState::Active,
        active: 3,
    };

    fn at(s: u64) -> Moment {
        Moment {
            monotonic_ns: s * 1_000_000_000,
            realtime_ns: s * 1_000_000_000,
        }
    }

    #[test]
    fn a_step_has_the_samples_since_the_one_before() {
        let mut histogram = Histogram::new();
        histogram.record_n(1_000_000, 7);
        let mut totals = RealStats {
            requests: 40,
            ..RealStats::default()
        };
        let mut steps = Steps::begin(totals, histogram.clone());
        for (s, ms) in [(2, 5), (4, 80)] {
            histogram.record_n(ms * 1_000_000, 200);
            totals.requests += 200;
            totals.good.sum_halves_ns += 400 * ms * 1_000_000;
            totals.good.weight_halves += 400;
            steps.end(at(s), (&totals, &histogram), STANDING, 10);
        }
        // Nothing came in the last.
        steps.end(at(6), (&totals, &histogram), STANDING, 10);
        let views = steps.views(0, 10);
        assert_eq!(views.len(), 3);
        let near = |us: Option<f64>, ms: f64| (us.unwrap() / 1e3 / ms - 1.0).abs() < 0.04;
        assert!(near(views[0].p99_us, 5.0) && near(views[1].p50_us, 80.0));
        assert_eq!((views[1].samples, views[1].requests), (200, 200));
        assert_eq!(
            (views[0].mean_us, views[0].quality.as_str()),
            (Some(5000.0), "high")
        );
        assert_eq!(views[0].buckets.iter().map(|of| of.1).sum::<u64>(), 200);
        assert_eq!((views[2].p99_us, views[2].quality.as_str()), (None, "none"));
        assert_eq!(steps.views(at(2).monotonic_ns, 10), views[1..]);
        assert_eq!(steps.views(0, 1), views[2..]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (totals, histogram) = (RealStats::default(), Histogram::new());
        let mut steps = Steps::begin(totals, histogram.clone());
        let mut drops = DropSteps::default();
        for s in 0..1000 {
            steps.end(at(s), (&totals, &histogram), STANDING, kept(4));
            drops.end(at(s), Vec::new());
        }
        assert_eq!(steps.views(0, usize::MAX).len(), KEPT);
        assert_eq!(drops.views(0).len(), KEPT);
        assert_eq!((kept(4096), kept(1 << 20)), (64, 1));
        // With more reals since, and from the first step on: no room but for what is kept.
        steps.end(at(1000), (&totals, &histogram), STANDING, 1);
        assert_eq!((steps.done.len(), steps.done.capacity()), (1, 1));
        let mut steps = Steps::begin(totals, histogram.clone());
        steps.end(at(1001), (&totals, &histogram), STANDING, 1);
        assert_eq!((steps.done.len(), steps.done.capacity()), (1, 1));
    }

    #[test]
    fn drops_have_their_names() {
        let dropped = |packets| {
            let counter = PacketsBytes {
                packets,
                bytes: 60 * packets,
            };
            vec![(Verdict::NoReal, counter), (Verdict::Established, counter)]
        };
        let mut drops = DropSteps::default();
        drops.end(at(2), dropped(5));
        drops.end(at(4), dropped(12));
        drops.end(at(6), dropped(12));
        let steps = drops.views(0);
        assert_eq!(steps[0].packets, [("no_real".to_owned(), 7)].into());
        assert_eq!((steps[1].packets.len(), steps.len()), (0, 2));
    }
}
