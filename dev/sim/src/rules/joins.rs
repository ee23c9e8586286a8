// SPDX-License-Identifier: Apache-2.0
//! Two agents that show one token, each to any balancer: one of them may get it.

use std::sync::Arc;

use causeway_core::fleet::{FleetBook, FleetEvent, FleetMember, JoinKey, JoinToken, TokenId};

use super::world::{NEW_REAL, RulesStep, RulesWorld, step};
use super::{FleetRules, Planted};

/// The one that an operator makes.
pub(super) const TOKEN: TokenId = 1;

/// The agents that have it: that of the server, and a thief.
const SHOWN_BY: [JoinKey; 2] = [[1; 32], [2; 32]];

pub(super) fn token() -> JoinToken {
    JoinToken {
        servers: [NEW_REAL].into(),
        epoch: 0,
        until_s: 0,
        used_by: None,
    }
}

impl RulesWorld {
    /// What agents do that join, and what a balancer answers.
    pub(super) fn join_moves(
        &self,
        rules: &FleetRules,
        at: usize,
        put: &mut impl FnMut(RulesStep, Self),
    ) {
        let member = &self.members[at];
        let plane = member.plane.as_ref().filter(|_| member.daemon.is_some());
        let token = plane.and_then(|plane| plane.tokens.get(&TOKEN));
        let Some(used_by) = token.map(|token| token.used_by) else {
            return;
        };
        for (which, by) in SHOWN_BY.into_iter().enumerate() {
            let bit = 1 << which;
            let early = used_by.is_none() && rules.planted == Planted::AnswersBeforeTheStore;
            if (used_by == Some(by) || early) && self.given & bit == 0 {
                let mut next = self.clone();
                next.given |= bit;
                put(step(at, "gives an agent its secrets", None), next);
            }
            if used_by.is_none() && self.reaches(at) && member.is_idle() {
                let mut next = self.clone();
                let actions = next.tell(at, FleetEvent::Claim(TOKEN, by));
                next.act(rules, at, actions);
                put(step(at, "is shown the token", None), next);
            }
        }
    }

    /// A book that is put back has the tokens of who puts it back.
    pub(super) fn put_back_tokens(&self, at: usize, book: &mut Arc<FleetBook>) {
        let own = self.members[at].daemon.as_ref().and_then(FleetMember::book);
        if let Some(own) = own.filter(|own| own.position.generation < book.position.generation) {
            let mut with = FleetBook::clone(book);
            with.tokens.clone_from(&own.tokens);
            *book = Arc::new(with);
        }
    }
}
