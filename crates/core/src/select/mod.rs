// SPDX-License-Identifier: Apache-2.0
//! Which real gets a new connection.
//!
//! A VIP's choice is a ring: a table of real ids. The data plane indexes it with
//! `hash(flow) % size`, or goes around it turn by turn. This module builds rings as
//! pure functions of the pool.
//!
//! Rings for hashes are shaped by the reals' addresses, their weights and the ring's
//! size alone; ids are only labels. Balancers that share a configuration therefore
//! pick alike, whatever order it was written in and whatever ids each gave out.
//!
//! - [`maglev`]: shares follow the weights, and a change of the pool moves
//!   little more than it must.
//! - [`uniform`]: equal shares, what plain hashing over a list gives. A change
//!   of the pool moves most slots. It is the baseline to compare with.
//!
//! Rings of turns need a memory of connections (a flow table or a cookie) beside
//! them, and spread new flows better than any hash:
//!
//! - [`turns`], [`equal_turns`]: weighted and plain round robin; also the slots from
//!   which the data plane takes two and chooses (power of two choices).
//! - [`Awrr`]: weights of [`turns`] that follow the reals' load.
//! - [`least_loaded`]: the picks of the least loaded real, planned ahead.

mod load;
mod maglev;
mod size;
#[cfg(test)]
mod tests;
mod turns;

pub use load::{Awrr, Loaded, least_loaded};
pub use maglev::maglev;
pub use size::{RingSize, RingSizeError};
pub use turns::{TURNS_MAX, equal_turns, turns};

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// A real's identity for ring building: its address, IPv4 in its
/// `::ffff:a.b.c.d` form. Stable across restarts, balancers and id reuse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealKey([u8; 16]);

impl RealKey {
    /// The key as two big-endian words, for hashing.
    fn words(self) -> [u64; 2] {
        let all = u128::from_be_bytes(self.0);
        [(all >> 64) as u64, all as u64]
    }
}

impl From<IpAddr> for RealKey {
    fn from(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl fmt::Debug for RealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0).to_canonical())
    }
}

/// One real of a pool, as a ring builder sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingMember {
    /// What decides the real's place in the ring.
    pub key: RealKey,
    /// What the ring's slots hold.
    pub id: u32,
    /// Relative share of new connections; 0 keeps the real out of the ring.
    pub weight: u32,
}

/// Builds the ring of uniform hashing: the reals with a weight above 0, in the
/// order of their addresses, repeated until `size` slots are full. Shares differ
/// by at most one slot. Empty when no real has a weight.
pub fn uniform(pool: &[RingMember], size: RingSize) -> Vec<u32> {
    let pool = in_ring(pool);
    pool.iter()
        .map(|m| m.id)
        .cycle()
        .take(if pool.is_empty() { 0 } else { size.slots() })
        .collect()
}

/// The members that take part, ordered by key so that a ring does not depend on
/// the order of the configuration.
fn in_ring(pool: &[RingMember]) -> Vec<RingMember> {
    let mut pool: Vec<RingMember> = pool.iter().copied().filter(|m| m.weight > 0).collect();
    pool.sort_unstable_by_key(|m| (m.key, m.id));
    pool
}
