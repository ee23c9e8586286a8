// SPDX-License-Identifier: Apache-2.0
//! Changes of what a fleet is to have: which take so much away that an operator has to confirm
//! them, and the past ones, each with what undoes it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{CidForm, FleetBook, FleetVip, FleetVipReal};
use crate::control::merge::BalancerId;

/// How many of them it keeps.
const HISTORY_MAX: usize = 32;
/// How many reals they may have together, so that a book fits into a store: the older ones go. The
/// last is kept, whatever its size.
const HISTORY_REALS_MAX: usize = 4096;

/// VIPs as they are to be, by name; `None`: not to be. Others stay as they are.
pub type ChangedVips = BTreeMap<Arc<str>, Option<FleetVip>>;

/// What a change may take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MayRemove {
    /// This part of the reals of each VIP, in thousandths, and no VIP whose reals get connections.
    /// With 1000: anything.
    Part(u16),
    /// Anything: an operator has seen what it takes away.
    Confirmed,
}

/// What a change takes away from a VIP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Removal {
    /// The VIP.
    pub vip: Arc<str>,
    /// Whether it goes as a whole.
    pub whole: bool,
    /// Reals that go, without those that an operator has drained by hand.
    pub reals: BTreeSet<IpAddr>,
    /// Of how many.
    pub of: usize,
}

impl Removal {
    fn is_more_than(&self, thousandths: u16) -> bool {
        let part = usize::from(thousandths);
        match self.whole {
            true => part < 1000 && self.of > 0,
            false => self.reals.len() * 1000 > self.of * part,
        }
    }
}

/// What an operator wants of a fleet, by a file or by an order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FleetChange {
    /// What changes.
    pub vips: ChangedVips,
    /// What it may take away; one that takes away more is held as a whole.
    pub may_remove: MayRemove,
    /// When it is proposed, by the clock of the balancer that does: seconds since 1970.
    pub at_s: u64,
    /// The revision that it puts back, if any.
    pub back_to: Option<u64>,
}

/// A change that has come to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PastChange {
    /// That of the book that came of it.
    pub revision: u64,
    /// Who proposed it.
    pub by: BalancerId,
    /// When, by the clock of that balancer: seconds since 1970.
    pub at_s: u64,
    /// The revision that it put back, if any.
    pub back_to: Option<u64>,
    /// What was otherwise before. The oldest that is kept has none of it.
    pub before: BTreeMap<Arc<str>, PastVip>,
}

impl PastChange {
    fn reals(&self) -> usize {
        self.before.values().map(|past| past.reals.len()).sum()
    }
}

/// A VIP before a change, as far as that changed it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PastVip {
    /// How many ids it had, and the configuration of connection ids it was to come to; `None`:
    /// there was no such VIP.
    pub was: Option<(u16, Option<CidForm>)>,
    /// Its reals that became others; `None`: it did not have that one.
    pub reals: BTreeMap<IpAddr, Option<FleetVipReal>>,
}

impl PastVip {
    fn of(before: Option<&FleetVip>, after: Option<&FleetVip>) -> Self {
        let real = |of: Option<&FleetVip>, address: &IpAddr| {
            of.and_then(|vip| vip.reals.get(address)).copied()
        };
        let all = before.into_iter().chain(after);
        let all = all.flat_map(|vip| vip.reals.keys());
        let others = all.filter(|address| real(before, address) != real(after, address));
        Self {
            was: before.map(|vip| (vip.ids, vip.cid)),
            reals: others
                .map(|address| (*address, real(before, address)))
                .collect(),
        }
    }

    /// What the VIP was, from what it became. One that is there keeps its ids and configurations:
    /// those go forward only.
    fn undo(&self, after: Option<&FleetVip>) -> Option<FleetVip> {
        let (ids, cid) = self.was?;
        let mut vip = after.cloned().unwrap_or(FleetVip {
            ids,
            cid,
            ..FleetVip::default()
        });
        for (address, real) in &self.reals {
            match real {
                Some(real) => drop(vip.reals.insert(*address, *real)),
                None => drop(vip.reals.remove(address)),
            }
        }
        Some(vip)
    }
}

impl FleetBook {
    /// What it has to change to have these VIPs, and no others.
    pub fn change_to(&self, vips: &BTreeMap<Arc<str>, FleetVip>) -> ChangedVips {
        let names: BTreeSet<&Arc<str>> = self.vips.keys().chain(vips.keys()).collect();
        names
            .into_iter()
            .filter(|name| self.vips.get(*name) != vips.get(*name))
            .map(|name| (Arc::clone(name), vips.get(name).cloned()))
            .collect()
    }

    /// What of a change an operator has to confirm.
    ///
    /// It is weighed against the book that it changes, so that of two changes that take away a
    /// part each, from two files, the second is weighed against what the first has left.
    pub fn removals(&self, change: &ChangedVips, may_remove: MayRemove) -> Vec<Removal> {
        let MayRemove::Part(thousandths) = may_remove else {
            return Vec::new();
        };
        let removal = |(name, next): (&Arc<str>, &Option<FleetVip>)| {
            let counts = |real: &&IpAddr| !self.is_drained(name, **real);
            let reals: Vec<&IpAddr> = self.vips.get(name)?.reals.keys().filter(counts).collect();
            let stays = |real: &IpAddr| {
                let next = next.as_ref();
                next.is_some_and(|next| next.reals.contains_key(real))
            };
            Some(Removal {
                vip: Arc::clone(name),
                whole: next.is_none(),
                of: reals.len(),
                reals: reals
                    .into_iter()
                    .filter(|real| !stays(real))
                    .copied()
                    .collect(),
            })
        };
        change
            .iter()
            .filter_map(removal)
            .filter(|removal| removal.is_more_than(thousandths))
            .collect()
    }

    /// Takes a change that was not held.
    pub(super) fn take_change(&mut self, change: FleetChange, by: BalancerId) {
        let mut before = BTreeMap::new();
        for (name, next) in change.vips {
            let former = match next.clone() {
                Some(next) => self.vips.insert(Arc::clone(&name), next),
                None => self.vips.remove(&name),
            };
            if former == next {
                continue;
            }
            let past = PastVip::of(former.as_ref(), next.as_ref());
            let stays = |real: &IpAddr| {
                let next = next.as_ref();
                next.is_some_and(|next| next.reals.contains_key(real))
            };
            let gone = past.reals.keys().filter(|real| !stays(real));
            for real in gone {
                self.by_hand.remove(&(Arc::clone(&name), *real));
            }
            before.insert(name, past);
        }
        if before.is_empty() {
            return;
        }
        let past = PastChange {
            revision: self.position.revision + 1,
            by,
            at_s: change.at_s,
            back_to: change.back_to,
            before,
        };
        if self.history.is_empty() {
            self.history.push(PastChange {
                revision: self.position.revision,
                back_to: None,
                before: BTreeMap::new(),
                ..past
            });
        }
        self.history.push(past);
        let mut reals: usize = self.history.iter().map(PastChange::reals).sum();
        while self.history.len() > HISTORY_MAX
            || (reals > HISTORY_REALS_MAX && self.history.len() > 2)
        {
            reals -= self.history.remove(0).reals();
        }
        if let Some(oldest) = self.history.first_mut() {
            oldest.before.clear();
        }
    }

    /// The past changes, newest first, each with the VIPs before and after it.
    pub fn past_changes(&self) -> Vec<PastStep<'_>> {
        let mut after = self.vips.clone();
        let steps = self.history.iter().rev().map(|change| {
            let mut before = after.clone();
            for (name, past) in &change.before {
                match past.undo(before.get(name)) {
                    Some(vip) => drop(before.insert(Arc::clone(name), vip)),
                    None => drop(before.remove(name)),
                }
            }
            let after = std::mem::replace(&mut after, before.clone());
            PastStep {
                change,
                before,
                after,
            }
        });
        steps.collect()
    }
}

/// A past change, and what it made of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastStep<'a> {
    /// The change.
    pub change: &'a PastChange,
    /// The VIPs before it; of the oldest that is kept this is not known, and the same as after.
    pub before: BTreeMap<Arc<str>, FleetVip>,
    /// The VIPs after it.
    pub after: BTreeMap<Arc<str>, FleetVip>,
}
