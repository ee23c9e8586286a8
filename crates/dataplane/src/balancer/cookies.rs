// SPDX-License-Identifier: Apache-2.0
//! Cookies: keys, and which real has which id of its VIP.

use causeway_core::cookie::quic::CidRoute;
use causeway_core::cookie::{CookieLayout, IDS, Keys};

use super::*;
use crate::abi::{CookieCounts, CookieFormat, CookieResult, CookieSlot, QuicLbConfig};

/// An id of a VIP that a real has, or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieId {
    /// The id.
    pub id: u16,
    /// The real that has it; `None` if it was taken away.
    pub real: Option<RealId>,
    /// Address of who has or had it.
    pub address: IpAddr,
    /// When it was taken away, CLOCK_MONOTONIC in seconds; 0 if it never was.
    pub freed_s: u32,
}

/// Packets by what their cookies said.
pub type CookieTotals = Vec<(CookieResult, u64)>;

/// The tables of cookies.
#[derive(Debug)]
pub(super) struct Cookies {
    keys: Table<u32, abi::CookieKeys>,
    slots: Table<u32, CookieSlot>,
    quic: Table<u32, QuicLbConfig>,
    counts: PerCpu<CookieCounts>,
}

/// The slots of one VIP, as the registry remembers them.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    base: u32,
    ids: BTreeMap<u16, CookieSlot>,
}

/// The clock by which ids rest: that of the date may be set, and the maps are gone after a boot.
fn up_s() -> u32 {
    let seconds = causeway_netio::monotonic_ns() / 1_000_000_000;
    seconds.clamp(1, u32::MAX.into()) as u32
}

impl Cookies {
    pub(super) fn new(plane: &mut Plane) -> Result<Self> {
        Ok(Self {
            keys: Table::new(plane.take_map("cookie_keys")?)?,
            slots: Table::new(plane.take_map("cookie_slots")?)?,
            quic: Table::new(plane.take_map("quic_configs")?)?,
            counts: PerCpu::new(plane.take_map("cookie_counts")?)?,
        })
    }

    pub(super) fn slots(&self) -> &MapHandle {
        self.slots.map()
    }
}

impl LoadBalancer {
    /// Sets the keys; without any, no cookie is valid. Cookies of both epochs are.
    pub fn set_cookie_keys(&self, keys: Option<&Keys>) -> Result<()> {
        let _changing = self.registry();
        self.cookies.keys.put(&0, &abi::CookieKeys::from(keys))
    }

    /// Gives a VIP's connections cookies, or takes them away. Without cookies its
    /// ids are forgotten, and packets that carry them go by the ring.
    pub fn set_cookies(&self, id: VipId, format: Option<&CookieLayout>) -> Result<()> {
        let wanted = format.map(CookieFormat::from).unwrap_or_default();
        self.set_format(&mut self.registry(), id, wanted)
    }

    /// Has a VIP's packets routed by the server's id in their QUIC connection ids, as
    /// these configurations have it: at most one for each number. Ids of reals are those
    /// of cookies.
    pub fn set_quic_ids(&self, id: VipId, routes: &[CidRoute]) -> Result<()> {
        let mut registry = self.registry();
        let format = CookieFormat {
            mode: abi::COOKIE_QUIC,
            ..CookieFormat::default()
        };
        let base = self.block_base(&mut registry, id)?;
        let first = base / u32::from(IDS) * abi::QUIC_CODEPOINTS;
        for codepoint in 0..abi::QUIC_CODEPOINTS {
            let is_of = |route: &&CidRoute| u32::from(route.config().number()) == codepoint;
            let route = routes.iter().find(is_of);
            let value = route.map(QuicLbConfig::from).unwrap_or_default();
            self.cookies.quic.put(&(first + codepoint), &value)?;
        }
        self.set_format(&mut registry, id, format)
    }

    /// Where the ids of a VIP begin; it gets its block if it has none.
    fn block_base(&self, registry: &mut Registry, id: VipId) -> Result<u32> {
        if let Some(block) = registry.cookies.get(&id) {
            return Ok(block.base);
        }
        let base = self.new_block(registry)?;
        let block = Block {
            base,
            ..Block::default()
        };
        registry.cookies.insert(id, block);
        Ok(base)
    }

    fn set_format(&self, registry: &mut Registry, id: VipId, wanted: CookieFormat) -> Result<()> {
        let vip = registry.vip(id)?;
        let mut value = self
            .vips
            .get(&vip.key())?
            .ok_or(DataPlaneError::UnknownVip(id))?;
        if value.cookie == wanted {
            return Ok(());
        }
        let has_ids = wanted.mode != 0;
        value.cookie = wanted;
        // Packets are checked as long as a VIP has cookies, wherever a kill comes in between.
        if has_ids {
            value.cookie_base = self.block_base(registry, id)?;
            self.set_vip_first(registry)?;
            return self.put_vip(&vip.key(), &value);
        }
        self.put_vip(&vip.key(), &value)?;
        registry.cookies.remove(&id);
        self.set_vip_first(registry)
    }

    /// Sets of which packets the data plane looks up the VIP before the flow: they may have to be
    /// checked for a cookie, or their flow is in no table.
    pub(super) fn set_vip_first(&self, registry: &Registry) -> Result<()> {
        let mut ctl = self.ctl.get(&0)?.unwrap_or_default();
        let before = std::mem::take(&mut ctl.vip_first);
        for vip in registry.cookies.keys().chain(&registry.forgetful) {
            ctl.vip_first |= match registry.vip(*vip)?.protocol {
                Protocol::Tcp => abi::VIP_FIRST_TCP,
                Protocol::Udp => abi::VIP_FIRST_UDP,
            };
        }
        match ctl.vip_first == before {
            true => Ok(()),
            false => self.ctl.put(&0, &ctl),
        }
    }

    /// A block of slots that no VIP has, emptied.
    fn new_block(&self, registry: &Registry) -> Result<u32> {
        let ids = u32::from(IDS);
        let max = self.cookies.slots.max_entries() / ids;
        let taken = |base: u32| registry.cookies.values().any(|block| block.base == base);
        let base = (0..max).map(|block| block * ids).find(|base| !taken(*base));
        let base = base.ok_or(DataPlaneError::Full {
            what: "VIPs with cookies",
            max,
            setting: "limits.cookie_vips",
        })?;
        let keys: Vec<u32> = (base..base + ids).collect();
        let empty = vec![CookieSlot::default(); keys.len()];
        self.cookies.slots.put_all(&keys, &empty)?;
        Ok(base)
    }

    /// The ids of a VIP that a real has or had, in their order.
    pub fn cookie_ids(&self, vip: VipId) -> Result<Vec<CookieId>> {
        let registry = self.registry();
        registry.vip(vip)?;
        let slots = registry.cookies.get(&vip).into_iter();
        Ok(slots
            .flat_map(|block| &block.ids)
            .map(|(id, slot)| CookieId {
                id: *id,
                real: slot.real.checked_sub(1),
                address: abi::addr_from_bytes(slot.addr),
                freed_s: slot.freed_up_s,
            })
            .collect())
    }

    /// Gives a real an id; from then on packets with it go there. A real may have
    /// several, and keeps them until it is removed.
    pub fn set_cookie_id(&self, vip: VipId, id: u16, real: RealId) -> Result<()> {
        let mut registry = self.registry();
        let address = registry.real(real)?.address;
        let slot = CookieSlot {
            real: real + 1,
            freed_up_s: 0,
            addr: abi::addr_bytes(address),
        };
        let block = registry
            .cookies
            .get_mut(&vip)
            .ok_or(DataPlaneError::NoCookies(vip))?;
        if id >= IDS {
            return Err(DataPlaneError::OutOfRange {
                what: "a server's id",
                value: id.into(),
                min: 0,
                max: u64::from(IDS) - 1,
            });
        }
        if block.ids.get(&id) != Some(&slot) {
            self.cookies
                .slots
                .put(&(block.base + u32::from(id)), &slot)?;
            block.ids.insert(id, slot);
        }
        Ok(())
    }

    /// Takes the ids of a real that is to go away. Until they are given out again,
    /// packets that carry them are dropped, as `cookie_unknown`.
    pub(super) fn free_cookie_ids(&self, registry: &mut Registry, real: RealId) -> Result<()> {
        let now_s = up_s();
        for block in registry.cookies.values_mut() {
            for (id, slot) in &mut block.ids {
                if slot.real == real + 1 {
                    (slot.real, slot.freed_up_s) = (0, now_s);
                    self.cookies
                        .slots
                        .put(&(block.base + u32::from(*id)), slot)?;
                }
            }
        }
        Ok(())
    }

    /// What became of the cookies of each VIP that has them.
    pub fn cookie_counts(&self) -> Result<Vec<(VipId, CookieTotals)>> {
        let vips: Vec<VipId> = self.registry().cookies.keys().copied().collect();
        let upper = vips.iter().max().map_or(0, |last| last + 1);
        let counts = self.cookies.counts.first(upper, |sum, cpu| {
            for (sum, cpu) in sum.packets.iter_mut().zip(cpu.packets) {
                *sum += cpu;
            }
        })?;
        let of = |vip: &VipId| {
            let packets = counts.get(*vip as usize).map_or([0; 32], |c| c.packets);
            CookieResult::ALL.into_iter().zip(packets).collect()
        };
        Ok(vips.iter().map(|vip| (*vip, of(vip))).collect())
    }

    /// Sets a VIP's counters to zero.
    pub(super) fn clear_cookie_counts(&self, vip: VipId) -> Result<()> {
        self.cookies.counts.clear(vip)
    }

    /// What the maps hold, by VIP.
    pub(super) fn read_cookies(&self, vips: &Slots<Vip>) -> Result<BTreeMap<VipId, Block>> {
        let mut blocks = BTreeMap::new();
        for (id, vip) in vips.iter() {
            let Some(value) = self.vips.get(&vip.key())?.filter(|v| v.cookie.mode != 0) else {
                continue;
            };
            let mut ids = BTreeMap::new();
            for id in 0..IDS {
                let index = value.cookie_base + u32::from(id);
                let slot = self.cookies.slots.get(&index)?;
                let Some(mut slot) = slot.filter(|slot| slot.addr != [0; 16]) else {
                    continue;
                };
                if slot.real == 0 && slot.freed_up_s == 0 {
                    // A build of another layout took it away, by another clock.
                    slot.freed_up_s = up_s();
                    self.cookies.slots.put(&index, &slot)?;
                }
                ids.insert(id, slot);
            }
            let base = value.cookie_base;
            blocks.insert(id, Block { base, ids });
        }
        Ok(blocks)
    }
}
