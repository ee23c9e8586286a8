// SPDX-License-Identifier: Apache-2.0
//! A connection id as a value.

use std::fmt;
use std::ops::Deref;

/// Longest connection id of QUIC version 1 (RFC 9000, section 17.2), octets.
pub(crate) const MAX_LEN: usize = 20;

/// A connection id of 6 to 20 octets; reads as a slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    octets: [u8; MAX_LEN],
    len: u8,
}

impl ConnectionId {
    /// From octets that are at most [`MAX_LEN`].
    pub(crate) fn new(octets: &[u8]) -> Self {
        debug_assert!(octets.len() <= MAX_LEN);
        let mut id = Self {
            octets: [0; MAX_LEN],
            len: octets.len() as u8,
        };
        id.octets[..octets.len()].copy_from_slice(octets);
        id
    }
}

impl Deref for ConnectionId {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.octets[..usize::from(self.len)]
    }
}

impl AsRef<[u8]> for ConnectionId {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionId({self})")
    }
}
