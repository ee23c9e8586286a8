// SPDX-License-Identifier: Apache-2.0
//! VIPs and their rings.

use super::*;

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
    fn from_number(number: u8) -> Option<Self> {
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
    /// Gives connections with timestamps a place of their own, as far as there are
    /// places; needs servers whose agent writes words.
    pub stateful: bool,
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
    fn store(self, value: &mut abi::Vip) {
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
        numbered(&self.book().vips)
    }

    /// Adds a VIP, without a ring: until it gets one, its packets are dropped and
    /// counted as `no_real`. Its counters start at zero.
    pub fn add_vip(&self, vip: &Vip) -> Result<VipId> {
        let mut book = self.book();
        if book.vips.contains(&Some(*vip)) {
            return Err(Error::DuplicateVip(vip.to_string()));
        }
        let id = free_slot(&book.vips, self.vip_stats.max_entries()).ok_or(Error::Full {
            what: "VIPs",
            max: self.vip_stats.max_entries(),
            setting: "max_vips",
        })?;
        self.rings.clear(id)?;
        self.vip_stats.clear(id)?;
        self.clear_cookie_counts(id)?;
        self.vips.put(&vip.address_key(), &abi::Vip::default())?;
        let value = abi::Vip {
            id,
            ..Default::default()
        };
        self.vips.put(&vip.key(), &value)?;
        fill_slot(&mut book.vips, id, *vip);
        Ok(id)
    }

    /// Removes a VIP with its ring and its reals. Packets to it then pass on to the
    /// kernel.
    pub fn remove_vip(&self, id: VipId) -> Result<()> {
        let mut book = self.book();
        let vip = book.vip(id)?;
        self.yield_fragments(&vip, id)?;
        self.vips.remove(&vip.key())?;
        book.vips[id as usize] = None;
        self.remove_bare_addresses(&book)?;
        if book.cookies.remove(&id).is_some() {
            self.set_cookie_vips(&book)?;
        }
        self.rings.clear(id)?;
        for (real, _) in numbered(&book.reals)
            .iter()
            .filter(|(_, real)| real.vip == id)
        {
            self.retire(&mut book, *real)?;
        }
        Ok(())
    }

    /// Gives a VIP a ring of real ids, empty for none. The swap is atomic: a packet
    /// sees the old ring or the new one.
    pub fn set_ring(&self, vip: VipId, ring: &[RealId]) -> Result<()> {
        self.set_rings(&[(vip, ring)])
    }

    /// [`set_ring`](Self::set_ring) for several VIPs. The kernel waits some
    /// milliseconds after a swap, until no CPU works with the old ring; here it
    /// waits once.
    pub fn set_rings(&self, rings: &[(VipId, &[RealId])]) -> Result<()> {
        let book = self.book();
        let mut swaps = Vec::new();
        for &(id, ring) in rings {
            let vip = book.vip(id)?;
            if let Some(unknown) = ring.iter().find(|&&real| book.real(real).is_err()) {
                return Err(Error::UnknownReal(*unknown));
            }
            // The size in use never exceeds the ring: it shrinks before the swap and
            // grows after it. A slot beyond a ring would be a packet without a real.
            let size = ring.len() as u32;
            let old = self.vips.get(&vip.key())?.ok_or(Error::UnknownVip(id))?;
            if size < old.ring_size {
                self.change(&vip, id, |value| value.ring_size = size)?;
            }
            if size > 0 {
                swaps.push((id, NewRing::fill(ring)?));
            }
        }
        self.rings.swap(&swaps)?;
        for &(id, ring) in rings {
            self.change(&book.vip(id)?, id, |value| {
                value.ring_size = ring.len() as u32;
            })?;
            if ring.is_empty() {
                self.rings.clear(id)?;
            }
        }
        Ok(())
    }

    /// A VIP's ring; empty if it has none. Needs CAP_SYS_ADMIN, and copies it all:
    /// not for every tick.
    pub fn ring(&self, vip: VipId) -> Result<Vec<RealId>> {
        self.book().vip(vip)?;
        self.rings.read(vip)
    }

    /// Sets how a VIP gives new flows to its reals; flows that it knows stay. Any
    /// ring works with any way to pick, so the order of this and of
    /// [`set_ring`](Self::set_ring) does not matter.
    pub fn set_picking(&self, id: VipId, picking: Picking) -> Result<()> {
        let book = self.book();
        let vip = book.vip(id)?;
        self.change(&vip, id, |value| picking.store(value))
    }

    /// Has the next new flow of a VIP with [`Pick::Turn`] take slot `turn` modulo the
    /// ring's size.
    pub fn set_turn(&self, id: VipId, turn: u64) -> Result<()> {
        let book = self.book();
        book.vip(id)?;
        let value = abi::Turns {
            taken: turn,
            ..Default::default()
        };
        self.turns.put(&id, &value)
    }

    /// How many turns a VIP has given.
    pub fn turns(&self, id: VipId) -> Result<u64> {
        self.book().vip(id)?;
        Ok(self.turns.get(&id)?.unwrap_or_default().taken)
    }

    /// What a VIP has besides its ring.
    pub fn vip_options(&self, id: VipId) -> Result<VipOptions> {
        let book = self.book();
        let vip = book.vip(id)?;
        let value = self.vips.get(&vip.key())?.ok_or(Error::UnknownVip(id))?;
        Ok(VipOptions {
            fragments: value.flags & abi::VIP_PICK_BY_ADDRESS != 0,
            stateful: value.flags & abi::VIP_STATEFUL != 0,
        })
    }

    /// Sets what a VIP has besides its ring; the ring and all flows stay.
    pub fn set_vip_options(&self, id: VipId, options: VipOptions) -> Result<()> {
        let book = self.book();
        let vip = book.vip(id)?;
        let flag = |on: bool, flag: u32| if on { flag } else { 0 };
        let flags = flag(options.fragments, abi::VIP_PICK_BY_ADDRESS)
            | flag(options.stateful, abi::VIP_STATEFUL);
        self.change(&vip, id, |value| {
            value.flags &= !(abi::VIP_PICK_BY_ADDRESS | abi::VIP_STATEFUL);
            value.flags |= flags;
        })?;
        if !options.fragments {
            return self.yield_fragments(&vip, id);
        }
        let value = self.vips.get(&vip.key())?.ok_or(Error::UnknownVip(id))?;
        self.vips.put(&vip.fragments_key(), &value)
    }

    /// Fragments to the VIP's address are dropped again, if they were this VIP's.
    fn yield_fragments(&self, vip: &Vip, id: VipId) -> Result<()> {
        match self.vips.get(&vip.fragments_key())? {
            Some(taker) if taker.id == id => self.vips.remove(&vip.fragments_key()).map(drop),
            _ => Ok(()),
        }
    }

    /// Changes a VIP's value, also where it is that of its address's fragments.
    fn change(&self, vip: &Vip, id: VipId, change: impl Fn(&mut abi::Vip)) -> Result<()> {
        let mut value = self.vips.get(&vip.key())?.ok_or(Error::UnknownVip(id))?;
        change(&mut value);
        self.vips.put(&vip.key(), &value)?;
        match self.vips.get(&vip.fragments_key())? {
            Some(taker) if taker.id == id => self.vips.put(&vip.fragments_key(), &value),
            _ => Ok(()),
        }
    }

    /// Removes the entries of addresses that have no VIP any more.
    pub(super) fn remove_bare_addresses(&self, book: &Book) -> Result<()> {
        for (key, _) in self.vips.entries()? {
            let mut vips = book.vips.iter().flatten();
            let held = |vip: &Vip| vip.address_key() == key || vip.fragments_key() == key;
            if Vip::from_key(&key).is_none() && !vips.any(held) {
                self.vips.remove(&key)?;
            }
        }
        Ok(())
    }

    /// The VIPs in the map, by id.
    pub(super) fn read_vips(&self) -> Result<Vec<Option<Vip>>> {
        let mut vips = Vec::new();
        for (key, value) in self.vips.entries()? {
            if let Some(vip) = Vip::from_key(&key) {
                fill_slot(&mut vips, value.id, vip);
            }
        }
        Ok(vips)
    }
}

impl Book {
    pub(super) fn vip(&self, id: VipId) -> Result<Vip> {
        let slot = self.vips.get(id as usize).copied().flatten();
        slot.ok_or(Error::UnknownVip(id))
    }
}
