// SPDX-License-Identifier: Apache-2.0
//! When clients send a SYN again, and when they give up.

use std::collections::BTreeMap;

use super::CertesError;

/// Linux 6.5 and newer (`tcp_syn_linear_timeouts` = 4), measured on 6.18: retries in
/// seconds after the first SYN.
pub const LINUX_6_5_S: &[f64] = &[1.02, 2.045, 3.065, 4.09, 5.11, 7.13, 11.2, 19.4, 35.5, 68.8];

/// RFC 6298: an initial timeout of 1 s that doubles. Linux before 6.5, recent Windows.
pub const RFC_6298_S: &[f64] = &[1.0, 3.0, 7.0, 15.0, 31.0, 63.0];

/// RFC 1122: an initial timeout of 3 s that doubles; the paper's clients.
pub const RFC_1122_S: &[f64] = &[3.0, 9.0, 21.0, 45.0, 93.0];

/// BSD and macOS: gaps of 1, 1, 1, 1, 1, 2, 4, 8 s.
pub const BSD_S: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 11.0, 19.0];

/// Clients that behave alike.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryClass {
    /// What messages call it.
    pub name: String,
    /// Share of the clients, in any unit.
    pub weight: f64,
    /// When retries come, in seconds after the first SYN. Only those before
    /// `fto_s` are made.
    pub retries_s: Vec<f64>,
    /// Client frustration timeout (Certes, 3.2.2): how long after its first SYN a
    /// client that is not connected gives up, in seconds.
    pub fto_s: f64,
}

impl RetryClass {
    /// A class of weight 1 with one of the schedules above.
    pub fn new(name: &str, retries_s: &[f64], fto_s: f64) -> Self {
        Self {
            name: name.to_owned(),
            weight: 1.0,
            retries_s: retries_s.to_vec(),
            fto_s,
        }
    }

    /// The same with another weight.
    pub fn with_weight(self, weight: f64) -> Self {
        Self { weight, ..self }
    }

    fn check(&self) -> Result<(), CertesError> {
        let class = || self.name.clone();
        if !(self.weight >= 0.0 && self.weight.is_finite()) {
            return Err(CertesError::Weight {
                class: class(),
                weight: self.weight,
            });
        }
        if !(self.fto_s > 0.0 && self.fto_s.is_finite()) {
            return Err(CertesError::Patience {
                class: class(),
                fto_s: self.fto_s,
            });
        }
        let mut before = 0.0;
        for (index, &at_s) in self.retries_s.iter().enumerate() {
            if !(at_s > before && at_s.is_finite()) {
                return Err(CertesError::Order {
                    class: class(),
                    retry: index + 1,
                    at_s,
                });
            }
            before = at_s;
        }
        Ok(())
    }
}

/// The classes of clients that a server meets, with weights that sum to 1 and only
/// the retries that are made.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    classes: Vec<RetryClass>,
}

impl Mix {
    /// Checks and normalises.
    pub fn new(classes: impl IntoIterator<Item = RetryClass>) -> Result<Self, CertesError> {
        let mut classes: Vec<_> = classes.into_iter().collect();
        for class in &classes {
            class.check()?;
        }
        let total: f64 = classes.iter().map(|class| class.weight).sum();
        if total <= 0.0 {
            return Err(CertesError::NoClass);
        }
        classes.retain(|class| class.weight > 0.0);
        for class in &mut classes {
            class.weight /= total;
            let fto_s = class.fto_s;
            class.retries_s.retain(|&at_s| at_s < fto_s);
        }
        Ok(Self { classes })
    }

    /// Its classes.
    pub fn classes(&self) -> &[RetryClass] {
        &self.classes
    }

    /// The longest time from a first SYN to its client's end of patience, seconds.
    pub fn longest_s(&self) -> f64 {
        self.classes
            .iter()
            .map(|class| class.fto_s)
            .fold(0.0, f64::max)
    }

    /// The shortest gap to a first retry with its class, or `None` where no
    /// client retries.
    pub(super) fn first_gap(&self) -> Option<(&RetryClass, f64)> {
        self.classes
            .iter()
            .filter_map(|class| class.retries_s.first().map(|&gap_s| (class, gap_s)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Learns the weights of known classes from the retries that the tracker saw.
///
/// An attempt's latest retry speaks for every class that makes that retry at that
/// time. Where several do (all stacks with an initial timeout of 1 s look alike
/// until their second retry), the vote is shared out in proportion to the weights
/// that the votes themselves give: expectation maximisation over the sets of classes
/// that fitted.
#[derive(Clone, Debug)]
pub struct MixLearner {
    prior: Mix,
    /// Votes for each set of classes, as bits.
    votes: BTreeMap<u32, f64>,
    unknown: f64,
}

impl MixLearner {
    /// How far from its nominal time a retry may come, as a share of that time.
    /// Stacks round timers up to ticks, and loaded ones are late.
    const TOLERANCE: f64 = 0.04;
    /// The least tolerance, seconds.
    const TOLERANCE_S: f64 = 0.06;
    /// More than enough: shares settle to a thousandth within ten rounds.
    const ROUNDS: usize = 30;

    /// Learns about these classes (at most 32); their weights are the prior.
    pub fn new(classes: impl IntoIterator<Item = RetryClass>) -> Result<Self, CertesError> {
        Ok(Self {
            prior: Mix::new(classes.into_iter().take(32))?,
            votes: BTreeMap::new(),
            unknown: 0.0,
        })
    }

    /// An attempt whose first SYN was seen came to its `retry` th retry (from 1),
    /// `at_s` after that SYN. Once for each attempt, with its last retry.
    pub fn observe(&mut self, retry: usize, at_s: f64) {
        self.observe_many(retry, at_s, 1);
    }

    /// The same of `count` attempts.
    pub fn observe_many(&mut self, retry: usize, at_s: f64, count: u64) {
        let mut fits = 0;
        for (index, class) in self.prior.classes.iter().enumerate() {
            let nominal_s = retry.checked_sub(1).and_then(|at| class.retries_s.get(at));
            let near = |nominal_s: &f64| {
                (at_s - nominal_s).abs() <= (nominal_s * Self::TOLERANCE).max(Self::TOLERANCE_S)
            };
            fits |= u32::from(nominal_s.is_some_and(near)) << index;
        }
        match fits {
            0 => self.unknown += count as f64,
            set => *self.votes.entry(set).or_default() += count as f64,
        }
    }

    /// Lets what was seen so far count for less: for the share `keep` of itself.
    pub fn fade(&mut self, keep: f64) {
        self.unknown *= keep;
        self.votes.values_mut().for_each(|votes| *votes *= keep);
    }

    /// How many retries fitted no class, as a share of all.
    pub fn unknown_share(&self) -> f64 {
        let all = self.unknown + self.votes.values().sum::<f64>();
        if all > 0.0 { self.unknown / all } else { 0.0 }
    }

    /// The mix as learned; the prior counts for `prior_votes` attempts.
    pub fn mix(&self, prior_votes: f64) -> Result<Mix, CertesError> {
        let mut weights: Vec<f64> = self
            .prior
            .classes
            .iter()
            .map(|class| class.weight)
            .collect();
        for _ in 0..Self::ROUNDS {
            let mut next: Vec<f64> = self
                .prior
                .classes
                .iter()
                .map(|class| class.weight * prior_votes)
                .collect();
            for (&set, &votes) in &self.votes {
                let member = |index: &usize| set >> index & 1 == 1;
                let all: f64 = (0..weights.len())
                    .filter(member)
                    .map(|index| weights[index])
                    .sum();
                for index in (0..weights.len()).filter(member) {
                    // A class without weight left shares nothing.
                    next[index] += if all > 0.0 {
                        votes * weights[index] / all
                    } else {
                        0.0
                    };
                }
            }
            let total: f64 = next.iter().sum();
            if total <= 0.0 {
                break;
            }
            weights = next.iter().map(|weight| weight / total).collect();
        }
        let classes = self.prior.classes.iter().zip(weights);
        Mix::new(classes.map(|(class, weight)| class.clone().with_weight(weight)))
    }
}
