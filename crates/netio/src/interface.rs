// SPDX-License-Identifier: Apache-2.0
//! Network interfaces by name.

use thiserror::Error;

/// There is no such interface in this network namespace.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("there is no network interface {0} here; `ip link` lists them")]
pub struct NoInterface(pub String);

/// An interface by name and number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number in this network namespace.
    pub index: u32,
}

impl Interface {
    /// Looks an interface up in the calling thread's network namespace.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn find(name: &str) -> Result<Self, NoInterface> {
        nix::net::if_::if_nametoindex(name)
            .map(|index| Self {
                name: name.to_owned(),
                index,
            })
            .map_err(|_| NoInterface(name.to_owned()))
    }
}
