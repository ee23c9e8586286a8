// SPDX-License-Identifier: Apache-2.0
//! VIPs and their rings.

use causeway_core::control::Sampling;

use super::*;
use crate::map::{io_error, wait_for_programs};

/// A VIP's number: index of its ring and counters. Given out by the data plane,
/// lowest first, and kept over restarts.
pub type VipId = u32;

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Protocol {
    /// TCP.
    Tcp = 6,
    /// UDP, QUIC among it.
    Udp = 17,
}

impl Protocol {
    /// Each with its word in configuration files.
    pub const WORDS: [(&'static str, Self); 2] = [("tcp", Self::Tcp), ("udp", Self::Udp)];

    /// That of IP's number of a protocol.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// What a VIP may have besides its ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VipOptions {
    /// Takes the fragments to its address and protocol, and picks by the client's
    /// address alone, so that fragments meet the packets that were not fragmented.
    /// One VIP of an address and protocol at most.
    pub fragments: bool,
    /// Picks by the client's address alone, without its fragments.
    pub by_address: bool,
    /// Gives connections with timestamps a slot of their own, as far as there are
    /// slots; needs servers whose agent writes connection tokens.
    pub stateful: bool,
    /// How many new flows each client prefix may open.
    pub limit: Option<FlowLimit>,
    /// Sends servers the former owner of a slot with segments that nothing remembers; needs servers
    /// whose agent reads that.
    pub second_chance: bool,
}

/// The flags that [`VipOptions`] are.
const OPTION_FLAGS: u32 =
    abi::VIP_PICK_BY_ADDRESS | abi::VIP_STATEFUL | abi::VIP_LIMITED | abi::VIP_SECOND_CHANCE;

/// A limit of new flows for each client prefix: what is beyond it is dropped, and
/// counted as `rate_limited`. The 65,536 newest prefixes are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimit(abi::VipLimit);

impl FlowLimit {
    /// Most flows per second; the unit of time is 1024 ns.
    pub const RATE_MAX: f64 = 10_000.0;
    /// Longest time that a burst may take to be paid off, seconds.
    pub const BURST_SECONDS_MAX: f64 = 4000.0;
    const UNITS_PER_SECOND: f64 = 1e9 / 1024.0;

    /// As the data plane has it.
    pub fn value(&self) -> abi::VipLimit {
        self.0
    }

    /// `rate` flows per second, above 0, and `burst` at once, for each of the prefixes
    /// of these lengths. `None` for a rate or a burst that is out of range.
    pub fn new(rate: f64, burst: u32, prefix4: u8, prefix6: u8) -> Option<Self> {
        let seconds = f64::from(burst.max(1)) / rate;
        if !(rate > 0.0 && rate <= Self::RATE_MAX && seconds <= Self::BURST_SECONDS_MAX) {
            return None;
        }
        let interval = (Self::UNITS_PER_SECOND / rate).round();
        Some(Self(abi::VipLimit {
            interval: interval as u32,
            tolerance: (interval * f64::from(burst.max(1) - 1)) as u32,
            prefix4: prefix4.min(32),
            prefix6: prefix6.min(128),
            pad: [0; 6],
        }))
    }
}

/// What clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vip {
    /// Its address.
    pub address: IpAddr,
    /// Its port; 0 stands for all that have no VIP of their own.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
}

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = SocketAddr::new(self.address, self.port);
        write!(f, "{address}/{}", self.protocol)
    }
}

/// Which slot of its VIP's ring a new flow takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pick {
    /// That of the tuple's hash.
    #[default]
    Hash,
    /// The next one: the ring is a sequence of turns.
    Turn,
    /// Of two by chance, the one whose real carries less for its weight.
    Two,
}

/// The rings of a VIP that are to be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VipRings {
    /// The VIP.
    pub vip: VipId,
    /// That of its scheduler; empty for none.
    pub ring: Vec<RealId>,
    /// That of what comes without a memory of its real, which balancers of one configuration
    /// have alike; empty for the VIP's own. `None`: it stays.
    pub plain: Option<Vec<RealId>>,
}

/// How a VIP gives new flows to its reals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Picking {
    /// Which slot a new flow takes.
    pub pick: Pick,
    /// Whether flows are remembered. Without that, every packet goes by the ring and
    /// by [`Pick::Hash`].
    pub remember: bool,
    /// Whether new flows add to their real's load, see [`LoadTerms`].
    pub count_load: bool,
}

impl Default for Picking {
    fn default() -> Self {
        Self {
            pick: Pick::Hash,
            remember: true,
            count_load: false,
        }
    }
}

impl Picking {
    fn store(self, value: &mut abi::VipValue) {
        value.pick = match self.pick {
            Pick::Hash => abi::PICK_HASH,
            Pick::Turn => abi::PICK_TURN,
            Pick::Two => abi::PICK_TWO,
        };
        value.flags &= !(abi::VIP_FORGET | abi::VIP_COUNT_LOAD);
        if !self.remember {
            value.flags |= abi::VIP_FORGET;
        }
        if self.count_load {
            value.flags |= abi::VIP_COUNT_LOAD;
        }
    }
}

impl Vip {
    pub(crate) fn key(&self) -> abi::VipKey {
        abi::VipKey {
            addr: abi::addr_bytes(self.address),
            port_be: self.port.to_be_bytes(),
            proto: self.protocol as u8,
            kind: 0,
        }
    }

    /// The entry that says that the address alone is a VIP's.
    fn address_key(&self) -> abi::VipKey {
        abi::VipKey {
            addr: abi::addr_bytes(self.address),
            ..Default::default()
        }
    }

    /// The entry of fragments to the address.
    fn fragments_key(&self) -> abi::VipKey {
        abi::VipKey {
            port_be: [0; 2],
            kind: abi::VIP_OF_FRAGMENTS,
            ..self.key()
        }
    }

    /// `None` for the entries of an address alone and of fragments.
    pub(crate) fn from_key(key: &abi::VipKey) -> Option<Self> {
        if key.kind != 0 {
            return None;
        }
        Some(Self {
            address: abi::addr_from_bytes(key.addr),
            port: u16::from_be_bytes(key.port_be),
            protocol: Protocol::from_number(key.proto)?,
        })
    }
}

impl LoadBalancer {
    /// All VIPs with their ids.
    pub fn vips(&self) -> Vec<(VipId, Vip)> {
        self.registry().vips.iter().collect()
    }

    /// The number of a VIP.
    pub fn vip_id(&self, vip: &Vip) -> Option<VipId> {
        self.registry().vips.id(vip)
    }

    /// Adds a VIP, without a ring: until it gets one, its packets are dropped and
    /// counted as `no_real`. Its counters start at zero.
    pub fn add_vip(&self, vip: &Vip) -> Result<VipId> {
        let mut registry = self.registry();
        if registry.vips.id(vip).is_some() {
            return Err(DataPlaneError::DuplicateVip(vip.to_string()));
        }
        let id = registry
            .vips
            .free(self.vip_stats.max_entries())
            .ok_or(DataPlaneError::Full {
                what: "VIPs",
                max: self.vip_stats.max_entries(),
                setting: "limits.vips",
            })?;
        // A number without a VIP has no rings.
        self.vip_stats.clear(id)?;
        self.clear_cookie_counts(id)?;
        self.put_vip(&vip.address_key(), &abi::VipValue::default())?;
        let value = abi::VipValue {
            id,
            ..Default::default()
        };
        self.put_vip(&vip.key(), &value)?;
        registry.vips.put(id, *vip);
        Ok(id)
    }

    /// Removes a VIP with its ring and its reals. Packets to it then pass on to the
    /// kernel.
    pub fn remove_vip(&self, id: VipId) -> Result<()> {
        let mut registry = self.registry();
        let vip = registry.vip(id)?;
        let value = self.vips.get(&vip.key())?.unwrap_or_default();
        self.yield_fragments(&vip, id)?;
        self.drop_vip(&vip.key())?;
        registry.vips.take(id);
        self.remove_beside(&registry, &vip)?;
        if registry.cookies.remove(&id).is_some() | registry.forgetful.remove(&id) {
            self.set_vip_first(&registry)?;
        }
        self.forget_sources(&mut registry, id)?;
        for (size, number) in [
            (value.ring_size, id),
            (value.plain_size, self.plain_ring(id)),
            (value.former_size, self.former_ring(id)),
        ] {
            if size > 0 {
                self.rings.clear(number)?;
            }
        }
        registry.owners.remove(&id);
        let of_vip = registry.reals.iter().filter(|(_, real)| real.vip == id);
        for (real, _) in of_vip.collect::<Vec<_>>() {
            self.retire(&mut registry, real)?;
        }
        Ok(())
    }

    /// Gives a VIP a ring of real ids, empty for none. The swap is atomic: a packet
    /// sees the old ring or the new one.
    pub fn set_ring(&self, vip: VipId, ring: &[RealId]) -> Result<()> {
        self.set_rings(&[VipRings {
            vip,
            ring: ring.to_vec(),
            plain: None,
        }])
    }

    /// [`set_ring`](Self::set_ring) for several VIPs, and their rings of configured
    /// weights. The kernel waits some milliseconds after a swap, until no CPU works with the
    /// old ring: from Linux 6.8 on once in all, before that once for each ring. As long again
    /// where a ring gets shorter.
    pub fn set_rings(&self, rings: &[VipRings]) -> Result<()> {
        let mut registry = self.registry();
        let (mut formers, mut swaps) = (Vec::new(), Vec::new());
        let mut owners = BTreeMap::new();
        // Of rings that are there, and become empty.
        let mut emptied = Vec::new();
        let mut is_shorter = false;
        for of_vip @ VipRings {
            vip: id,
            ring,
            plain,
        } in rings
        {
            let vip = registry.vip(*id)?;
            let mut ids = ring.iter().chain(plain.iter().flatten());
            if let Some(unknown) = ids.find(|real| registry.real(**real).is_err()) {
                return Err(DataPlaneError::UnknownReal(*unknown));
            }
            // The size in use never exceeds the ring: it shrinks before the swap, until no CPU
            // goes by the former size, and grows after it. A slot beyond a ring would be a
            // packet without a real.
            let old = self
                .vips
                .get(&vip.key())?
                .ok_or(DataPlaneError::UnknownVip(*id))?;
            let size = old.ring_size.min(ring.len() as u32);
            let plain_of = |old: u32| plain.as_ref().map_or(old, |plain| plain.len() as u32);
            let plain_size = old.plain_size.min(plain_of(old.plain_size));
            let mut former_size = old.former_size;
            if let Some(next) = Self::next_owners(&registry, of_vip, &old) {
                former_size = former_size.min(next.former_size());
                is_shorter |= former_size < old.former_size;
                // In front of the ring itself: a slot's owner is its own former one for a moment.
                formers.extend(self.former_swap(*id, &next)?);
                owners.insert(*id, next);
            }
            let sizes = (size, plain_size, former_size);
            if sizes != (old.ring_size, old.plain_size, old.former_size) {
                self.change(&vip, *id, |value| {
                    (value.ring_size, value.plain_size, value.former_size) = sizes;
                })?;
            }
            for (number, ring, had) in [
                (*id, Some(ring), old.ring_size),
                (self.plain_ring(*id), plain.as_ref(), old.plain_size),
            ] {
                match ring {
                    Some(ring) if !ring.is_empty() => {
                        is_shorter |= (ring.len() as u32) < had;
                        swaps.push((number, NewRing::fill(ring)?));
                    }
                    Some(_) if had > 0 => emptied.push(number),
                    _ => {}
                }
            }
        }
        if is_shorter {
            wait_for_programs();
        }
        self.rings.swap(&formers)?;
        self.rings.swap(&swaps)?;
        for VipRings {
            vip: id,
            ring,
            plain,
        } in rings
        {
            self.change(&registry.vip(*id)?, *id, |value| {
                value.ring_size = ring.len() as u32;
                if let Some(plain) = plain {
                    value.plain_size = plain.len() as u32;
                }
                if let Some(next) = owners.get(id) {
                    value.former_size = next.former_size();
                }
            })?;
        }
        for number in emptied {
            self.rings.clear(number)?;
        }
        registry.owners.append(&mut owners);
        Ok(())
    }

    /// Number of the ring of configured weights beside another.
    pub(super) fn plain_ring(&self, ring: u32) -> u32 {
        self.vip_stats.max_entries() + abi::SOURCE_GROUPS + ring
    }

    /// A VIP's ring; empty if it has none. Needs CAP_SYS_ADMIN, and copies it all:
    /// not for every tick.
    pub fn ring(&self, vip: VipId) -> Result<Vec<RealId>> {
        Ok(self.rings(&[vip])?.remove(0))
    }

    /// The rings of these VIPs, as [`ring`](Self::ring) has them.
    pub fn rings(&self, vips: &[VipId]) -> Result<Vec<Vec<RealId>>> {
        let registry = self.registry();
        vips.iter()
            .try_for_each(|vip| registry.vip(*vip).map(drop))?;
        self.rings.read(vips)
    }

    /// Sets which connections of a VIP are measured at any of its reals.
    pub fn set_vip_sampling(&self, id: VipId, sampling: Sampling) -> Result<()> {
        let registry = self.registry();
        let vip = registry.vip(id)?;
        let sampling = abi::SamplingValue::from(sampling);
        let known = self.vips.get(&vip.key())?;
        match known.is_some_and(|value| value.sampling == sampling) {
            true => Ok(()),
            false => self.change(&vip, id, |value| value.sampling = sampling),
        }
    }

    /// Sets how a VIP gives new flows to its reals; flows that it knows stay, unless it is to
    /// remember none. Any ring works with any way to pick, so the order of this and of
    /// [`set_ring`](Self::set_ring) does not matter.
    pub fn set_picking(&self, id: VipId, picking: Picking) -> Result<()> {
        let mut registry = self.registry();
        let vip = registry.vip(id)?;
        self.change(&vip, id, |value| picking.store(value))?;
        match picking.remember {
            true => registry.forgetful.remove(&id),
            false => registry.forgetful.insert(id),
        };
        self.set_vip_first(&registry)
    }

    /// Has the next new flow of a VIP with [`Pick::Turn`] take slot `turn` modulo the
    /// ring's size.
    pub fn set_turn(&self, id: VipId, turn: u64) -> Result<()> {
        let registry = self.registry();
        registry.vip(id)?;
        let value = abi::Turns {
            taken: turn,
            ..Default::default()
        };
        self.turns.put(&id, &value)
    }

    /// How many turns a VIP has given.
    pub fn turns(&self, id: VipId) -> Result<u64> {
        self.registry().vip(id)?;
        Ok(self.turns.get(&id)?.unwrap_or_default().taken)
    }

    /// What a VIP has besides its ring.
    pub fn vip_options(&self, id: VipId) -> Result<VipOptions> {
        let registry = self.registry();
        let vip = registry.vip(id)?;
        let value = self
            .vips
            .get(&vip.key())?
            .ok_or(DataPlaneError::UnknownVip(id))?;
        let by_address = value.flags & abi::VIP_PICK_BY_ADDRESS != 0;
        let taker = self.vips.get(&vip.fragments_key())?;
        let fragments = by_address && taker.is_some_and(|taker| taker.id == id);
        Ok(VipOptions {
            fragments,
            by_address: by_address && !fragments,
            stateful: value.flags & abi::VIP_STATEFUL != 0,
            second_chance: value.flags & abi::VIP_SECOND_CHANCE != 0,
            limit: match value.flags & abi::VIP_LIMITED {
                0 => None,
                _ => self.limits.get(&id)?.map(FlowLimit),
            },
        })
    }

    /// Sets what a VIP has besides its ring; the ring and all flows stay.
    pub fn set_vip_options(&self, id: VipId, options: VipOptions) -> Result<()> {
        let mut registry = self.registry();
        let vip = registry.vip(id)?;
        let flag = |on: bool, flag: u32| if on { flag } else { 0 };
        let by_address = options.fragments || options.by_address;
        let flags = flag(by_address, abi::VIP_PICK_BY_ADDRESS)
            | flag(options.stateful, abi::VIP_STATEFUL)
            | flag(options.limit.is_some(), abi::VIP_LIMITED)
            | flag(options.second_chance, abi::VIP_SECOND_CHANCE);
        if let Some(FlowLimit(limit)) = options.limit {
            self.limits.put(&id, &limit)?;
        }
        self.change(&vip, id, |value| {
            value.flags &= !OPTION_FLAGS;
            value.flags |= flags;
        })?;
        self.keep_owners(&mut registry, id, options.second_chance)?;
        if !options.fragments {
            return self.yield_fragments(&vip, id);
        }
        let value = self
            .vips
            .get(&vip.key())?
            .ok_or(DataPlaneError::UnknownVip(id))?;
        self.put_vip(&vip.fragments_key(), &value)
    }

    pub(super) fn put_vip(&self, key: &abi::VipKey, value: &abi::VipValue) -> Result<()> {
        self.vips.put(key, value)?;
        self.end_copies()
    }

    fn drop_vip(&self, key: &abi::VipKey) -> Result<bool> {
        let was_there = self.vips.remove(key)?;
        self.end_copies()?;
        Ok(was_there)
    }

    /// CPUs keep copies of VIPs (`struct vip_seen`), which are good for one version.
    fn end_copies(&self) -> Result<()> {
        let mut ctl = self.ctl.get(&0)?.unwrap_or_default();
        ctl.vips_version = ctl.vips_version.wrapping_add(1);
        self.ctl.put(&0, &ctl)
    }

    /// Fragments to the VIP's address are dropped again, if they were this VIP's.
    fn yield_fragments(&self, vip: &Vip, id: VipId) -> Result<()> {
        match self.vips.get(&vip.fragments_key())? {
            Some(taker) if taker.id == id => self.drop_vip(&vip.fragments_key()).map(drop),
            _ => Ok(()),
        }
    }

    /// Changes a VIP's value, also where it is that of its address's fragments.
    pub(super) fn change(
        &self,
        vip: &Vip,
        id: VipId,
        change: impl Fn(&mut abi::VipValue),
    ) -> Result<()> {
        let mut value = self
            .vips
            .get(&vip.key())?
            .ok_or(DataPlaneError::UnknownVip(id))?;
        change(&mut value);
        self.put_vip(&vip.key(), &value)?;
        match self.vips.get(&vip.fragments_key())? {
            Some(taker) if taker.id == id => self.put_vip(&vip.fragments_key(), &value),
            _ => Ok(()),
        }
    }

    /// Removes the entries beside a VIP that is gone, as far as no other VIP has them. The table
    /// is not read: many VIPs may go at a time.
    fn remove_beside(&self, registry: &Registry, vip: &Vip) -> Result<()> {
        let address = vip.address_key();
        let others = registry.vips.iter().map(|(_, other)| other);
        let others = others.filter(|other| other.address_key() == address);
        let held: Vec<_> = others
            .flat_map(|other| [other.address_key(), other.fragments_key()])
            .collect();
        for key in [address, vip.fragments_key()] {
            if !held.contains(&key) {
                self.drop_vip(&key)?;
            }
        }
        Ok(())
    }

    /// Removes the entries of addresses that have no VIP any more, a predecessor's.
    pub(super) fn remove_bare_addresses(&self, registry: &Registry) -> Result<()> {
        let vips = registry.vips.iter();
        let held = vips.flat_map(|(_, vip)| [vip.address_key(), vip.fragments_key()]);
        let held: HashSet<_> = held.collect();
        for (key, _) in self.vips.entries()? {
            if Vip::from_key(&key).is_none() && !held.contains(&key) {
                self.drop_vip(&key)?;
            }
        }
        Ok(())
    }

    /// The VIPs in the map.
    pub(super) fn read_vips(&self) -> Result<(Slots<Vip>, BTreeSet<VipId>)> {
        let entries = self.vips.entries()?.into_iter();
        let vips = entries.filter_map(|(key, value)| Some((value, Vip::from_key(&key)?)));
        let vips: Vec<_> = vips.collect();
        let forgetful = vips
            .iter()
            .filter(|(value, _)| value.flags & abi::VIP_FORGET != 0);
        let forgetful = forgetful.map(|(value, _)| value.id).collect();
        Ok((
            vips.into_iter()
                .map(|(value, vip)| (value.id, vip))
                .collect(),
            forgetful,
        ))
    }
}

/// VIPs and reals of a balancer, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The VIPs.
    pub vips: Vec<(VipId, Vip)>,
    /// The reals.
    pub reals: Vec<(RealId, Real)>,
}

impl Inventory {
    /// What the balancer pinned in `pin_dir` has now, also if another process owns it.
    pub fn pinned(pin_dir: &Path) -> Result<Self> {
        let open = |name: &str| {
            MapHandle::from_pinned_path(pin_dir.join(name))
                .map_err(|e| DataPlaneError::map("open the pin of", name, io_error(&e)))
        };
        let vips: Table<abi::VipKey, abi::VipValue> = Table::new(open("vips")?)?;
        let reals: Table<u32, abi::RealValue> = Table::new(open("reals")?)?;
        let vips = vips.entries()?.into_iter();
        let vips = vips.filter_map(|(key, value)| Some((value.id, Vip::from_key(&key)?)));
        let reals = (0..).zip(reals.first(reals.max_entries())?);
        let reals = reals.filter_map(|(id, value)| Some((id, Real::from_value(&value)?)));
        Ok(Self {
            vips: vips.collect(),
            reals: reals.collect(),
        })
    }
}

impl Registry {
    pub(super) fn vip(&self, id: VipId) -> Result<Vip> {
        self.vips.get(id).ok_or(DataPlaneError::UnknownVip(id))
    }
}
