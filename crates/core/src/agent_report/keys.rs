// SPDX-License-Identifier: Apache-2.0
//! Keys of what agents and balancers send each other: one for each server, epoch and
//! speaker, all derived from a secret that balancers alone hold. An attacker on a server can
//! speak for that server, and for no other.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::cookie::{CookieKey, KeyEpoch};
use crate::envelope::octets;

/// The side that signs a datagram. A datagram of one side is never valid as the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker {
    Agent,
    Balancer,
}

/// The secret of an epoch, by the epoch's bit.
pub type EpochSecrets = [Option<CookieKey>; 2];

/// What keys of reports follow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportSecrets {
    /// The balancers': every server's is derived from it.
    Root(EpochSecrets),
    /// A server's own, by each address that balancers know it by.
    Own(BTreeMap<IpAddr, EpochSecrets>),
}

/// Keys of reports, and the epoch that is signed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportKeys {
    /// The epoch that is signed with.
    pub current: KeyEpoch,
    /// What the keys follow from.
    pub secrets: ReportSecrets,
}

impl ReportKeys {
    /// A server's secret of an epoch, if it is known here.
    pub fn of_server(&self, server: IpAddr, epoch: KeyEpoch) -> Option<CookieKey> {
        let index = epoch.index() as usize;
        match &self.secrets {
            ReportSecrets::Own(own) => own.get(&server)?[index],
            ReportSecrets::Root(root) => Some(root[index]?.derive(*b"server  ", octets(server))),
        }
    }

    /// The epoch that is signed with in a server's name: the current one, unless only a secret of
    /// the other is known here.
    pub(super) fn signing_epoch(&self, server: IpAddr) -> KeyEpoch {
        let other = self.current.other();
        let knows = |epoch| self.of_server(server, epoch).is_some();
        match !knows(self.current) && knows(other) {
            true => other,
            false => self.current,
        }
    }

    /// The secret that all servers' follow from, which balancers alone have.
    pub(super) fn root(&self, epoch: KeyEpoch) -> Option<CookieKey> {
        match &self.secrets {
            ReportSecrets::Own(_) => None,
            ReportSecrets::Root(root) => root[epoch.index() as usize],
        }
    }

    /// What a server that balancers know by these addresses is to have of them.
    pub fn for_server(&self, addresses: &[IpAddr]) -> Self {
        let secrets = |address| KeyEpoch::ALL.map(|epoch| self.of_server(address, epoch));
        let own = addresses
            .iter()
            .map(|address| (*address, secrets(*address)));
        Self {
            current: self.current,
            secrets: ReportSecrets::Own(own.collect()),
        }
    }

    /// Whether their holder can speak for every server.
    pub fn are_the_balancers(&self) -> bool {
        matches!(self.secrets, ReportSecrets::Root(_))
    }

    /// The key of a datagram from or to the agent of a server.
    pub(super) fn key(
        &self,
        server: IpAddr,
        epoch: KeyEpoch,
        speaker: Speaker,
    ) -> Option<CookieKey> {
        let label = match speaker {
            Speaker::Agent => *b"agent   ",
            Speaker::Balancer => *b"balancer",
        };
        Some(self.of_server(server, epoch)?.derive(label, [0; 16]))
    }
}
