// SPDX-License-Identifier: Apache-2.0
//! Which changes of a book are due: what comes into use once all know it, what is forgotten once
//! no member uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::cids::move_cids;
use super::{
    Acknowledged, FleetBook, FleetVipReal, IdKey, IdPhase, IdRecord, KeyNumber, KeyPhases,
    MemberPhase, MemberRecord, Position,
};
use crate::control::merge::BalancerId;
use crate::cookie::ids::{self, KnownId, Wanted};

/// Something that rests before it is forgotten. It rests by the clock of one balancer that has
/// watched it all the time; a balancer that starts begins to watch again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FleetRest {
    /// An id whose real is picked no more, until no connection of the real sends a packet.
    Id {
        /// The id.
        id: IdKey,
        /// Where it began to rest.
        since: Position,
    },
    /// The former key, which no agent issues any more, until no connection has it.
    Key {
        /// Where it ceased to be issued.
        since: Position,
    },
    /// A VIP's former configuration of connection ids, likewise.
    Cid {
        /// The VIP.
        vip: Arc<str>,
        /// Where it ceased to be issued.
        since: Position,
    },
}

/// What a balancer knows that is in no store. It dies with the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FleetEvidence {
    /// Balancers that get no packets any more, with where they had come into service.
    pub gone: BTreeMap<BalancerId, Position>,
    /// What it watches, and whether that has rested for long enough.
    pub rests: BTreeMap<FleetRest, bool>,
}

impl FleetEvidence {
    /// Watches what has to rest in `book`, and nothing else.
    pub(super) fn watch(&mut self, book: &FleetBook, acks: &Acknowledged) {
        let mut rests = BTreeMap::new();
        for rest in due_to_rest(book, acks) {
            let over = self.rests.get(&rest).copied().unwrap_or(false);
            rests.insert(rest, over);
        }
        self.rests = rests;
        let still = |name: &BalancerId, since: &mut Position| {
            let record = book.members.get(name);
            record.is_some_and(|record| record.since == *since)
        };
        self.gone.retain(still);
    }
}

fn due_to_rest(book: &FleetBook, acks: &Acknowledged) -> Vec<FleetRest> {
    let resting = book.ids.iter();
    let resting = resting.filter(|(_, record)| record.phase == IdPhase::Resting);
    let mut rests: Vec<FleetRest> = resting
        .map(|(id, record)| FleetRest::Id {
            id: id.clone(),
            since: record.since,
        })
        .collect();
    let since = book.keys.since;
    let retiring = book.keys.other.is_some_and(|key| key < book.keys.issued);
    if retiring && acks.by_all(book, since) {
        rests.push(FleetRest::Key { since });
    }
    let cids = book.cids.iter();
    let retiring = cids.filter(|(vip, own)| own.is_retiring() && acks.of_cids(book, vip, own));
    rests.extend(retiring.map(|(vip, own)| FleetRest::Cid {
        vip: vip.clone(),
        since: own.phases.since,
    }));
    rests
}

/// Who changes the book.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changer {
    pub name: BalancerId,
    pub reads: u16,
    pub in_service: bool,
}

/// The book after all changes that are due, for one that has `book` in its data plane.
pub(super) fn advance(
    book: &FleetBook,
    changer: Changer,
    acks: &Acknowledged,
    evidence: &FleetEvidence,
) -> Option<FleetBook> {
    let mut next = book.clone();
    next.position = book.position.next();
    // By any member that knows it: a newcomer must not wait for ever for the last that served.
    pass_by(&mut next, changer, evidence);
    come_in(&mut next, changer, acks);
    let record = next.members.get(&changer.name);
    if record.is_some_and(|record| record.phase == MemberPhase::Serving) {
        raise_format(&mut next);
        move_ids(&mut next, acks, evidence);
        give_ids(&mut next);
        move_keys(&mut next, acks, evidence);
        move_cids(&mut next, acks, evidence);
    }
    let changed = FleetBook {
        position: book.position,
        ..next.clone()
    } != *book;
    changed.then_some(next)
}

/// Joins, then serves once all that serve know it, so that a member that puts a lost book back names
/// it. One that was out of service comes back by a change, too: that it knows the newest book is
/// certain then, and what others have seen of its absence counts no more.
fn come_in(book: &mut FleetBook, changer: Changer, acks: &Acknowledged) {
    let since = book.position;
    let phase = match book.members.get(&changer.name) {
        None => MemberPhase::Joining,
        Some(record) if record.phase == MemberPhase::Joining => {
            match acks.by_members(book, record.since) {
                true => MemberPhase::Serving,
                false => return,
            }
        }
        Some(record) if changer.in_service && record.reads == changer.reads => return,
        Some(_) => MemberPhase::Serving,
    };
    let reads = changer.reads;
    let record = MemberRecord {
        phase,
        since,
        reads,
    };
    book.members.insert(changer.name, record);
}

fn pass_by(book: &mut FleetBook, changer: Changer, evidence: &FleetEvidence) {
    book.members.retain(|name, record| {
        *name == changer.name || evidence.gone.get(name) != Some(&record.since)
    });
}

fn raise_format(book: &mut FleetBook) {
    let read_by_all = book.members.values().map(|record| record.reads).min();
    book.format = book.format.max(read_by_all.unwrap_or(book.format));
}

fn move_ids(book: &mut FleetBook, acks: &Acknowledged, evidence: &FleetEvidence) {
    let position = book.position;
    let mut ids = std::mem::take(&mut book.ids);
    let mut forgotten = Vec::new();
    ids.retain(|(vip, id), record| {
        let since = record.since;
        let wanted = book
            .vips
            .get(vip)
            .and_then(|vip| vip.reals.get(&record.real));
        // Whether there is an agent to wait for is an operator's word, true from now on.
        record.agent = wanted.map_or(record.agent, |wanted| wanted.agent);
        let wanted = wanted.is_some();
        let known = || acks.by_members(book, since);
        let agent_knows = || {
            let cids = book.cids.get(vip).map(|own| own.phases.since);
            let since = cids.map_or(since, |cids| cids.max(since));
            acks.by_agent(record.real, since)
        };
        let phase = match record.phase {
            IdPhase::Known | IdPhase::Live if !wanted => IdPhase::Leaving,
            IdPhase::Leaving | IdPhase::Resting if wanted => IdPhase::Known,
            IdPhase::Known
                if known() && book.issues_cids(vip) && (!record.agent || agent_knows()) =>
            {
                IdPhase::Live
            }
            IdPhase::Leaving if known() => IdPhase::Resting,
            IdPhase::Resting => {
                let id = (vip.clone(), *id);
                let over = evidence.rests.get(&FleetRest::Id { id, since }) == Some(&true);
                if over {
                    forgotten.push((vip.clone(), record.real));
                }
                return !over;
            }
            _ => return true,
        };
        record.phase = phase;
        record.since = position;
        true
    });
    book.ids = ids;
    // What was set by hand since the real was removed.
    for real in forgotten {
        book.by_hand.remove(&real);
    }
}

/// Ids for reals that have none. A real for which there is none waits until one has rested.
fn give_ids(book: &mut FleetBook) {
    let since = book.position;
    for (name, vip) in &book.vips {
        let held = |ids: &BTreeMap<IdKey, IdRecord>| -> Vec<KnownId> {
            let of_vip = ids.iter().filter(|((of, _), _)| of == name);
            of_vip
                .map(|((_, id), record)| KnownId {
                    id: *id,
                    address: record.real,
                    // What rests here rests until it is in the book no more.
                    freed_s: None,
                })
                .collect()
        };
        let has: BTreeSet<IpAddr> = held(&book.ids).iter().map(|held| held.address).collect();
        let without = vip.reals.iter().filter(|(real, _)| !has.contains(real));
        for (real, FleetVipReal { id, agent }) in without {
            let wanted = Wanted {
                address: *real,
                id: *id,
            };
            let Ok(given) = ids::assign(&[wanted], &held(&book.ids), vip.ids, 0, 0) else {
                continue;
            };
            for id in given {
                let record = IdRecord {
                    real: *real,
                    phase: IdPhase::Known,
                    since,
                    agent: *agent,
                };
                book.ids.insert((Arc::clone(name), id), record);
            }
        }
    }
}

/// Keys go forward only, each step once all have come to the one before.
fn move_keys(book: &mut FleetBook, acks: &Acknowledged, evidence: &FleetEvidence) {
    let since = book.keys.since;
    if !acks.by_all(book, since) {
        return;
    }
    let rested = evidence.rests.get(&FleetRest::Key { since }) == Some(&true);
    let wants_next = book.wanted_key > book.keys.issued;
    if let Some((issued, other)) = forward(book.keys, wants_next, rested) {
        book.keys = KeyPhases {
            issued,
            other,
            since: book.position,
        };
    }
}

/// The next step of keys that all have come to: what is issued then, and what is accepted beside it.
pub(super) fn forward(
    keys: KeyPhases,
    wants_next: bool,
    rested: bool,
) -> Option<(KeyNumber, Option<KeyNumber>)> {
    let issued = keys.issued;
    match keys.other {
        None => wants_next.then_some((issued, Some(issued + 1))),
        Some(next) if next > issued => Some((next, Some(issued))),
        Some(_) => rested.then_some((issued, None)),
    }
}
