// SPDX-License-Identifier: Apache-2.0
//! The networks that tunnels are opened from: on a server its balancers', on a
//! second-tier balancer the first tier's (`struct tunnel_source`).

use std::collections::BTreeSet;

use crate::abi::{Prefix, TunnelSource, prefix_bytes};
use crate::error::Result;
use crate::map::Table;
use crate::plane::Plane;

const WHAT: &str = "the number of networks that tunnels are opened from";

/// Networks whose tunnels are opened; none until it is set.
#[derive(Debug)]
pub(crate) struct TunnelSources(Table<TunnelSource, u32>);

impl TunnelSources {
    pub(crate) fn new(plane: &mut Plane) -> Result<Self> {
        Ok(Self(Table::new(plane.take_map("tunnel_sources")?)?))
    }

    /// Opens tunnels from these networks alone. From those that stay it does so throughout.
    pub(crate) fn set(&self, wanted: &BTreeSet<Prefix>) -> Result<()> {
        self.0.replace(WHAT, &entries(wanted))
    }

    /// Opens tunnels from these networks, too.
    pub(crate) fn add(&self, more: &BTreeSet<Prefix>) -> Result<()> {
        let more = entries(more);
        more.iter().try_for_each(|(key, one)| self.0.put(key, one))
    }

    /// An error if so many networks have no room.
    pub(crate) fn check_capacity(&self, count: usize) -> Result<()> {
        self.0.check_capacity(WHAT, count)
    }
}

fn entries(networks: &BTreeSet<Prefix>) -> Vec<(TunnelSource, u32)> {
    let keys: BTreeSet<_> = networks.iter().copied().map(prefix_bytes).collect();
    let keys = keys.into_iter();
    keys.map(|(length, addr)| (TunnelSource { length, addr }, 1))
        .collect()
}
