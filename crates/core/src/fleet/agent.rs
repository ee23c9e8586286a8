// SPDX-License-Identifier: Apache-2.0
//! What the agent on a server goes by when it writes cookies.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{FleetBook, KeyNumber, KeyPhases, Position};

/// What a book says to the agent of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgentBook {
    /// Of the book.
    pub position: Position,
    /// The keys of cookies.
    pub keys: KeyPhases,
    /// The server's id in each VIP that it is a real of, or was until its id has rested.
    pub ids: BTreeMap<Arc<str>, u16>,
}

impl FleetBook {
    /// What it says to the agent of a server.
    pub fn of_agent(&self, real: IpAddr) -> AgentBook {
        let own = self.ids.iter().filter(|(_, record)| record.real == real);
        AgentBook {
            position: self.position,
            keys: self.keys,
            ids: own.map(|((vip, id), _)| (vip.clone(), *id)).collect(),
        }
    }
}

/// A server's agent. It gets the book from any balancer, never from the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FleetAgent {
    real: IpAddr,
    book: Option<Arc<AgentBook>>,
    issued: Option<KeyNumber>,
}

impl FleetAgent {
    /// One that knows nothing.
    pub fn new(real: IpAddr) -> Self {
        Self {
            real,
            book: None,
            issued: None,
        }
    }

    /// One that goes on where a former one was: by this book, with this key.
    pub fn resumed(real: IpAddr, book: AgentBook, issued: KeyNumber) -> Self {
        Self {
            real,
            book: Some(Arc::new(book)),
            issued: Some(issued),
        }
    }

    /// Goes by a balancer's book from now on, if it is later than its own; says whether. A
    /// balancer may lag.
    pub fn hear(&mut self, book: AgentBook) -> bool {
        let later = self.position().is_none_or(|own| own < book.position);
        if later {
            // A book that was put back may be from before the switch of keys: all members accept
            // the later key even so, and no former one may be retired under its connections.
            let later_key = self.issued.filter(|own| book.keys.accepts(*own));
            self.issued = later_key.max(Some(book.keys.issued));
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
}
