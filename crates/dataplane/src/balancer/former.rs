// SPDX-License-Identifier: Apache-2.0
//! Who had each slot of a VIP's ring before: servers are sent it with segments that no balancer
//! remembers (`bpf/server/second_chance.h`). What is known is what this balancer has seen.

use std::collections::BTreeMap;

use tracing::warn;

use super::{LoadBalancer, RealId, Registry, Vip, VipId, VipRings};
use crate::abi;
use crate::error::Result;
use crate::rings::NewRing;

/// A slot without a former owner: no real has this id.
const NONE: RealId = RealId::MAX;

/// The owners of a VIP's slots, in the ring that packets without a memory go by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Owners {
    now: Vec<RealId>,
    /// Empty as long as nothing has changed; else as long as the ring at the last change.
    former: Vec<RealId>,
}

impl Owners {
    /// Behind a change of the ring; `None` if that changes nothing. A slot that keeps its
    /// owner keeps its former one, too. Where no real is left the owners are waited for.
    fn follow(&self, next: &[RealId]) -> Option<Self> {
        if next.is_empty() || self.now == next {
            return None;
        }
        let keeps = self.former.len() == self.now.len() && next.len() == self.now.len();
        let former = match keeps {
            false => self.now.clone(),
            true => {
                let slots = self.now.iter().zip(next).zip(&self.former);
                let former = |((now, next), former): ((&RealId, &RealId), &RealId)| {
                    if now == next { *former } else { *now }
                };
                slots.map(former).collect()
            }
        };
        Some(Self {
            now: next.to_vec(),
            former,
        })
    }

    /// Slots of the ring of former owners.
    pub(super) fn former_size(&self) -> u32 {
        self.former.len() as u32
    }

    /// Without a real that is no more; whether the ring of former owners had it. Those of now
    /// may have it while the pool is down, and become former ones.
    fn forget(&mut self, real: RealId) -> bool {
        let mut had = false;
        for slot in self.now.iter_mut().filter(|slot| **slot == real) {
            *slot = NONE;
        }
        for slot in self.former.iter_mut().filter(|slot| **slot == real) {
            *slot = NONE;
            had = true;
        }
        had
    }
}

impl VipRings {
    /// The ring that packets without a memory will go by; `None` if that stays.
    fn by_hash(&self, has_plain: bool) -> Option<&[RealId]> {
        match &self.plain {
            Some(plain) if !plain.is_empty() => Some(plain),
            None if has_plain => None,
            _ => Some(&self.ring),
        }
    }
}

impl LoadBalancer {
    /// Number of a VIP's ring of former owners.
    pub(super) fn former_ring(&self, vip: VipId) -> u32 {
        self.plain_ring(self.vip_stats.max_entries() + abi::SOURCE_GROUPS) + vip
    }

    /// The owners behind a change of a VIP's rings, and the ring of former ones.
    pub(super) fn next_owners(
        registry: &Registry,
        rings: &VipRings,
        value: &abi::VipValue,
    ) -> Option<Owners> {
        let owners = registry.owners.get(&rings.vip)?;
        owners.follow(rings.by_hash(value.plain_size > 0)?)
    }

    /// The ring of former owners that is to be swapped in, if there are any.
    pub(super) fn former_swap(
        &self,
        vip: VipId,
        owners: &Owners,
    ) -> Result<Option<(u32, NewRing)>> {
        if owners.former.is_empty() {
            return Ok(None);
        }
        NewRing::fill(&owners.former).map(|ring| Some((self.former_ring(vip), ring)))
    }

    /// Begins to keep a VIP's former owners, or ends it.
    pub(super) fn keep_owners(&self, registry: &mut Registry, id: VipId, keep: bool) -> Result<()> {
        if keep == registry.owners.contains_key(&id) {
            return Ok(());
        }
        let vip = registry.vip(id)?;
        if keep {
            let value = self.vips.get(&vip.key())?.unwrap_or_default();
            // Without the right to read rings the next change is the first one.
            let owners = self.read_owners_of(&value).unwrap_or_default();
            registry.owners.insert(id, owners);
            return Ok(());
        }
        let had = self.vips.get(&vip.key())?.unwrap_or_default().former_size;
        self.change(&vip, id, |value| value.former_size = 0)?;
        registry.owners.remove(&id);
        match had {
            0 => Ok(()),
            _ => self.rings.clear(self.former_ring(id)),
        }
    }

    /// A real is no more: its id may become another's.
    pub(super) fn forget_owner(
        &self,
        registry: &mut Registry,
        vip: VipId,
        real: RealId,
    ) -> Result<()> {
        let Some(owners) = registry.owners.get_mut(&vip) else {
            return Ok(());
        };
        if !owners.forget(real) {
            return Ok(());
        }
        let swap = self.former_swap(vip, owners)?;
        self.rings.swap(&Vec::from_iter(swap))
    }

    /// What a predecessor has left. Former owners that cannot be read are forgotten, by the data
    /// plane, too: a real that is removed could not be taken out of them.
    pub(super) fn read_owners(&self) -> Result<BTreeMap<VipId, Owners>> {
        let mut owners = BTreeMap::new();
        let mut unread = None;
        for (key, value) in self.vips.entries()? {
            let keeps = value.flags & abi::VIP_SECOND_CHANCE != 0;
            let Some(vip) = Vip::from_key(&key).filter(|_| keeps) else {
                continue;
            };
            let of_vip = match self.read_owners_of(&value) {
                Ok(of_vip) => of_vip,
                Err(error) => {
                    self.change(&vip, value.id, |value| value.former_size = 0)?;
                    unread = Some(error);
                    Owners::default()
                }
            };
            owners.insert(value.id, of_vip);
        }
        if let Some(error) = unread {
            warn!(
                "`second_chance` knows no former owners until the next change of a ring: {error}; to keep them, start with CAP_SYS_ADMIN, as the package's unit does"
            );
        }
        Ok(owners)
    }

    fn read_owners_of(&self, value: &abi::VipValue) -> Result<Owners> {
        let (number, size) = match value.plain_size {
            0 => (value.id, value.ring_size),
            plain => (self.plain_ring(value.id), plain),
        };
        let read = |number: u32, size: u32| {
            let mut ring = match size {
                0 => Vec::new(),
                _ => self.rings.read(&[number])?.remove(0),
            };
            ring.truncate(size as usize);
            Ok::<_, crate::error::DataPlaneError>(ring)
        };
        Ok(Owners {
            now: read(number, size)?,
            former: read(self.former_ring(value.id), value.former_size)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(rings: &[&[RealId]]) -> Owners {
        let follow = |owners: Owners, next: &&[RealId]| owners.follow(next).unwrap_or(owners);
        rings.iter().fold(Owners::default(), follow)
    }

    #[test]
    fn a_slot_remembers_its_last_other_owner() {
        let none: &[RealId] = &[];
        assert_eq!(owners(&[&[0, 1, 2]]).former, none);
        assert_eq!(owners(&[&[0, 1, 2], &[0, 3, 2]]).former, [0, 1, 2]);
        // What stays in a second change keeps what the first one made of it.
        assert_eq!(
            owners(&[&[0, 1, 2], &[0, 3, 2], &[0, 3, 3]]).former,
            [0, 1, 2]
        );
        // Twice remapped: 1 is forgotten.
        assert_eq!(
            owners(&[&[0, 1, 2], &[0, 3, 2], &[0, 4, 2]]).former,
            [0, 3, 2]
        );
        // There and back: who opened in between is found.
        assert_eq!(
            owners(&[&[0, 1, 2], &[0, 3, 2], &[0, 1, 2]]).former,
            [0, 3, 2]
        );
    }

    #[test]
    fn a_ring_of_another_size_is_remembered_as_it_was() {
        let grown = owners(&[&[0, 1], &[1, 1], &[0, 1, 2, 2]]);
        assert_eq!((grown.now.len(), grown.former), (4, vec![1, 1]));
    }

    #[test]
    fn a_pool_that_was_down_is_no_change() {
        let back = owners(&[&[0, 1], &[1, 1], &[], &[1, 1]]);
        assert_eq!(back.former, [0, 1]);
    }

    #[test]
    fn who_is_no_more_owned_nothing() {
        let mut owners = owners(&[&[0, 1, 1], &[2, 2, 1]]);
        assert!(owners.forget(0) && !owners.forget(7));
        assert_eq!(owners.former, [NONE, 1, 1]);
    }

    /// Its id may be another VIP's real by the time at which the pool is back.
    #[test]
    fn who_goes_while_the_pool_is_down_owned_nothing() {
        let mut owners = owners(&[&[0, 1], &[]]);
        assert!(!owners.forget(0));
        let back = owners.follow(&[1, 1]).expect("a change");
        assert_eq!(back.former, [NONE, 1]);
    }
}
