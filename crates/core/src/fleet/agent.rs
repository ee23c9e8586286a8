// SPDX-License-Identifier: Apache-2.0
//! What the agent on a server goes by when it writes cookies.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{FleetBook, KeyNumber, KeyPhases, Position};

/// A server's ids, by VIP.
pub type AgentIds = BTreeMap<Arc<str>, u16>;

/// What a book says to the agent of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgentBook {
    /// Of the book.
    pub position: Position,
    /// The keys of cookies.
    pub keys: KeyPhases,
    /// The server's id in each VIP that it is a real of, or was until its id has rested.
    pub ids: AgentIds,
    /// The configurations of connection ids of these VIPs.
    pub cids: BTreeMap<Arc<str>, KeyPhases>,
}

impl FleetBook {
    /// What it says to the agent of a server.
    pub fn of_agent(&self, real: IpAddr) -> AgentBook {
        let own = self.ids.iter().filter(|(_, record)| record.real == real);
        let ids: AgentIds = own.map(|((vip, id), _)| (vip.clone(), *id)).collect();
        let cids = self.cids.iter().filter(|(vip, _)| ids.contains_key(*vip));
        AgentBook {
            position: self.position,
            keys: self.keys,
            cids: cids.map(|(vip, own)| (vip.clone(), own.phases)).collect(),
            ids,
        }
    }

    /// The ids of each server that has some, as [`Self::of_agent`] says them, for one walk through
    /// all of them.
    pub fn ids_of_agents(&self) -> HashMap<IpAddr, AgentIds> {
        let mut ids: HashMap<IpAddr, AgentIds> = HashMap::new();
        for ((vip, id), record) in &self.ids {
            let own = ids.entry(record.real).or_default();
            own.insert(vip.clone(), *id);
        }
        ids
    }
}

/// A server's agent. It gets the book from any balancer, never from the store. As a text it
/// lacks the book: who goes on where it was has it hear that again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetAgent {
    real: IpAddr,
    #[serde(skip)]
    book: Option<Arc<AgentBook>>,
    issued: Option<KeyNumber>,
    /// By VIP, what QUIC programs issue ids by.
    issued_cids: BTreeMap<Arc<str>, KeyNumber>,
}

impl FleetAgent {
    /// One that knows nothing.
    pub fn new(real: IpAddr) -> Self {
        Self {
            real,
            book: None,
            issued: None,
            issued_cids: BTreeMap::new(),
        }
    }

    /// Goes by a balancer's book from now on, if it comes of its own; says whether. A balancer may
    /// lag.
    pub fn handle_book(&mut self, book: AgentBook) -> bool {
        let comes_of = |own| own != book.position && book.position.follows(own);
        let later = self.position().is_none_or(comes_of);
        if later {
            self.issued = Some(later_key(self.issued, &book.keys));
            let own = std::mem::take(&mut self.issued_cids);
            let cids = book.cids.iter();
            let later = |(vip, keys): (&Arc<str>, &KeyPhases)| {
                (vip.clone(), later_key(own.get(vip).copied(), keys))
            };
            self.issued_cids = cids.map(later).collect();
            self.book = Some(Arc::new(book));
        }
        later
    }

    /// What it goes by.
    pub fn book(&self) -> Option<&AgentBook> {
        self.book.as_deref()
    }

    /// What it acknowledges.
    pub fn position(&self) -> Option<Position> {
        self.book().map(|book| book.position)
    }

    /// The server's address.
    pub fn real(&self) -> IpAddr {
        self.real
    }

    /// The key of new connections.
    pub fn issued(&self) -> Option<KeyNumber> {
        self.issued
    }

    /// Id and key of a new connection's cookie; `None`: it gets none.
    pub fn cookie(&self, vip: &str) -> Option<(u16, KeyNumber)> {
        let id = *self.book()?.ids.get(vip)?;
        Some((id, self.issued?))
    }

    /// What QUIC programs issue connection ids of a VIP by; `None`: the book has none for it.
    pub fn issued_cid(&self, vip: &str) -> Option<KeyNumber> {
        self.issued_cids.get(vip).copied()
    }
}

/// What is issued by a later book. One that was put back may be from before a switch: all members
/// accept the later key even so, and no former one may be retired under its connections.
fn later_key(own: Option<KeyNumber>, keys: &KeyPhases) -> KeyNumber {
    let later = own.filter(|own| keys.accepts(*own));
    later.map_or(keys.issued, |later| later.max(keys.issued))
}
