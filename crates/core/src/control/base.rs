// SPDX-License-Identifier: Apache-2.0
//! The lowest latency that each real has shown, and who is too fast to be true beside it.

use super::tracker::Estimate;

/// Samples from which a latency may count as the lowest that a real has shown.
const BASE_SAMPLES: f64 = 3.0;
/// Time in which the memory of a real's lowest latency doubles.
const BASE_DOUBLES_NS: f64 = 60e9;
/// A real is too fast below this part of the lowest that any other has shown.
const TOO_FAST: f64 = 0.5;
/// Standard errors for that.
const TOO_FAST_ERRORS: f64 = 3.0;
/// Others that must have shown what is possible. Of two reals it is unknown
/// which of them is the odd one.
const WITNESSES: usize = 2;
/// Weight of the newest interval in how often a real has recently been too fast.
const OFTEN: f64 = 0.1;
/// Part of the recent intervals that were too fast from which the real surely is, and from which it
/// is doubtful. One answer in twenty that waits hides any mean, not most of them.
const OFTEN_SURE: f64 = 0.6;
const OFTEN_DOUBTFUL: f64 = 0.3;

/// The lowest latency that a real has shown recently.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Base {
    lowest_ns: Option<f64>,
    too_fast_of_late: f64,
}

/// How sure it has to be that a real is too fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    Sure,
    Possible,
}

impl Base {
    /// Takes in whether the interval's own mean was too fast.
    pub(super) fn judge(&mut self, too_fast: bool) {
        self.too_fast_of_late += OFTEN * (f64::from(u8::from(too_fast)) - self.too_fast_of_late);
    }

    /// Takes in what is known at the end of an interval.
    pub(super) fn observe(&mut self, estimate: Option<Estimate>, interval_ns: u64) {
        let own = estimate
            .filter(|own| own.samples >= BASE_SAMPLES)
            .map(|own| own.latency_ns);
        let grown = self
            .lowest_ns
            .map(|ns| ns * (interval_ns as f64 / BASE_DOUBLES_NS).exp2());
        self.lowest_ns = match (grown, own) {
            (Some(grown), Some(own)) => Some(grown.min(own)),
            // Without a new estimate nothing is learnt, and nothing forgotten.
            (_, None) => self.lowest_ns,
            (None, own) => own,
        };
    }
}

/// The two lowest bases, with the index of the first, and how many there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bases {
    lowest: (f64, usize),
    second: f64,
    known: usize,
}

impl Bases {
    pub(super) fn of<'a>(bases: impl Iterator<Item = &'a Base>) -> Self {
        let mut all = Self {
            lowest: (f64::INFINITY, usize::MAX),
            second: f64::INFINITY,
            known: 0,
        };
        for (index, base) in bases.enumerate() {
            let Some(ns) = base.lowest_ns else { continue };
            all.known += 1;
            if ns < all.lowest.0 {
                all.second = all.lowest.0;
                all.lowest = (ns, index);
            } else {
                all.second = all.second.min(ns);
            }
        }
        all
    }

    /// Whether a latency of real `index` is lower than any other real has ever shown, by so
    /// many errors.
    pub(super) fn below(&self, index: usize, base: &Base, own: Estimate, errors: f64) -> bool {
        let witnesses = self.known - usize::from(base.lowest_ns.is_some());
        let others = match index == self.lowest.1 {
            true => self.second,
            false => self.lowest.0,
        };
        let margin = (errors * own.error()).exp();
        witnesses >= WITNESSES && own.latency_ns * margin < TOO_FAST * others
    }

    /// Whether it answers faster than any other ever has: by its mean, or in most intervals.
    pub(super) fn too_fast(&self, index: usize, base: &Base, own: Estimate, doubt: Doubt) -> bool {
        let (errors, often) = match doubt {
            Doubt::Sure => (TOO_FAST_ERRORS, OFTEN_SURE),
            Doubt::Possible => (0.0, OFTEN_DOUBTFUL),
        };
        base.too_fast_of_late > often || self.below(index, base, own, errors)
    }
}
