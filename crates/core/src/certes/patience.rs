// SPDX-License-Identifier: Apache-2.0
//! How long clients wait before they give up, from how many of them try again.

use super::{CertesError, Mix, RetryClass};

/// Learns the distribution of the client frustration timeout (Certes, 3.2.2).
///
/// Of the attempts whose j-th retry was dropped, those that never send another SYN
/// had no patience left: a hazard for each retry. That does not depend on the drop
/// rate, so that attempts that got through do not hide the impatient.
#[derive(Clone, Debug)]
pub struct PatienceLearner {
    offered: Vec<f64>,
    dropped: Vec<f64>,
}

/// SYNs of this many retries are counted apart, as in `bpf/shared/syn_track.h`.
const RETRIES: usize = 16;

impl Default for PatienceLearner {
    fn default() -> Self {
        Self {
            offered: vec![0.0; RETRIES],
            dropped: vec![0.0; RETRIES],
        }
    }
}

impl PatienceLearner {
    /// Fewer drops than this at a retry say nothing about clients that went on.
    const ENOUGH: f64 = 50.0;

    /// Adds SYNs by retry: how many came, how many of them were answered.
    pub fn add(&mut self, by_retry: impl IntoIterator<Item = (u64, u64)>) {
        for (retry, (offered, accepted)) in by_retry.into_iter().take(RETRIES).enumerate() {
            self.offered[retry] += offered as f64;
            self.dropped[retry] += offered.saturating_sub(accepted) as f64;
        }
    }

    /// Lets what was added so far count for less: for the share `keep` of itself. Clients
    /// change, and what they were like long ago must not hide what they are like now.
    pub fn fade(&mut self, keep: f64) {
        let counts = self.offered.iter_mut().chain(&mut self.dropped);
        counts.for_each(|count| *count *= keep);
    }

    /// Shares of clients by the last retry that they make, from 0; they sum to 1. The share of the
    /// last retry that drops show holds all more patient ones too.
    /// `loss` is the network's: a retry that was lost on the way was made.
    fn last_retries(&self, loss: f64) -> Vec<f64> {
        let mut shares = Vec::new();
        let mut left = 1.0;
        for retry in 0..RETRIES - 1 {
            if self.dropped[retry] < Self::ENOUGH {
                break;
            }
            let again = self.offered[retry + 1] / self.dropped[retry] / (1.0 - loss);
            let goes_on = again.clamp(0.0, 1.0);
            shares.push(left * (1.0 - goes_on));
            left *= goes_on;
        }
        shares.push(left);
        shares
    }

    /// Splits a class by patience as learned. Where a client gives up between two
    /// retries cannot be seen; the class's own timeout and `known_s` are taken where
    /// they fall in between, else the middle. Seconds. Shares below 1 % are noise and
    /// go to the class's own patience, and so do clients that are more patient than drops show.
    pub fn split(
        &self,
        class: &RetryClass,
        known_s: &[f64],
        loss: f64,
    ) -> Result<Mix, CertesError> {
        let mut classes = Vec::new();
        let mut rest = 1.0;
        let mut shares = self.last_retries(loss);
        shares.pop();
        for (retry, share) in shares.into_iter().enumerate() {
            let from_s = retry.checked_sub(1).map_or(0.0, |at| {
                class.retries_s.get(at).copied().unwrap_or(f64::MAX)
            });
            let Some(&to_s) = class.retries_s.get(retry) else {
                break;
            };
            if share < 0.01 || from_s >= to_s {
                continue;
            }
            let between = |s: &f64| *s > from_s && *s <= to_s;
            let known = known_s.iter().chain([&class.fto_s]).copied().find(between);
            rest -= share;
            classes.push(RetryClass {
                fto_s: known.unwrap_or((from_s + to_s) / 2.0),
                ..class.clone().with_weight(share * class.weight)
            });
        }
        if rest >= 0.01 {
            classes.push(class.clone().with_weight(rest * class.weight));
        }
        Mix::new(classes)
    }
}
