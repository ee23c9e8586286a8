// SPDX-License-Identifier: Apache-2.0
//! Every connection that there can be: what it carries, when it has ended, and what must never
//! become of it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use causeway_core::fleet::{
    CIDS_OF_FILES, CidForm, FleetAgent, FleetBook, FleetEvent, FleetMember, FleetRest, KeyNumber,
};

use super::world::{RulesWorld, VIP, is_anew};
use super::{FleetRules, Planted, QuicBegins};

/// All that have been opened and may live.
#[derive(Clone, Default, Hash)]
pub(super) struct Connections {
    cookies: BTreeMap<Cookie, Fresh>,
    /// Connections without cookies: by whose flow table they are on which real.
    plain: BTreeMap<(usize, IpAddr), u8>,
    /// A pick whose connection gets no cookie.
    without_cookie: bool,
}

/// What a connection carries: a cookie, or a connection id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Cookie {
    id: u16,
    /// A key of cookies, or a configuration of connection ids.
    key: KeyNumber,
    real: IpAddr,
}

/// Bits of the balancers who watched the id, or the key, rest when a connection was opened: it
/// may live on when the time of those is over. All older ones have ended by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Fresh {
    id: u8,
    key: u8,
}

impl Connections {
    /// Those that a flow table alone knew, which is lost.
    pub(super) fn forget_table(&mut self, at: usize) {
        self.plain.retain(|(of, _), _| *of != at);
    }
}

impl FleetRules {
    /// What a connection to a server carries; `None`: nothing.
    fn cookie(&self, agent: &FleetAgent) -> Option<(u16, KeyNumber)> {
        match self.quic {
            QuicBegins::Never => agent.cookie(VIP),
            _ => {
                let id = *agent.book()?.ids.get(VIP)?;
                Some((id, agent.issued_cid(VIP).unwrap_or(CIDS_OF_FILES)))
            }
        }
    }

    /// Why a data plane cannot read what a connection carries, if it cannot.
    fn unread(&self, plane: &FleetBook, key: KeyNumber) -> Option<&'static str> {
        if self.quic == QuicBegins::Never {
            let unknown = !plane.keys.accepts(key);
            return unknown.then_some("a packet is dropped for an unknown key");
        }
        let Some(own) = plane.cids.get(VIP) else {
            // It goes by its file, which has what the first book has.
            let of_file = key <= CIDS_OF_FILES + 1;
            return (!of_file).then_some(UNKNOWN_CID);
        };
        if key == CIDS_OF_FILES {
            return (!own.accepts_files()).then_some(UNKNOWN_CID);
        }
        // An id says which one it is of by a number of three bits alone.
        let form = self.cid(key);
        let has =
            |other: &&CidForm| other.number == form.number || self.planted == Planted::NumberInUse;
        match own.forms.values().find(has) {
            Some(other) if *other == form => None,
            Some(_) => Some("a connection id is read by another configuration"),
            None => Some(UNKNOWN_CID),
        }
    }
}

const UNKNOWN_CID: &str = "a packet is dropped for an unknown configuration";

impl RulesWorld {
    /// A time of rest is over for who watched it: connections from before have ended.
    pub(super) fn rested(&mut self, rules: &FleetRules, at: usize, rest: &FleetRest) {
        if rules.planted == Planted::DoesNotRest {
            self.tell(at, FleetEvent::Rested(rest.clone()));
            return;
        }
        let bit = 1 << at;
        let book = self.members[at].daemon.as_ref().and_then(FleetMember::book);
        let Some(book) = book.cloned() else { return };
        let Connections { cookies, plain, .. } = &mut self.connections;
        let mut end_former = |issued: KeyNumber| {
            cookies.retain(|cookie, fresh| cookie.key >= issued || fresh.key & bit != 0);
        };
        match rest {
            FleetRest::Id { id, .. } => {
                let real = book.ids.get(id).map(|record| record.real);
                cookies.retain(|cookie, fresh| {
                    cookie.id != id.1 || Some(cookie.real) != real || fresh.id & bit != 0
                });
                if rules.planted != Planted::RestsForCookiesAlone {
                    plain.retain(|(_, of), fresh| Some(*of) != real || *fresh & bit != 0);
                }
            }
            FleetRest::Key { .. } => end_former(book.keys.issued),
            FleetRest::Cid { .. } => {
                if let Some(own) = book.cids.get(VIP) {
                    end_former(own.phases.issued);
                }
            }
        }
        self.tell(at, FleetEvent::Rested(rest.clone()));
    }

    /// Opens every connection that can be opened. More connections can only show more, and those
    /// that can end do so where it matters, in [`rested`](Self::rested).
    pub(super) fn open(&mut self, rules: &FleetRules) {
        let watches = |of_ids: bool| {
            let mut bits = 0_u8;
            for (at, member) in self.members.iter().enumerate() {
                let rests = member
                    .daemon
                    .iter()
                    .flat_map(|it| it.evidence().rests.keys());
                let watched = |rest: &FleetRest| matches!(rest, FleetRest::Id { .. }) == of_ids;
                bits |= u8::from(rests.into_iter().any(watched)) << at;
            }
            bits
        };
        let (of_ids, of_keys) = (watches(true), watches(false));
        let Connections {
            cookies,
            plain,
            without_cookie,
        } = &mut self.connections;
        for fresh in cookies.values_mut() {
            fresh.id &= of_ids;
            fresh.key &= of_keys;
        }
        plain.values_mut().for_each(|fresh| *fresh &= of_ids);
        for (at, member) in self.members.iter().enumerate() {
            let Some(plane) = member.plane.as_ref().filter(|_| member.serves()) else {
                continue;
            };
            for (_, real) in plane.picks(VIP) {
                if rules.plain {
                    *plain.entry((at, real)).or_default() |= of_ids;
                }
                let agent = self.agents.iter().find(|agent| agent.real() == real);
                let Some((id, key)) = agent.and_then(|agent| rules.cookie(agent)) else {
                    *without_cookie = true;
                    continue;
                };
                let fresh = cookies.entry(Cookie { id, key, real }).or_default();
                fresh.id |= of_ids;
                fresh.key |= of_keys;
            }
        }
    }

    /// What must never be.
    pub(super) fn wrong(&self, rules: &FleetRules) -> Option<&'static str> {
        let Connections {
            cookies,
            plain,
            without_cookie,
        } = &self.connections;
        if self.given.count_ones() > 1 {
            return Some("a token is given to two");
        }
        if *without_cookie {
            return Some("a connection gets no cookie");
        }
        if let Some(book) = self.store.book.as_ref().filter(|book| !is_anew(book)) {
            let vip = book.vips.get(VIP);
            if !self.confirmed && vip.is_none_or(|vip| vip.reals.is_empty()) {
                return Some("the last real goes, and nobody has confirmed it");
            }
            let another = |cookie: &Cookie| {
                let real = book.route(VIP, cookie.id);
                real.is_some_and(|real| real != cookie.real)
            };
            if cookies.keys().any(another) {
                return Some("an id is given to another real while cookies live");
            }
        }
        for (at, member) in self.members.iter().enumerate() {
            if !member.serves() {
                continue;
            }
            let Some(plane) = &member.plane else {
                return Some("a balancer without a book is in service");
            };
            for cookie in cookies.keys() {
                if let Some(wrong) = rules.unread(plane, cookie.key) {
                    return Some(wrong);
                }
                match plane.route(VIP, cookie.id) {
                    Some(real) if real != cookie.real => {
                        return Some("a packet goes to another server");
                    }
                    None => return Some("a packet is dropped for an unknown id"),
                    Some(_) => {}
                }
            }
            let routed = |real: IpAddr| plane.of_vip(VIP).any(|(_, record)| record.real == real);
            let mut plain = plain.keys().filter(|(of, _)| *of == at);
            if plain.any(|(_, real)| !routed(*real)) {
                return Some("a real is forgotten under a connection without a cookie");
            }
        }
        None
    }
}
