// SPDX-License-Identifier: Apache-2.0
//! The watermark law.

use super::share;
use super::tracker::{Estimate, Progress, Tracker, ratio_error};
use super::{Decision, Params, Reading, RealDecision, Reason};

/// Estimates that a silent real should have given before it is suspect. If they
/// came independently, silence by chance would have probability e^-5.
const SUSPECT_EXPECTED: f64 = 5.0;
/// Shortest silence of a suspect, in intervals: requests of the interval's end
/// are answered in the next one.
const SUSPECT_INTERVALS: u64 = 2;
/// An estimate that nothing renewed for this long says nothing about now. Then
/// regression lets traffic back in, and the traffic brings an estimate.
const EXPIRE_NS: u64 = 30_000_000_000;

/// Distance from the configured weight, relative to it, that is not worth moving.
const SETTLED: f64 = 0.001;

/// A resumed real with less than this part of its configured weight was slow.
const RESUMED_SLOW: f64 = 0.5;

/// A real as the controller knows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Member {
    /// Identity; state follows it when members change.
    pub id: u32,
    /// Configured weight; 0 takes no new connections and is not controlled.
    pub configured: f64,
}

/// The watermark controller of one VIP.
///
/// Call [`set_members`](Self::set_members) whenever the pool or a configured
/// weight changes, and [`tick`](Self::tick) once per interval. Effective weights
/// sum to the configured ones at all times, and each stays within
/// `[floor, cap]` times its configured weight.
#[derive(Debug, Clone)]
pub struct Watermark {
    params: Params,
    reals: Vec<Controlled>,
    /// Intervals since a latency changed or weight was taken.
    stable_for: u32,
}

#[derive(Debug, Clone)]
struct Controlled {
    member: Member,
    weight: f64,
    tracker: Tracker,
    /// Was above the high watermark and has not been seen below it since.
    slow: bool,
}

/// Where a real stands in one interval.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Standing {
    Drained,
    Unknown,
    Suspect {
        requests: u64,
        silent_ns: u64,
    },
    High,
    /// Was high, and is not known to be no longer.
    Lingering,
    Middle,
    Low,
}

/// What is found out before any weight moves.
struct Survey {
    /// The real with the lowest latency.
    lowest: Option<(usize, Estimate)>,
    standings: Vec<Standing>,
    /// Whether this interval brought evidence about a real.
    renewed: Vec<bool>,
}

impl Watermark {
    /// A controller without members.
    pub fn new(params: Params) -> Self {
        Self {
            params,
            reals: Vec::new(),
            stable_for: 0,
        }
    }

    /// The constants in use.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Replaces the constants; takes effect with the next interval.
    pub fn set_params(&mut self, params: Params) {
        self.params = params;
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
        let moved = self.shift(&survey, &mut reasons);
        if moved > 0.0 {
            self.stable_for = 0;
        } else if self.stable_for >= self.params.regress_after {
            self.regress(&survey, &mut reasons);
        }
        let reals = self.reals.iter().zip(before).zip(reasons);
        Decision {
            at_ns: now_ns,
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

    /// Updates every measurement and tells slow from fast.
    fn survey(&mut self, now_ns: u64, readings: &[Reading]) -> Survey {
        self.stable_for = self.stable_for.saturating_add(1);
        let mut renewed = Vec::with_capacity(self.reals.len());
        for (index, real) in self.reals.iter_mut().enumerate() {
            let reading = readings.get(index).copied().unwrap_or_default();
            let progress = real.tracker.absorb(now_ns, &reading, &self.params);
            if real.tracker.expire(now_ns, EXPIRE_NS) {
                real.slow = false;
            }
            if progress == Progress::Changed && real.member.configured > 0.0 {
                self.stable_for = 0;
            }
            renewed.push(progress != Progress::Held);
        }
        let lowest = self.lowest();
        let yield_ratio = self.pool_yield(now_ns);
        let standings: Vec<Standing> = self
            .reals
            .iter()
            .map(|real| self.standing(real, now_ns, lowest, yield_ratio))
            .collect();
        for ((renewed, standing), real) in renewed.iter_mut().zip(&standings).zip(&mut self.reals) {
            *renewed |= matches!(standing, Standing::Suspect { .. });
            real.slow = matches!(
                standing,
                Standing::Suspect { .. } | Standing::High | Standing::Lingering
            );
        }
        Survey {
            lowest,
            standings,
            renewed,
        }
    }

    fn lowest(&self) -> Option<(usize, Estimate)> {
        self.reals
            .iter()
            .enumerate()
            .filter(|(_, real)| real.member.configured > 0.0)
            .filter_map(|(index, real)| Some((index, real.tracker.estimate()?)))
            .min_by(|a, b| a.1.latency_ns.total_cmp(&b.1.latency_ns))
    }

    /// Samples per request among the reals that answer.
    fn pool_yield(&self, now_ns: u64) -> f64 {
        let (samples, requests) = self
            .reals
            .iter()
            .filter(|real| real.tracker.silence(now_ns).0 == 0)
            .map(|real| real.tracker.yield_parts())
            .fold((0.0, 0.0), |sum, parts| (sum.0 + parts.0, sum.1 + parts.1));
        match requests > 0.0 {
            true => (samples / requests).min(1.0),
            false => 0.0,
        }
    }

    fn standing(
        &self,
        real: &Controlled,
        now_ns: u64,
        lowest: Option<(usize, Estimate)>,
        yield_ratio: f64,
    ) -> Standing {
        if real.member.configured <= 0.0 {
            return Standing::Drained;
        }
        let Some((_, lowest)) = lowest else {
            return Standing::Unknown;
        };
        let high_ns = self.params.alpha_high * lowest.latency_ns;
        let (requests, silent_ns) = real.tracker.silence(now_ns);
        if requests as f64 * yield_ratio >= SUSPECT_EXPECTED
            && silent_ns >= SUSPECT_INTERVALS * self.params.interval_ns
            && silent_ns as f64 > high_ns
        {
            return Standing::Suspect {
                requests,
                silent_ns,
            };
        }
        let Some(own) = real.tracker.estimate() else {
            return match real.slow {
                true => Standing::Lingering,
                false => Standing::Unknown,
            };
        };
        let ratio = own.latency_ns / lowest.latency_ns;
        let margin = (self.params.confidence * ratio_error(own, lowest)).exp();
        if ratio > self.params.alpha_high * margin {
            Standing::High
        } else if ratio > self.params.alpha_high && real.slow {
            // A real at the floor has few samples and so a wide margin; it must
            // not be given weight back for that.
            Standing::Lingering
        } else if ratio < self.params.alpha_low {
            Standing::Low
        } else {
            Standing::Middle
        }
    }

    /// The reasons that hold if no weight moves.
    fn first_reasons(&self, survey: &Survey) -> Vec<Reason> {
        let reals = self.reals.iter().zip(&survey.standings);
        reals
            .map(|(real, standing)| match standing {
                Standing::Drained => Reason::Drained,
                Standing::Unknown if real.tracker.pending() > 0 => self.few_samples(real),
                Standing::Unknown => Reason::Unknown,
                Standing::High | Standing::Lingering | Standing::Suspect { .. } => {
                    match real.room_down(&self.params) {
                        room if room <= 1e-9 * real.member.configured => Reason::Floor,
                        _ => self.few_samples(real),
                    }
                }
                Standing::Middle | Standing::Low => Reason::Steady,
            })
            .collect()
    }

    fn few_samples(&self, real: &Controlled) -> Reason {
        Reason::FewSamples {
            have: real.tracker.pending(),
            need: self.params.min_samples,
        }
    }

    /// Moves weight from slow reals to fast and fresh ones; returns how much.
    fn shift(&mut self, survey: &Survey, reasons: &mut [Reason]) -> f64 {
        let Some((lowest_index, lowest)) = survey.lowest else {
            return 0.0;
        };
        let takes = self.takes(survey, lowest);
        let wanted: f64 = takes.iter().sum();
        if wanted <= 0.0 {
            return 0.0;
        }
        if lone_fast(survey) {
            reasons[lowest_index] = Reason::LoneFast;
            mark(reasons, &takes, |_| Reason::NoReceiver);
            return 0.0;
        }
        let receivers = self.receivers(survey, reasons);
        let rooms: Vec<f64> = receivers
            .iter()
            .map(|&index| self.reals[index].room_up(&self.params))
            .collect();
        let parts = share::equally(wanted, &rooms);
        let moved: f64 = parts.iter().sum();
        if moved <= 0.0 {
            mark(reasons, &takes, |_| Reason::NoReceiver);
            return 0.0;
        }
        for (&index, part) in receivers.iter().zip(&parts) {
            self.reals[index].weight += part;
            reasons[index] = match *part > 0.0 {
                true => Reason::Received,
                false => Reason::Cap,
            };
        }
        for (real, take) in self.reals.iter_mut().zip(&takes) {
            real.weight -= take * moved / wanted;
        }
        let watermark_ns = self.params.alpha_high * lowest.latency_ns;
        mark(reasons, &takes, |index| {
            given_by(survey.standings[index], &self.reals[index], watermark_ns)
        });
        moved
    }

    /// What each slow real is to give: a part of its weight in proportion to
    /// its latency. Only evidence of this interval counts, so that one slow
    /// estimate takes weight once.
    fn takes(&self, survey: &Survey, lowest: Estimate) -> Vec<f64> {
        let reals = self.reals.iter().zip(&survey.standings);
        reals
            .zip(&survey.renewed)
            .map(|((real, standing), renewed)| {
                let latency_ns = match (standing, real.tracker.estimate()) {
                    (Standing::Suspect { silent_ns, .. }, own) => {
                        own.map_or(0.0, |own| own.latency_ns).max(*silent_ns as f64)
                    }
                    (Standing::High, Some(own)) if *renewed => own.latency_ns,
                    _ => return 0.0,
                };
                let excess = latency_ns / lowest.latency_ns - self.params.alpha_high;
                let part = self.params.step * excess;
                let take = real.weight * part.min(self.params.take_max);
                take.min(real.room_down(&self.params)).max(0.0)
            })
            .collect()
    }

    /// Fast reals whose measurement is at least as fresh as every slow one's.
    fn receivers(&self, survey: &Survey, reasons: &mut [Reason]) -> Vec<usize> {
        let freshness = |index: usize| self.reals[index].tracker.freshness();
        let standings = || survey.standings.iter().copied().enumerate();
        let needed = standings()
            .filter(|(_, standing)| *standing == Standing::High)
            .map(|(index, _)| freshness(index))
            .fold(0.0, f64::max);
        let (fresh, stale): (Vec<usize>, Vec<usize>) = standings()
            .filter(|(_, standing)| *standing == Standing::Low)
            .map(|(index, _)| index)
            .partition(|&index| freshness(index) >= needed);
        for index in stale {
            reasons[index] = Reason::NotFresh {
                freshness: freshness(index),
                needed,
            };
        }
        fresh
    }

    /// Moves every real that is not known to be slow towards its configured
    /// weight. The paper equalises all; giving weight back to a real that is
    /// still slow would only have it taken again, at its clients' cost.
    fn regress(&mut self, survey: &Survey, reasons: &mut [Reason]) {
        let free: Vec<usize> = (0..self.reals.len())
            .filter(|&index| {
                matches!(
                    survey.standings[index],
                    Standing::Unknown | Standing::Middle | Standing::Low
                )
            })
            .collect();
        let sum = |value: fn(&Controlled) -> f64| -> f64 {
            free.iter().map(|&index| value(&self.reals[index])).sum()
        };
        let configured = sum(|real| real.member.configured);
        if configured <= 0.0 {
            return;
        }
        let scale = sum(|real| real.weight) / configured;
        let distance = |real: &Controlled| scale * real.member.configured - real.weight;
        // All move or none, so that the sum stays.
        let settled = |index: &usize| {
            let real = &self.reals[*index];
            distance(real).abs() <= SETTLED * real.member.configured
        };
        if free.iter().all(settled) {
            return;
        }
        for index in free {
            let real = &mut self.reals[index];
            real.weight += self.params.regress_rate * distance(real);
            reasons[index] = Reason::Regressed;
        }
    }

    /// Brings the weights back to their bounds and their sum.
    fn refit(&mut self) {
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
    fn bounds(&self, params: &Params) -> (f64, f64) {
        let configured = self.member.configured;
        (params.floor * configured, params.cap * configured)
    }

    fn room_down(&self, params: &Params) -> f64 {
        self.weight - self.bounds(params).0
    }

    /// What the real may gain in one interval.
    fn room_up(&self, params: &Params) -> f64 {
        let to_cap = self.bounds(params).1 - self.weight;
        to_cap.min(params.gain_cap * self.member.configured)
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

/// Whether one real alone is fast and all the others, at least two, are slow.
/// Then it is as likely that the one fails fast as that the others are slow.
fn lone_fast(survey: &Survey) -> bool {
    let count =
        |wanted: fn(&Standing) -> bool| survey.standings.iter().filter(|s| wanted(s)).count();
    let fast = count(|s| matches!(s, Standing::Low | Standing::Middle));
    let slow = count(|s| matches!(s, Standing::High));
    fast == 1 && slow >= 2
}

fn given_by(standing: Standing, real: &Controlled, watermark_ns: f64) -> Reason {
    match standing {
        Standing::Suspect {
            requests,
            silent_ns,
        } => Reason::Suspect {
            requests,
            silent_ns,
        },
        _ => Reason::High {
            latency_ns: real.tracker.estimate().map_or(0.0, |own| own.latency_ns),
            watermark_ns,
        },
    }
}

fn mark(reasons: &mut [Reason], takes: &[f64], reason: impl Fn(usize) -> Reason) {
    for (index, take) in takes.iter().enumerate() {
        if *take > 0.0 {
            reasons[index] = reason(index);
        }
    }
}
