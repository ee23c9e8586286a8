// SPDX-License-Identifier: Apache-2.0
//! Both estimators of one category of clients, fed slot by slot as a server counts.
//!
//! A slot is *settled* when every client that had a SYN in it could have sent another packet: one
//! first retry gap and a tenth after its end. Settled slots go through the flood detector, the drop
//! odds, the network's loss and the model, once and for good. What came after them is estimated on
//! a copy of the model, so that a live view lags by one slot only. `exact` needs no settling for
//! connections; the caller reports clients that gave up when it finds them ([`AttemptFate`]).

use std::collections::VecDeque;

use super::{
    CertesError, DropOdds, Estimate, FastModel, FloodDetector, Mix, ModelFit, NetworkLoss, Slot,
    StallShares,
};

/// An attempt that is not answered, judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AttemptFate {
    /// Its client may come again.
    Waits,
    /// Its client gave up, so long after its first SYN. Seconds.
    GaveUp(f64),
}

/// Says of attempts whether their clients have given up (Certes, 3.2.2).
///
/// A client is gone when SYNs are missing that a more patient one would have sent by
/// whatever schedule its last SYN fits: one, or two where the network loses some. It had
/// waited as long as the shortest patience allows that explains its silence; where no known
/// one does, to the middle between its last SYN and the one that is missing.
#[derive(Clone, Debug)]
pub struct Judge {
    schedules_s: Vec<Vec<f64>>,
    patience_s: Vec<f64>,
}

impl Judge {
    /// How late a retry may be, as a share of its time and at least; seconds.
    const LATE: f64 = 0.05;
    const LATE_S: f64 = 0.15;
    /// Above this loss a missing SYN may have been lost.
    const LOSSY: f64 = 0.005;
    /// The longest first timeout in use, seconds (RFC 1122). Later ones double at most.
    const FIRST_S: f64 = 3.0;

    /// For clients with the patience of these classes. `schedules_s` are all that clients
    /// may follow, the likeliest first, with every retry that their stacks can make.
    pub fn new(mix: &Mix, schedules_s: Vec<Vec<f64>>) -> Self {
        let mut patience_s: Vec<f64> = mix.classes().iter().map(|class| class.fto_s).collect();
        patience_s.sort_by(f64::total_cmp);
        patience_s.dedup();
        Self {
            schedules_s,
            patience_s,
        }
    }

    fn late(at_s: f64) -> f64 {
        at_s + (at_s * Self::LATE).max(Self::LATE_S)
    }

    fn need(loss: f64) -> usize {
        if loss > Self::LOSSY { 2 } else { 1 }
    }

    /// Of an attempt whose last SYN came `last_s` after its first, which is `age_s` ago.
    /// Above a loss of half a percent one missing SYN proves nothing.
    pub fn judge(&self, last_s: f64, age_s: f64, loss: f64) -> AttemptFate {
        let mut verdict = None;
        for retries_s in self.fitting(last_s) {
            match self.by_schedule(retries_s, last_s, age_s, Self::need(loss)) {
                AttemptFate::Waits => return AttemptFate::Waits,
                gone @ AttemptFate::GaveUp(_) => _ = verdict.get_or_insert(gone),
            }
        }
        verdict.unwrap_or(AttemptFate::Waits)
    }

    fn by_schedule(&self, retries_s: &[f64], last_s: f64, age_s: f64, need: usize) -> AttemptFate {
        let after = |at_s: &&f64| **at_s > Self::late(last_s);
        let expected_s: Vec<f64> = retries_s.iter().filter(after).copied().collect();
        let overdue = |at_s: &&f64| Self::late(**at_s) < age_s;
        let missing = expected_s.iter().filter(overdue).count();
        let patience_s = self.patience_s.iter().copied().find(|&s| s > last_s);
        let before = |s: f64| expected_s.iter().filter(|&&at_s| at_s < s).count();
        match (patience_s, expected_s.first()) {
            _ if missing < need && age_s <= self.longest_s() => AttemptFate::Waits,
            (Some(patience_s), _) if before(patience_s) < need => AttemptFate::GaveUp(patience_s),
            (_, Some(&next_s)) if missing >= need => {
                AttemptFate::GaveUp(f64::midpoint(last_s, next_s))
            }
            (Some(patience_s), _) => AttemptFate::GaveUp(patience_s),
            (None, _) => AttemptFate::GaveUp(last_s),
        }
    }

    /// Of an attempt whose last SYN came `last_s` after its first, and whose client was known at
    /// `left_s` to be gone: how long it had waited, if patience or a missing retry
    /// explains it. Seconds.
    pub fn left(&self, last_s: f64, left_s: f64, loss: f64) -> Option<f64> {
        let mut patience_s = self.patience_s.iter().copied();
        let by_patience = patience_s.find(|&s| s > last_s && s <= left_s);
        by_patience.or_else(|| match self.judge(last_s, left_s, loss) {
            AttemptFate::GaveUp(waited_s) => Some(waited_s),
            AttemptFate::Waits => None,
        })
    }

    /// How long after the first SYN an attempt is judged at the latest, seconds. Who is more
    /// patient than any class may still come.
    pub fn longest_s(&self) -> f64 {
        let last = self.patience_s.last().copied().unwrap_or(0.0);
        last * (1.0 + Self::LATE) + Self::LATE_S
    }

    /// How long after its first SYN no client comes again whose last SYN came at `last_s`,
    /// however patient and whatever its stack: timeouts double at most. Seconds.
    pub fn gone_for_good_s(&self, last_s: f64, loss: f64) -> f64 {
        let next_s = |last_s: f64| {
            let listed = self.schedules_s.iter().filter_map(|retries_s| {
                let mut later = retries_s.iter().copied();
                later.find(|&at_s| at_s > Self::late(last_s))
            });
            listed.fold(2.0 * last_s + Self::FIRST_S, f64::max)
        };
        Self::late((0..Self::need(loss)).fold(last_s, |last_s, _| next_s(last_s)))
    }

    /// The schedules that have a retry where this attempt's last SYN was; all where none has.
    fn fitting(&self, last_s: f64) -> impl Iterator<Item = &[f64]> {
        let tolerance_s = (last_s * Self::LATE).max(Self::LATE_S);
        let near = move |retries_s: &[f64]| {
            let close = |at_s: &f64| (at_s - last_s).abs() <= tolerance_s;
            last_s == 0.0 || retries_s.iter().any(close)
        };
        let none = !self.schedules_s.iter().any(|retries_s| near(retries_s));
        let all = self.schedules_s.iter().map(Vec::as_slice);
        all.filter(move |retries_s| none || near(retries_s))
    }
}

/// A slot as both estimators have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Its number.
    pub number: u64,
    /// As counted.
    pub slot: Slot,
    /// By the tracker. Clients that gave up are in it when they are found out, at most
    /// [`Judge::longest_s`] late.
    pub exact: Estimate,
    /// By the model.
    pub model: Estimate,
}

/// What a category is like now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CategoryStatus {
    /// Whether the model's hypothesis holds.
    pub confidence: ModelFit,
    /// Odds of a retry's drop over a first SYN's, where enough came.
    pub odds_ratio: Option<f64>,
    /// Share of packets that the network loses, one way.
    pub loss: f64,
    /// Share of first SYNs that are of a flood.
    pub flood: f64,
}

/// The estimators of one category.
#[derive(Clone, Debug)]
pub struct CategoryObserver {
    model: FastModel,
    odds: DropOdds,
    loss: NetworkLoss,
    stalls: StallShares,
    flood: FloodDetector,
    /// The last settled slot's number.
    settled: Option<u64>,
    /// Recent slots, settled ones first.
    recent: VecDeque<Observed>,
    keep: usize,
}

impl CategoryObserver {
    /// For slots of `slot_s` seconds and clients of this mix; remembers `keep` slots.
    pub fn new(slot_s: f64, mix: &Mix, keep: usize) -> Result<Self, CertesError> {
        Ok(Self {
            model: FastModel::new(slot_s, mix.clone(), 0.0)?,
            odds: DropOdds::new(slot_s),
            loss: NetworkLoss::new(slot_s),
            stalls: StallShares::new(slot_s),
            flood: FloodDetector::new(slot_s, mix),
            settled: None,
            recent: VecDeque::new(),
            keep: keep.max(1),
        })
    }

    /// Remembers so many slots from now on.
    pub fn set_keep(&mut self, keep: usize) {
        self.keep = keep.max(1);
    }

    /// Slots from the end of one until it can be settled.
    pub fn settle_slots(slot_s: f64, mix: &Mix) -> u64 {
        (FloodDetector::judge_after_s(mix) / slot_s).ceil() as u64 + 1
    }

    /// Goes on with another mix: what is under way is taken to be of the new one's first
    /// SYNs for one patience.
    pub fn set_mix(&mut self, slot_s: f64, mix: &Mix) -> Result<(), CertesError> {
        self.model = FastModel::new(slot_s, mix.clone(), self.loss.share())?;
        self.flood = FloodDetector::new(slot_s, mix);
        // The past as it was counted brings the new model into its stride.
        // Odds and loss have counted it already.
        let settled: Vec<Slot> = self.settled_slots().cloned().collect();
        for slot in settled {
            self.flood.judge(&slot);
            let real = self.flood.without_flood(&slot);
            self.advance(&real)?;
        }
        Ok(())
    }

    fn settled_slots(&self) -> impl Iterator<Item = &Slot> {
        let until = self.settled;
        let settled = self
            .recent
            .iter()
            .filter(move |of| Some(of.number) <= until);
        settled.map(|of| &of.slot)
    }

    /// The number after the last settled slot; `None` before the first.
    pub fn next(&self) -> Option<u64> {
        self.settled.map(|number| number + 1)
    }

    /// Takes slots in, in order and without gaps: those that are settled now, from
    /// [`next`](Self::next) on, and those that are over but not settled.
    pub fn feed(
        &mut self,
        settled: &[(u64, Slot)],
        fresh: &[(u64, Slot)],
    ) -> Result<(), CertesError> {
        let until = self.settled;
        let pending: Vec<Observed> = {
            let first_fresh = self.recent.iter().position(|of| Some(of.number) > until);
            self.recent
                .drain(first_fresh.unwrap_or(self.recent.len())..)
                .collect()
        };
        let gave_up = |number: u64| {
            let found = pending.iter().find(|of| of.number == number);
            found.map_or((0.0, 0.0), |of| (of.exact.gave_up, of.exact.give_up_s))
        };
        for (number, slot) in settled {
            let model = self.step(slot)?;
            self.settled = Some(*number);
            self.push(*number, slot, model, gave_up(*number));
        }
        let mut live = self.model.clone();
        let share = self.flood.share();
        for (number, slot) in fresh {
            let model = live.step(&less_flood(slot, share));
            self.push(*number, slot, model, gave_up(*number));
        }
        while self.recent.len() > self.keep {
            self.recent.pop_front();
        }
        Ok(())
    }

    fn step(&mut self, slot: &Slot) -> Result<Estimate, CertesError> {
        self.flood.judge(slot);
        let real = self.flood.without_flood(slot);
        self.odds.add(&real);
        self.loss.add(&real);
        self.stalls.add(&real);
        self.advance(&real)
    }

    fn advance(&mut self, real: &Slot) -> Result<Estimate, CertesError> {
        self.model.set_odds(Some(&self.odds));
        self.model.set_loss(self.loss.share())?;
        self.model.set_stalls(&self.stalls);
        Ok(self.model.step(real))
    }

    fn push(
        &mut self,
        number: u64,
        slot: &Slot,
        model: Estimate,
        (gave_up, give_up_s): (f64, f64),
    ) {
        let mut exact = Estimate::exact(slot, []);
        (exact.gave_up, exact.give_up_s) = (gave_up, give_up_s);
        let (exact, model) = (self.with_unseen(exact), self.with_unseen(model));
        self.recent.push_back(Observed {
            number,
            slot: slot.clone(),
            exact,
            model,
        });
    }

    /// The same with clients that were never served and whose last segment the network lost:
    /// as many in proportion as it loses. Nothing else says that they ended, as their server
    /// does not know of them.
    fn with_unseen(&self, of: Estimate) -> Estimate {
        let seen = 1.0 - self.loss.share();
        Estimate {
            stalled: of.stalled / seen,
            stalled_s: of.stalled_s / seen,
            ..of
        }
    }

    /// A client gave up in slot `number`, having waited so long. Of a slot that is yet to
    /// come it counts in the last one that is known. The slot in which it counts; `None`
    /// where that is forgotten.
    pub fn gave_up(&mut self, number: u64, waited_s: f64) -> Option<u64> {
        let number = number.min(self.recent.back()?.number);
        let of = self.known(number)?;
        of.exact.gave_up += 1.0;
        of.exact.give_up_s += waited_s;
        Some(number)
    }

    /// It had not: takes back what counted in that slot.
    pub fn take_back(&mut self, number: u64, waited_s: f64) {
        if let Some(of) = self.known(number) {
            of.exact.gave_up -= 1.0;
            // Sums of many are not exact.
            of.exact.give_up_s = (of.exact.give_up_s - waited_s).max(0.0);
        }
    }

    fn known(&mut self, number: u64) -> Option<&mut Observed> {
        let at = self.recent.partition_point(|of| of.number < number);
        self.recent.get_mut(at).filter(|of| of.number == number)
    }

    /// The slots that are remembered, in order.
    pub fn recent(&self) -> impl DoubleEndedIterator<Item = &Observed> {
        self.recent.iter()
    }

    /// What the category is like.
    pub fn standing(&self) -> CategoryStatus {
        CategoryStatus {
            confidence: self.odds.confidence(),
            odds_ratio: self.odds.ratio(),
            loss: self.loss.share(),
            flood: self.flood.share(),
        }
    }

    /// SYNs that are expected as retries `slots_ahead` of the first slot that is not
    /// settled (Certes, section 6).
    pub fn forecast(&self, slots_ahead: usize) -> f64 {
        self.model.forecast(slots_ahead)
    }
}

/// A slot that cannot be judged yet, without the share of its first SYNs that a flood
/// had in those before.
fn less_flood(slot: &Slot, share: f64) -> Slot {
    let flood = (slot.first_offered as f64 * share).round() as u64;
    let dropped = slot.first_offered.saturating_sub(slot.first_accepted);
    let from_dropped = flood.min(dropped);
    let answered = flood - from_dropped;
    Slot {
        offered: slot.offered.saturating_sub(flood),
        first_offered: slot.first_offered - flood,
        accepted: slot.accepted.saturating_sub(answered),
        first_accepted: slot.first_accepted.saturating_sub(answered),
        ..slot.clone()
    }
}
