// SPDX-License-Identifier: Apache-2.0
//! User space's half of stateful mode (`bpf/lib/conn.h`): it hands free places to
//! the CPUs, and takes back those of connections that have ended.
//!
//! Nothing here is called for a packet. Both arrays are mapped into memory. The
//! kernel writes to them at the same time; every word that both touch is read and
//! written atomically, and each ring has one side that puts and one that takes.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::RealId;
use crate::abi;
use crate::error::Result;
use crate::mapped::{Mapped, Shared};

/// Bits of the word that a client echoes, second-tier bits included.
const WORD_BITS: u32 = 15;
/// Entries of a ring.
const RING: u32 = 1024;
/// `enum flow_bits`: FIN or RST from the client.
const CLOSED: u8 = 1 << 1;

/// A `struct flow`, as words.
#[repr(C)]
struct Slot {
    key: [AtomicU64; 5],
    /// Real, its generation, VIP.
    route: AtomicU64,
    /// Sequence number of the SYN, bits, word.
    opening: AtomicU64,
    /// Packets after the SYN, and the time of the last.
    traffic: AtomicU64,
    /// The estimator's.
    _chain: [u64; 16],
}

/// A `struct conn_ring`.
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
const _: () = assert!(size_of::<Slot>() == size_of::<abi::Flow>());

/// How many places there are, and who else gives out words; by default there is no
/// stateful mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnLayout {
    /// Places wanted; rounded up to whole partitions. 0: no stateful mode.
    pub connections: u32,
    /// How many bits of a word name the second-tier balancer; 0 without one.
    pub tier_bits: u8,
    /// This balancer's number among them.
    pub tier: u8,
}

impl ConnLayout {
    /// Places of one partition.
    pub(crate) fn partition_size(&self) -> u32 {
        1 << (WORD_BITS - u32::from(self.tier_bits))
    }

    /// Partitions, each with indices of its own; 0 without stateful mode.
    pub(crate) fn partitions(&self) -> u32 {
        self.connections.div_ceil(self.partition_size())
    }
}

/// How long a place is kept for a connection that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// After its SYN, before anything else has come.
    pub half_open: Duration,
    /// After the client has ended it.
    pub closed: Duration,
    /// While it is open.
    pub open: Duration,
}

impl Default for Patience {
    /// 30 s, 60 s (TIME_WAIT), one hour.
    fn default() -> Self {
        Self {
            half_open: Duration::from_secs(30),
            closed: Duration::from_secs(60),
            open: Duration::from_secs(3600),
        }
    }
}

/// A connection in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its place; given to another one only after this has ended.
    pub place: u32,
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

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Places looked at.
    pub seen: u32,
    /// Of them, in use.
    pub used: u32,
    /// Places taken back.
    pub freed: u32,
}

/// When a place last changed.
#[derive(Clone, Copy, Default)]
struct Age {
    traffic: u32,
    since_ms: u32,
}

/// The places of all connections. One per balancer: it is what the rings' other side
/// relies on.
pub struct ConnTable {
    slots: Mapped<Slot>,
    rings: Mapped<Ring>,
    layout: ConnLayout,
    /// Free indices of each partition that are in no ring.
    reserve: Vec<Vec<u16>>,
    ages: Vec<Age>,
    cursor: usize,
}

impl ConnTable {
    /// Wraps the arrays and finds out which places are free: whatever is neither in
    /// use nor in a ring, as after a predecessor that was killed half-way.
    pub(crate) fn new(
        conns: &libbpf_rs::MapHandle,
        rings: &libbpf_rs::MapHandle,
        layout: ConnLayout,
    ) -> Result<Self> {
        let slots: Mapped<Slot> = Mapped::new(conns)?;
        let mut table = Self {
            ages: vec![Age::default(); slots.len()],
            slots,
            rings: Mapped::new(rings)?,
            layout,
            reserve: Vec::new(),
            cursor: 0,
        };
        table.audit();
        table.top_up();
        Ok(table)
    }

    fn audit(&mut self) {
        let size = self.layout.partition_size() as usize;
        let mut taken: Vec<bool> = self.slots.iter().map(Slot::in_use).collect();
        for (at, ring) in self.rings.iter().enumerate() {
            let first = at % self.layout.partitions() as usize * size;
            for index in ring.waiting() {
                if let Some(taken) = taken.get_mut(first + index as usize) {
                    *taken = true;
                }
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

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.slots.len()
    }

    /// Fills the CPUs' rings from the reserve, the emptiest first. To be called often:
    /// a ring holds 1024 places of a partition, and a CPU without any goes on by the
    /// flow table.
    pub fn top_up(&mut self) {
        let partitions = self.reserve.len().max(1);
        for (partition, reserve) in self.reserve.iter_mut().enumerate() {
            let mut rings: Vec<&Ring> = self
                .rings
                .iter()
                .skip(partition)
                .step_by(partitions)
                .collect();
            rings.sort_by_key(|ring| ring.count());
            let mut left = rings.len();
            for ring in rings {
                let share = (ring.count() as usize + reserve.len()).div_ceil(left);
                let room = share
                    .min(RING as usize)
                    .saturating_sub(ring.count() as usize);
                let keep = reserve.len().saturating_sub(room);
                ring.put(reserve.drain(keep..));
                left -= 1;
            }
        }
    }

    /// Looks at the next `count` places and takes back those that have been silent for
    /// longer than `patience`. `now` is on any clock that does not go back.
    pub fn sweep(&mut self, now: Duration, count: usize, patience: &Patience) -> Swept {
        let now_ms = now.as_millis() as u32;
        let mut swept = Swept::default();
        for _ in 0..count.min(self.slots.len()) {
            let place = self.cursor;
            self.cursor = (place + 1) % self.slots.len();
            swept.seen += 1;
            let Some(slot) = self.slots.get(place).filter(|slot| slot.in_use()) else {
                self.ages[place] = Age::default();
                continue;
            };
            swept.used += 1;
            let traffic = slot.packets();
            let age = &mut self.ages[place];
            if age.since_ms == 0 || age.traffic != traffic {
                *age = Age {
                    traffic,
                    since_ms: now_ms.max(1),
                };
                continue;
            }
            let silent = Duration::from_millis(now_ms.wrapping_sub(age.since_ms).into());
            let limit = match (slot.closed(), traffic) {
                (true, _) => patience.closed,
                (false, 0) => patience.half_open,
                (false, _) => patience.open,
            };
            if silent >= limit {
                self.free(place);
                swept.freed += 1;
            }
        }
        swept
    }

    /// Takes a place back at once, if it still is this connection's: the server has
    /// seen the end of it in both directions.
    pub fn release(&mut self, connection: &Connection) -> bool {
        let held = self.connection(connection.place);
        let same =
            |held: Connection| held.client == connection.client && held.vip == connection.vip;
        let ours = held.is_some_and(same);
        if ours {
            self.free(connection.place as usize);
        }
        ours
    }

    fn free(&mut self, place: usize) {
        let size = self.layout.partition_size() as usize;
        self.slots[place].clear();
        self.ages[place] = Age::default();
        self.reserve[place / size].push((place % size) as u16);
    }

    /// Places that are in use, found by a look at each of them.
    pub fn connections(&self) -> impl Iterator<Item = Connection> {
        (0..self.slots.len() as u32).filter_map(|place| self.connection(place))
    }

    /// The connection in a place.
    pub fn connection(&self, place: u32) -> Option<Connection> {
        self.slots.get(place as usize)?.connection(place)
    }

    /// SYNs that found no free place and went by the flow table instead.
    pub fn refused(&self) -> u64 {
        let empty = |ring: &Ring| u64::from(ring.empty.load(Ordering::Relaxed));
        self.rings.iter().map(empty).sum()
    }

    /// Sends a connection's packets to another real from now on: to a scrubber, say.
    /// The old real's end of the connection is lost by that. `false` if the place is
    /// another connection's by now.
    pub(crate) fn reroute(&self, connection: &Connection, real: RealId, generation: u16) -> bool {
        let Some(slot) = self.slots.get(connection.place as usize) else {
            return false;
        };
        let ours = slot
            .connection(connection.place)
            .is_some_and(|held| held.client == connection.client);
        let old = slot.route.load(Ordering::Relaxed);
        let new = old & !0xffff_ffff_ffff | u64::from(generation) << 32 | u64::from(real);
        ours && slot
            .route
            .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
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

    fn closed(&self) -> bool {
        (self.opening.load(Ordering::Relaxed) >> 32) as u8 & CLOSED != 0
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

    fn connection(&self, place: u32) -> Option<Connection> {
        if !self.in_use() {
            return None;
        }
        let bytes: Vec<u8> = (0..5).flat_map(|at| self.word(at).to_ne_bytes()).collect();
        let (client, vip) = endpoints(&bytes)?;
        Some(Connection {
            place,
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
mod tests {
    use std::collections::HashSet;

    use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};

    use super::*;
    use crate::abi::Plain as _;

    const LAYOUT: ConnLayout = ConnLayout {
        connections: 4096,
        tier_bits: 4,
        tier: 0,
    };
    const CPUS: u32 = 2;

    fn array(name: &str, value: usize, entries: u32) -> MapHandle {
        let opts = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        MapHandle::create(MapType::Array, Some(name), 4, value as u32, entries, &opts)
            .unwrap_or_else(|e| panic!("making a map needs root and BPF: {e}"))
    }

    struct World {
        conns: MapHandle,
        rings: MapHandle,
    }

    impl World {
        fn new() -> Self {
            assert_eq!((LAYOUT.partitions(), LAYOUT.partition_size()), (2, 2048));
            Self {
                conns: array("conns", size_of::<Slot>(), 4096),
                rings: array("rings", size_of::<Ring>(), 2 * CPUS),
            }
        }

        fn table(&self) -> ConnTable {
            ConnTable::new(&self.conns, &self.rings, LAYOUT).expect("the table")
        }

        /// Takes a place as the data plane does, and opens a connection in it.
        fn open(&mut self, table: &ConnTable, cpu: usize, partition: usize) -> Option<u32> {
            let ring = &table.rings[cpu * 2 + partition];
            let head = ring.head.load(Ordering::Relaxed);
            if head == ring.tail.load(Ordering::Acquire) {
                return None;
            }
            let index = ring.index[(head % RING) as usize].load(Ordering::Relaxed);
            ring.head.store(head.wrapping_add(1), Ordering::Release);
            let place = partition as u32 * 2048 + u32::from(index);
            self.write(place, |flow| {
                flow.key.saddr_be[8..12].copy_from_slice(&[0x20, 0, 0, 80]);
                flow.key.saddr_be[12] = 6;
                flow.key.saddr_be[..4].copy_from_slice(&place.to_be_bytes());
            });
            Some(place)
        }

        fn write(&self, place: u32, change: impl FnOnce(&mut abi::Flow)) {
            let old = self
                .conns
                .lookup(&place.to_ne_bytes(), MapFlags::ANY)
                .expect("lookup");
            let mut flow = abi::Flow::from_bytes(&old.expect("a place")).expect("size");
            change(&mut flow);
            self.conns
                .update(&place.to_ne_bytes(), flow.as_bytes(), MapFlags::ANY)
                .expect("update");
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(1000 + seconds)
    }

    fn sweep(table: &mut ConnTable, seconds: u64) -> u32 {
        table.sweep(at(seconds), 4096, &Patience::default()).freed
    }

    #[test]
    fn every_place_is_given_out_once() {
        let mut world = World::new();
        let mut table = world.table();
        let mut seen = HashSet::new();
        for turn in 0..100_000 {
            match world.open(&table, turn % 2, turn / 2 % 2) {
                Some(place) => assert!(seen.insert(place), "{place} twice"),
                None => table.top_up(),
            }
        }
        assert_eq!(seen.len(), 4096, "all of them in the end");
        assert_eq!(table.connections().count(), 4096);
        assert!(world.open(&table, 0, 0).is_none());
    }

    #[test]
    fn places_come_back_by_their_connection_s_state() {
        let mut world = World::new();
        let mut table = world.table();
        let [half, closed, open] =
            [0, 1, 0].map(|cpu| world.open(&table, cpu, 1).expect("a place"));
        world.write(closed, |flow| (flow.bits, flow.packets) = (CLOSED | 1, 9));
        world.write(open, |flow| flow.packets = 9);
        assert_eq!(sweep(&mut table, 0), 0);
        assert_eq!(sweep(&mut table, 29), 0);
        assert_eq!(sweep(&mut table, 31), 1);
        assert!(table.connection(half).is_none());
        // A packet in between: it counts from then on.
        world.write(closed, |flow| flow.packets = 10);
        assert_eq!(sweep(&mut table, 59), 0);
        assert_eq!(sweep(&mut table, 118), 0);
        assert_eq!(sweep(&mut table, 120), 1);
        assert!(table.connection(closed).is_none());
        assert_eq!(sweep(&mut table, 3599), 0);
        assert_eq!(sweep(&mut table, 3601), 1);
        assert_eq!(table.connections().count(), 0);
        // All of them can be had again.
        let mut places = HashSet::new();
        for _ in 0..20 {
            table.top_up();
            (0..2).for_each(|cpu| {
                while let Some(place) = world.open(&table, cpu, 1) {
                    assert!(places.insert(place));
                }
            });
        }
        assert_eq!(places.len(), 2048);
    }

    #[test]
    fn a_successor_finds_what_is_free() {
        let mut world = World::new();
        let table = world.table();
        let kept: HashSet<u32> = (0..50)
            .filter_map(|n| world.open(&table, n % 2, n / 2 % 2))
            .collect();
        drop(table);
        let mut table = world.table();
        assert_eq!(
            table.connections().map(|c| c.place).collect::<HashSet<_>>(),
            kept
        );
        let mut seen = kept;
        for _ in 0..20 {
            for (cpu, partition) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                while let Some(place) = world.open(&table, cpu, partition) {
                    assert!(seen.insert(place), "{place} twice");
                }
            }
            table.top_up();
        }
        assert_eq!(seen.len(), 4096);
    }

    #[test]
    fn a_connection_is_released_and_rerouted_by_its_tuple() {
        let mut world = World::new();
        let mut table = world.table();
        let place = world.open(&table, 0, 0).expect("a place");
        let connection = table.connection(place).expect("a connection");
        assert_eq!(connection.client.port(), 0x2000);
        assert_eq!(connection.vip.port(), 80);
        assert!(table.reroute(&connection, 77, 5));
        let rerouted = table.connection(place).expect("a connection");
        assert_eq!(
            rerouted,
            Connection {
                real: 77,
                ..connection
            }
        );
        let mut other = connection;
        other.client.set_port(1);
        assert!(!table.release(&other) && !table.reroute(&other, 78, 5));
        assert!(table.release(&connection) && !table.release(&connection));
        assert!(table.connection(place).is_none());
    }
}
