// SPDX-License-Identifier: Apache-2.0
//! What it takes to put a connection into a slot that another balancer gave it: its
//! server's number here, and the keys of those who tell.

use std::net::SocketAddr;

use causeway_core::cookie::{CookieKey, KeyEpoch, Keys};
use libbpf_rs::MapHandle;

use super::{ConnTable, Connection, LoadBalancer, Protocol, RealId, Vip};
use crate::abi;
use crate::error::{DataPlaneError, Result};
use crate::map::Table;

/// Reads the balancer's maps beside it; changes nothing.
#[derive(Debug)]
pub struct Directory {
    vips: Table<abi::VipKey, abi::VipValue>,
    slots: Table<u32, abi::CookieSlot>,
    reals: Table<u32, abi::RealValue>,
    keys: Table<u32, abi::CookieKeys>,
    ctl: Table<u32, abi::Ctl>,
}

/// Where the packets of a connection go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRoute {
    pub(crate) real: RealId,
    pub(crate) generation: u16,
    pub(crate) vip: u16,
}

impl LoadBalancer {
    /// A directory of this balancer; it may be used from another thread.
    pub fn directory(&self) -> Result<Directory> {
        Ok(Directory {
            vips: Table::new(another(self.vips.map())?)?,
            slots: Table::new(another(self.cookies.slots())?)?,
            reals: Table::new(another(self.reals.map())?)?,
            keys: Table::new(another(self.cookies.keys())?)?,
            ctl: Table::new(another(self.ctl.map())?)?,
        })
    }
}

fn another(map: &MapHandle) -> Result<MapHandle> {
    MapHandle::try_from(map)
        .map_err(|e| DataPlaneError::bpf("take a map once more", std::io::Error::other(e)))
}

impl Directory {
    /// Where the connections of server `id` of a stateful VIP go; `None` if nobody has
    /// that id here.
    pub fn route(&self, vip: SocketAddr, id: u16) -> Result<Option<SlotRoute>> {
        let of_port = |port| {
            let vip = Vip {
                address: vip.ip(),
                port,
                protocol: Protocol::Tcp,
            };
            self.vips.get(&vip.key())
        };
        let Some(found) = of_port(vip.port())?.map_or_else(|| of_port(0), |vip| Ok(Some(vip)))?
        else {
            return Ok(None);
        };
        let stateful = found.flags & abi::VIP_STATEFUL != 0 && found.cookie.mode != 0;
        if !stateful || id >= causeway_core::cookie::IDS {
            return Ok(None);
        }
        let slot = self.slots.get(&(found.cookie_base + u32::from(id)))?;
        let Some(real) = slot.and_then(|slot| slot.real.checked_sub(1)) else {
            return Ok(None);
        };
        let present = self.reals.get(&real)?;
        let present = present.filter(|real| real.flags & abi::REAL_PRESENT != 0);
        Ok(present.map(|value| SlotRoute {
            real,
            generation: value.r#gen,
            vip: found.id as u16,
        }))
    }

    /// Sends a connection's packets to another real from now on: to a scrubber, say. The
    /// old real's end of the connection is lost by that. `false` if its slot is another
    /// connection's by now, or the real is not there.
    pub fn reroute(
        &self,
        table: &ConnTable,
        connection: &Connection,
        real: RealId,
    ) -> Result<bool> {
        let value = self.reals.get(&real)?;
        let present = value.filter(|value| value.flags & abi::REAL_PRESENT != 0);
        Ok(present.is_some_and(|value| table.reroute(connection, real, value.r#gen)))
    }

    /// The keys of cookies in force; `None` before they are set.
    pub fn keys(&self) -> Result<Option<Keys>> {
        let Some(value) = self.keys.get(&0)? else {
            return Ok(None);
        };
        let key = |epoch: KeyEpoch| {
            let known = value.present >> epoch.index() & 1 != 0;
            known.then(|| CookieKey::from_words(value.key[epoch.index() as usize]))
        };
        let current = match value.current & 1 {
            0 => KeyEpoch::Zero,
            _ => KeyEpoch::One,
        };
        Ok(key(current).map(|first| Keys::new(current, first, key(current.other()))))
    }

    /// The seed by which tuples fall into partitions.
    pub fn slot_seed(&self) -> Result<u64> {
        Ok(self.ctl.get(&0)?.unwrap_or_default().hash_key[1])
    }
}
