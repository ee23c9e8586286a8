// SPDX-License-Identifier: Apache-2.0
//! What a fleet's store held when it was read last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use causeway_core::control::merge::BalancerId;
use causeway_core::cookie::{CookieKey, Digest};
use causeway_core::fleet::{Acknowledged, FleetBook, KeyNumber, Position};

use super::book_text::{AckText, NoBook, READS, StoredBook};
use super::store::Held;
use super::telling::AgentPaths;

/// Members by what the rules call them.
pub(super) type MemberNames = BTreeMap<BalancerId, String>;

/// A reading: what members say of themselves, and what to compare when the book is replaced.
#[derive(Default)]
pub(super) struct Reading {
    pub(super) cluster: String,
    /// What to compare, and the book that is there.
    pub(super) version: Option<u64>,
    pub(super) found: Option<Position>,
    pub(super) acks: Acknowledged,
    pub(super) alive: BTreeSet<BalancerId>,
    /// What was said last by this member's name.
    pub(super) own: AckText,
    names: MemberNames,
    /// Digests of keys, by other member.
    digests: BTreeMap<BalancerId, BTreeMap<KeyNumber, String>>,
    /// Members that have left, with where they had come into service.
    left: BTreeMap<BalancerId, Position>,
    /// Where members listen for agents.
    paths: BTreeMap<BalancerId, AgentPaths>,
}

impl Reading {
    /// Before the first one: the members that are known from the last daemon.
    pub(super) fn before(names: MemberNames) -> Self {
        Self {
            names,
            ..Self::default()
        }
    }

    /// Takes in what a store holds beside the book; `own` is this member's name.
    pub(super) fn take(&mut self, held: &Held, own: &str) {
        let mut read = Self {
            cluster: held.cluster.clone(),
            version: held.book.as_ref().map(|(version, _)| *version),
            alive: held.alive.iter().map(|name| id_of(name)).collect(),
            names: std::mem::take(&mut self.names),
            ..Self::default()
        };
        for (name, text) in &held.acks {
            let id = id_of(name);
            read.names.insert(id, name.clone());
            // What was said in another store says nothing about this one's book.
            let said = serde_json::from_str::<AckText>(text).ok();
            let Some(said) = said.filter(|said| said.cluster == held.cluster) else {
                continue;
            };
            if let Some(position) = said.position {
                read.acks.members.insert(id, position);
            }
            if let Some(since) = said.left {
                read.left.insert(id, since);
            }
            read.paths.insert(id, said.paths.clone());
            match name == own {
                true => read.own = said,
                false => drop(read.digests.insert(id, said.keys)),
            }
        }
        read.names.insert(id_of(own), own.to_owned());
        *self = read;
    }

    /// The book that a store has; `None` if it is of another store, and so a copy.
    pub(super) fn book(&mut self, held: &Held) -> Result<Option<Arc<FleetBook>>, String> {
        let Some((_, text)) = &held.book else {
            return Ok(None);
        };
        match StoredBook::of_text(text) {
            Ok(stored) if stored.cluster != held.cluster => Ok(None),
            Ok(stored) => {
                self.names.extend(stored.names);
                Ok(Some(stored.book))
            }
            Err(NoBook::Former) => Err(
                "the book in the store has the form of former builds, which this one does not read; \
                 CHANGELOG.md says how to go on"
                    .to_owned(),
            ),
            Err(NoBook::Format(format)) => Err(format!(
                "the book is of format {format}, and this build reads {READS}; upgrade this balancer"
            )),
            Err(NoBook::Damaged(error)) => {
                Err(format!("the book in the store is damaged ({error})"))
            }
        }
    }

    /// A book as this store is to hold it.
    pub(super) fn stored(&self, book: Arc<FleetBook>) -> StoredBook {
        StoredBook {
            cluster: self.cluster.clone(),
            names: book
                .members
                .keys()
                .map(|id| (*id, self.name_of(*id)))
                .collect(),
            book,
        }
    }

    /// Whether a member that came into service at `since` has said that it left.
    pub(super) fn has_left(&self, id: BalancerId, since: Position) -> bool {
        self.left.get(&id) == Some(&since)
    }

    /// Another member of a book whose key of this number is another, by name. One that is no
    /// member may have acknowledged long ago.
    pub(super) fn has_another(
        &self,
        book: &FleetBook,
        number: KeyNumber,
        key: &CookieKey,
    ) -> Option<String> {
        let own = key_digest(number, key);
        let others = self.digests.iter();
        let mut others = others.filter(|(id, _)| book.members.contains_key(*id));
        let other = others.find(|(_, keys)| keys.get(&number).is_some_and(|key| *key != own));
        other.map(|(id, _)| self.name_of(*id))
    }

    /// Where the members of a book listen for agents, beside `own`.
    pub(super) fn agent_paths(&self, book: &FleetBook, own: &AgentPaths) -> AgentPaths {
        let mut paths = own.clone();
        let members = self.paths.iter();
        let members = members.filter(|(id, _)| book.members.contains_key(*id));
        members.for_each(|(_, of_member)| paths.add(of_member));
        paths
    }

    /// What people call a member.
    pub(super) fn name_of(&self, id: BalancerId) -> String {
        let name = self.names.get(&id).cloned();
        name.unwrap_or_else(|| format!("{id:016x}"))
    }
}

/// What the rules call a member: follows from its name, as ids of reals do from addresses.
pub(super) fn id_of(name: &str) -> BalancerId {
    let digest = Digest::of("fleet-member").text(name).finish();
    BalancerId::from_str_radix(&digest, 16).unwrap_or_default()
}

/// Distinguishes keys and reveals nothing of them.
pub(super) fn key_digest(number: KeyNumber, key: &CookieKey) -> String {
    Digest::of("cookie-key").number(number).secret(key).finish()
}
