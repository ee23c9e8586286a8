// SPDX-License-Identifier: Apache-2.0
//! The networks that tunnels are opened from: on a server its balancers', on a
//! second-tier balancer the first tier's (`struct tunnel_source`).

use std::collections::BTreeSet;

use crate::abi::{self, TunnelSource};
use crate::balancer::Prefix;
use crate::error::Result;
use crate::map::Table;
use crate::plane::Plane;

/// Networks whose tunnels are opened; none until it is set.
#[derive(Debug)]
pub(crate) struct TunnelSources(Table<TunnelSource, u32>);

impl TunnelSources {
    pub(crate) fn new(plane: &mut Plane) -> Result<Self> {
        Ok(Self(Table::new(plane.take_map("tunnel_sources")?)?))
    }

    /// Opens tunnels from these networks alone. From those that stay it does so throughout.
    pub(crate) fn set(&self, wanted: &BTreeSet<Prefix>) -> Result<()> {
        let wanted: BTreeSet<_> = wanted.iter().map(|prefix| key(*prefix)).collect();
        for (length, addr) in &wanted {
            let (length, addr) = (*length, *addr);
            self.0.put(&TunnelSource { length, addr }, &1)?;
        }
        for (key, _) in self.0.entries()? {
            if !wanted.contains(&(key.length, key.addr)) {
                self.0.remove(&key)?;
            }
        }
        Ok(())
    }
}

fn key((address, length): Prefix) -> (u32, [u8; 16]) {
    let mapped = if address.is_ipv4() { 96 } else { 0 };
    (mapped + u32::from(length), abi::addr_bytes(address))
}
