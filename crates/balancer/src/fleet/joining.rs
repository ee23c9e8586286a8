// SPDX-License-Identifier: Apache-2.0
//! Tokens by which agents of new servers join: made by an operator, claimed for who shows them,
//! forgotten once they have expired.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;

use causeway_api::Moment;
use causeway_api::fleet::{FleetTokenOrder, FleetTokenView};
use causeway_core::agent_report::JoinTicket;
use causeway_core::fleet::{FleetBook, FleetEvent, JoinToken};

use super::{Fleet, HasEngine};
use crate::engine::EngineError;
use crate::joins::keys_text;

/// Longest text of a keys file that fits into a datagram.
const TEXT_MAX: usize = 1_100;
/// Shortest and longest life of a token.
const LIVES_S: std::ops::RangeInclusive<u64> = 60..=604_800;
/// How long a token is told of after its end, so that late agents learn that it has expired.
const TOLD_S: u64 = 3600;
/// How often a token is proposed again, if the book has changed meanwhile.
const TRIES: usize = 5;

impl Fleet {
    /// Makes a token for the agent of a server; gives its text, which is a secret.
    pub(crate) fn token(
        &mut self,
        engines: &impl HasEngine,
        order: &FleetTokenOrder,
        now: Moment,
    ) -> Result<String, EngineError> {
        let refused = |why: &str| EngineError::Conflict(why.to_owned());
        if order.servers.is_empty() || !LIVES_S.contains(&order.lifetime_s) {
            return Err(EngineError::Invalid(
                "a token is for the addresses of one server, and lasts from a minute to a week"
                    .to_owned(),
            ));
        }
        let keys = {
            let engine = engines.engine();
            let file = engine.file.cookies.as_ref();
            let reports = engine.file.agent_reports.as_ref();
            let (Some(file), Some(reports)) = (file, reports) else {
                return Err(refused(
                    "an agent that joins needs keys of cookies and a balancer to report to; give this balancer's file [cookie] and [agent_reports]",
                ));
            };
            if keys_text(&file.keys, &reports.keys, &order.servers).len() > TEXT_MAX {
                return Err(EngineError::Invalid(
                    "these are too many addresses for one server; name those that balancers know it by".to_owned(),
                ));
            }
            reports.keys.clone()
        };
        if self.member.book().is_none() {
            return Err(refused(
                "this balancer has no book of the fleet; `causeway fleet status` says why",
            ));
        }
        let id = RandomState::new().hash_one(now.monotonic_ns);
        let token = JoinToken {
            servers: order.servers.iter().copied().collect::<BTreeSet<IpAddr>>(),
            epoch: keys.current.index() as u8,
            until_s: now.realtime_ns / 1_000_000_000 + order.lifetime_s,
            used_by: None,
        };
        let ticket = JoinTicket::new(&keys, id, &token);
        let ticket = ticket.ok_or_else(|| {
            refused("this balancer has no secret of all servers' reports; give it the balancers' keys file")
        })?;
        for _ in 0..TRIES {
            let actions = self.member.handle(FleetEvent::Token(id, token.clone()));
            self.perform(engines, actions)
                .map_err(EngineError::Conflict)?;
            let book = self.member.book();
            if book.is_some_and(|book| book.tokens.contains_key(&id)) {
                self.show(engines);
                return Ok(ticket.to_string());
            }
            self.round(engines, now.monotonic_ns);
        }
        Err(refused(
            "the store has not taken the token; `causeway fleet status` says why, try again then",
        ))
    }

    /// What is to be changed about tokens: what agents have shown, and what has expired.
    pub(super) fn token_events(
        &self,
        book: &FleetBook,
        engines: &impl HasEngine,
    ) -> Vec<FleetEvent> {
        let engine = engines.engine();
        let now_s = engine.last_tick().map_or(0, |tick| tick.realtime_ns) / 1_000_000_000;
        let claims = engine.reports().claims().into_iter();
        let claims = claims.map(|(id, by)| FleetEvent::Claim(id, by));
        let over = book.tokens.iter();
        let over = over.filter(|(_, token)| now_s >= token.until_s.saturating_add(TOLD_S));
        claims
            .chain(over.map(|(id, _)| FleetEvent::TokenOver(*id)))
            .collect()
    }
}

/// Tokens, for people.
pub(super) fn tokens(book: &FleetBook) -> Vec<FleetTokenView> {
    let view = |token: &JoinToken| FleetTokenView {
        servers: token.servers.iter().map(IpAddr::to_string).collect(),
        until_s: token.until_s,
        is_used: token.used_by.is_some(),
    };
    book.tokens.values().map(view).collect()
}
