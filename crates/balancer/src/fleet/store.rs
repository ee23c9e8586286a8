// SPDX-License-Identifier: Apache-2.0
//! What a fleet needs of a store, whichever it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::dir_store::DirStore;
use super::etcd_store::EtcdStore;
use crate::config::fleet::{FleetConfig, FleetStore};

/// Why a store did not do what it was asked, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StoreError {
    /// It cannot be reached; another request now would wait in vain, too.
    #[error("{0}")]
    Away(String),
    /// It does not do this. It may do something else: one that is full can be read.
    #[error("{0}")]
    Refused(String),
}

/// What a store holds of a fleet at one instant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Which store it is: different for each that begins empty, as far as the store says.
    pub cluster: String,
    /// The book's text, with what [`Store::replace`] compares.
    pub book: Option<(u64, String)>,
    /// What each member has written of itself.
    pub acks: BTreeMap<String, String>,
    /// Members whose leases last.
    pub alive: BTreeSet<String>,
}

/// Holds a fleet's book and what each member writes beside it. Its calls block, for seconds at
/// most; texts mean nothing to it.
pub(crate) trait Store: Send {
    /// What it holds, all of one instant.
    fn read(&mut self) -> Result<Held, StoreError>;
    /// Replaces the book if it is still that of `expected`, or if there is still none; says
    /// whether. After an error it may have been replaced.
    fn replace(&mut self, expected: Option<u64>, text: &str) -> Result<bool, StoreError>;
    /// Writes what a member says of itself.
    fn acknowledge(&mut self, member: &str, text: &str) -> Result<(), StoreError>;
    /// Begins a member's lease or renews it: it lasts for `ttl` from now on, by the store's
    /// clock.
    fn renew(&mut self, member: &str, ttl: Duration) -> Result<(), StoreError>;
    /// Returns once something may have changed since the last reading, or after `at_most`; says
    /// whether.
    fn wait(&mut self, at_most: Duration) -> Result<bool, StoreError>;
}

/// The store that a configuration names.
pub(crate) fn open(config: &FleetConfig) -> Result<Box<dyn Store>, StoreError> {
    Ok(match &config.store {
        FleetStore::Directory(path) => Box::new(DirStore::new(path.join(&config.name))),
        FleetStore::Etcd(etcd) => Box::new(EtcdStore::new(etcd, &config.name)?),
    })
}
