// SPDX-License-Identifier: Apache-2.0
//! Clients that have reals of their own, by prefix (`struct source_key`).

use super::*;
use crate::abi::{SourceGroup, SourceKey};
use crate::map::wait_for_programs;

/// The reals of some client prefixes of a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRing {
    /// Clients' prefixes; the longest of all of a VIP's decides.
    pub prefixes: Vec<Prefix>,
    /// A ring of these clients' own; empty if none of its reals is there.
    pub ring: Vec<RealId>,
    /// That of what comes without a memory of its real; empty for the one above.
    pub plain: Vec<RealId>,
    /// An empty ring drops these clients' new flows, instead of leaving them to the
    /// VIP's ring.
    pub strict: bool,
}

/// A group of a VIP's prefixes, which are sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    number: u32,
    prefixes: Vec<Prefix>,
}

/// The tables of sources.
#[derive(Debug)]
pub(super) struct Sources {
    prefixes: Table<SourceKey, u32>,
    groups: Table<u32, SourceGroup>,
    picks: PerCpu<u64>,
}

impl Sources {
    pub(super) fn new(plane: &mut Plane) -> Result<Self> {
        Ok(Self {
            prefixes: Table::new(plane.take_map("sources")?)?,
            groups: Table::new(plane.take_map("source_groups")?)?,
            picks: PerCpu::new(plane.take_map("source_picks")?)?,
        })
    }
}

fn key(vip: VipId, prefix: Prefix) -> SourceKey {
    let (bits, addr) = abi::prefix_bytes(prefix);
    SourceKey {
        length: 32 + bits,
        vip,
        addr,
    }
}

fn prefix(key: &SourceKey) -> Prefix {
    let address = abi::addr_from_bytes(key.addr);
    let mapped = if address.is_ipv4() { 96 } else { 0 };
    (address, (key.length - 32 - mapped) as u8)
}

impl LoadBalancer {
    /// Gives client prefixes of a VIP reals of their own: these, and no others any more.
    /// Flows that are known stay where they are. A group of prefixes that the VIP had
    /// keeps its counter.
    pub fn set_sources(&self, id: VipId, wanted: &[SourceRing]) -> Result<()> {
        let mut registry = self.registry();
        let vip = registry.vip(id)?;
        for source in wanted {
            let mut ids = source.ring.iter().chain(&source.plain);
            if let Some(unknown) = ids.find(|real| registry.real(**real).is_err()) {
                return Err(DataPlaneError::UnknownReal(*unknown));
            }
        }
        let former = registry.sources.remove(&id).unwrap_or_default();
        if former.is_empty() && wanted.is_empty() {
            return Ok(());
        }
        let groups = self.number_groups(&registry, &former, wanted);
        // What is there is kept in the registry, also when the rest fails.
        registry.sources.insert(id, former.clone());
        let groups = groups?;
        let mut all = former.clone();
        all.extend(
            groups
                .iter()
                .filter(|group| !former.contains(group))
                .cloned(),
        );
        registry.sources.insert(id, all);
        self.fill_groups(&groups, wanted)?;
        for group in &groups {
            for prefix in &group.prefixes {
                self.sources
                    .prefixes
                    .put(&key(id, *prefix), &group.number)?;
            }
        }
        let has = !groups.is_empty();
        self.change(&vip, id, |value| {
            value.flags &= !abi::VIP_SOURCES;
            if has {
                value.flags |= abi::VIP_SOURCES;
            }
        })?;
        self.drop_groups(id, &former, &groups)?;
        match has {
            true => registry.sources.insert(id, groups),
            false => registry.sources.remove(&id),
        };
        Ok(())
    }

    /// A number for each wanted group: that which its prefixes have, else a free one.
    fn number_groups(
        &self,
        registry: &Registry,
        former: &[Group],
        wanted: &[SourceRing],
    ) -> Result<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::with_capacity(wanted.len());
        for source in wanted {
            let mut prefixes = source.prefixes.clone();
            prefixes.sort_unstable();
            let known = former.iter().find(|group| group.prefixes == prefixes);
            let number = match known {
                Some(group) => group.number,
                None => {
                    let taken = |number: &u32| {
                        let others = registry
                            .sources
                            .values()
                            .flatten()
                            .chain(former)
                            .chain(&groups);
                        others.into_iter().any(|group| group.number == *number)
                    };
                    let max = self.sources.groups.max_entries();
                    let free = (0..max).find(|number| !taken(number));
                    let number = free.ok_or(DataPlaneError::TooMany {
                        what: "groups of client prefixes",
                        max,
                    })?;
                    self.sources.picks.clear(number)?;
                    number
                }
            };
            groups.push(Group { number, prefixes });
        }
        Ok(groups)
    }

    /// Number of a group's ring: they lie behind those of the VIPs.
    fn source_ring(&self, group: u32) -> u32 {
        self.vip_stats.max_entries() + group
    }

    /// Rings and sizes. As with VIPs' rings, the size in use never exceeds the ring.
    fn fill_groups(&self, groups: &[Group], wanted: &[SourceRing]) -> Result<()> {
        let mut swaps = Vec::new();
        let mut emptied = Vec::new();
        let mut is_shorter = false;
        for (group, source) in groups.iter().zip(wanted) {
            let old = self.sources.groups.get(&group.number)?.unwrap_or_default();
            let ring_size = old.ring_size.min(source.ring.len() as u32);
            let plain_size = old.plain_size.min(source.plain.len() as u32);
            if (ring_size, plain_size) != (old.ring_size, old.plain_size) {
                let value = SourceGroup {
                    ring_size,
                    strict: source.strict.into(),
                    plain_size,
                };
                self.sources.groups.put(&group.number, &value)?;
            }
            let number = self.source_ring(group.number);
            for (number, ring, had) in [
                (number, &source.ring, old.ring_size),
                (self.plain_ring(number), &source.plain, old.plain_size),
            ] {
                is_shorter |= (ring.len() as u32) < had;
                match ring.is_empty() {
                    false => swaps.push((number, NewRing::fill(ring)?)),
                    true if had > 0 => emptied.push(number),
                    true => {}
                }
            }
        }
        if is_shorter {
            wait_for_programs();
        }
        self.rings.swap(&swaps)?;
        for (group, source) in groups.iter().zip(wanted) {
            let value = SourceGroup {
                ring_size: source.ring.len() as u32,
                strict: source.strict.into(),
                plain_size: source.plain.len() as u32,
            };
            self.sources.groups.put(&group.number, &value)?;
        }
        emptied
            .into_iter()
            .try_for_each(|number| self.rings.clear(number))
    }

    /// Prefixes that are no longer there, then the groups that nothing leads to.
    fn drop_groups(&self, id: VipId, former: &[Group], groups: &[Group]) -> Result<()> {
        let wanted = |prefix: &Prefix| {
            let mut all = groups.iter().flat_map(|group| &group.prefixes);
            all.any(|known| known == prefix)
        };
        for gone in former.iter().flat_map(|group| &group.prefixes) {
            if !wanted(gone) {
                self.sources.prefixes.remove(&key(id, *gone))?;
            }
        }
        for group in former {
            if !groups.iter().any(|kept| kept.number == group.number) {
                let groups = &self.sources.groups;
                let had = groups.get(&group.number)?.unwrap_or_default();
                groups.put(&group.number, &SourceGroup::default())?;
                let ring = self.source_ring(group.number);
                let plain = (had.plain_size, self.plain_ring(ring));
                for (size, number) in [(had.ring_size, ring), plain] {
                    if size > 0 {
                        self.rings.clear(number)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes a VIP's sources away; its value is gone already.
    pub(super) fn forget_sources(&self, registry: &mut Registry, id: VipId) -> Result<()> {
        let former = registry.sources.remove(&id).unwrap_or_default();
        self.drop_groups(id, &former, &[])
    }

    /// New flows that went by each group of a VIP's prefixes, in the groups' order.
    pub fn source_picks(&self, id: VipId) -> Result<Vec<u64>> {
        let registry = self.registry();
        let Some(groups) = registry.sources.get(&id) else {
            return Ok(Vec::new());
        };
        let counts = self
            .sources
            .picks
            .first(self.sources.groups.max_entries(), |sum, cpu| *sum += cpu)?;
        let of = |group: &Group| counts.get(group.number as usize).copied();
        Ok(groups.iter().map(|group| of(group).unwrap_or(0)).collect())
    }

    /// What the maps hold, by VIP.
    pub(super) fn read_sources(&self) -> Result<BTreeMap<VipId, Vec<Group>>> {
        let mut sources: BTreeMap<VipId, Vec<Group>> = BTreeMap::new();
        for (key, number) in self.sources.prefixes.entries()? {
            let groups = sources.entry(key.vip).or_default();
            let prefix = prefix(&key);
            match groups.iter_mut().find(|group| group.number == number) {
                Some(group) => group.prefixes.push(prefix),
                None => groups.push(Group {
                    number,
                    prefixes: vec![prefix],
                }),
            }
        }
        for group in sources.values_mut().flatten() {
            group.prefixes.sort_unstable();
        }
        Ok(sources)
    }
}
