// SPDX-License-Identifier: Apache-2.0
//! The state of a fleet, for people.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use causeway_api::fleet::{
    FleetAgentView, FleetCidView, FleetIdView, FleetMemberView, FleetPosition, FleetView, FleetWait,
};
use causeway_core::fleet::{Absence, CidPhases, FleetBook, IdPhase, MemberPhase, Position};

use super::Fleet;
use super::following::phase_word;
use super::joining::tokens;
use super::pushing::removals;

/// The state of a member that an operator has had leave.
pub(super) const LEFT: &str = "left";

pub(super) fn position(of: Position) -> FleetPosition {
    FleetPosition {
        generation: of.generation.count,
        revision: of.revision,
    }
}

fn id_word(phase: IdPhase) -> &'static str {
    match phase {
        IdPhase::Known => "known",
        IdPhase::Live => "live",
        IdPhase::Leaving => "leaving",
        IdPhase::Resting => "resting",
    }
}

impl Fleet {
    /// Its state, by the last good book and the last reading of the store.
    pub(super) fn view(&self) -> FleetView {
        let view = FleetView {
            fleet: self.config.name.clone(),
            member: self.config.member.clone(),
            store: self.config.store.to_string(),
            store_error: self.faults.store.clone(),
            hold: self.faults.hold.clone(),
            state: match self.kept.left {
                true => LEFT.to_owned(),
                false => "new".to_owned(),
            },
            in_service: self.member.in_service(),
            ..FleetView::default()
        };
        let Some(book) = self.member.book() else {
            return view;
        };
        let own = book.members.get(&self.id).filter(|_| !self.kept.left);
        FleetView {
            state: own.map_or(view.state, |own| phase_word(own.phase).to_owned()),
            book: Some(position(book.position)),
            applied: self.member.follows().map(position),
            absence: match book.absence {
                Absence::Waits => "waits".to_owned(),
                Absence::StepsAside => "steps-aside".to_owned(),
            },
            key_issued: book.keys.issued,
            key_other: book.keys.other,
            members: self.members(book),
            agents: self.agents(book),
            ids: ids(book),
            quic_cids: quic_cids(book),
            tokens: tokens(book),
            waiting: self.waiting(book),
            held: removals(&self.held),
            history: self.revisions(book),
            ..view
        }
    }

    fn members(&self, book: &FleetBook) -> Vec<FleetMemberView> {
        let member = |(id, record): (&u64, &causeway_core::fleet::MemberRecord)| FleetMemberView {
            name: self.read.name_of(*id),
            phase: phase_word(record.phase).to_owned(),
            alive: self.read.alive.contains(id),
            acknowledged: self.read.acks.members.get(id).copied().map(position),
        };
        let mut members: Vec<_> = book.members.iter().map(member).collect();
        members.sort_by(|one, other| one.name.cmp(&other.name));
        members
    }

    /// The servers whose agents are waited for, or get the book unasked.
    fn agents(&self, book: &FleetBook) -> Vec<FleetAgentView> {
        let mut servers = book.agents();
        servers.extend(self.read.acks.agents.keys());
        let agent = |server| FleetAgentView {
            server: format!("{server}"),
            acknowledged: self.read.acks.agents.get(&server).copied().map(position),
        };
        servers.into_iter().map(agent).collect()
    }

    /// What is to happen, and who has not come to what it follows.
    fn waiting(&self, book: &FleetBook) -> Vec<FleetWait> {
        let mut waiting = Vec::new();
        let mut waits = |what: String, since: Position, agents: &BTreeSet<IpAddr>| {
            let (members, missing) = self.read.acks.missing(book, since);
            let members = members
                .into_iter()
                .map(|id| self.read.name_of(id))
                .collect();
            let missing = missing.iter().filter(|server| agents.contains(*server));
            let agents = missing.map(IpAddr::to_string).collect();
            waiting.push(FleetWait {
                what,
                members,
                agents,
            });
        };
        let none = BTreeSet::new();
        for (id, record) in &book.members {
            if record.phase == MemberPhase::Joining {
                waits(
                    format!("{} comes into service", self.read.name_of(*id)),
                    record.since,
                    &none,
                );
            }
        }
        // Many reals at once are one row.
        let mut groups: BTreeMap<_, Vec<(IpAddr, u16)>> = BTreeMap::new();
        for ((vip, id), record) in &book.ids {
            let what = match record.phase {
                IdPhase::Live => continue,
                IdPhase::Known => "gets connections",
                IdPhase::Leaving => "begins to rest",
                IdPhase::Resting => "is forgotten",
            };
            let of = (vip, what, record.since);
            groups.entry(of).or_default().push((record.real, *id));
        }
        for ((vip, what, since), reals) in groups {
            let named: Vec<_> = reals
                .iter()
                .map(|(real, id)| format!("{real} (id {id})"))
                .collect();
            let agents = match what {
                "gets connections" => reals.iter().map(|(real, _)| *real).collect(),
                _ => BTreeSet::new(),
            };
            waits(
                format!("{} of {vip} {what}", named.join(", ")),
                since,
                &agents,
            );
        }
        let (keys, all) = (book.keys, book.agents());
        let what = match keys.other {
            Some(next) if next > keys.issued => Some(format!("key {next} is issued")),
            Some(former) => Some(format!(
                "key {former} is retired: the keys file says so, and it has rested"
            )),
            None if book.wanted_key > keys.issued => {
                Some(format!("key {} is accepted", keys.issued + 1))
            }
            None => None,
        };
        if let Some(what) = what {
            waits(what, keys.since, &all);
        }
        for (vip, own) in &book.cids {
            if let Some(what) = cids_wait(book, vip, own) {
                waits(what, own.phases.since, &book.agents_of(vip).collect());
            }
        }
        for (vip, wanted) in &book.vips {
            let has: BTreeSet<_> = book.of_vip(vip).map(|(_, record)| record.real).collect();
            let without = wanted.reals.keys().filter(|real| !has.contains(*real));
            waiting.extend(without.map(|real| FleetWait {
                what: format!("{real} of {vip} gets an id, once one is free"),
                members: Vec::new(),
                agents: Vec::new(),
            }));
        }
        waiting
    }
}

/// What is to happen to a VIP's configurations of connection ids.
fn cids_wait(book: &FleetBook, vip: &str, own: &CidPhases) -> Option<String> {
    let wanted = book.vips.get(vip).and_then(|vip| vip.cid);
    let what = match (own.other(), own.phases.other) {
        (Some(former), _) if own.is_retiring() => format!(
            "configuration {} of connection ids of {vip} is retired: the file says so, and it has rested",
            former.number
        ),
        (Some(next), _) => format!(
            "connection ids of {vip} are issued by configuration {}",
            next.number
        ),
        (None, Some(_)) => format!(
            "connection ids of {vip} by files alone are refused: the file says so, and they have rested"
        ),
        (None, None) => {
            let wanted = wanted.filter(|wanted| own.issued() != Some(*wanted))?;
            match own.issued().is_some_and(|own| own.number == wanted.number) {
                true => format!(
                    "configuration {0} of connection ids of {vip} is accepted, once files give it another number: {0} is in use",
                    wanted.number
                ),
                false => format!(
                    "configuration {} of connection ids of {vip} is accepted",
                    wanted.number
                ),
            }
        }
    };
    Some(what)
}

fn quic_cids(book: &FleetBook) -> Vec<FleetCidView> {
    let cids = book.cids.iter();
    let cids = cids.map(|(vip, own)| FleetCidView {
        vip: vip.to_string(),
        issued: own.issued().map(|form| form.number),
        other: own.other().map(|form| form.number),
        by_files: own.accepts_files(),
    });
    cids.collect()
}

fn ids(book: &FleetBook) -> Vec<FleetIdView> {
    let ids = book.ids.iter();
    let ids = ids.map(|((vip, id), record)| FleetIdView {
        vip: vip.to_string(),
        id: *id,
        real: record.real.to_string(),
        phase: id_word(record.phase).to_owned(),
    });
    ids.collect()
}
