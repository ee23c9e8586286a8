// SPDX-License-Identifier: Apache-2.0
//! The full model (Certes, section 3.1): slow, and what the fast one is tested
//! against.
//!
//! W[p, i] is the share of the SYNs dropped in slot p that come back in slot i. It
//! starts from how clients' round trips change between two SYNs (eqs. 22, 23). With
//! the weights fixed the offered loads give the first SYNs of each slot, one slot
//! after the other (eqs. 17 to 19, 25). Where that makes a count negative, weights
//! of the window are moved along the gradient by least squares (eqs. 26 to 28) until
//! no count is, or the attempts run out.

use std::collections::VecDeque;

use causeway_core::certes::{CertesError, Estimate, Lane, Mix, Slot, check, lanes};

/// One slot of the window.
#[derive(Clone, Debug)]
struct Past {
    offered: f64,
    drop_rate: f64,
    /// SYNs by lane: R of the paper.
    arrived: Vec<f64>,
    /// By lane: shares that come back `base[lane]` slots later, one more, and so on.
    weights: Vec<Vec<f64>>,
}

/// The model of section 3.1. Call [`step`](Self::step) once for each slot, in order.
#[derive(Clone, Debug)]
pub(super) struct ReferenceModel {
    slot_s: f64,
    mix: Mix,
    lanes: Vec<Lane>,
    loss: f64,
    base: Vec<usize>,
    initial: Vec<Vec<f64>>,
    /// Older slots first: `reach` of them are settled, the rest may still change.
    window: VecDeque<Past>,
    reach: usize,
}

impl ReferenceModel {
    /// Attempts at a solution for one slot.
    const ATTEMPTS: usize = 8;
    /// How long connections may take and still be attributed to their slot, seconds.
    const PAST_S: f64 = 120.0;

    /// As [`causeway_core::certes::FastModel::new`]; `rtt_changes_s` are samples of how much a client's
    /// round trip changed from one SYN to its retry, in seconds (the density chi of
    /// eq. 22). Empty: it does not change.
    pub(super) fn new(
        slot_s: f64,
        mix: Mix,
        loss: f64,
        rtt_changes_s: &[f64],
    ) -> Result<Self, CertesError> {
        check(slot_s, &mix, loss)?;
        let lanes = lanes(&mix, slot_s);
        let spread: Vec<f64> = match rtt_changes_s {
            [] => vec![0.0],
            some => some.iter().map(|change| change / slot_s).collect(),
        };
        let (base, initial): (Vec<_>, Vec<_>) = lanes
            .iter()
            .map(|lane| initial_weights(lane.gap_slots, &spread))
            .unzip();
        let longest = base
            .iter()
            .zip(&initial)
            .map(|(base, w)| base + w.len())
            .max();
        Ok(Self {
            slot_s,
            mix,
            loss,
            reach: longest.unwrap_or(0).max((Self::PAST_S / slot_s) as usize),
            window: VecDeque::new(),
            lanes,
            base,
            initial,
        })
    }

    /// Takes the next slot in; gives its transactions back.
    pub(super) fn step(&mut self, slot: &Slot) -> Estimate {
        let offered = slot.offered as f64;
        self.window.push_back(Past {
            offered,
            drop_rate: if offered > 0.0 {
                slot.dropped() as f64 / offered
            } else {
                0.0
            },
            arrived: Vec::new(),
            weights: self.initial.clone(),
        });
        if self.window.len() > self.reach + self.active() {
            self.window.pop_front();
        }
        self.solve();
        let mut estimate = Estimate::measured(slot);
        self.add_give_ups(&mut estimate);
        estimate.conn_fail_s = self.conn_fail_s(slot);
        estimate
    }

    /// Slots whose weights may still change: those that reach the present.
    fn active(&self) -> usize {
        (0..self.lanes.len())
            .filter(|&lane| !self.lanes[lane].last)
            .map(|lane| self.base[lane] + self.initial[lane].len())
            .max()
            .unwrap_or(1)
    }

    fn solve(&mut self) {
        let newest = self.window.len() - 1;
        self.forward(newest);
        if self.first_syns(newest) >= -1e-9 {
            return;
        }
        let from = self.window.len().saturating_sub(self.active());
        for _ in 0..Self::ATTEMPTS {
            self.move_weights(from);
            for at in from..=newest {
                self.forward(at);
            }
            if (from..=newest).all(|at| self.first_syns(at) >= -1e-9) {
                return;
            }
        }
        for at in from..=newest {
            self.forward(at);
            self.cut_to_offered(at);
        }
    }

    /// Retries that come to slot `at` by lane, and first SYNs as what is left.
    fn forward(&mut self, at: usize) {
        let mut arrived = vec![0.0; self.lanes.len()];
        for lane in (0..self.lanes.len()).filter(|&lane| !self.lanes[lane].last) {
            for (k, back) in (self.base[lane]..)
                .take(self.initial[lane].len())
                .enumerate()
            {
                let Some(from) = at.checked_sub(back).filter(|&from| from != at) else {
                    continue;
                };
                arrived[lane + 1] +=
                    self.window[from].weights[lane][k] * self.sent_again(from, lane);
            }
        }
        let firsts = self.window[at].offered - arrived.iter().sum::<f64>();
        for (lane, count) in self.lanes.iter().zip(&mut arrived) {
            if lane.at_s == 0.0 {
                *count = firsts * self.mix.classes()[lane.class].weight;
            }
        }
        self.window[at].arrived = arrived;
    }

    /// SYNs of a lane in a slot that their clients send again and that will arrive.
    fn sent_again(&self, at: usize, lane: usize) -> f64 {
        self.unanswered(at, lane) * (1.0 - self.loss)
    }

    fn unanswered(&self, at: usize, lane: usize) -> f64 {
        let past = &self.window[at];
        past.arrived[lane] * (past.drop_rate + self.loss / (1.0 - self.loss))
    }

    fn first_syns(&self, at: usize) -> f64 {
        let firsts = self.lanes.iter().zip(&self.window[at].arrived);
        firsts
            .filter(|(lane, _)| lane.at_s == 0.0)
            .map(|(_, count)| count)
            .sum()
    }

    /// No solution: more retries than SYNs came. All lanes shrink alike.
    fn cut_to_offered(&mut self, at: usize) {
        if self.first_syns(at) >= 0.0 {
            return;
        }
        let firsts: Vec<bool> = self.lanes.iter().map(|lane| lane.at_s == 0.0).collect();
        let past = &mut self.window[at];
        let retries: f64 = past
            .arrived
            .iter()
            .zip(&firsts)
            .filter(|(_, first)| !**first)
            .map(|(n, _)| n)
            .sum();
        for (count, first) in past.arrived.iter_mut().zip(&firsts) {
            *count = if *first {
                0.0
            } else {
                *count * past.offered / retries
            };
        }
    }

    /// One step of eq. 27: the change of weights, by least squares, that would bring
    /// negative counts to zero and leave the others; then eqs. 14 and 21 restored.
    fn move_weights(&mut self, from: usize) {
        let slots = self.window.len() - from;
        let wanted: Vec<f64> = (from..self.window.len())
            .map(|at| (-self.first_syns(at)).max(0.0))
            .collect();
        let (mut which, mut columns) = (Vec::new(), Vec::new());
        for lane in (0..self.lanes.len()).filter(|&lane| !self.lanes[lane].last) {
            let responses: Vec<Vec<f64>> = (0..slots)
                .map(|target| self.response(from, target, lane + 1))
                .collect();
            for source in from..self.window.len() {
                let scale = self.sent_again(source, lane);
                for k in 0..self.initial[lane].len() {
                    let target = source + self.base[lane] + k;
                    if scale > 0.0 && target != source && target < self.window.len() {
                        which.push((source, lane, k));
                        columns.push(responses[target - from].iter().map(|r| r * scale).collect());
                    }
                }
            }
        }
        let changes = least_squares(&columns, &wanted);
        self.apply(&which, &changes);
    }

    /// How the first SYNs of each slot change when one more SYN of slot `target` is
    /// a retry in `lane`: a row of the gradient (eq. 26).
    fn response(&self, from: usize, target: usize, lane: usize) -> Vec<f64> {
        let slots = self.window.len() - from;
        let mut change = vec![vec![0.0; self.lanes.len()]; slots];
        let mut firsts = vec![0.0; slots];
        for at in target..slots {
            let mut row = vec![0.0; self.lanes.len()];
            if at == target {
                row[lane] = 1.0;
            }
            for source in (0..self.lanes.len()).filter(|&source| !self.lanes[source].last) {
                for (k, back) in (self.base[source]..)
                    .take(self.initial[source].len())
                    .enumerate()
                {
                    let Some(before) = at.checked_sub(back).filter(|&before| before != at) else {
                        continue;
                    };
                    let past = &self.window[from + before];
                    let again = past.drop_rate * (1.0 - self.loss) + self.loss;
                    row[source + 1] += change[before][source] * again * past.weights[source][k];
                }
            }
            firsts[at] = -row.iter().sum::<f64>();
            for (index, lane) in self.lanes.iter().enumerate() {
                if lane.at_s == 0.0 {
                    row[index] += firsts[at] * self.mix.classes()[lane.class].weight;
                }
            }
            change[at] = row;
        }
        firsts
    }

    fn apply(&mut self, which: &[(usize, usize, usize)], changes: &[f64]) {
        for (&(source, lane, k), change) in which.iter().zip(changes) {
            let weight = &mut self.window[source].weights[lane][k];
            *weight = (*weight + change).max(0.0);
        }
        for &(source, lane, _) in which {
            let weights = &mut self.window[source].weights[lane];
            let sum: f64 = weights.iter().sum();
            if sum > 0.0 {
                weights.iter_mut().for_each(|weight| *weight /= sum);
            } else {
                weights.clone_from(&self.initial[lane]);
            }
        }
    }

    fn add_give_ups(&self, estimate: &mut Estimate) {
        let newest = self.window.len() - 1;
        for (lane, of) in self.lanes.iter().enumerate().filter(|(_, lane)| lane.last) {
            for (k, back) in (self.base[lane]..)
                .take(self.initial[lane].len())
                .enumerate()
            {
                let Some(from) = newest.checked_sub(back) else {
                    continue;
                };
                let count = self.window[from].weights[lane][k] * self.unanswered(from, lane);
                estimate.gave_up += count;
                estimate.give_up_s += count * self.mix.classes()[of.class].fto_s;
            }
        }
    }

    /// What the slot's completed connections had lost, seconds.
    fn conn_fail_s(&self, slot: &Slot) -> f64 {
        let newest = self.window.len() - 1;
        let mean = |ago: usize| {
            (0..=newest.saturating_sub(ago))
                .rev()
                .find_map(|at| self.accepted_mean_s(at))
                .unwrap_or(0.0)
        };
        slot.by_origin(self.slot_s, mean)
    }

    /// What the accepted SYNs of a slot had lost on average; `None` without any.
    fn accepted_mean_s(&self, at: usize) -> Option<f64> {
        let past = &self.window[at];
        let all: f64 = past.arrived.iter().sum::<f64>();
        let lost: f64 = self
            .lanes
            .iter()
            .zip(&past.arrived)
            .map(|(lane, n)| lane.at_s * n)
            .sum();
        (all > 0.0 && past.drop_rate < 1.0).then(|| lost / all)
    }
}

/// Where the SYNs of a slot come back: the first slot, and shares from there on. One
/// slot before and behind is there with weight 0, for [`ReferenceModel::move_weights`].
fn initial_weights(gap_slots: f64, spread: &[f64]) -> (usize, Vec<f64>) {
    let low = spread.iter().copied().fold(f64::INFINITY, f64::min);
    let high = spread.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let base = ((gap_slots + low).floor() - 1.0).max(1.0) as usize;
    let end = (gap_slots + high).floor() as usize + 2;
    let mut weights = vec![0.0; (end + 1).saturating_sub(base).max(1)];
    for change in spread {
        // Uniform within its slot, moved by the gap: split over two slots.
        let at = (gap_slots + change).max(base as f64);
        for (slot, share) in [
            (at.floor(), 1.0 - at.fract()),
            (at.floor() + 1.0, at.fract()),
        ] {
            let index = (slot as usize - base).min(weights.len() - 1);
            weights[index] += share / spread.len() as f64;
        }
    }
    (base, weights)
}

/// The least change x with A x = b as nearly as can be, A given by its columns:
/// conjugate gradients on the normal equations, from zero (Press et al.).
fn least_squares(columns: &[Vec<f64>], b: &[f64]) -> Vec<f64> {
    let mut x = vec![0.0; columns.len()];
    let mut residual = b.to_vec();
    let transposed =
        |r: &[f64]| -> Vec<f64> { columns.iter().map(|column| dot(column, r)).collect() };
    let mut slope = transposed(&residual);
    let mut direction = slope.clone();
    let mut norm = dot(&slope, &slope);
    let enough = norm * 1e-12;
    for _ in 0..b.len() {
        if norm <= enough || norm == 0.0 {
            break;
        }
        let mut image = vec![0.0; b.len()];
        for (column, d) in columns.iter().zip(&direction) {
            image
                .iter_mut()
                .zip(column)
                .for_each(|(sum, a)| *sum += a * d);
        }
        let step = norm / dot(&image, &image).max(f64::MIN_POSITIVE);
        x.iter_mut()
            .zip(&direction)
            .for_each(|(x, d)| *x += step * d);
        residual
            .iter_mut()
            .zip(&image)
            .for_each(|(r, i)| *r -= step * i);
        slope = transposed(&residual);
        let next = dot(&slope, &slope);
        direction = slope
            .iter()
            .zip(&direction)
            .map(|(s, d)| s + next / norm * d)
            .collect();
        norm = next;
    }
    x
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use causeway_core::certes::{Origin, RFC_1122_S, RetryClass};
    use rand::{Rng as _, SeedableRng as _};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    fn model(loss: f64, rtt_changes_s: &[f64]) -> ReferenceModel {
        let mix = Mix::new([RetryClass::new("rfc1122", RFC_1122_S, 21.0)]).expect("a valid mix");
        ReferenceModel::new(1.0, mix, loss, rtt_changes_s).expect("valid")
    }

    fn slot(offered: u64, accepted: u64, completed: u64) -> Slot {
        Slot {
            offered,
            accepted,
            completed,
            ..Slot::default()
        }
    }

    /// Eq. 4 in the steady state with k = 2, as the fast model's tests have it.
    #[test]
    fn a_steady_drop_rate_gives_equation_4_where_round_trips_do_not_change() {
        let (p, firsts) = (0.4, 10_000.0);
        let mut model = model(0.0, &[]);
        // The SYNs that arrive in the last slots: those of j retries came 3 and 9 s before.
        let mean_s = (0..60).map(|now| {
            let retries = [(3, p), (9, p * p)];
            let came = retries
                .iter()
                .filter(|(s, _)| now >= *s)
                .map(|(_, share)| share);
            let offered = firsts * (1.0 + came.sum::<f64>());
            let accepted = (offered * (1.0 - p)).round() as u64;
            model.step(&slot(offered.round() as u64, accepted, accepted))
        });
        let mean_s = mean_s
            .last()
            .and_then(|last| last.mean_s())
            .expect("transactions");
        let expected = p * (1.0 - p) * 3.0 + p * p * (1.0 - p) * 9.0 + p.powi(3) * 21.0;
        assert!((mean_s - expected).abs() < 0.01, "{mean_s}");
    }

    /// On any counters: nothing negative, nothing infinite, and as many transactions completed as
    /// were counted.
    #[test]
    fn any_counters_give_sound_estimates() {
        for seed in 0..100 {
            let mut rng = Pcg64Mcg::seed_from_u64(seed);
            let mut model = model(rng.random_range(0.0..0.3), &[-0.3, 0.0, 0.4]);
            for _ in 0..rng.random_range(1..120) {
                let offered = rng.random_range(0..500);
                let (accepted, completed) = (rng.random_range(0..500), rng.random_range(0..500));
                let slots_ago = rng.random_range(0..40);
                let origins = vec![Origin {
                    slots_ago,
                    completed,
                }];
                let estimate = model.step(&Slot {
                    origins,
                    ..slot(offered, accepted.min(offered), completed)
                });
                assert_eq!(estimate.completed, completed as f64);
                for value in [estimate.gave_up, estimate.give_up_s, estimate.conn_fail_s] {
                    assert!(value.is_finite() && value >= -1e-6, "{seed}: {estimate:?}");
                }
            }
        }
    }
}
