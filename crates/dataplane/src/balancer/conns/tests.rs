// SPDX-License-Identifier: Apache-2.0
//! Slots and their rings on real maps. Needs root; fails without.

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
const KEY: [u64; 2] = [8, 9];

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
    layout: ConnLayout,
}

impl World {
    fn new() -> Self {
        assert_eq!((LAYOUT.partitions(), LAYOUT.partition_size()), (2, 2048));
        Self::of(LAYOUT, CPUS)
    }

    fn of(layout: ConnLayout, cpus: u32) -> Self {
        let slots = layout.partitions() * layout.partition_size();
        Self {
            conns: array("conn_slots", size_of::<Slot>(), slots),
            rings: array("rings", size_of::<Ring>(), layout.partitions() * cpus),
            layout,
        }
    }

    fn table(&self) -> ConnTable {
        let mut table = self.unfilled();
        table.top_up();
        table
    }

    /// The CPUs have no slots yet.
    fn unfilled(&self) -> ConnTable {
        ConnTable::new(&self.conns, &self.rings, self.layout).expect("the table")
    }

    /// Takes a slot as the data plane does, and opens a connection in it.
    fn open(&mut self, table: &ConnTable, cpu: usize, partition: usize) -> Option<u32> {
        let partitions = self.layout.partitions() as usize;
        let ring = &table.rings[cpu * partitions + partition];
        let head = ring.head.load(Ordering::Relaxed);
        if head == ring.tail.load(Ordering::Acquire) {
            ring.empty.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let index = ring.index[(head % RING) as usize].load(Ordering::Relaxed);
        ring.head.store(head.wrapping_add(1), Ordering::Release);
        let number = partition as u32 * self.layout.partition_size() + u32::from(index);
        self.write(number, |flow| {
            flow.key.saddr_be[8..12].copy_from_slice(&[0x20, 0, 0, 80]);
            flow.key.saddr_be[12] = 6;
            flow.key.saddr_be[..4].copy_from_slice(&number.to_be_bytes());
        });
        Some(number)
    }

    fn write(&self, number: u32, change: impl FnOnce(&mut abi::FlowEntry)) {
        let old = self
            .conns
            .lookup(&number.to_ne_bytes(), MapFlags::ANY)
            .expect("lookup");
        let mut flow = abi::FlowEntry::from_bytes(&old.expect("a slot")).expect("size");
        change(&mut flow);
        self.conns
            .update(&number.to_ne_bytes(), flow.as_bytes(), MapFlags::ANY)
            .expect("update");
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(1000 + seconds)
}

fn sweep(table: &mut ConnTable, seconds: u64) -> u32 {
    table
        .sweep(at(seconds), 4096, &ConnTimeouts::default())
        .freed
}

#[test]
fn every_place_is_given_out_once() {
    let mut world = World::new();
    let mut table = world.table();
    let mut seen = HashSet::new();
    for turn in 0..100_000 {
        match world.open(&table, turn % 2, turn / 2 % 2) {
            Some(number) => assert!(seen.insert(number), "{number} twice"),
            None => table.top_up(),
        }
    }
    assert_eq!(seen.len(), 4096, "all of them in the end");
    assert_eq!(table.connections().count(), 4096);
    assert!(world.open(&table, 0, 0).is_none());
}

/// CPUs of a machine, and how many of them have a queue of the network card.
const MACHINES: [(u32, usize); 3] = [(8, 4), (64, 8), (128, 8)];

/// One partition of the usual size, whose rings were filled once.
fn usual(cpus: u32) -> (World, ConnTable) {
    let layout = ConnLayout {
        connections: 32_768,
        tier_bits: 0,
        tier: 0,
    };
    let world = World::of(layout, cpus);
    let table = world.table();
    (world, table)
}

#[test]
fn slots_do_not_strand_on_cpus_that_see_no_connection() {
    for (cpus, busy) in MACHINES {
        let (mut world, mut table) = usual(cpus);
        let mut open = 0;
        // 20 ms each; no connection ends.
        for _ in 0..1000 {
            for cpu in 0..busy {
                open += (0..10).filter_map(|_| world.open(&table, cpu, 0)).count();
            }
            table.top_up();
        }
        let slots = table.slots();
        assert!(open >= slots * 9 / 10, "{cpus} CPUs: {open} of {slots}");
    }
}

#[test]
fn recycled_slots_come_back_to_the_cpus_that_need_them() {
    for (cpus, busy) in MACHINES {
        let (mut world, mut table) = usual(cpus);
        let mut open = std::collections::VecDeque::new();
        let lasting = table.slots() * 8 / 10;
        // Twelve times as many connections as there are slots, four fifths of these open at a time.
        for _ in 0..40_000 / busy {
            for cpu in 0..busy {
                open.extend((0..10).filter_map(|_| world.open(&table, cpu, 0)));
            }
            while open.len() > lasting {
                table.free(open.pop_front().expect("one") as usize);
            }
            table.top_up();
        }
        assert_eq!(table.refused(), 0, "{cpus} CPUs");
        // A CPU that was idle has some at once, and enough soon.
        let idle = busy + 1;
        assert!(world.open(&table, idle, 0).is_some(), "{cpus} CPUs");
        for _ in 0..10 {
            while open.len() > lasting - 1000 {
                table.free(open.pop_front().expect("one") as usize);
            }
            table.top_up();
            open.extend((0..40).filter_map(|_| world.open(&table, idle, 0)));
        }
        let before = table.refused();
        open.extend((0..40).filter_map(|_| world.open(&table, idle, 0)));
        assert_eq!(table.refused(), before, "{cpus} CPUs");
    }
}

#[test]
fn what_a_cpu_takes_while_a_successor_looks_is_not_given_out_twice() {
    let mut world = World::new();
    let mut table = world.table();
    let waiting = table.waiting();
    let taken = world.open(&table, 0, 0).expect("a slot");
    table.audit(&waiting);
    let mut seen = HashSet::from([taken]);
    for _ in 0..20 {
        for (cpu, partition) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            while let Some(number) = world.open(&table, cpu, partition) {
                assert!(seen.insert(number), "{number} twice");
            }
        }
        table.top_up();
    }
    assert_eq!(seen.len(), 4096);
}

#[test]
fn slots_come_back_by_their_connection_s_state() {
    let mut world = World::new();
    let mut table = world.table();
    let [half, closed, open] = [0, 1, 0].map(|cpu| world.open(&table, cpu, 1).expect("a slot"));
    world.write(half, |flow| (flow.bits, flow.real) = (c::FLOW_OPENED, 3));
    world.write(closed, |flow| {
        (flow.bits, flow.packets) = (c::FLOW_CLOSED | 1, 9)
    });
    world.write(open, |flow| (flow.bits, flow.packets) = (c::FLOW_OPENED, 9));
    assert_eq!(sweep(&mut table, 0), 0);
    assert_eq!(sweep(&mut table, 29), 0);
    assert_eq!(table.take_unheard(), HashMap::new());
    assert_eq!(sweep(&mut table, 31), 1);
    assert!(table.connection(half).is_none());
    assert_eq!(table.take_unheard(), [(3, 1)].into());
    // A packet in between: it counts from then on.
    world.write(closed, |flow| flow.packets = 10);
    assert_eq!(sweep(&mut table, 59), 0);
    assert_eq!(sweep(&mut table, 118), 0);
    assert_eq!(sweep(&mut table, 120), 1);
    assert!(table.connection(closed).is_none());
    assert_eq!(sweep(&mut table, 3599), 0);
    assert_eq!(sweep(&mut table, 3601), 1);
    assert_eq!(table.connections().count(), 0);
    assert_eq!(table.take_unheard(), HashMap::new());
    // All of them can be had again.
    let mut numbers = HashSet::new();
    for _ in 0..20 {
        table.top_up();
        (0..2).for_each(|cpu| {
            while let Some(number) = world.open(&table, cpu, 1) {
                assert!(numbers.insert(number));
            }
        });
    }
    assert_eq!(numbers.len(), 2048);
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
        table.connections().map(|c| c.slot).collect::<HashSet<_>>(),
        kept
    );
    let mut seen = kept;
    for _ in 0..20 {
        for (cpu, partition) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            while let Some(number) = world.open(&table, cpu, partition) {
                assert!(seen.insert(number), "{number} twice");
            }
        }
        table.top_up();
    }
    assert_eq!(seen.len(), 4096);
}

#[test]
fn what_has_been_given_out_is_known_by_rings_and_by_slots() {
    let mut world = World::new();
    assert!(!world.unfilled().gives_out());
    let table = world.table();
    assert!(table.gives_out(), "handed to CPUs, and not asked for yet");
    let number = world.open(&table, 0, 0).expect("a slot");
    world.write(number, |flow| flow.bits |= c::FLOW_OPENED);
    // Of another layout: the rings are new.
    let rings = array("rings", size_of::<Ring>(), LAYOUT.partitions() * CPUS);
    let table = |conns| ConnTable::new(conns, &rings, LAYOUT).expect("the table");
    assert!(table(&world.conns).gives_out());
    assert!(!table(&World::new().conns).gives_out());
}

#[test]
fn a_connection_keeps_its_word_at_another_balancer() {
    let mut world = World::new();
    let mut table = world.unfilled();
    let route = SlotRoute {
        real: 77,
        generation: 3,
        vip: 2,
    };
    let ends = |n: u8| -> (SocketAddr, SocketAddr) {
        let vip = ([192, 0, 2, 10], 80).into();
        (([198, 51, 100, n], 4000 + u16::from(n)).into(), vip)
    };
    let six = |n: u16| -> (SocketAddr, SocketAddr) {
        let address = |last| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        ((address(n), 5000).into(), (address(1), 80).into())
    };
    // As the client sees it: hidden by the connection's mask.
    let hidden = |(client, vip), token| token ^ Tuple::tcp(client, vip).token_mask(KEY);
    let learn =
        |table: &mut ConnTable, ends, token| table.learn(KEY, ends, hidden(ends, token), &route);
    assert_eq!(learn(&mut table, ends(1), 5), Learned::Placed);
    assert_eq!(learn(&mut table, ends(1), 5), Learned::Known);
    assert_eq!(learn(&mut table, six(2), 6), Learned::Placed);
    // Of another tier: the layout has tokens of 11 bits below those of the tier.
    assert_eq!(learn(&mut table, ends(3), 5 | 1 << 11), Learned::Taken);
    let find = |table: &ConnTable, ends, token| table.find(KEY, ends, hidden(ends, token));
    for (ends, token) in [(ends(1), 5), (six(2), 6)] {
        let held = find(&table, ends, token).expect("in its slot");
        assert_eq!((held.real, held.packets, held.closed), (77, 1, false));
        assert_eq!(find(&table, ends, 7), None);
    }
    assert_eq!(find(&table, ends(2), 5), None);
    // Who comes after a crash has as much to learn: nothing has been given out.
    assert!(!world.unfilled().gives_out());
    // No other connection gets these slots.
    let taken: HashSet<u32> = table.connections().map(|held| held.slot).collect();
    assert_eq!(taken.len(), 2);
    let mut given = 0;
    for _ in 0..20 {
        table.top_up();
        for (cpu, partition) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            while let Some(number) = world.open(&table, cpu, partition) {
                assert!(!taken.contains(&number));
                given += 1;
            }
        }
    }
    assert_eq!(given, 4096 - 2);
    assert!(world.unfilled().gives_out());
    // And with all given out there is no room for more.
    assert_eq!(learn(&mut table, ends(9), 9), Learned::Taken);
    let held = find(&table, ends(1), 5).expect("still there");
    assert!(table.release(&held) && find(&table, ends(1), 5).is_none());
}

#[test]
fn a_connection_is_released_and_rerouted_by_its_tuple() {
    let mut world = World::new();
    let mut table = world.table();
    let number = world.open(&table, 0, 0).expect("a slot");
    let connection = table.connection(number).expect("a connection");
    assert_eq!(connection.client.port(), 0x2000);
    assert_eq!(connection.vip.port(), 80);
    assert!(table.reroute(&connection, 77, 5));
    let rerouted = table.connection(number).expect("a connection");
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
    // The same client's connection to another service.
    let mut other = connection;
    other.vip.set_port(81);
    assert!(!table.release(&other) && !table.reroute(&other, 78, 5));
    assert!(table.release(&connection) && !table.release(&connection));
    assert!(table.connection(number).is_none());
}
