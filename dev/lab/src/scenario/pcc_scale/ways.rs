// SPDX-License-Identifier: Apache-2.0
//! The ways to keep connections on their servers that are compared.

use causeway_dataplane::Protocol;

use crate::balancer::ServerForwarding;
use crate::scenario::bench::{PORT, QUIC_PORT};

/// What knows the server of a connection, beside a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// Nothing, or the balancer's flow table.
    Balancer,
    /// Cookies in TCP timestamps, which agents write.
    Cookies,
    /// The same, but the cookie names a place in the balancer's array.
    Slots,
    /// Ids of QUIC connections.
    ConnectionIds,
    /// The servers: they pass on what was another's.
    Chain,
    /// The same in the product: the balancer names the other one. The one that takes over
    /// has followed the pool, as balancers of a fleet do, and knows no connection.
    SecondChance,
}

/// A way to keep connections on their servers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub name: &'static str,
    pub transport: &'static str,
    pub scheduler: &'static str,
    pub memory: Memory,
    /// Further keys of the VIPs.
    pub keys: &'static [&'static str],
}

const NO_TABLE: &[&str] = &["flow_table = false"];

pub(super) const WAYS: &[Way] = &[
    // With cookies: the best spread, and the furthest from what a hash would find again.
    Way {
        name: "cookie",
        transport: "tcp",
        scheduler: "round-robin",
        memory: Memory::Cookies,
        keys: &["cookie = \"timestamp\""],
    },
    Way {
        name: "cookie-stateful",
        transport: "tcp",
        scheduler: "round-robin",
        memory: Memory::Slots,
        keys: &["cookie = \"timestamp\"", "stateful = true"],
    },
    Way {
        name: "quic-cid",
        transport: "quic",
        scheduler: "round-robin",
        memory: Memory::ConnectionIds,
        keys: &[],
    },
    Way {
        name: "hash",
        transport: "tcp",
        scheduler: "hash",
        memory: Memory::Balancer,
        keys: NO_TABLE,
    },
    Way {
        name: "consistent-hash",
        transport: "tcp",
        scheduler: "maglev",
        memory: Memory::Balancer,
        keys: NO_TABLE,
    },
    Way {
        name: "daisy-chain",
        transport: "tcp",
        scheduler: "maglev",
        memory: Memory::Chain,
        keys: NO_TABLE,
    },
    Way {
        name: "second-chance",
        transport: "tcp",
        scheduler: "maglev",
        memory: Memory::SecondChance,
        keys: &["second_chance = true"],
    },
    Way {
        name: "maglev-table",
        transport: "tcp",
        scheduler: "maglev",
        memory: Memory::Balancer,
        keys: &[],
    },
];

impl Way {
    /// Whether agents write cookies, and their keys rotate.
    pub(super) fn has_cookies(&self) -> bool {
        matches!(self.memory, Memory::Cookies | Memory::Slots)
    }

    /// Whether it is over QUIC.
    pub(super) fn is_quic(&self) -> bool {
        self.memory == Memory::ConnectionIds
    }

    /// Of its services.
    pub(super) fn protocol(&self) -> Protocol {
        match self.is_quic() {
            true => Protocol::Udp,
            false => Protocol::Tcp,
        }
    }

    /// Of its services.
    pub(super) fn port(&self) -> u16 {
        match self.is_quic() {
            true => QUIC_PORT,
            false => PORT,
        }
    }

    /// Slots are sent to servers in the tunnel: as private data of GUE.
    pub(super) fn forwarding(&self) -> ServerForwarding {
        match self.memory {
            Memory::Slots => ServerForwarding::Gue,
            _ => ServerForwarding::Ipip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (index, way) in WAYS.iter().enumerate() {
            assert!(WAYS[..index].iter().all(|other| other.name != way.name));
        }
    }
}
