// SPDX-License-Identifier: Apache-2.0
//! The fast online model (Certes, section 3.2): constant time and memory per slot.
//!
//! SYNs are sorted by *lane*: the class of client and how many retries came
//! before. What a lane drops in one slot is expected in the next lane one retry gap
//! later; first SYNs are what is left of the offered load. The paper rounds to whole
//! SYNs; here expectations stay fractions, so that classes of small weight do not
//! vanish.

use super::{CertesError, DropOdds, Estimate, Mix, Slot, StallShares};

/// One retry of one class.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    /// Which class of the mix.
    pub class: usize,
    /// Seconds after the first SYN.
    pub at_s: f64,
    /// Slots until the next retry, or until the client gives up.
    pub gap_slots: f64,
    /// Whether this was its last SYN.
    pub last: bool,
}

/// The accepted SYNs of a past slot.
#[derive(Clone, Debug, Default)]
struct Accepted {
    total: f64,
    lanes: Vec<f64>,
    /// What they lost before on average, seconds.
    conn_fail_s: f64,
}

/// Infers CONN-FAIL and clients that gave up from counters.
///
/// Call [`step`](Self::step) once for each slot, in order, empty ones too.
#[derive(Clone, Debug)]
pub struct FastModel {
    slot_s: f64,
    mix: Mix,
    lanes: Vec<Lane>,
    /// Share of SYNs that the network loses before the server (3.2.1).
    loss: f64,
    odds_ratio: f64,
    /// Of answered first SYNs and retries those that are never served.
    stalls: (f64, f64),
    now: usize,
    /// Rings over slots: expected retries by lane, and clients that give up, by class.
    expected: Vec<Vec<f64>>,
    giving_up: Vec<Vec<f64>>,
    past: Vec<Accepted>,
}

impl FastModel {
    /// How long connections may take and still be attributed to their slot, seconds.
    const PAST_S: f64 = 120.0;

    /// A model for slots of `slot_s` seconds and clients of this mix. `loss` is the
    /// share of SYNs that the network loses on the way here. Start it at any time:
    /// clients that were retrying before count as new; after the longest patience of
    /// the mix the figures are right on average over the first two retry gaps
    /// (Certes, appendix B).
    pub fn new(slot_s: f64, mix: Mix, loss: f64) -> Result<Self, CertesError> {
        check(slot_s, &mix, loss)?;
        let lanes = lanes(&mix, slot_s);
        let ahead = lanes.iter().map(|lane| lane.gap_slots).fold(0.0, f64::max) as usize + 3;
        let past = (Self::PAST_S / slot_s) as usize + 1;
        Ok(Self {
            slot_s,
            loss,
            odds_ratio: 1.0,
            stalls: (0.0, 0.0),
            now: 0,
            expected: vec![vec![0.0; lanes.len()]; ahead],
            giving_up: vec![vec![0.0; mix.classes().len()]; ahead],
            past: vec![Accepted::default(); past],
            lanes,
            mix,
        })
    }

    /// Uses the odds of a retry's drop over a first SYN's, as measured, instead of
    /// the paper's hypothesis that they are equal (eq. 6). `None` returns to it.
    pub fn set_odds(&mut self, odds: Option<&DropOdds>) {
        self.odds_ratio = odds.and_then(DropOdds::ratio).unwrap_or(1.0);
    }

    /// Sets how many of the accepted never complete: of first SYNs and of retries.
    pub fn set_stalls(&mut self, stalls: &StallShares) {
        self.stalls = stalls.shares();
    }

    /// Sets the share of SYNs that the network loses from now on.
    pub fn set_loss(&mut self, loss: f64) -> Result<(), CertesError> {
        check(self.slot_s, &self.mix, loss)?;
        self.loss = loss;
        Ok(())
    }

    /// SYNs that are expected as retries `slots_ahead` of the next slot, by what is
    /// known now (the forecast of section 6).
    pub fn forecast(&self, slots_ahead: usize) -> f64 {
        match slots_ahead < self.expected.len() {
            true => self.expected[(self.now + slots_ahead) % self.expected.len()]
                .iter()
                .sum(),
            false => 0.0,
        }
    }

    /// Takes the next slot in; gives its transactions back.
    pub fn step(&mut self, slot: &Slot) -> Estimate {
        let arrived = self.arrivals(slot.offered as f64);
        let dropped = self.drops(&arrived, slot.dropped() as f64);
        let accepted: Vec<f64> = arrived.iter().zip(&dropped).map(|(r, d)| r - d).collect();
        self.send_again(&arrived, &dropped);
        self.remember(accepted);
        let mut estimate = Estimate::measured(slot);
        estimate.conn_fail_s = self.conn_fail_s(slot);
        let ring = self.now % self.giving_up.len();
        for (count, class) in self.giving_up[ring].iter_mut().zip(self.mix.classes()) {
            estimate.gave_up += *count;
            estimate.give_up_s += *count * class.fto_s;
            *count = 0.0;
        }
        self.now += 1;
        estimate
    }

    /// What came in each lane: retries as expected, first SYNs the rest. More
    /// retries than SYNs came: the surplus is expected in the next slot (eq. 30).
    fn arrivals(&mut self, offered: f64) -> Vec<f64> {
        let length = self.expected.len();
        let mut arrived = std::mem::replace(
            &mut self.expected[self.now % length],
            vec![0.0; self.lanes.len()],
        );
        let retries: f64 = arrived.iter().sum();
        if retries > offered {
            let late = (retries - offered) / retries;
            let next = &mut self.expected[(self.now + 1) % length];
            for (next, count) in next.iter_mut().zip(&mut arrived) {
                *next += *count * late;
                *count *= 1.0 - late;
            }
            return arrived;
        }
        for (lane, count) in self.lanes.iter().zip(&mut arrived) {
            if lane.at_s == 0.0 {
                *count += (offered - retries) * self.mix.classes()[lane.class].weight;
            }
        }
        arrived
    }

    /// Shares the slot's drops out over the lanes: the same rate for all (eq. 6), or
    /// rates whose odds have the measured ratio.
    fn drops(&self, arrived: &[f64], dropped: f64) -> Vec<f64> {
        let retry = |index: usize| self.lanes[index].at_s > 0.0;
        let offered: f64 = arrived.iter().sum();
        if offered <= 0.0 {
            return vec![0.0; arrived.len()];
        }
        let retries: f64 = (0..arrived.len())
            .filter(|&i| retry(i))
            .map(|i| arrived[i])
            .sum();
        let (first_rate, retry_rate) = split_drops(
            offered - retries,
            retries,
            dropped.min(offered),
            self.odds_ratio,
        );
        let rate = |index| if retry(index) { retry_rate } else { first_rate };
        arrived
            .iter()
            .enumerate()
            .map(|(index, count)| count * rate(index))
            .collect()
    }

    /// Expects what was dropped again, or its clients to give up. SYNs that the
    /// network lost never came here, but their clients retry too (figure 10).
    fn send_again(&mut self, arrived: &[f64], dropped: &[f64]) {
        let lost_per_arrival = self.loss / (1.0 - self.loss);
        let length = self.expected.len();
        for (index, lane) in self.lanes.iter().enumerate() {
            let unanswered = dropped[index] + arrived[index] * lost_per_arrival;
            let (whole, part) = (lane.gap_slots.floor(), lane.gap_slots.fract());
            // SYNs are spread evenly over their slot, so the gap's fraction of them
            // comes one slot later.
            for (ahead, share) in [(whole, 1.0 - part), (whole + 1.0, part)] {
                let ring = (self.now + ahead as usize) % length;
                if lane.last {
                    self.giving_up[ring][lane.class] += unanswered * share;
                } else {
                    self.expected[ring][index + 1] += unanswered * share * (1.0 - self.loss);
                }
            }
        }
    }

    /// Keeps what of the accepted will complete.
    fn remember(&mut self, mut lanes: Vec<f64>) {
        for (lane, n) in self.lanes.iter().zip(&mut lanes) {
            let stalled = match lane.at_s > 0.0 {
                true => self.stalls.1,
                false => self.stalls.0,
            };
            *n *= 1.0 - stalled;
        }
        let total: f64 = lanes.iter().sum();
        let lost_s: f64 = self
            .lanes
            .iter()
            .zip(&lanes)
            .map(|(lane, n)| lane.at_s * n)
            .sum();
        let ring = self.now % self.past.len();
        self.past[ring] = Accepted {
            total,
            lanes,
            conn_fail_s: if total > 0.0 { lost_s / total } else { 0.0 },
        };
    }

    /// The latest slot with accepted SYNs that is at least `slots_ago`.
    fn accepted(&self, slots_ago: usize) -> Option<&Accepted> {
        let oldest = self.now.min(self.past.len() - 1);
        (slots_ago.min(oldest)..=oldest)
            .map(|ago| &self.past[(self.now - ago) % self.past.len()])
            .find(|slot| slot.total > 0.0)
    }

    /// What this slot's completed connections had lost, seconds.
    fn conn_fail_s(&self, slot: &Slot) -> f64 {
        let mean = |ago| self.accepted(ago).map_or(0.0, |past| past.conn_fail_s);
        slot.by_origin(self.slot_s, mean)
    }

    /// How long before its accepted SYN a connection that was accepted in the latest
    /// slot had been trying: pairs of seconds and shares that sum to 1; empty when
    /// none was accepted. With the distribution of SYN-to-END this gives that of
    /// client response times (figure 17).
    pub fn lost_time_shares(&self) -> Vec<(f64, f64)> {
        let Some(last) = self.now.checked_sub(1) else {
            return Vec::new();
        };
        let past = &self.past[last % self.past.len()];
        if past.total <= 0.0 {
            return Vec::new();
        }
        let share = |(lane, n): (&Lane, &f64)| (lane.at_s, n / past.total);
        self.lanes.iter().zip(&past.lanes).map(share).collect()
    }
}

/// Checks what a model is made from.
pub fn check(slot_s: f64, mix: &Mix, loss: f64) -> Result<(), CertesError> {
    if slot_s.is_nan() || slot_s <= 0.0 {
        return Err(CertesError::SlotEmpty);
    }
    if let Some((class, gap_s)) = mix.first_gap().filter(|(_, gap_s)| *gap_s <= slot_s) {
        return Err(CertesError::SlotTooLong {
            slot_s,
            class: class.name.clone(),
            gap_s,
        });
    }
    if !(0.0..1.0).contains(&loss) {
        return Err(CertesError::Loss(loss));
    }
    Ok(())
}

/// The lanes of a mix: for each class its first SYN and its retries, in order.
pub fn lanes(mix: &Mix, slot_s: f64) -> Vec<Lane> {
    let mut lanes = Vec::new();
    for (index, class) in mix.classes().iter().enumerate() {
        let sends: Vec<f64> = std::iter::once(0.0)
            .chain(class.retries_s.iter().copied())
            .collect();
        for (retry, &at_s) in sends.iter().enumerate() {
            let next_s = sends.get(retry + 1).copied();
            lanes.push(Lane {
                class: index,
                at_s,
                gap_slots: (next_s.unwrap_or(class.fto_s) - at_s) / slot_s,
                last: next_s.is_none(),
            });
        }
    }
    lanes
}

/// Drop rates of first SYNs and retries whose drops sum to `dropped` and whose odds
/// have this ratio. The sum grows with the rate of first SYNs, so bisection finds it.
fn split_drops(firsts: f64, retries: f64, dropped: f64, odds_ratio: f64) -> (f64, f64) {
    let rate = dropped / (firsts + retries);
    if odds_ratio == 1.0 || retries <= 0.0 || firsts <= 0.0 || rate <= 0.0 || rate >= 1.0 {
        return (rate, rate);
    }
    let retry_rate = |first: f64| odds_ratio * first / (1.0 - first + odds_ratio * first);
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..50 {
        let first = (low + high) / 2.0;
        if firsts * first + retries * retry_rate(first) < dropped {
            low = first;
        } else {
            high = first;
        }
    }
    let first = (low + high) / 2.0;
    (first, retry_rate(first))
}
