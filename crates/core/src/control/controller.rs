// SPDX-License-Identifier: Apache-2.0
//! The controller of one VIP: members, measurements, bounds, and one of the laws.

use super::base::Base;
use super::evidence::{Relief, Unevenness};
use super::share;
use super::survey::Standing;
use super::tracker::Tracker;
use super::{ControlParams, Decision, Law, Reading, RealDecision, Reason};

/// A resumed real with less than this part of its configured weight was slow.
const RESUMED_SLOW: f64 = 0.5;
/// A resumed pool with a weight further off than this, as a part of the configured one, was
/// known to be uneven.
const RESUMED_OFF: f64 = 0.1;

/// A real as the controller knows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Member {
    /// Identity; state follows it when members change.
    pub id: u32,
    /// Configured weight; 0 takes no new connections and is not controlled.
    pub configured: f64,
}

/// The controller of one VIP.
///
/// Call [`set_members`](Self::set_members) whenever the pool or a configured
/// weight changes, and [`tick`](Self::tick) once per interval. Effective weights
/// sum to the configured ones at all times, and each stays within
/// `[floor, cap]` times its configured weight. What it does not know is where the
/// latencies come from: [`Reading`] is all that it gets.
#[derive(Debug, Clone)]
pub struct Controller {
    pub(super) law: Law,
    /// As given, and as the law uses them.
    given: ControlParams,
    pub(super) params: ControlParams,
    pub(super) reals: Vec<Controlled>,
    /// Intervals since a latency changed or weight was taken.
    pub(super) stable_for: u32,
    /// What the law `equalise` remembers of the pool.
    pub(super) unevenness: Unevenness,
}

#[derive(Debug, Clone)]
pub(super) struct Controlled {
    pub member: Member,
    pub weight: f64,
    pub tracker: Tracker,
    /// Was above the high watermark and has not been seen below it since.
    pub slow: bool,
    /// The lowest latency that it has shown recently.
    pub base: Base,
    /// What the law `equalise` remembers of it.
    pub relief: Relief,
}

impl Controller {
    /// A controller without members.
    pub fn new(law: Law, params: ControlParams) -> Self {
        Self {
            law,
            params: law.tune(&params),
            given: params,
            reals: Vec::new(),
            stable_for: 0,
            unevenness: Unevenness::default(),
        }
    }

    /// The law in use.
    pub fn law(&self) -> Law {
        self.law
    }

    /// Goes on by another law from the next interval on, with the weights and
    /// measurements there are.
    pub fn set_law(&mut self, law: Law) {
        self.law = law;
        self.params = law.tune(&self.given);
        self.stable_for = 0;
    }

    /// The constants, as given.
    #[expect(
        clippy::misnamed_getters,
        reason = "the field of that name has what the law makes of them"
    )]
    pub fn params(&self) -> &ControlParams {
        &self.given
    }

    /// Replaces the constants; takes effect with the next interval.
    pub fn set_params(&mut self, params: ControlParams) {
        self.params = self.law.tune(&params);
        self.given = params;
        self.refit();
    }

    /// Replaces the members. Those that stay keep their measurements and their
    /// ratio of effective to configured weight; new ones start as configured.
    pub fn set_members(&mut self, members: &[Member]) {
        let mut old = std::mem::take(&mut self.reals);
        self.reals = members
            .iter()
            .map(|&member| {
                let known = old.iter().position(|real| real.member.id == member.id);
                match known.map(|index| old.swap_remove(index)) {
                    Some(mut real) if real.member.configured > 0.0 => {
                        real.weight *= member.configured / real.member.configured;
                        real.member = member;
                        real
                    }
                    _ => Controlled {
                        member,
                        weight: member.configured,
                        tracker: Tracker::default(),
                        slow: false,
                        base: Base::default(),
                        relief: Relief::default(),
                    },
                }
            })
            .collect();
        self.refit();
    }

    /// Goes on with the weights of a controller that ended, in the members' order.
    /// A real that had lost most of its weight counts as slow until an estimate
    /// says otherwise.
    pub fn resume(&mut self, now_ns: u64, weights: &[f64]) {
        for (real, &weight) in self.reals.iter_mut().zip(weights) {
            real.weight = weight;
            real.slow = weight < RESUMED_SLOW * real.member.configured;
            real.tracker = Tracker::resumed(now_ns);
            let configured = real.member.configured;
            if (weight - configured).abs() > RESUMED_OFF * configured {
                self.unevenness = Unevenness::CERTAIN;
            }
        }
        self.refit();
    }

    /// Forgets all latencies, because those to come are of another kind; weights stay.
    pub fn forget_latencies(&mut self, now_ns: u64) {
        for real in &mut self.reals {
            real.tracker = Tracker::resumed(now_ns);
            real.base = Base::default();
            real.relief = Relief::default();
        }
        self.stable_for = 0;
        self.unevenness = Unevenness::default();
    }

    /// Moves the weights a part of the way to those that other balancers give the same reals, in
    /// the members' order and as parts of the configured weights: by the same readings each
    /// moves them as far, but from where it began. A real of which nothing is known stays.
    pub fn draw(&mut self, towards: &[Option<f64>], part: f64) {
        for (real, towards) in self.reals.iter_mut().zip(towards) {
            if let Some(towards) = towards {
                let wanted = towards * real.member.configured;
                real.weight += part * (wanted - real.weight);
            }
        }
        self.refit();
    }

    /// The effective weights, in the members' order.
    pub fn weights(&self) -> impl Iterator<Item = (Member, f64)> + '_ {
        self.reals.iter().map(|real| (real.member, real.weight))
    }

    /// Takes in the interval that ended at `now_ns`: one reading per member, in
    /// the members' order (missing ones count as empty).
    pub fn tick(&mut self, now_ns: u64, readings: &[Reading]) -> Decision {
        let before: Vec<f64> = self.reals.iter().map(|real| real.weight).collect();
        let survey = self.survey(now_ns, readings);
        let mut reasons = self.first_reasons(&survey);
        let moved = match self.law {
            Law::WatermarkPaper | Law::Watermark => self.watermark(&survey, &mut reasons),
            Law::Equalise => self.equalise(&survey, &mut reasons),
        };
        let reals = self.reals.iter().zip(before).zip(reasons);
        Decision {
            at_ns: now_ns,
            law: self.law,
            lowest_ns: survey.lowest.map(|(_, estimate)| estimate.latency_ns),
            moved,
            reals: reals
                .zip(&survey.standings)
                .map(|(((real, before), reason), standing)| {
                    real.decision(before, reason, *standing)
                })
                .collect(),
        }
    }

    /// Brings the weights back to their bounds and their sum.
    pub(super) fn refit(&mut self) {
        let bounds: Vec<(f64, f64)> = self
            .reals
            .iter()
            .map(|real| real.bounds(&self.params))
            .collect();
        let total = self.reals.iter().map(|real| real.member.configured).sum();
        let mut weights: Vec<f64> = self.reals.iter().map(|real| real.weight).collect();
        share::fit(&mut weights, &bounds, total);
        for (real, weight) in self.reals.iter_mut().zip(weights) {
            real.weight = weight;
        }
    }
}

impl Controlled {
    pub(super) fn bounds(&self, params: &ControlParams) -> (f64, f64) {
        let configured = self.member.configured;
        (params.floor * configured, params.cap * configured)
    }

    pub(super) fn headroom_down(&self, params: &ControlParams) -> f64 {
        self.weight - self.bounds(params).0
    }

    /// What the real may gain in one interval.
    pub(super) fn headroom_up(&self, params: &ControlParams) -> f64 {
        let to_cap = self.bounds(params).1 - self.weight;
        to_cap.min(params.max_increase * self.member.configured)
    }

    fn decision(&self, before: f64, reason: Reason, standing: Standing) -> RealDecision {
        let estimate = self.tracker.estimate();
        let own_ns = estimate.map(|estimate| estimate.latency_ns);
        let latency_ns = match standing {
            Standing::Suspect { silent_ns, .. } => {
                Some(own_ns.unwrap_or(0.0).max(silent_ns as f64))
            }
            _ => own_ns,
        };
        RealDecision {
            id: self.member.id,
            configured: self.member.configured,
            before,
            weight: self.weight,
            latency_ns,
            samples: estimate.map_or(0.0, |estimate| estimate.samples),
            freshness: self.tracker.freshness(),
            reason,
        }
    }
}
