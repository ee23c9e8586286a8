// SPDX-License-Identifier: Apache-2.0
//! Network interfaces by name.

use std::io;

use thiserror::Error;

use crate::next_hop::Mac;
use crate::tunnel::address;

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

    /// Whether it is there yet: one that is deleted and made anew has another number.
    pub fn is_there(&self) -> bool {
        // Not nix's, which takes the null pointer of a failure for a name.
        let mut name = [0; libc::IF_NAMESIZE];
        // SAFETY: the buffer is as long as a name can be.
        !unsafe { libc::if_indextoname(self.index, name.as_mut_ptr()) }.is_null()
    }

    /// Its MAC address; zeros if it has none.
    ///
    /// # Errors
    /// When it is not there any more.
    pub fn mac(&self) -> io::Result<Mac> {
        address::mac(&self.name)
    }

    /// Whether it is turned on, and then whether there is anything at its other end.
    ///
    /// # Errors
    /// When it is not there any more.
    pub fn is_up(&self) -> io::Result<(bool, bool)> {
        let flags = address::flags(&self.name)?;
        Ok((flags & libc::IFF_UP != 0, flags & libc::IFF_RUNNING != 0))
    }
}
