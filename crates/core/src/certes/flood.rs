// SPDX-License-Identifier: Apache-2.0
//! SYN floods: SYNs without a client behind them (Certes, 3.2.3).
//!
//! A flood neither answers nor retries. So a first SYN that got neither
//! an ACK nor a retry when the first retry was overdue is a client without patience,
//! or of a flood. Above the share of such clients it is a flood, and that many first
//! SYNs are taken out of the counts: they are not clients that give up.

use super::{Mix, Slot};

/// Estimates how many first SYNs are of a flood.
#[derive(Clone, Debug)]
pub struct FloodDetector {
    keep: f64,
    judged: f64,
    silent: f64,
    /// Share of real clients that never retry.
    impatient: f64,
}

impl FloodDetector {
    /// Time constant of the shares, seconds: floods come and go within seconds.
    const MEMORY_S: f64 = 3.0;
    /// More silent first SYNs than this, as a share of all, make a flood,
    const FLOOD: f64 = 0.1;
    /// if they are this many within the memory: a scan of ports, or health checks that do
    /// not finish the handshake, send a few each second and fill no queue.
    const LEAST: f64 = 50.0;

    /// For slots of `slot_s` seconds and real clients of this mix.
    pub fn new(slot_s: f64, mix: &Mix) -> Self {
        let once = mix
            .classes()
            .iter()
            .filter(|class| class.retries_s.is_empty());
        Self {
            keep: (-slot_s / Self::MEMORY_S).exp(),
            judged: 0.0,
            silent: 0.0,
            impatient: once.map(|class| class.weight).sum(),
        }
    }

    /// How long after the end of a slot its first SYNs can be judged: when every class
    /// that retries has done so, with a tenth for late ones. Seconds.
    pub fn judge_after_s(mix: &Mix) -> f64 {
        let first = |class: &super::RetryClass| class.retries_s.first().copied();
        1.1 * mix.classes().iter().filter_map(first).fold(0.0, f64::max)
    }

    /// Takes in a slot that is old enough to be judged: its first SYNs, and those that nothing more
    /// came after.
    pub fn judge(&mut self, slot: &Slot) {
        self.judged = self.judged * self.keep + slot.first_offered as f64;
        self.silent = self.silent * self.keep + slot.silent() as f64;
    }

    /// The share of first SYNs that belongs to a flood; 0 when there is none.
    pub fn share(&self) -> f64 {
        if self.silent < Self::LEAST {
            return 0.0;
        }
        let beyond =
            (self.silent / self.judged - self.impatient) / (1.0 - self.impatient).max(1e-9);
        if beyond > Self::FLOOD {
            beyond.min(1.0)
        } else {
            0.0
        }
    }

    /// The slot without the flood: without its silent first SYNs, but for as many as
    /// real clients without patience send. Those that had been answered (SYN cookies
    /// answer all) are taken out of the accepted ones too. A slot can be judged
    /// [`judge_after_s`](Self::judge_after_s) after it, so the model runs that much
    /// late while a flood lasts.
    pub fn without_flood(&self, slot: &Slot) -> Slot {
        let silent = slot.silent();
        if self.share() == 0.0 || silent == 0 {
            return slot.clone();
        }
        let real = slot.first_offered.saturating_sub(silent) as f64;
        let impatient = real * self.impatient / (1.0 - self.impatient).max(1e-9);
        let flood = silent
            .saturating_sub(impatient.round() as u64)
            .min(slot.first_offered);
        let answered = slot.silent_answered() as f64 * flood as f64 / silent as f64;
        let answered = (answered.round() as u64).min(slot.first_accepted);
        Slot {
            offered: slot.offered.saturating_sub(flood),
            first_offered: slot.first_offered.saturating_sub(flood),
            accepted: slot.accepted.saturating_sub(answered),
            first_accepted: slot.first_accepted.saturating_sub(answered),
            ..slot.clone()
        }
    }
}
