// SPDX-License-Identifier: Apache-2.0
//! What a fleet shares.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{CidForm, CidPhases, JoinToken, PastChange, TokenId, pairs};
use crate::control::merge::BalancerId;

/// Counts keys of cookies; a later key has a higher number. Its last bit is the key's epoch. The
/// book has numbers alone: the secret of each is brought to members and agents in another way,
/// and who lacks one cannot apply the book that names it, so does not acknowledge it.
pub type KeyNumber = u64;

/// An id of a VIP.
pub type IdKey = (Arc<str>, u16);

/// Which putting back of a book that the store had lost this is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    /// How often it has been put back.
    pub count: u32,
    /// By whom, the last time: two that put back their own at once differ.
    pub by: BalancerId,
}

/// Where in the history of a fleet's book something stands. Later is greater.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Of the book.
    pub generation: Generation,
    /// Counts changes.
    pub revision: u64,
}

impl Position {
    /// Whether who has come here has come to `since`. What was acknowledged before a book was put
    /// back says nothing about that book.
    pub fn covers(self, since: Self) -> bool {
        self.generation == since.generation && self.revision >= since.revision
    }

    /// Whether a book here comes of one at `former`, by changes or by being put back, or may be the
    /// same. One that was founded anew does not, nor one that another put back at the same time:
    /// a member that puts a book back counts higher than what it has found.
    pub fn follows(self, former: Self) -> bool {
        self.covers(former) || self.generation.count > former.generation.count
    }

    /// That of the next change.
    pub fn next(self) -> Self {
        Self {
            revision: self.revision + 1,
            ..self
        }
    }
}

/// What a member's lapsed lease means to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// Nothing: it goes on serving, and they wait for it, or for an operator's word that it is
    /// out of service.
    #[default]
    Waits,
    /// It withdraws its routes by the end of its lease, and they go on without it. Where the store
    /// is lost for longer than a lease, that withdraws all of them.
    StepsAside,
}

/// How far a balancer has come into service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberPhase {
    /// Others do not know it yet, and it gets no packets.
    Joining,
    /// It may get packets of any connection.
    Serving,
}

/// A balancer in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberRecord {
    /// How far it has come.
    pub phase: MemberPhase,
    /// Where it came to it, or came back to it.
    pub since: Position,
    /// The newest format of the book that it reads.
    pub reads: u16,
}

/// How far an id has come into use, or out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdPhase {
    /// Packets that carry it are routed; no connection may get it.
    Known,
    /// Members that have read so pick its real.
    Live,
    /// Its real is to be picked no more.
    Leaving,
    /// A tombstone: its real is not picked, and connections of former times may live.
    Resting,
}

/// The real that has an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdRecord {
    /// Its address.
    pub real: IpAddr,
    /// How far the id has come.
    pub phase: IdPhase,
    /// Where it came to it.
    pub since: Position,
    /// Whether an agent on the server writes the cookies, and has to acknowledge, too.
    pub agent: bool,
}

/// Which keys cookies have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyPhases {
    /// Agents write new cookies with it; all accept it.
    pub issued: KeyNumber,
    /// Accepted beside it: the next one before it is issued, the former one until it is retired.
    pub other: Option<KeyNumber>,
    /// Where it came to this.
    pub since: Position,
}

impl KeyPhases {
    /// Whether cookies of this key are routed.
    pub fn accepts(&self, key: KeyNumber) -> bool {
        key == self.issued || Some(key) == self.other
    }
}

/// What a VIP is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetVip {
    /// How many ids there are.
    pub ids: u16,
    /// The configuration of connection ids to come to, if they have any.
    pub cid: Option<CidForm>,
    /// Its reals.
    pub reals: BTreeMap<IpAddr, FleetVipReal>,
}

/// What a real of a VIP is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetVipReal {
    /// Its id, if it is named.
    pub id: Option<u16>,
    /// Whether an agent on the server writes its cookies.
    pub agent: bool,
}

/// What an operator has set by hand for a real of a VIP, in the place of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandState {
    /// No new connections.
    pub drain: Option<bool>,
    /// Neither connections nor alerts.
    pub maintenance: Option<bool>,
    /// Its weight.
    pub weight: Option<u32>,
}

/// What a fleet shares, whole: the value that a store compares and sets. As a text it holds what
/// its members read: a field more, or another one, is another format.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetBook {
    /// Which one it is.
    pub position: Position,
    /// The format that it needs: no higher than what every member reads.
    pub format: u16,
    /// What a lapsed lease means.
    pub absence: Absence,
    /// What operators want: VIPs by name.
    pub vips: BTreeMap<Arc<str>, FleetVip>,
    /// What operators want: the key to come to.
    pub wanted_key: KeyNumber,
    /// The balancers.
    pub members: BTreeMap<BalancerId, MemberRecord>,
    /// Every id in use or at rest.
    #[serde(with = "pairs")]
    pub ids: BTreeMap<IdKey, IdRecord>,
    /// The keys of cookies.
    pub keys: KeyPhases,
    /// The configurations of connection ids, by VIP.
    pub cids: BTreeMap<Arc<str>, CidPhases>,
    /// What is set by hand, by VIP and real.
    #[serde(with = "pairs")]
    pub by_hand: BTreeMap<(Arc<str>, IpAddr), HandState>,
    /// By which agents join, the used ones included until they expire.
    pub tokens: BTreeMap<TokenId, JoinToken>,
    /// The last changes of `vips`, oldest first.
    pub history: Vec<PastChange>,
}

impl FleetBook {
    /// The first book of a fleet. Its first member joins it as every other does.
    pub fn new(absence: Absence, key: KeyNumber, founder: BalancerId) -> Self {
        let position = Position {
            generation: Generation {
                count: 0,
                by: founder,
            },
            revision: 1,
        };
        Self {
            position,
            format: 1,
            absence,
            vips: BTreeMap::new(),
            wanted_key: key,
            members: BTreeMap::new(),
            ids: BTreeMap::new(),
            keys: KeyPhases {
                issued: key,
                other: None,
                since: position,
            },
            cids: BTreeMap::new(),
            by_hand: BTreeMap::new(),
            tokens: BTreeMap::new(),
            history: Vec::new(),
        }
    }

    /// The real that packets with an id go to.
    pub fn route(&self, vip: &str, id: u16) -> Option<IpAddr> {
        self.of_vip(vip)
            .find(|(held, _)| *held == id)
            .map(|(_, record)| record.real)
    }

    /// The ids of a VIP.
    pub fn of_vip<'a>(&'a self, vip: &'a str) -> impl Iterator<Item = (u16, &'a IdRecord)> {
        let ids = self.ids.iter().filter(move |((of, _), _)| **of == *vip);
        ids.map(|((_, id), record)| (*id, record))
    }

    /// The reals of a VIP that a member may pick, with their ids.
    pub fn picks<'a>(&'a self, vip: &'a str) -> impl Iterator<Item = (u16, IpAddr)> + 'a {
        self.of_vip(vip)
            .filter(|(_, record)| record.phase == IdPhase::Live)
            .map(|(id, record)| (id, record.real))
            .filter(move |(_, real)| !self.is_drained(vip, *real))
    }

    pub(super) fn is_drained(&self, vip: &str, real: IpAddr) -> bool {
        let set = self.by_hand.get(&(Arc::from(vip), real));
        let set = set.copied().unwrap_or_default();
        set.drain == Some(true) || set.maintenance == Some(true) || set.weight == Some(0)
    }

    /// The balancers in service, reachable or not.
    pub fn serving(&self) -> impl Iterator<Item = BalancerId> {
        let members = self.members.iter();
        let serving = members.filter(|(_, record)| record.phase == MemberPhase::Serving);
        serving.map(|(name, _)| *name)
    }

    /// The servers whose agents may write cookies.
    pub fn agents(&self) -> BTreeSet<IpAddr> {
        let writes = |record: &&IdRecord| record.agent && record.phase != IdPhase::Resting;
        let records = self.ids.values().filter(writes);
        records.map(|record| record.real).collect()
    }

    /// This book put back into a store that has lost it, in the place of `found`. Everything has
    /// to be acknowledged again, and ids and keys rest again.
    pub(super) fn restored(&self, found: Option<Position>, by: BalancerId) -> Self {
        let lost = self.position.generation.count;
        let found = found.map_or(0, |position| position.generation.count);
        let position = Position {
            generation: Generation {
                count: lost.max(found) + 1,
                by,
            },
            revision: self.position.revision + 1,
        };
        let mut book = self.clone();
        book.position = position;
        // It may be from before a token was used.
        book.tokens.clear();
        book.keys.since = position;
        book.cids
            .values_mut()
            .for_each(|own| own.phases.since = position);
        book.members
            .values_mut()
            .for_each(|member| member.since = position);
        book.ids
            .values_mut()
            .for_each(|record| record.since = position);
        book
    }
}

/// How far every member has come: written beside the book, each by its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Acknowledged {
    /// The book that each balancer has in its data plane.
    pub members: BTreeMap<BalancerId, Position>,
    /// The book that each server's agent goes by.
    pub agents: BTreeMap<IpAddr, Position>,
}

impl Acknowledged {
    /// Whether every balancer in service has this in its data plane.
    pub fn by_members(&self, book: &FleetBook, since: Position) -> bool {
        let has = |name: &BalancerId| self.members.get(name).is_some_and(|at| at.covers(since));
        book.serving().all(|name| has(&name))
    }

    /// Whether a server's agent goes by this.
    pub fn by_agent(&self, real: IpAddr, since: Position) -> bool {
        self.agents.get(&real).is_some_and(|at| at.covers(since))
    }

    /// Whether balancers and agents have all come to this.
    pub fn by_all(&self, book: &FleetBook, since: Position) -> bool {
        let agents = book.agents();
        self.by_members(book, since) && agents.iter().all(|real| self.by_agent(*real, since))
    }

    /// The furthest that any member has come.
    pub(super) fn furthest(&self) -> Option<Position> {
        let members = self.members.values();
        members.chain(self.agents.values()).max().copied()
    }

    /// Who has not come to this, to be named to operators.
    pub fn missing(&self, book: &FleetBook, since: Position) -> (Vec<BalancerId>, Vec<IpAddr>) {
        let has = |name: &BalancerId| self.members.get(name).is_some_and(|at| at.covers(since));
        let members = book.serving().filter(|name| !has(name)).collect();
        let agents = book.agents().into_iter();
        let agents = agents.filter(|real| !self.by_agent(*real, since)).collect();
        (members, agents)
    }
}
