// SPDX-License-Identifier: Apache-2.0
//! Progress: from any state, once everything is well again, all that is wanted comes to be.

use causeway_core::fleet::{FleetEvent, FleetMember, MayRemove};

use super::world::{RulesWorld, VIP};
use super::{Budget, FleetRules, IdPhase};
use crate::races::fingerprint;

/// Rounds in which every member does what there is to do; what needs more never ends.
const ROUNDS: usize = 64;

impl FleetRules {
    /// What does not come to be although everything is well again.
    pub(super) fn does_not_heal(&self, world: &RulesWorld) -> Option<&'static str> {
        let mut world = world.clone();
        world.make_well(self);
        let mut way = Vec::new();
        for _ in 0..ROUNDS {
            let before = fingerprint(&world);
            // What comes of this state has been seen.
            if self.healed.borrow().contains(&before) {
                break;
            }
            way.push(before);
            world.round(self);
            if let Some(wrong) = world.wrong(self) {
                return Some(wrong);
            }
            if fingerprint(&world) == before {
                if let Some(missing) = self.is_missing(&world) {
                    return Some(missing);
                }
                break;
            }
            if way.len() == ROUNDS {
                return Some("there is no end to changes");
            }
        }
        self.healed.borrow_mut().extend(way);
        None
    }

    fn is_missing(&self, world: &RulesWorld) -> Option<&'static str> {
        let (reals, key, cid) = self.wanted();
        let Some(book) = &world.store.book else {
            return Some("the store stays empty");
        };
        for member in &world.members {
            let follows = member.plane.as_ref().map(|plane| plane.position) == Some(book.position);
            if !follows || !member.in_service {
                return Some("a balancer does not come back into service");
            }
        }
        let mut ids: Vec<_> = book.of_vip(VIP).map(|(_, record)| record).collect();
        ids.sort_by_key(|record| record.real);
        let live = ids.iter().all(|record| record.phase == IdPhase::Live);
        if !live || ids.iter().map(|record| record.real).ne(reals) {
            return Some("a real does not come to be picked, or its id not to be forgotten");
        }
        if (book.keys.issued, book.keys.other) != (key, None) {
            return Some("a rotation of keys does not end");
        }
        let issued = book.cids.get(VIP).map(|own| own.phases);
        let settled = |cid| issued.is_some_and(|own| (own.issued, own.other) == (cid, None));
        if cid.is_some_and(|cid| !settled(cid)) {
            return Some("a change of configurations does not end");
        }
        None
    }
}

impl RulesWorld {
    fn make_well(&mut self, rules: &FleetRules) {
        self.budget = Budget::default();
        self.copy = None;
        self.store_is_up = true;
        for at in 0..self.members.len() {
            self.members[at].make_well(rules);
            if self.members[at].daemon.is_none() {
                self.start(rules, at);
            }
        }
    }

    fn round(&mut self, rules: &FleetRules) {
        self.operator(rules);
        for at in 0..self.members.len() {
            self.read(rules, at);
            self.arrive(rules, at);
            let evidence = self.members[at].daemon.as_ref().map(FleetMember::evidence);
            let rests = evidence.map(|evidence| evidence.rests.clone());
            for (rest, over) in rests.unwrap_or_default() {
                if !over {
                    self.rested(rules, at, &rest);
                }
            }
            self.open(rules);
        }
        self.agents_catch_up();
        self.open(rules);
    }

    /// Wants what is not in the book, and has a store that has lost it filled by the balancer that
    /// knows most, where none in service does that by itself.
    fn operator(&mut self, rules: &FleetRules) {
        let book_of = |world: &Self, at: usize| {
            let daemon = world.members[at].daemon.as_ref();
            daemon.and_then(FleetMember::book).cloned()
        };
        let has_more = |at: &usize| {
            let daemon = self.members[*at].daemon.as_ref();
            daemon.is_some_and(|daemon| daemon.has_lost(&self.store))
        };
        let have_more: Vec<usize> = (0..self.members.len()).filter(has_more).collect();
        if !have_more.is_empty() {
            if have_more.iter().any(|at| self.members[*at].in_service) {
                return;
            }
            let book_at = |at: &usize| book_of(self, *at).map(|book| book.position);
            if let Some(at) = have_more.into_iter().max_by_key(book_at) {
                let actions = self.tell(at, FleetEvent::PutBack(self.store.clone()));
                self.act(rules, at, actions);
                self.arrive(rules, at);
            }
            return;
        }
        for (which, wish) in rules.wishes.iter().enumerate() {
            let Some(book) = &self.store.book else { return };
            let push = rules.push(*wish, book, MayRemove::Confirmed);
            let push = push.filter(|_| rules.lacks(*wish, book));
            let at = (0..self.members.len()).find(|at| {
                let own = book_of(self, *at).map(|book| book.position);
                own == Some(book.position) && self.members[*at].in_service
            });
            if let (Some(at), Some(push)) = (at, push) {
                self.confirmed = true;
                self.push(rules, at, which, push);
                self.arrive(rules, at);
            }
        }
    }
}
