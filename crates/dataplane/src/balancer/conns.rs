// SPDX-License-Identifier: Apache-2.0
//! User space's half of stateful mode (`bpf/lb/conn_table.h`): it hands free slots to
//! the CPUs, and takes back those of connections that have ended.
//!
//! Nothing here is called for a packet. Both arrays are mapped into memory. The
//! kernel writes to them at the same time; every word that both touch is read and
//! written atomically, and each ring has one side that puts and one that takes.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use causeway_core::ages::SlotAge;
use causeway_core::cookie::Tuple;

use super::RealId;
use super::directory::SlotRoute;
use crate::abi::{self, c};
use crate::error::Result;
use crate::mapped::{Mapped, Shared};

/// Bits of the token that a client echoes, second-tier bits included.
const TOKEN_BITS: u32 = c::CONN_TOKEN_BITS;
/// Entries of a ring.
const RING: u32 = c::CONN_RING;
/// All rings of CPUs without connections together hold at most this part of a partition: what
/// is in a ring cannot be taken out of it again, and there may be far more CPUs than queues.
const IDLE_PART: u32 = 20;
/// A ring is filled with this many times what was taken from it since the last time.
const AHEAD: u32 = 4;

/// A `struct flow`, as words.
#[repr(C)]
struct Slot {
    key: [AtomicU64; 5],
    /// Real, its generation, VIP.
    route: AtomicU64,
    /// Sequence number of the SYN, bits, token.
    opening: AtomicU64,
    /// Packets after the SYN, and the time of the last.
    traffic: AtomicU64,
    /// The estimator's.
    _chain: [u64; 16],
}

/// A `struct conn_free_ring`.
#[repr(C)]
struct Ring {
    head: AtomicU32,
    empty: AtomicU32,
    _pad: [u32; 14],
    tail: AtomicU32,
    _pad2: [u32; 15],
    index: [AtomicU16; RING as usize],
}

// SAFETY: all fields are atomic but the estimator's state, which is not read.
unsafe impl Shared for Slot {}
// SAFETY: all fields are atomic but the padding.
unsafe impl Shared for Ring {}
const _: () = assert!(size_of::<Slot>() == size_of::<abi::FlowEntry>());

/// How many slots there are, and who else gives out tokens; by default there is no
/// stateful mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnLayout {
    /// Slots wanted; rounded up to whole partitions. 0: no stateful mode.
    pub connections: u32,
    /// How many bits of a token name the second-tier balancer; 0 without one.
    pub tier_bits: u8,
    /// This balancer's number among them.
    pub tier: u8,
}

impl ConnLayout {
    /// Slots of one partition.
    pub fn partition_size(&self) -> u32 {
        1 << (TOKEN_BITS - u32::from(self.tier_bits))
    }

    /// Partitions, each with indices of its own; 0 without stateful mode.
    pub fn partitions(&self) -> u32 {
        self.connections.div_ceil(self.partition_size())
    }
}

/// How long a slot is kept for a connection that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnTimeouts {
    /// After its SYN, before anything else has come.
    pub half_open: Duration,
    /// After the client has ended it.
    pub closed: Duration,
    /// While it is open.
    pub open: Duration,
}

impl Default for ConnTimeouts {
    /// 30 s, 60 s (TIME_WAIT), one hour.
    fn default() -> Self {
        Self {
            half_open: Duration::from_secs(30),
            closed: Duration::from_secs(60),
            open: Duration::from_secs(3600),
        }
    }
}

/// A connection in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its slot; given to another one only after this has ended.
    pub slot: u32,
    /// The client.
    pub client: SocketAddr,
    /// The VIP.
    pub vip: SocketAddr,
    /// The real that it is on.
    pub real: RealId,
    /// Packets from the client after the SYN, modulo 2^32.
    pub packets: u32,
    /// The client has ended it.
    pub closed: bool,
}

/// What became of a connection that another balancer had in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// It is in its slot now.
    Placed,
    /// It was there already.
    Known,
    /// The slot is another connection's, or on its way to one; or the token names no
    /// slot of this balancer's.
    Taken,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Slots looked at.
    pub seen: u32,
    /// Of them, in use.
    pub used: u32,
    /// Slots taken back.
    pub freed: u32,
}

/// The slots of all connections. One per balancer: it is what the rings' other side
/// relies on.
pub struct ConnTable {
    slots: Mapped<Slot>,
    rings: Mapped<Ring>,
    layout: ConnLayout,
    /// Free indices of each partition that are in no ring.
    reserve: Vec<Vec<u16>>,
    /// What each ring was asked for in the end.
    demands: Vec<Demand>,
    ages: Vec<SlotAge>,
    cursor: usize,
    unheard: HashMap<RealId, u64>,
}

impl ConnTable {
    /// Wraps the arrays and finds out which slots are free: whatever is neither in
    /// use nor in a ring, as after a predecessor that was killed half-way. CPUs get
    /// theirs by [`ConnTable::top_up`].
    pub fn new(
        conns: &libbpf_rs::MapHandle,
        rings: &libbpf_rs::MapHandle,
        layout: ConnLayout,
    ) -> Result<Self> {
        let slots: Mapped<Slot> = Mapped::new(conns)?;
        let mut table = Self {
            ages: vec![SlotAge::default(); slots.len()],
            slots,
            demands: Vec::new(),
            rings: Mapped::new(rings)?,
            layout,
            reserve: Vec::new(),
            cursor: 0,
            unheard: HashMap::new(),
        };
        table.demands = table.rings.iter().map(Demand::of).collect();
        let waiting = table.waiting();
        crate::map::wait_for_programs();
        table.audit(&waiting);
        Ok(table)
    }

    /// Slots whose indices lie in a ring.
    fn waiting(&self) -> Vec<usize> {
        let size = self.layout.partition_size() as usize;
        let partitions = self.layout.partitions() as usize;
        let rings = self.rings.iter().enumerate();
        let slots = rings.flat_map(|(at, ring)| {
            let first = at % partitions * size;
            ring.waiting().map(move |index| first + usize::from(index))
        });
        slots.collect()
    }

    /// Finds what is free. `waiting` has been read before, and what programs ran then have ended:
    /// a CPU that takes an index out of its ring and fills the slot is found by one of the two
    /// looks, however long it stands still in between.
    fn audit(&mut self, waiting: &[usize]) {
        let size = self.layout.partition_size() as usize;
        let mut taken: Vec<bool> = self.slots.iter().map(Slot::in_use).collect();
        for slot in waiting {
            if let Some(taken) = taken.get_mut(*slot) {
                *taken = true;
            }
        }
        let free = |partition: &[bool]| {
            let indices = partition.iter().zip(0_u16..);
            let free = indices.filter(|(taken, _)| !**taken);
            let mut free: Vec<u16> = free.map(|(_, index)| index).collect();
            free.reverse(); // the lowest is given out first
            free
        };
        self.reserve = taken.chunks(size).map(free).collect();
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether CPUs have been handed slots, also by a predecessor, whose rings another layout
    /// leaves behind: but not what they gave out.
    pub fn gives_out(&self) -> bool {
        let handed = |ring: &Ring| ring.tail.load(Ordering::Relaxed) != 0;
        self.rings.iter().any(handed) || self.slots.iter().any(Slot::was_given_out)
    }

    /// Fills the CPUs' rings from the reserve: each with several times what was asked of it
    /// since the last time, and with a few where nothing was. To be called often: a ring holds
    /// 1024 slots of a partition, and a CPU without any goes on by the flow table.
    pub fn top_up(&mut self) {
        for (ring, demand) in self.rings.iter().zip(&mut self.demands) {
            demand.look(ring);
        }
        let partitions = self.reserve.len().max(1);
        let cpus = self.rings.len() / partitions;
        let idle = self.layout.partition_size() / (IDLE_PART * cpus.max(1) as u32);
        let idle = idle.clamp(1, RING);
        for (partition, reserve) in self.reserve.iter_mut().enumerate() {
            let rings = self.rings.iter().zip(&self.demands);
            let rings = rings.skip(partition).step_by(partitions);
            let wants = |demand: &Demand| (AHEAD * demand.asked.min(RING)).clamp(idle, RING);
            // A ring that has more than it wants needs none, and takes none off the others.
            let mut short: Vec<(&Ring, u32, u32)> = rings
                .map(|(ring, demand)| (ring, ring.count(), wants(demand)))
                .filter(|(_, count, wanted)| count < wanted)
                .collect();
            short.sort_by_key(|(_, count, wanted)| wanted - count);
            let mut left = short.len();
            for (ring, count, wanted) in short {
                let share = reserve.len().div_ceil(left);
                let room = share.min((wanted - count) as usize);
                let keep = reserve.len() - room;
                ring.put(reserve.drain(keep..));
                left -= 1;
            }
        }
    }

    /// Looks at the next `count` slots and takes back those that have been silent for
    /// longer than `timeouts`. `now` is on any clock that does not go back.
    pub fn sweep(&mut self, now: Duration, count: usize, timeouts: &ConnTimeouts) -> Swept {
        let mut swept = Swept::default();
        for _ in 0..count.min(self.slots.len()) {
            let number = self.cursor;
            self.cursor = (number + 1) % self.slots.len();
            swept.seen += 1;
            let Some(slot) = self.slots.get(number).filter(|slot| slot.in_use()) else {
                self.ages[number] = SlotAge::default();
                continue;
            };
            swept.used += 1;
            let traffic = slot.packets();
            let Some(silent) = self.ages[number].silent(now, traffic) else {
                continue;
            };
            let limit = match (slot.closed(), traffic) {
                (true, _) => timeouts.closed,
                (false, 0) => timeouts.half_open,
                (false, _) => timeouts.open,
            };
            if silent >= limit {
                if slot.was_given_out() && !slot.closed() && traffic == 0 {
                    *self.unheard.entry(slot.real()).or_default() += 1;
                }
                self.free(number);
                swept.freed += 1;
            }
        }
        swept
    }

    /// How many connections of each real have been taken back of which only the SYN came, since
    /// this was asked.
    pub fn take_unheard(&mut self) -> HashMap<RealId, u64> {
        std::mem::take(&mut self.unheard)
    }

    /// Takes a slot back at once, if it still is this connection's: the server has
    /// seen the end of it in both directions.
    pub fn release(&mut self, connection: &Connection) -> bool {
        let held = self.connection(connection.slot);
        let same =
            |held: Connection| held.client == connection.client && held.vip == connection.vip;
        let ours = held.is_some_and(same);
        if ours {
            self.free(connection.slot as usize);
        }
        ours
    }

    /// The slot of a connection that has this token, by its tuple. `hash_key` is
    /// [`super::Directory::hash_key`].
    pub fn find(
        &self,
        hash_key: [u64; 2],
        (client, vip): (SocketAddr, SocketAddr),
        token: u16,
    ) -> Option<Connection> {
        let index = self.index_of(hash_key, &Tuple::tcp(client, vip), token)?;
        let size = self.layout.partition_size();
        let numbers = (0..self.layout.partitions()).map(|partition| partition * size + index);
        let mut found = numbers.filter_map(|number| self.connection(number));
        found.find(|held| held.client == client && held.vip == vip)
    }

    /// The index within a partition that a token names; `None` for one of another
    /// second-tier balancer.
    fn index_of(&self, hash_key: [u64; 2], tuple: &Tuple, token: u16) -> Option<u32> {
        let mask = match self.layout.tier_bits {
            0 => 0,
            _ => tuple.token_mask(hash_key),
        };
        let (token, size) = (u32::from(token ^ mask), self.layout.partition_size());
        (token / size == u32::from(self.layout.tier)).then_some(token % size)
    }

    /// Puts a connection that another balancer gave `token` into the slot that it names
    /// here. `hash_key` is [`super::Directory::hash_key`].
    pub fn learn(
        &mut self,
        hash_key: [u64; 2],
        (client, vip): (SocketAddr, SocketAddr),
        token: u16,
        route: &SlotRoute,
    ) -> Learned {
        let tuple = Tuple::tcp(client, vip);
        let Some(index) = self.index_of(hash_key, &tuple, token) else {
            return Learned::Taken;
        };
        let partition = tuple.partition(hash_key[1], self.layout.partitions());
        let number = partition * self.layout.partition_size() + index;
        if let Some(held) = self.connection(number) {
            return match held.client == client && held.vip == vip {
                true => Learned::Known,
                false => Learned::Taken,
            };
        }
        let Some(reserve) = self.reserve.get_mut(partition as usize) else {
            return Learned::Taken;
        };
        // New connections get the lowest first, so the old ones are near the end.
        let Some(at) = reserve.iter().rposition(|free| u32::from(*free) == index) else {
            return Learned::Taken;
        };
        reserve.remove(at);
        self.slots[number as usize].write(&tuple, token, route);
        self.ages[number as usize] = SlotAge::default();
        Learned::Placed
    }

    fn free(&mut self, number: usize) {
        let size = self.layout.partition_size() as usize;
        self.slots[number].clear();
        self.ages[number] = SlotAge::default();
        self.reserve[number / size].push((number % size) as u16);
    }

    /// Slots that are in use, found by a look at each of them.
    pub fn connections(&self) -> impl Iterator<Item = Connection> {
        (0..self.slots.len() as u32).filter_map(|number| self.connection(number))
    }

    /// The connection in a slot.
    pub fn connection(&self, number: u32) -> Option<Connection> {
        self.slots.get(number as usize)?.connection(number)
    }

    /// SYNs that found no free slot and went by the flow table instead.
    pub fn refused(&self) -> u64 {
        let empty = |ring: &Ring| u64::from(ring.empty.load(Ordering::Relaxed));
        self.rings.iter().map(empty).sum()
    }

    /// Sends a connection's packets to another real from now on: to a scrubber, say.
    /// The old real's end of the connection is lost by that. `false` if the slot is
    /// another connection's by now.
    pub(crate) fn reroute(&self, connection: &Connection, real: RealId, generation: u16) -> bool {
        let Some(slot) = self.slots.get(connection.slot as usize) else {
            return false;
        };
        let ours = slot
            .connection(connection.slot)
            .is_some_and(|held| held.client == connection.client && held.vip == connection.vip);
        let old = slot.route.load(Ordering::Relaxed);
        let new = old & !0xffff_ffff_ffff | u64::from(generation) << 32 | u64::from(real);
        ours && slot
            .route
            .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

/// What a CPU asks of its ring.
struct Demand {
    /// Positions of the ring's counters at the last look.
    head: u32,
    empty: u32,
    /// Slots that were taken, or were not there to be taken, up to then since the look before.
    asked: u32,
}

impl Demand {
    fn of(ring: &Ring) -> Self {
        Self {
            head: ring.head.load(Ordering::Relaxed),
            empty: ring.empty.load(Ordering::Relaxed),
            asked: 0,
        }
    }

    fn look(&mut self, ring: &Ring) {
        let now = Self::of(ring);
        let taken = now.head.wrapping_sub(self.head);
        let missed = now.empty.wrapping_sub(self.empty);
        *self = Self {
            asked: taken.saturating_add(missed),
            ..now
        };
    }
}

impl Ring {
    fn count(&self) -> u32 {
        let tail = self.tail.load(Ordering::Relaxed);
        tail.wrapping_sub(self.head.load(Ordering::Acquire))
    }

    fn waiting(&self) -> impl Iterator<Item = u16> {
        let head = self.head.load(Ordering::Acquire);
        let at = move |n| head.wrapping_add(n) % RING;
        (0..self.count().min(RING)).map(move |n| self.index[at(n) as usize].load(Ordering::Relaxed))
    }

    /// At most as many as there is room for.
    fn put(&self, indices: impl Iterator<Item = u16>) {
        let mut tail = self.tail.load(Ordering::Relaxed);
        for index in indices {
            self.index[(tail % RING) as usize].store(index, Ordering::Relaxed);
            tail = tail.wrapping_add(1);
        }
        self.tail.store(tail, Ordering::Release);
    }
}

impl Slot {
    fn word(&self, at: usize) -> u64 {
        self.key[at].load(Ordering::Relaxed)
    }

    /// Ports and protocol are in the second word of an IPv4 key and in the fifth of an
    /// IPv6 key; a protocol is never 0.
    fn in_use(&self) -> bool {
        self.word(1) | self.word(4) != 0
    }

    fn bits(&self) -> u8 {
        (self.opening.load(Ordering::Relaxed) >> 32) as u8
    }

    fn closed(&self) -> bool {
        self.bits() & c::FLOW_CLOSED != 0
    }

    /// By a SYN here, and not learnt of an agent.
    fn was_given_out(&self) -> bool {
        self.in_use() && self.bits() & c::FLOW_OPENED != 0
    }

    fn real(&self) -> RealId {
        self.route.load(Ordering::Relaxed) as RealId
    }

    fn packets(&self) -> u32 {
        self.traffic.load(Ordering::Relaxed) as u32
    }

    /// From the first store on no packet finds it.
    fn clear(&self) {
        for word in self.key.iter().rev() {
            word.store(0, Ordering::Release);
        }
    }

    /// The kernel finds it from the last store on: it compares the whole key.
    fn write(&self, tuple: &Tuple, token: u16, route: &SlotRoute) {
        let relaxed = Ordering::Relaxed;
        let to = u64::from(route.generation) << 32 | u64::from(route.vip) << 48;
        self.route.store(to | u64::from(route.real), relaxed);
        self.opening.store(u64::from(token) << 48, relaxed);
        self.traffic.store(1, relaxed); // it has been open before
        for (to, from) in self.key.iter().zip(tuple.words()) {
            to.store(*from, Ordering::Release);
        }
    }

    fn connection(&self, number: u32) -> Option<Connection> {
        if !self.in_use() {
            return None;
        }
        let bytes: Vec<u8> = (0..5).flat_map(|at| self.word(at).to_ne_bytes()).collect();
        let (client, vip) = endpoints(&bytes)?;
        Some(Connection {
            slot: number,
            client,
            vip,
            real: self.route.load(Ordering::Relaxed) as u32,
            packets: self.packets(),
            closed: self.closed(),
        })
    }
}

/// Client and VIP of a key; IPv4 keys end in zeros, where IPv6 keys have the VIP.
fn endpoints(key: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    use abi::Plain as _;
    let port = u16::from_be_bytes;
    if key.get(16..)?.iter().all(|byte| *byte == 0) {
        let key = abi::FlowKey4::from_bytes(key.get(..16)?)?;
        return Some((
            (IpAddr::from(key.saddr_be), port(key.sport_be)).into(),
            (IpAddr::from(key.daddr_be), port(key.dport_be)).into(),
        ));
    }
    let key = abi::FlowKey6::from_bytes(key)?;
    Some((
        (IpAddr::from(key.saddr_be), port(key.sport_be)).into(),
        (IpAddr::from(key.daddr_be), port(key.dport_be)).into(),
    ))
}

#[cfg(test)]
mod tests;
