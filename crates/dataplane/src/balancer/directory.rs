// SPDX-License-Identifier: Apache-2.0
//! What is needed to put a connection into a slot that another balancer gave it: the id of its
//! server here, and which agent may report it.

use std::net::{IpAddr, SocketAddr};

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
            ctl: Table::new(another(self.ctl.map())?)?,
        })
    }
}

fn is_at(real: &abi::RealValue, server: IpAddr) -> bool {
    real.flags & abi::REAL_PRESENT != 0 && real.addr == abi::addr_bytes(server)
}

fn another(map: &MapHandle) -> Result<MapHandle> {
    MapHandle::try_from(map)
        .map_err(|e| DataPlaneError::bpf("take a map once more", std::io::Error::other(e)))
}

impl Directory {
    /// Where the connections of server `id` of a stateful VIP go; `None` if it is not
    /// `server` that has that id here.
    pub fn route(&self, vip: SocketAddr, id: u16, server: IpAddr) -> Result<Option<SlotRoute>> {
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
        let present = present.filter(|real| is_at(real, server));
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

    /// Whether a connection is on the real with this address.
    pub fn is_at(&self, connection: &Connection, server: IpAddr) -> Result<bool> {
        let real = self.reals.get(&connection.real)?;
        Ok(real.is_some_and(|real| is_at(&real, server)))
    }

    /// By which tuples fall into partitions, and tokens are hidden.
    pub fn hash_key(&self) -> Result<[u64; 2]> {
        Ok(self.ctl.get(&0)?.unwrap_or_default().hash_key)
    }
}
