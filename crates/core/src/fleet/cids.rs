// SPDX-License-Identifier: Apache-2.0
//! Configurations of QUIC's connection ids: each VIP has its own, and they come into use and go
//! out of it as keys of cookies do.

use std::collections::BTreeMap;
use std::net::IpAddr;

use causeway_quic_lb::{Algorithm, CidConfig};
use serde::{Deserialize, Serialize};

use super::steps::forward;
use super::{Acknowledged, FleetBook, FleetEvidence, FleetRest, IdPhase, KeyNumber, KeyPhases};
use crate::cookie::{CookieKey, Digest};

/// Counts, beside the numbers of a VIP's configurations, for those that balancers and servers have
/// in files alone: what was in use before the book had any.
pub const CIDS_OF_FILES: KeyNumber = 0;

/// A configuration of connection ids, without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CidForm {
    /// Its number, which each id of it has in its first three bits.
    pub number: u8,
    /// Distinguishes it, its key included, from any other, and reveals nothing of the key.
    pub mark: u64,
}

impl CidForm {
    /// That of a configuration.
    pub fn of(config: &CidConfig) -> Self {
        let lengths = [config.server_id_len(), config.nonce_len()];
        let digest = Digest::of("quic-cid").number(config.number().into());
        let digest = lengths
            .into_iter()
            .fold(digest, |digest, length| digest.number(length as u64));
        let digest = match config.algorithm() {
            Algorithm::Plain => digest.number(0),
            Algorithm::SipHash(key) => digest
                .number(1)
                .secret(&CookieKey::from_bytes(key.octets())),
            Algorithm::Aes128(key) => digest
                .number(2)
                .secret(&CookieKey::from_bytes(key.octets())),
        };
        Self {
            number: config.number(),
            mark: digest.value(),
        }
    }
}

/// Which configurations the connection ids of a VIP have. They are counted as keys of cookies are,
/// because their own numbers, 0 to 6, come again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CidPhases {
    /// Which of them servers issue ids by, and which is accepted beside it.
    pub phases: KeyPhases,
    /// What each of them is; [`CIDS_OF_FILES`] is not among them.
    pub forms: BTreeMap<KeyNumber, CidForm>,
}

impl CidPhases {
    /// What servers issue ids by; `None`: what is in their files.
    pub fn issued(&self) -> Option<CidForm> {
        self.forms.get(&self.phases.issued).copied()
    }

    /// What is accepted beside it.
    pub fn other(&self) -> Option<CidForm> {
        self.forms.get(&self.phases.other?).copied()
    }

    /// Whether what is in files alone is accepted.
    pub fn accepts_files(&self) -> bool {
        self.phases.accepts(CIDS_OF_FILES)
    }

    /// Whether the one beside the issued one was issued before it.
    pub fn is_retiring(&self) -> bool {
        self.phases.other.is_some_and(|of| of < self.phases.issued)
    }
}

impl FleetBook {
    /// The servers whose agents give configurations of a VIP to their QUIC programs.
    pub fn agents_of<'a>(&'a self, vip: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
        let own = self.of_vip(vip).map(|(_, record)| record);
        own.filter(|record| record.agent && record.phase != IdPhase::Resting)
            .map(|record| record.real)
    }

    /// Whether servers of a VIP know what to issue ids by: a real without that gets no
    /// connections.
    pub(super) fn issues_cids(&self, vip: &str) -> bool {
        let wants = self.vips.get(vip).is_some_and(|vip| vip.cid.is_some());
        let own = self.cids.get(vip);
        !wants || own.is_some_and(|own| own.phases.issued != CIDS_OF_FILES)
    }
}

impl Acknowledged {
    /// Whether all balancers, and all agents of servers of a VIP, have come to a VIP's
    /// configurations.
    pub(super) fn of_cids(&self, book: &FleetBook, vip: &str, own: &CidPhases) -> bool {
        let since = own.phases.since;
        let mut agents = book.agents_of(vip);
        self.by_members(book, since) && agents.all(|real| self.by_agent(real, since))
    }
}

/// A VIP's configurations go forward only. One that has the number of that which is issued waits
/// for ever: an id says by its number alone which one it is of.
pub(super) fn move_cids(book: &mut FleetBook, acks: &Acknowledged, evidence: &FleetEvidence) {
    let since = book.position;
    let mut cids = std::mem::take(&mut book.cids);
    cids.retain(|vip, _| book.vips.contains_key(vip) || book.of_vip(vip).next().is_some());
    let wanted = book.vips.iter();
    for (vip, wanted) in wanted.filter_map(|(vip, of)| Some((vip, of.cid?))) {
        let begun = CidPhases {
            phases: KeyPhases {
                issued: CIDS_OF_FILES,
                other: None,
                since,
            },
            forms: BTreeMap::new(),
        };
        let own = cids.get(vip);
        if own.is_some_and(|own| !acks.of_cids(book, vip, own)) {
            continue;
        }
        let mut next = own.cloned().unwrap_or(begun);
        let rest = FleetRest::Cid {
            vip: vip.clone(),
            since: next.phases.since,
        };
        let wants_next = next.issued().is_none_or(|own| own.number != wanted.number);
        let rested = evidence.rests.get(&rest) == Some(&true);
        let Some((issued, other)) = forward(next.phases, wants_next, rested) else {
            continue;
        };
        next.phases = KeyPhases {
            issued,
            other,
            since,
        };
        next.forms.retain(|of, _| next.phases.accepts(*of));
        if let Some(other) = other.filter(|other| *other > issued) {
            next.forms.insert(other, wanted);
        }
        cids.insert(vip.clone(), next);
    }
    book.cids = cids;
}
