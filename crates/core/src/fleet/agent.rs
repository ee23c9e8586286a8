// SPDX-License-Identifier: Apache-2.0
//! What the agent on a server goes by when it writes cookies.

use std::net::IpAddr;
use std::sync::Arc;

use super::{FleetBook, KeyNumber, Position};

/// A server's agent. It hears the book from any balancer, never from the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FleetAgent {
    real: IpAddr,
    book: Option<Arc<FleetBook>>,
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

    /// Goes by a balancer's book from now on, if it is later than its own; says whether. A
    /// balancer may lag.
    pub fn hear(&mut self, book: &Arc<FleetBook>) -> bool {
        let later = self.position().is_none_or(|own| own < book.position);
        if later {
            // A book that was put back may be from before the switch of keys: all members accept
            // the later key even so, and no former one may be retired under its connections.
            let later_key = self.issued.filter(|own| book.keys.accepts(*own));
            self.issued = later_key.max(Some(book.keys.issued));
            self.book = Some(book.clone());
        }
        later
    }

    /// What it acknowledges.
    pub fn position(&self) -> Option<Position> {
        self.book.as_ref().map(|book| book.position)
    }

    /// The server's address.
    pub fn real(&self) -> IpAddr {
        self.real
    }

    /// Id and key of a new connection's cookie; `None`: it gets none.
    pub fn cookie(&self, vip: &str) -> Option<(u16, KeyNumber)> {
        let book = self.book.as_ref()?;
        let own = |(_, record): &(u16, &super::IdRecord)| record.real == self.real;
        let (id, _) = book.of_vip(vip).find(own)?;
        Some((id, self.issued?))
    }
}
