// SPDX-License-Identifier: Apache-2.0
//! The watermark law (section 4 of the paper), in its two forms.

use super::controller::{Controlled, Controller};
use super::share;
use super::survey::{Standing, Survey};
use super::tracker::Estimate;
use super::{Law, Reason};

/// Distance from the configured weight, relative to it, that is not worth moving.
const SETTLED: f64 = 0.001;

impl Controller {
    /// Moves weight from slow reals to fast ones, or back when nothing has changed
    /// for some intervals; returns how much.
    pub(super) fn watermark(&mut self, survey: &Survey, reasons: &mut [Reason]) -> f64 {
        let moved = self.shift(survey, reasons);
        if moved > 0.0 {
            self.stable_for = 0;
        } else if self.stable_for >= self.params.regress_after {
            self.regress(survey, reasons);
        }
        moved
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
            .map(|&index| self.reals[index].headroom_up(&self.params))
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
                let take = real.weight * part.min(self.params.max_decrease);
                take.min(real.headroom_down(&self.params)).max(0.0)
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
    /// still slow would only have it taken again, at its clients' cost. What may
    /// be failing fast gets none back under either.
    fn regress(&mut self, survey: &Survey, reasons: &mut [Reason]) {
        let free: Vec<usize> = (0..self.reals.len())
            .filter(|&index| match survey.standings[index] {
                Standing::Unknown | Standing::Middle | Standing::Low => true,
                Standing::High | Standing::Lingering => self.law() == Law::WatermarkPaper,
                Standing::Drained | Standing::Suspect { .. } | Standing::TooFast => false,
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
