// SPDX-License-Identifier: Apache-2.0
//! Reals: the servers behind the VIPs.

use causeway_core::control::Sampling;

use super::*;

/// A real's number: what rings and flows hold. Given out by the data plane, lowest
/// first, and kept over restarts.
pub type RealId = u32;

/// How packets reach a real.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forwarding {
    /// In an outer IP header to its address.
    Ipip,
    /// In UDP behind an outer IP header (GUE) to its address.
    Gue,
    /// Unchanged, in a frame to this MAC address: it is on the balancer's link.
    L2([u8; 6]),
}

/// One server of one VIP. A machine that serves two VIPs is two reals, each
/// measured and weighted for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Real {
    /// The VIP that it serves.
    pub vip: VipId,
    /// Its address.
    pub address: IpAddr,
    /// How packets reach it.
    pub forwarding: Forwarding,
}

impl Real {
    /// What goes on from `old`, the slot's value before, is how its connections are sampled, and
    /// whether it is down.
    fn value(&self, generation: u16, old: &abi::RealValue) -> abi::RealValue {
        let (flags, mac) = match self.forwarding {
            Forwarding::Ipip => (abi::REAL_PRESENT, [0; 6]),
            Forwarding::Gue => (abi::REAL_PRESENT | abi::REAL_GUE, [0; 6]),
            Forwarding::L2(mac) => (abi::REAL_PRESENT | abi::REAL_L2, mac),
        };
        abi::RealValue {
            flags: flags | old.flags & abi::REAL_DOWN,
            family: if self.address.is_ipv4() { 4 } else { 6 },
            r#gen: generation,
            mac,
            vip: self.vip as u16,
            sampling: old.sampling,
            pad: 0,
            addr: abi::addr_bytes(self.address),
        }
    }

    /// `None` for a slot that is not in use.
    pub(super) fn from_value(value: &abi::RealValue) -> Option<Self> {
        (value.flags & abi::REAL_PRESENT != 0).then(|| Self {
            vip: value.vip.into(),
            address: abi::addr_from_bytes(value.addr),
            forwarding: match value.flags {
                flags if flags & abi::REAL_L2 != 0 => Forwarding::L2(value.mac),
                flags if flags & abi::REAL_GUE != 0 => Forwarding::Gue,
                _ => Forwarding::Ipip,
            },
        })
    }
}

impl From<Sampling> for abi::SamplingValue {
    fn from(of: Sampling) -> Self {
        Self {
            opening: of.opening,
            least: of.least,
            most: of.most,
        }
    }
}

impl From<abi::SamplingValue> for Sampling {
    fn from(of: abi::SamplingValue) -> Self {
        Self {
            opening: of.opening,
            least: of.least,
            most: of.most,
        }
    }
}

impl LoadBalancer {
    /// All reals with their ids.
    pub fn reals(&self) -> Vec<(RealId, Real)> {
        self.registry().reals.iter().collect()
    }

    /// Open connections of the reals that there are.
    pub fn open_of_reals(&self, open: OpenFlows) -> Result<HashMap<RealId, u64>> {
        // One call to the kernel: there are thousands, and the engine waits.
        let ids = open.ids().min(self.reals.max_entries());
        let values = self.reals.first(ids)?;
        Ok(open.in_force(|id, generation| {
            let value = values.get(id as usize);
            value.is_some_and(|value| value.r#gen == generation)
        }))
    }

    /// The real of a VIP that has this address.
    pub fn real_at(&self, vip: VipId, address: IpAddr) -> Option<(RealId, Real)> {
        let registry = self.registry();
        let id = registry.reals.id(&(vip, address))?;
        Some((id, registry.reals.get(id)?))
    }

    /// Adds a real. It gets new connections once it is in its VIP's ring; its
    /// counters start at zero. Flows of a real that had this id before are not its.
    pub fn add_real(&self, real: &Real) -> Result<RealId> {
        let mut registry = self.registry();
        registry.vip(real.vip)?;
        let id = registry
            .reals
            .free(self.reals.max_entries())
            .ok_or(DataPlaneError::Full {
                what: "reals",
                max: self.reals.max_entries(),
                setting: "limits.reals",
            })?;
        self.real_stats.clear(id)?;
        self.clear_histogram(id)?;
        self.clear_load(id);
        let old = self.reals.get(&id)?.unwrap_or_default();
        let value = real.value(old.r#gen.wrapping_add(1), &abi::RealValue::default());
        self.reals.put(&id, &value)?;
        registry.reals.put(id, *real);
        Ok(id)
    }

    /// Changes how packets reach a real; its flows and counters stay.
    pub fn set_forwarding(&self, id: RealId, forwarding: Forwarding) -> Result<()> {
        let mut registry = self.registry();
        let real = Real {
            forwarding,
            ..registry.real(id)?
        };
        let old = self.reals.get(&id)?.unwrap_or_default();
        self.reals.put(&id, &real.value(old.r#gen, &old))?;
        registry.reals.put(id, real);
        Ok(())
    }

    /// Which of a real's connections are measured.
    pub fn sampling(&self, id: RealId) -> Result<Sampling> {
        let registry = self.registry();
        registry.real(id)?;
        Ok(self.reals.get(&id)?.unwrap_or_default().sampling.into())
    }

    /// Sets which of a real's connections are measured.
    pub fn set_sampling(&self, id: RealId, sampling: Sampling) -> Result<()> {
        let registry = self.registry();
        registry.real(id)?;
        let old = self.reals.get(&id)?.unwrap_or_default();
        let value = abi::RealValue {
            sampling: sampling.into(),
            ..old
        };
        self.reals.put(&id, &value)
    }

    /// Sets which reals health finds down while others serve: these and no others. No SYN stays
    /// on such a one, also none that is sent again; connections do. A real that is not there is
    /// left out, and a repeated call does nothing.
    pub fn set_down(&self, down: &HashSet<RealId>) -> Result<()> {
        let mut registry = self.registry();
        let changed = registry.down.symmetric_difference(down).copied();
        let changed = changed.filter(|id| registry.real(*id).is_ok());
        for id in changed.collect::<Vec<_>>() {
            let mut value = self.reals.get(&id)?.unwrap_or_default();
            match down.contains(&id) {
                true => value.flags |= abi::REAL_DOWN,
                false => value.flags &= !abi::REAL_DOWN,
            }
            self.reals.put(&id, &value)?;
            if !registry.down.remove(&id) {
                registry.down.insert(id);
            }
        }
        Ok(())
    }

    /// Removes a real at once: its flows are picked again, which breaks most of
    /// them. To drain it, take it out of the ring and wait. Take it out of the ring
    /// first in any case: packets that the ring sends to it are dropped.
    pub fn remove_real(&self, id: RealId) -> Result<()> {
        let mut registry = self.registry();
        registry.real(id)?;
        self.retire(&mut registry, id)
    }

    /// Ends the use of a slot. The generation stays in the map, for its next user
    /// to get another.
    pub(super) fn retire(&self, registry: &mut Registry, id: RealId) -> Result<()> {
        self.free_cookie_ids(registry, id)?;
        let old = self.reals.get(&id)?.unwrap_or_default();
        let gone = abi::RealValue {
            r#gen: old.r#gen,
            ..Default::default()
        };
        self.reals.put(&id, &gone)?;
        registry.down.remove(&id);
        if let Some(real) = registry.reals.take(id) {
            self.forget_owner(registry, real.vip, id)?;
        }
        Ok(())
    }

    /// The reals in the map, and those of them that are down.
    pub(super) fn read_reals(&self) -> Result<(Slots<Real>, HashSet<RealId>)> {
        let values = self.reals.first(self.reals.max_entries())?;
        let present = (0..).zip(&values);
        let present = present.filter_map(|(id, value)| Some((id, Real::from_value(value)?)));
        let is_down = |id: &RealId| values[*id as usize].flags & abi::REAL_DOWN != 0;
        let reals: Slots<Real> = present.collect();
        let down = reals.iter().map(|(id, _)| id).filter(is_down).collect();
        Ok((reals, down))
    }
}

impl Registry {
    pub(super) fn real(&self, id: RealId) -> Result<Real> {
        self.reals.get(id).ok_or(DataPlaneError::UnknownReal(id))
    }
}
