// SPDX-License-Identifier: Apache-2.0
//! Keys of what balancers send each other.

use std::net::IpAddr;

use crate::agent_report::{EpochSecrets, ReportKeys, ReportSecrets};
use crate::cookie::{CookieKey, KeyEpoch};
use crate::envelope::octets;

/// The secret of reports in each epoch, from which members' keys follow: only balancers hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerKeys {
    /// The epoch that is signed with.
    pub current: KeyEpoch,
    secrets: EpochSecrets,
}

impl PeerKeys {
    /// Those of a balancer; `None` where the keys are a server's.
    pub fn of(reports: &ReportKeys) -> Option<Self> {
        match reports.secrets {
            ReportSecrets::Root(secrets) => Some(Self {
                current: reports.current,
                secrets,
            }),
            ReportSecrets::Own(_) => None,
        }
    }

    /// The key of what one member sends another.
    pub(super) fn key(&self, from: IpAddr, to: IpAddr, epoch: KeyEpoch) -> Option<CookieKey> {
        let secret = self.secrets[epoch.index() as usize]?;
        let member = secret.derive(*b"member  ", octets(from));
        Some(member.derive(*b"to      ", octets(to)))
    }
}
