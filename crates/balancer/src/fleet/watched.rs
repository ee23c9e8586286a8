// SPDX-License-Identifier: Apache-2.0
//! What a member watches until it has been so for long enough: members that are absent, and ids
//! and keys that rest.

use std::collections::BTreeMap;

use causeway_core::control::merge::BalancerId;
use causeway_core::fleet::{Absence, FleetBook, FleetEvent, FleetRest, LeaseTerms, Position};

use super::reading::Reading;

/// Since when what is watched has been seen, by this machine's clock.
#[derive(Debug)]
pub(super) struct Watched {
    terms: LeaseTerms,
    /// Members whose leases have ended.
    absent: BTreeMap<(BalancerId, Position), u64>,
    rests: BTreeMap<FleetRest, u64>,
}

impl Watched {
    /// With nothing to watch yet.
    pub(super) fn new(terms: LeaseTerms) -> Self {
        Self {
            terms,
            absent: BTreeMap::new(),
            rests: BTreeMap::new(),
        }
    }

    /// Sees who is absent; what the rules are to hear of members that get no packets any more.
    pub(super) fn see_members(
        &mut self,
        own: BalancerId,
        book: &FleetBook,
        read: &Reading,
        now_ns: u64,
    ) -> Vec<FleetEvent> {
        let mut absent = BTreeMap::new();
        let mut events = Vec::new();
        for (id, record) in book.members.iter().filter(|(id, _)| **id != own) {
            let of = (*id, record.since);
            if book.absence == Absence::StepsAside && !read.alive.contains(id) {
                let seen_ns = self.absent.get(&of).copied().unwrap_or(now_ns);
                absent.insert(of, seen_ns);
            }
            let is_over = absent.get(&of);
            let is_over = is_over.is_some_and(|seen| now_ns >= self.terms.gone_from(*seen));
            if read.has_left(*id, record.since) || is_over {
                let (member, since) = of;
                events.push(FleetEvent::Gone { member, since });
            }
        }
        self.absent = absent;
        events
    }

    /// Sees what rests, and whether each is over; what the rules are to hear of that which has
    /// rested for `rest_ns` and, as `may_end` says, may end.
    pub(super) fn see_rests(
        &mut self,
        rests: &BTreeMap<FleetRest, bool>,
        rest_ns: u64,
        may_end: impl Fn(&FleetRest) -> bool,
        now_ns: u64,
    ) -> Vec<FleetEvent> {
        self.rests.retain(|rest, _| rests.contains_key(rest));
        let mut events = Vec::new();
        for (what, over) in rests {
            let since_ns = *self.rests.entry(what.clone()).or_insert(now_ns);
            let is_long = now_ns >= self.terms.rested_from(since_ns, rest_ns);
            if !over && may_end(what) && is_long {
                events.push(FleetEvent::Rested(what.clone()));
            }
        }
        events
    }
}
