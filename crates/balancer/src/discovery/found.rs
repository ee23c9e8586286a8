// SPDX-License-Identifier: Apache-2.0
//! The answers about a VIP's reals, and which of them holds.
//!
//! A real that is no longer in the answers drains, and is removed when its time is over. An
//! answer that removes too much at once is held until an operator accepts it, or another comes.

use std::net::IpAddr;

use causeway_api::Moment;

use crate::config::{Discover, RealConfig};
use crate::pool::configured;

/// A real that was discovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundReal {
    /// As the answer had it.
    pub(crate) real: RealConfig,
    /// When it was no longer in the answers. It drains by the monotonic clock, as the other may be
    /// set; the next daemon, maybe after a boot, knows the other alone.
    pub(crate) gone: Option<Moment>,
}

/// The reals of one VIP.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundReals {
    reals: Vec<FoundReal>,
    held: Option<Vec<RealConfig>>,
    error: Option<String>,
    last_ns: Option<u64>,
}

impl FoundReals {
    /// What a former daemon knew.
    pub(crate) fn kept(reals: Vec<FoundReal>) -> Self {
        Self {
            reals,
            ..Self::default()
        }
    }

    /// All of them.
    pub(crate) fn reals(&self) -> &[FoundReal] {
        &self.reals
    }

    /// As the configuration is to have them, beside `named`, which the file has.
    pub(crate) fn configs(&self, named: &[RealConfig]) -> Vec<RealConfig> {
        let is_named = |address: IpAddr| named.iter().any(|real| real.address == address);
        let found = self
            .reals
            .iter()
            .filter(|found| !is_named(found.real.address));
        found
            .map(|found| RealConfig {
                gone: found.gone.is_some(),
                ..found.real.clone()
            })
            .collect()
    }

    /// Reals that an answer that is held would take away.
    pub(crate) fn held(&self) -> Option<usize> {
        let held = self.held.as_ref()?;
        Some(self.taking().filter(|found| !takes(held, found)).count())
    }

    /// Why the last answer was none, or is not in force.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// When an answer was taken or held last, nanoseconds since 1970.
    pub(crate) fn last_ns(&self) -> Option<u64> {
        self.last_ns
    }

    fn present(&self) -> impl Iterator<Item = &FoundReal> {
        self.reals.iter().filter(|found| found.gone.is_none())
    }

    /// Those that take connections.
    fn taking(&self) -> impl Iterator<Item = &FoundReal> {
        self.present().filter(|found| configured(&found.real) > 0.0)
    }

    /// Takes an answer at `now`, for a VIP that has `named` reals in the file; whether reals
    /// have changed by it. A failure changes none.
    pub(crate) fn handle_answer(
        &mut self,
        now: Moment,
        answer: Result<Vec<RealConfig>, String>,
        rules: &Discover,
        named: usize,
    ) -> bool {
        let most = rules.max_reals;
        let answer = answer.and_then(|reals| match reals.len() <= most {
            true => Ok(reals),
            false => Err(format!(
                "the answer has {} reals, more than max_reals = {most}",
                reals.len()
            )),
        });
        let reals = match answer {
            Ok(reals) => reals,
            Err(error) => {
                self.error = Some(error);
                return false;
            }
        };
        (self.error, self.last_ns) = (None, Some(now.realtime_ns));
        // A real without a weight is as good as none.
        let taking = self.taking().count();
        let removed = self.taking().filter(|found| !takes(&reals, found)).count();
        if removed as f64 > rules.max_removed * (taking + named) as f64 {
            self.held = Some(reals);
            return false;
        }
        self.take(now, reals)
    }

    /// Takes the answer that is held; `None` if none is.
    pub(crate) fn accept(&mut self, now: Moment) -> Option<bool> {
        let held = self.held.take()?;
        Some(self.take(now, held))
    }

    /// Notes why the last answer, a good one, is not in force.
    pub(crate) fn refuse(&mut self, error: String) {
        self.error = Some(error);
    }

    fn take(&mut self, now: Moment, reals: Vec<RealConfig>) -> bool {
        let before = self.reals.clone();
        self.held = None;
        for found in &mut self.reals {
            if !has(&reals, found) {
                found.gone.get_or_insert(now);
            }
        }
        for real in reals {
            let known = |found: &&mut FoundReal| found.real.address == real.address;
            match self.reals.iter_mut().find(known) {
                Some(found) => {
                    *found = FoundReal { real, gone: None };
                }
                None => self.reals.push(FoundReal { real, gone: None }),
            }
        }
        self.reals != before
    }

    /// Lets reals go whose time is over at `now_ns`, CLOCK_MONOTONIC; whether there were some.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64, rules: &Discover) -> bool {
        let before = self.reals.len();
        let drain_ns = u64::try_from(rules.drain.as_nanos()).unwrap_or(u64::MAX);
        self.reals.retain(|found| {
            let over = |gone: Moment| now_ns.saturating_sub(gone.monotonic_ns) >= drain_ns;
            !found.gone.is_some_and(over)
        });
        self.reals.len() != before
    }
}

fn has(reals: &[RealConfig], found: &FoundReal) -> bool {
    reals.iter().any(|real| real.address == found.real.address)
}

/// Whether it has the real, and lets it take connections.
fn takes(reals: &[RealConfig], found: &FoundReal) -> bool {
    let is_it = |real: &&RealConfig| real.address == found.real.address;
    reals
        .iter()
        .find(is_it)
        .is_some_and(|real| configured(real) > 0.0)
}
