// SPDX-License-Identifier: Apache-2.0
//! The law that equalises utilisation: weights in proportion to what each real can do,
//! which its latency and its rate of answers show.
//!
//! What answers `x` requests a second with latency `W` can do about `x + burst / W`. For a
//! queue that requests reach `burst` at a time that is exact: its latency is
//! `burst / (mu - x)`. An overloaded real shows its capacity by `x`, an idle one by `W`, and
//! between them the estimate does not depend on how much load the real has: the weights
//! that it asks for do not change when they are given (docs/explanation/steering.md).
//!
//! As long as all latencies could be one and chance, the configured weights stand; the
//! surer it is that they differ, the more of the estimate counts. And a real that stays
//! several times slower gives all that it has, where the others can bear it: whether a
//! queue or the server itself makes it slow, no client gains by asking it. It is recalled when
//! one of the others becomes slower still and no other can take the load.

use super::Reason;
use super::controller::{Controlled, Controller};
use super::survey::{Standing, Survey};
use super::tracker::Estimate;

/// Times the lowest latency that it must have shown, and this many standard errors more. A
/// small real, with fewer workers, swings as much wider as it is smaller than the mean.
const FAR: f64 = 2.0;
const FAR_ERRORS: f64 = 3.0;
/// How many times `max_decrease` it gives per interval then.
const RELIEVED_STEPS: i32 = 2;
/// Part of what the others have left that its load may take. They leave `1 / W` each as far
/// as their latencies vary as those of queues do; what is constant in them is not a queue.
const BEARABLE: f64 = 0.5;
/// Least variance that counts: less of it does not prove that nothing queues.
const VARIANCE_LEAST: f64 = 0.25;
/// Time in which a queue should drain.
const DRAIN_NS: f64 = 5e8;
/// Distance to the meant weight, relative to the configured one, not worth a new ring.
const SETTLED: f64 = 0.02;
/// Standard error squared at which an estimate is worth nothing for a return.
const UNSURE: f64 = 1.0;

/// What one real is meant to have by what is known of it.
#[derive(Debug, Clone, Copy)]
struct Wish {
    weight: f64,
    low: f64,
    high: f64,
    /// It gives all that it has, however much that is in one interval.
    gives: bool,
}

/// What the reals can do, in requests per interval.
struct Capacities {
    /// Of each real; none is known of those without a usable estimate.
    each: Vec<Option<f64>>,
    /// Requests that each answered.
    answered: Vec<f64>,
    /// Capacity of those that are known, per configured weight.
    per_weight: f64,
}

impl Controller {
    /// Moves weights towards those that the capacities ask for; returns how much.
    pub(super) fn equalise(&mut self, survey: &Survey, reasons: &mut [Reason]) -> f64 {
        let Some(median) = self.median(survey) else {
            return 0.0;
        };
        let capacities = self.capacities(survey);
        let sure = self.sure_to_differ(survey, median);
        self.unevenness.step(sure, self.params.interval_ns);
        let mut wishes: Vec<Wish> = (0..self.reals.len())
            .map(|index| self.wish(index, survey, &capacities))
            .collect();
        let total: f64 = self.reals.iter().map(|real| real.member.configured).sum();
        scale(&mut wishes, total);
        if self.relieve(&mut wishes, survey, &capacities) {
            scale(&mut wishes, total);
        }
        self.steps(&mut wishes, survey);
        let mut changes: Vec<f64> = wishes
            .iter()
            .zip(&self.reals)
            .map(|(wish, real)| wish.weight - real.weight)
            .collect();
        self.balance(&mut changes, survey);
        self.explain(&changes, survey, median, reasons);
        for (real, change) in self.reals.iter_mut().zip(&changes) {
            real.weight += change;
        }
        changes.iter().filter(|change| **change > 0.0).sum()
    }

    /// The reals whose latency says something about them, with it.
    fn known<'a>(
        &'a self,
        survey: &'a Survey,
    ) -> impl Iterator<Item = (usize, &'a Controlled, Estimate)> + 'a {
        let reals = self.reals.iter().zip(&survey.standings).enumerate();
        reals.filter_map(|(index, (real, standing))| {
            let usable = !matches!(
                standing,
                Standing::Drained | Standing::TooFast | Standing::Suspect { .. }
            );
            let estimate = real.tracker.estimate().filter(|_| usable)?;
            Some((index, real, estimate))
        })
    }

    /// Median of the known latencies, by configured weight: the lower one of two.
    fn median(&self, survey: &Survey) -> Option<Estimate> {
        let known = self.known(survey);
        let mut known: Vec<(Estimate, f64)> = known
            .map(|(_, real, estimate)| (estimate, real.member.configured))
            .collect();
        known.sort_by(|a, b| a.0.latency_ns.total_cmp(&b.0.latency_ns));
        let half = known.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
        let mut below = 0.0;
        known
            .iter()
            .find(|(_, weight)| {
                below += weight;
                below >= half - 1e-9
            })
            .map(|(estimate, _)| *estimate)
    }

    fn capacities(&self, survey: &Survey) -> Capacities {
        let burst_ns = self.params.burst * self.params.interval_ns as f64;
        let yields = survey.yield_ratio.max(0.01);
        let answered = self.reals.iter();
        let answered: Vec<f64> = answered
            .map(|real| real.tracker.answered() / yields)
            .collect();
        let mean = self.mean_weight();
        let mut each = vec![None; self.reals.len()];
        let (mut capacity, mut weight) = (0.0, 0.0);
        for (index, real, estimate) in self.known(survey) {
            // The longer the queue, the less of what is answered is for new requests.
            let drained = (1.0 - estimate.latency_ns / DRAIN_NS).max(0.0);
            let parallel = real.member.configured / mean;
            let can_do = answered[index] * drained + parallel * burst_ns / estimate.latency_ns;
            each[index] = Some(can_do);
            capacity += can_do;
            weight += real.member.configured;
        }
        Capacities {
            each,
            answered,
            per_weight: capacity / f64::max(weight, f64::MIN_POSITIVE),
        }
    }

    /// Of those that take part: what is down or waits for others has no load to share.
    fn mean_weight(&self) -> f64 {
        let weights = self.reals.iter().map(|real| real.member.configured);
        let (sum, count) = weights
            .filter(|weight| *weight > 0.0)
            .fold((0.0, 0.0), |(sum, count), weight| {
                (sum + weight, count + 1.0)
            });
        (sum / f64::max(count, 1.0)).max(f64::MIN_POSITIVE)
    }

    /// How sure it is by this interval that the reals differ, from 0 to 1.
    fn sure_to_differ(&self, survey: &Survey, median: Estimate) -> f64 {
        let confirmed = self
            .known(survey)
            .filter(|(_, real, _)| !real.tracker.is_new());
        let sure = confirmed.map(|(_, _, own)| {
            let distance = (own.latency_ns / median.latency_ns).ln().abs();
            let chance = self.params.tolerance.ln_1p() + self.params.margin * own.error();
            garrote(distance, chance) / distance.max(f64::MIN_POSITIVE)
        });
        sure.fold(0.0, f64::max)
    }

    fn wish(&self, index: usize, survey: &Survey, capacities: &Capacities) -> Wish {
        let real = &self.reals[index];
        let configured = real.member.configured;
        let (low, high) = real.bounds(&self.params);
        let wish = |weight| Wish {
            weight,
            low,
            high,
            gives: false,
        };
        match (survey.standings[index], capacities.each[index]) {
            (Standing::Drained, _) => wish(0.0),
            (Standing::Suspect { .. }, _) => wish(low),
            (Standing::TooFast, _) => Wish {
                high: real.weight.min(configured).max(low),
                ..wish(real.weight.min(configured))
            },
            (_, Some(can_do)) => {
                let ratio = can_do / (configured * capacities.per_weight);
                let meant = wish(configured * ratio.max(1e-6).powf(self.unevenness.degree()));
                match survey.doubtful[index] {
                    // Perhaps it answers errors: it is not to gain by that.
                    true => Wish {
                        weight: meant.weight.min(configured),
                        high: configured.max(low),
                        ..meant
                    },
                    false => meant,
                }
            }
            // Not known to have become better.
            (_, None) if real.slow => wish(real.weight),
            (_, None) => wish(configured),
        }
    }

    /// Counts how long reals have been slow while the others could bear their load, and
    /// has those give all, as long as the others can. Returns whether there is any such real.
    fn relieve(&mut self, wishes: &mut [Wish], survey: &Survey, capacities: &Capacities) -> bool {
        let (idle, left) = self.left(survey, capacities);
        let far_ns = self.far_ns(survey);
        let far = self.far(survey, &far_ns, |real| real.tracker.estimate());
        let waiting = self.far(survey, &far_ns, |real| real.tracker.waiting());
        let bearable = |index: usize| capacities.answered[index] <= BEARABLE * left;
        let helpless_ns = self.helpless_ns(&far, bearable);
        let mut any = false;
        for (index, (real, wish)) in self.reals.iter_mut().zip(wishes).enumerate() {
            let own_ns = real.tracker.estimate().map(|own| own.latency_ns);
            real.relief.recall(helpless_ns, own_ns);
            let is_near = own_ns.is_some_and(|own_ns| own_ns < far_ns[index]);
            match survey.standings[index] {
                _ if real.relief.recalled_for_ns().is_some() => real.relief.end(),
                // With little load few samples come, and certainty is not to be had.
                Standing::Lingering => {
                    if survey.renewed[index] {
                        real.relief.observe_uncertain(is_near);
                    }
                }
                Standing::High => {
                    // What was slow once needs no whole estimate to be slow again.
                    let again = real.relief.has_begun() && survey.heard[index] && waiting[index];
                    let evidence = survey.renewed[index] || again;
                    if evidence && bearable(index) && far[index] {
                        real.relief.observe_slow();
                    } else if survey.renewed[index] && !far[index] {
                        real.relief.observe_uncertain(is_near);
                    }
                }
                _ => real.relief.end(),
            }
            // Bounds that leave the others no more weight do not speak against what they have.
            let borne = capacities.answered[index] <= BEARABLE * idle;
            if real.relief.gives() && borne {
                let kept = (1.0 - self.params.max_decrease).powi(RELIEVED_STEPS);
                wish.weight = (real.weight * kept).max(wish.low);
                (wish.low, wish.high) = (wish.weight, wish.weight);
                wish.gives = true;
                any = true;
            }
        }
        any
    }

    /// The highest latency of a real that is slow and whose load the others cannot bear.
    fn helpless_ns(&self, far: &[bool], bearable: impl Fn(usize) -> bool) -> Option<f64> {
        let reals = self.reals.iter().zip(far).enumerate();
        reals
            .filter(|(index, (real, far))| **far && !real.relief.gives() && !bearable(*index))
            .filter_map(|(_, (real, _))| real.tracker.estimate())
            .map(|own| own.latency_ns)
            .max_by(f64::total_cmp)
    }

    /// Requests per interval that those that are not slow have left, and what of that their
    /// bounds let them take.
    fn left(&self, survey: &Survey, capacities: &Capacities) -> (f64, f64) {
        let mean = self.mean_weight();
        let weight: f64 = self.reals.iter().map(|real| real.weight).sum();
        let answered: f64 = capacities.answered.iter().sum();
        let per_weight = answered / weight.max(f64::MIN_POSITIVE);
        let variance = survey.dispersion.clamp(VARIANCE_LEAST, 1.0);
        let others = self.known(survey).filter(|(index, ..)| {
            let standing = survey.standings[*index];
            matches!(standing, Standing::Low | Standing::Middle)
        });
        others
            .map(|(_, real, own)| {
                let parallel = real.member.configured / mean;
                let idle = self.params.interval_ns as f64 * parallel / own.latency_ns / variance;
                let (_, most) = real.bounds(&self.params);
                (idle, idle.min((most - real.weight).max(0.0) * per_weight))
            })
            .fold((0.0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    }

    /// The latency above which each real is several times slower than the lowest.
    fn far_ns(&self, survey: &Survey) -> Vec<f64> {
        let lowest_ns = survey.lowest.map_or(f64::INFINITY, |(_, of)| of.latency_ns);
        let mean = self.mean_weight();
        let parallel = |real: &Controlled| (real.member.configured / mean).clamp(0.1, 1.0);
        let reals = self.reals.iter();
        reals.map(|real| FAR * lowest_ns / parallel(real)).collect()
    }

    /// Which reals are surely above that.
    fn far(
        &self,
        survey: &Survey,
        far_ns: &[f64],
        latency: impl Fn(&Controlled) -> Option<Estimate>,
    ) -> Vec<bool> {
        let reals = self.reals.iter().zip(&survey.standings).zip(far_ns);
        reals
            .map(|((real, standing), far_ns)| {
                *standing == Standing::High
                    && latency(real).is_some_and(|own| own.surely_ns(FAR_ERRORS) > *far_ns)
            })
            .collect()
    }

    /// Bounds what one interval may change. A weight about which this interval brought
    /// nothing is held.
    fn steps(&self, wishes: &mut [Wish], survey: &Survey) {
        let reals = self.reals.iter().zip(&survey.renewed);
        for ((wish, standing), (real, renewed)) in
            wishes.iter_mut().zip(&survey.standings).zip(reals)
        {
            let (before, configured) = (real.weight, real.member.configured);
            let holds = match standing {
                Standing::Unknown => real.tracker.pending() > 0,
                Standing::TooFast => false,
                _ if real.relief.recalled_for_ns().is_some() => false,
                _ => !renewed,
            };
            if wish.gives {
                continue;
            }
            if holds || (wish.weight - before).abs() <= SETTLED * configured {
                wish.weight = before;
                continue;
            }
            let mut meant = wish.weight;
            if before < configured.min(meant) {
                // Few samples, as a real at the floor has them, make a slow one look
                // like any other: it comes back as fast as it is certain.
                let error = real.tracker.estimate().map_or(0.0, Estimate::error);
                let certain = (1.0 - error * error / UNSURE).max(self.params.return_rate);
                meant = before + certain * (meant - before);
            }
            let least = before * (1.0 - self.params.max_decrease);
            let most = before + self.params.max_increase * configured;
            wish.weight = meant.clamp(least, most).clamp(wish.low, wish.high);
        }
    }

    /// Makes changes sum to zero. What is given and not asked for goes to all that
    /// are known not to be slow; what is asked for and not given comes from all that
    /// do not gain; what then is left over does not happen.
    fn balance(&self, changes: &mut [f64], survey: &Survey) {
        let missing = -changes.iter().sum::<f64>();
        let gives = missing > 0.0;
        let rooms = (0..changes.len()).map(|index| {
            let (real, change) = (&self.reals[index], changes[index]);
            match (gives, survey.standings[index]) {
                (_, Standing::Drained | Standing::TooFast) => 0.0,
                (true, Standing::Low | Standing::Middle)
                    if change >= 0.0 && !survey.doubtful[index] =>
                {
                    (real.headroom_up(&self.params) - change).max(0.0)
                }
                (false, _) if change <= 0.0 => (real.headroom_down(&self.params) + change).max(0.0),
                _ => 0.0,
            }
        });
        let rooms: Vec<f64> = rooms.collect();
        let all: f64 = rooms.iter().sum();
        if all > 0.0 {
            let part = (missing.abs() / all).min(1.0).copysign(missing);
            for (change, room) in changes.iter_mut().zip(&rooms) {
                *change += part * room;
            }
        }
        let up: f64 = changes.iter().filter(|change| **change > 0.0).sum();
        let down: f64 = -changes.iter().filter(|change| **change < 0.0).sum::<f64>();
        let moved = up.min(down);
        for change in changes.iter_mut() {
            let all = if *change > 0.0 { up } else { down };
            if all > 0.0 {
                *change *= moved / all;
            }
        }
    }

    fn explain(&self, changes: &[f64], survey: &Survey, median: Estimate, reasons: &mut [Reason]) {
        for (index, (&change, real)) in changes.iter().zip(&self.reals).enumerate() {
            let configured = real.member.configured;
            let weight = real.weight + change;
            if let Some(other_ns) = real.relief.recalled_for_ns().filter(|_| change > 0.0) {
                reasons[index] = Reason::Recalled { other_ns };
                continue;
            }
            let own = real.tracker.estimate().map(|own| own.latency_ns);
            reasons[index] = match (survey.standings[index], own) {
                (Standing::Drained, _) => continue,
                (Standing::TooFast, _) => Reason::LoneFast,
                (
                    Standing::Suspect {
                        requests,
                        silent_ns,
                    },
                    _,
                ) => Reason::Suspect {
                    requests,
                    silent_ns,
                },
                _ if change.abs() <= 1e-9 * configured => match reasons[index] {
                    Reason::Floor
                    | Reason::FewSamples { .. }
                    | Reason::LowQuality { .. }
                    | Reason::Unknown => continue,
                    _ if weight >= self.params.cap * configured * (1.0 - 1e-9) => Reason::Cap,
                    _ => Reason::Steady,
                },
                (_, Some(latency_ns)) if latency_ns > median.latency_ns && weight < configured => {
                    match change < 0.0 {
                        true => Reason::Above {
                            latency_ns,
                            median_ns: median.latency_ns,
                        },
                        false => Reason::Regressed,
                    }
                }
                (_, Some(latency_ns)) if latency_ns < median.latency_ns && weight > configured => {
                    match change > 0.0 {
                        true => Reason::Below {
                            latency_ns,
                            median_ns: median.latency_ns,
                        },
                        false => Reason::Regressed,
                    }
                }
                _ if change > 0.0 && weight > configured => Reason::Received,
                _ if change < 0.0 && weight < configured => Reason::Gave,
                _ => Reason::Regressed,
            };
        }
    }
}

/// The part of a distance that counts: Breiman's garrote (Technometrics 37, 1995),
/// continuous, nothing up to the threshold and nearly all far above it.
fn garrote(distance: f64, threshold: f64) -> f64 {
    match distance.abs() > threshold {
        true => distance * (1.0 - (threshold / distance).powi(2)),
        false => 0.0,
    }
}

/// Scales what is wished for by one factor, so that within the bounds it sums to
/// `total`: by bisection, to some billionths.
fn scale(wishes: &mut [Wish], total: f64) {
    let scaled = |wish: &Wish, factor: f64| (factor * wish.weight).clamp(wish.low, wish.high);
    let sum = |factor: f64| -> f64 { wishes.iter().map(|wish| scaled(wish, factor)).sum() };
    let (mut low, mut high) = (-20.0_f64, 20.0_f64);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        match sum(middle.exp2()) < total {
            true => low = middle,
            false => high = middle,
        }
    }
    let factor = high.exp2();
    for wish in wishes {
        wish.weight = scaled(wish, factor);
    }
}
