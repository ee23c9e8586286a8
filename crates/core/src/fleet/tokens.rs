// SPDX-License-Identifier: Apache-2.0
//! Tokens by which agents join: each gives one agent its server's secrets, once. The store orders
//! their uses as it orders all changes, so of two agents that show one token, one gets it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::FleetBook;

/// Distinguishes tokens. It is no secret; what is follows from it by a secret of balancers.
pub type TokenId = u64;

/// What distinguishes an agent that joins from all others: the public key of that attempt.
pub type JoinKey = [u8; 32];

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinToken {
    /// The one server that it is for, by all addresses that balancers know it by.
    pub servers: BTreeSet<IpAddr>,
    /// The epoch of the secret of reports that it follows from.
    pub epoch: u8,
    /// When it expires, by balancers' clocks: seconds since 1970.
    pub until_s: u64,
    /// Who has used it.
    pub used_by: Option<JoinKey>,
}

impl FleetBook {
    /// Gives a token to an agent, unless another has used it.
    pub(super) fn claim(&mut self, token: TokenId, by: JoinKey) {
        if let Some(token) = self.tokens.get_mut(&token) {
            token.used_by.get_or_insert(by);
        }
    }
}
