// SPDX-License-Identifier: Apache-2.0
//! Whether retries are dropped as often as first SYNs.
//!
//! The model rests on the hypothesis that they are (Certes, section 3.1). Where
//! clients answer within milliseconds of a freed place in the queue, they are not:
//! a client that just ended takes the place that it freed with its next first SYN, and
//! retries find the queue full. The tracker measures the difference; the model
//! takes it in, and its size is the model's confidence.

use super::Slot;

/// How far the model's hypothesis holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFit {
    /// Too few drops to tell.
    Unknown,
    /// Retries are dropped about as often as first SYNs.
    Even,
    /// They are not: the model's figures lean on the odds as measured.
    Uneven,
}

impl ModelFit {
    /// `even`, `uneven` or `unknown`: whether retries are dropped like first SYNs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Even => "even",
            Self::Uneven => "uneven",
        }
    }
}

/// Drop rates of first SYNs and of retries, over the last minute or so.
#[derive(Clone, Copy, Debug)]
pub struct DropOdds {
    /// What a slot's counts are worth one slot later.
    keep: f64,
    first_offered: f64,
    first_accepted: f64,
    retry_offered: f64,
    retry_accepted: f64,
}

impl DropOdds {
    /// How long counts are remembered: the time constant, in seconds.
    const MEMORY_S: f64 = 60.0;
    /// Fewer SYNs of a kind than this say nothing.
    const ENOUGH: f64 = 30.0;
    /// Odds ratios within this factor of 1 count as even.
    const EVEN: f64 = 1.5;

    /// For slots of this length, in seconds.
    pub fn new(slot_s: f64) -> Self {
        Self {
            keep: (-slot_s / Self::MEMORY_S).exp(),
            first_offered: 0.0,
            first_accepted: 0.0,
            retry_offered: 0.0,
            retry_accepted: 0.0,
        }
    }

    /// Takes in a slot as tracked.
    pub fn add(&mut self, slot: &Slot) {
        let retries = slot.offered.saturating_sub(slot.first_offered);
        let retries_accepted = slot.accepted.saturating_sub(slot.first_accepted);
        for (sum, count) in [
            (&mut self.first_offered, slot.first_offered),
            (&mut self.first_accepted, slot.first_accepted),
            (&mut self.retry_offered, retries),
            (&mut self.retry_accepted, retries_accepted),
        ] {
            *sum = *sum * self.keep + count as f64;
        }
    }

    /// The odds of a retry's drop over those of a first SYN; `None` where there are
    /// too few of either. One of each kind is added to each count, so that rates of
    /// 0 and 1 give finite odds.
    pub fn ratio(&self) -> Option<f64> {
        if self.first_offered < Self::ENOUGH || self.retry_offered < Self::ENOUGH {
            return None;
        }
        let odds = |offered: f64, accepted: f64| (offered - accepted + 1.0) / (accepted + 1.0);
        Some(
            odds(self.retry_offered, self.retry_accepted)
                / odds(self.first_offered, self.first_accepted),
        )
    }

    /// How far the hypothesis holds.
    pub fn confidence(&self) -> ModelFit {
        match self.ratio() {
            None => ModelFit::Unknown,
            Some(ratio) if (1.0 / Self::EVEN..=Self::EVEN).contains(&ratio) => ModelFit::Even,
            Some(_) => ModelFit::Uneven,
        }
    }
}

/// How many of the accepted connections are never served: of those whose first SYN was
/// answered, and of those that had to try again. Not in the paper. They do not complete,
/// so what they lost is not in the mean of those that did; and where retries meet a queue
/// that is full, they are most of the retries that were answered.
///
/// Counted are clients that were connected and servers that knew of it, each when that was
/// seen: a server says so within a round trip, while a client that is never served may wait
/// for minutes until its end shows it.
#[derive(Clone, Copy, Debug)]
pub struct StallShares {
    keep: f64,
    /// Established and served, of first SYNs and of retries.
    first: (f64, f64),
    retried: (f64, f64),
}

impl StallShares {
    /// For slots of this length, in seconds.
    pub fn new(slot_s: f64) -> Self {
        Self {
            keep: (-slot_s / DropOdds::MEMORY_S).exp(),
            first: (0.0, 0.0),
            retried: (0.0, 0.0),
        }
    }

    /// Takes in a slot as tracked.
    pub fn add(&mut self, slot: &Slot) {
        let retried = |all: u64, first: u64| all.saturating_sub(first);
        for (sum, count) in [
            (&mut self.first.0, slot.established_first),
            (&mut self.first.1, slot.served_first),
            (
                &mut self.retried.0,
                retried(slot.established, slot.established_first),
            ),
            (&mut self.retried.1, retried(slot.served, slot.served_first)),
        ] {
            *sum = *sum * self.keep + count as f64;
        }
    }

    /// Of first SYNs and of retries that were answered; 0 while too few were.
    pub fn shares(&self) -> (f64, f64) {
        let share = |(established, served): (f64, f64)| match established {
            few if few < DropOdds::ENOUGH => 0.0,
            all => (1.0 - served / all).max(0.0),
        };
        (share(self.first), share(self.retried))
    }
}

/// The share of packets that the network loses, from handshakes (Certes, 3.2.1, with
/// both ways taken to be alike). A client whose ACK came only after a second SYN-ACK
/// did not get the first. A lost ACK does not show: the client's request follows it
/// and acknowledges as well.
#[derive(Clone, Copy, Debug)]
pub struct NetworkLoss {
    keep: f64,
    established: f64,
    late: f64,
}

impl NetworkLoss {
    /// For slots of this length, in seconds.
    pub fn new(slot_s: f64) -> Self {
        Self {
            keep: (-slot_s / DropOdds::MEMORY_S).exp(),
            established: 0.0,
            late: 0.0,
        }
    }

    /// Takes in a slot as tracked.
    pub fn add(&mut self, slot: &Slot) {
        self.established = self.established * self.keep + slot.established as f64;
        self.late = self.late * self.keep + slot.established_late as f64;
    }

    /// The loss one way, at most 0.5; 0 while too little is known.
    pub fn share(&self) -> f64 {
        if self.established < DropOdds::ENOUGH {
            return 0.0;
        }
        (self.late / self.established).min(0.5)
    }
}
