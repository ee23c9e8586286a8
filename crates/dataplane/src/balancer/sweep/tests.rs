// SPDX-License-Identifier: Apache-2.0
//! The sweep on real maps, with packets as the data plane's `judge` treats them. Needs
//! root; fails without.

use libbpf_rs::{MapCore as _, MapFlags, MapType};

use super::*;
use crate::abi::Plain as _;

const BUCKETS: u32 = 4;
const SLOTS: u64 = 2 * BUCKETS as u64 * WAYS as u64;
const IDLE: FlowIdle = FlowIdle {
    udp: Duration::from_secs(80),
    ended: Duration::from_secs(40),
    tcp: Duration::from_secs(800),
    udp_drain: None,
};
/// 40 s / 8.
const ROUND: Duration = Duration::from_secs(5);
const TCP: u8 = 6;
const FINGERPRINT: u32 = 0xabc0_0004;

fn array(value: usize, entries: u32) -> MapHandle {
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    MapHandle::create(
        MapType::Array,
        Some("flows"),
        4,
        value as u32,
        entries,
        &opts,
    )
    .unwrap_or_else(|e| panic!("making a map needs root and BPF: {e}"))
}

struct World {
    flows: [MapHandle; 2],
    sweep: FlowSweep,
    now: Duration,
    idle: FlowIdle,
    draining: Vec<RealId>,
}

impl World {
    fn new() -> Self {
        let buckets = [0, 1].map(|_| array(size_of::<Bucket>(), BUCKETS));
        let flows = [0, 1].map(|_| array(size_of::<FlowSlot>(), BUCKETS * WAYS));
        let sweep = FlowSweep::new([&buckets[0], &flows[0]], [&buckets[1], &flows[1]]);
        Self {
            flows,
            sweep: sweep.expect("the sweep"),
            now: Duration::from_secs(1),
            idle: IDLE,
            draining: Vec::new(),
        }
    }

    /// A flow in slot `at` of a family's table, as its first packet leaves it.
    fn open(&self, family: usize, at: usize, proto: u8, real: RealId) {
        let mut flow = abi::FlowEntry {
            real,
            ..abi::FlowEntry::default()
        };
        match family {
            0 => flow.key.saddr_be[12] = proto,
            _ => flow.key.proto = proto,
        }
        let key = (at as u32).to_ne_bytes();
        self.flows[family]
            .update(&key, flow.as_bytes(), MapFlags::ANY)
            .expect("update");
        self.tag(family, at)
            .store(FINGERPRINT | NEW, Ordering::Relaxed);
    }

    fn set_bits(&self, family: usize, at: usize, bits: u8) {
        let key = (at as u32).to_ne_bytes();
        let old = self.flows[family]
            .lookup(&key, MapFlags::ANY)
            .expect("lookup");
        let mut flow = abi::FlowEntry::from_bytes(&old.expect("a flow")).expect("size");
        flow.bits |= bits;
        self.flows[family]
            .update(&key, flow.as_bytes(), MapFlags::ANY)
            .expect("update");
    }

    /// The client has ended it: the bits say so, and `judge` makes it old.
    fn close(&self, family: usize, at: usize) {
        self.set_bits(family, at, FLOW_CLOSED);
        self.packet(family, at, OLD);
    }

    /// A packet that gives its flow this age.
    fn packet(&self, family: usize, at: usize, age: u32) {
        let tag = self.tag(family, at);
        let now = tag.load(Ordering::Relaxed) & !AGE_MASK | age;
        tag.store(now, Ordering::Relaxed);
    }

    fn tag(&self, family: usize, at: usize) -> &AtomicU32 {
        let ways = WAYS as usize;
        &self.sweep.tables[family].buckets[at / ways].tag[at % ways]
    }

    fn age(&self, family: usize, at: usize) -> u32 {
        self.tag(family, at).load(Ordering::Relaxed) & AGE_MASK
    }

    /// Lets this time pass, in steps as the daemon takes them.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(500);
            let after = self.idle.udp_drain;
            let draining = self.draining.iter().map(|real| (*real, after));
            let draining: Vec<_> = draining.collect();
            self.sweep.step(self.now, &self.idle, &draining);
        }
    }

    /// The same, with a packet to each slot once a round.
    fn wait_busily(&mut self, time: Duration, family: usize, slots: &[usize]) {
        let end = self.now + time;
        while self.now < end {
            slots.iter().for_each(|at| self.packet(family, *at, LIVE));
            self.wait(ROUND);
        }
    }
}

#[test]
fn connections_of_which_only_a_syn_came_are_told_by_their_real() {
    for family in [0, 1] {
        let mut world = World::new();
        for (at, real) in [(0, 3), (17, 3), (20, 5), (33, 3), (40, 3)] {
            world.open(family, at, TCP, real);
            world.set_bits(family, at, FLOW_OPENED);
        }
        // One goes on, one is ended by its client, and one was adopted: none of them is reported.
        world.packet(family, 33, LIVE);
        world.close(family, 40);
        world.open(family, 50, TCP, 3);
        // What becomes of one that has a slot is told there.
        world.open(family, 51, TCP, 3);
        world.set_bits(family, 51, FLOW_OPENED | FLOW_HAS_TOKEN);
        world.wait(IDLE.ended - ROUND);
        assert_eq!(world.sweep.take_unheard(), HashMap::new());
        world.wait(4 * ROUND);
        assert_eq!(world.sweep.take_unheard(), [(3, 2), (5, 1)].into());
        world.wait(IDLE.tcp * 2);
        assert_eq!(world.sweep.take_unheard(), HashMap::new());
    }
}

#[test]
fn a_udp_flow_ends_by_silence_alone() {
    for family in [0, 1] {
        let mut world = World::new();
        for at in [0, 17, 40] {
            world.open(family, at, UDP, 3);
        }
        world.wait_busily(Duration::from_secs(400), family, &[0]);
        // Silent after its first datagram, and after its second.
        world.packet(family, 40, LIVE);
        assert_eq!(world.age(family, 17), GONE);
        assert_ne!(world.age(family, 0), GONE);
        world.packet(family, 0, LIVE);
        world.wait(IDLE.udp - ROUND);
        assert_ne!(world.age(family, 0), GONE, "not before its time");
        world.wait(3 * ROUND);
        assert_eq!([0, 17, 40].map(|at| world.age(family, at)), [GONE; 3]);
        let totals = world.sweep.totals();
        // Number 40 had ended, too, came back, and ended again.
        assert_eq!((totals.udp_idle, totals.slots), (4, SLOTS));
        // The slot is found by its fingerprint still, and taken first.
        assert_eq!(
            world.tag(family, 0).load(Ordering::Relaxed),
            FINGERPRINT | GONE
        );
    }
}

#[test]
fn a_tcp_connection_s_place_is_offered_after_its_end_or_long_silence() {
    for family in [0, 1] {
        let mut world = World::new();
        for at in 0..4 {
            world.open(family, at, TCP, 3);
        }
        (1..4).for_each(|at| world.packet(family, at, LIVE));
        world.close(family, 2);
        // Number 0 is a SYN alone, 1 open and silent, 2 closed, 3 open and busy.
        world.wait_busily(IDLE.ended + 3 * ROUND, family, &[3]);
        assert_eq!([0, 2].map(|at| world.age(family, at)), [GONE; 2]);
        assert!([1, 3].iter().all(|at| world.age(family, *at) != GONE));
        assert_eq!(world.sweep.totals().tcp_ended, 2);
        world.wait_busily(IDLE.tcp, family, &[3]);
        world.wait_busily(IDLE.tcp / 4, family, &[3]);
        assert_eq!(world.age(family, 1), GONE);
        assert_ne!(world.age(family, 3), GONE);
        let totals = world.sweep.totals();
        assert_eq!((totals.tcp_idle, totals.flows, totals.udp_idle), (1, 1, 0));
    }
}

#[test]
fn one_that_the_client_has_closed_lives_on_while_it_is_heard_of() {
    let mut world = World::new();
    world.open(0, 5, TCP, 3);
    world.close(0, 5);
    for _ in 0..40 {
        world.wait(ROUND);
        // Acknowledgements of what the server still sends.
        world.packet(0, 5, OLD);
    }
    assert_ne!(world.age(0, 5), GONE);
    world.wait(IDLE.ended + 3 * ROUND);
    assert_eq!(world.age(0, 5), GONE);
}

#[test]
fn what_still_sends_to_a_draining_real_is_taken_off_it() {
    let mut world = World::new();
    world.open(0, 0, UDP, 3);
    world.open(0, 1, UDP, 4);
    world.open(0, 2, TCP, 3);
    world.draining = vec![3];
    world.wait_busily(Duration::from_secs(600), 0, &[0, 1, 2]);
    assert_ne!(world.age(0, 0), GONE, "never, unless it is told to");
    world.idle.udp_drain = Some(Duration::from_secs(300));
    world.draining.clear();
    world.wait(ROUND);
    world.draining = vec![3];
    world.wait_busily(Duration::from_secs(295), 0, &[0, 1, 2]);
    assert_ne!(world.age(0, 0), GONE);
    world.wait_busily(Duration::from_secs(10), 0, &[1, 2]);
    assert_eq!(world.age(0, 0), GONE);
    assert!([1, 2].iter().all(|at| world.age(0, *at) != GONE));
    assert_eq!(world.sweep.totals().udp_drained, 1);
}

/// More are down than before, others are back, and go down again.
#[test]
fn each_real_is_left_by_the_time_that_it_has_taken_nothing_itself() {
    let mut world = World::new();
    world.idle.udp_drain = Some(Duration::from_secs(300));
    for (at, real) in [(0, 3), (1, 4), (2, 5)] {
        world.open(0, at, UDP, real);
    }
    let gone = |world: &World| [0, 1, 2].map(|at| world.age(0, at) == GONE);
    let seconds = Duration::from_secs;
    world.draining = vec![3, 5];
    world.wait_busily(seconds(200), 0, &[0, 1, 2]);
    world.draining = vec![4, 3];
    world.wait_busily(seconds(90), 0, &[0, 1, 2]);
    assert_eq!(gone(&world), [false; 3]);
    world.wait_busily(seconds(20), 0, &[1, 2]);
    assert_eq!(gone(&world), [true, false, false]);
    world.draining = vec![4, 3, 5];
    world.wait_busily(seconds(180), 0, &[1, 2]);
    assert_eq!(gone(&world), [true, false, false]);
    world.wait_busily(seconds(20), 0, &[2]);
    assert_eq!(gone(&world), [true, true, false]);
    world.wait_busily(seconds(90), 0, &[2]);
    assert_eq!(gone(&world), [true, true, false]);
    world.wait_busily(seconds(20), 0, &[]);
    assert_eq!(gone(&world), [true; 3]);
    assert_eq!(world.sweep.totals().udp_drained, 3);
}

#[test]
fn what_the_data_plane_is_writing_is_left_alone() {
    let mut world = World::new();
    world.tag(1, 9).store(CLAIMED, Ordering::Relaxed);
    world.wait(Duration::from_secs(3000));
    assert_eq!(world.tag(1, 9).load(Ordering::Relaxed), CLAIMED);
    assert_eq!(world.sweep.totals().flows, 0);
}

/// The most that a file may ask for, beside the times that it has by default.
#[test]
fn a_connection_is_kept_for_a_week() {
    let mut world = World::new();
    world.idle = FlowIdle {
        tcp: Duration::from_secs(168 * 3600),
        ..FlowIdle::default()
    };
    world.open(0, 0, TCP, 3);
    world.packet(0, 0, LIVE);
    let round = world.idle.round();
    let mut wait = |hours: u32| {
        let end = world.now + hours * Duration::from_secs(3600);
        while world.now < end {
            world.now += round;
            world.sweep.step(world.now, &world.idle, &[]);
        }
        world.age(0, 0)
    };
    assert_ne!(wait(167), GONE);
    assert_eq!(wait(24), GONE);
}

/// A real whose connections were counted as long ended would be taken for empty.
#[test]
fn open_connections_are_counted_by_their_real() {
    for family in [0, 1] {
        let mut world = World::new();
        for (at, real) in [(0, 3), (17, 3), (20, 5), (33, 3), (40, 3)] {
            world.open(family, at, TCP, real);
            world.set_bits(family, at, FLOW_OPENED);
            world.packet(family, at, LIVE);
        }
        // Neither a datagram's flow nor one whose opening was not counted is one.
        world.open(family, 50, UDP, 3);
        world.open(family, 51, TCP, 3);
        world.close(family, 40);
        // The first step tells what a former daemon left.
        world.sweep.step(world.now, &IDLE, &[]);
        let open = |each: &[(RealId, u64)]| {
            let each = each.iter().map(|(real, count)| ((*real, 0), *count));
            Some(OpenFlows(each.collect()))
        };
        assert_eq!(world.sweep.take_open(), open(&[(3, 3), (5, 1)]));
        assert_eq!(world.sweep.take_open(), None);
        world.wait_busily(2 * ROUND, family, &[0, 17, 20, 33]);
        assert_eq!(world.sweep.take_open(), open(&[(3, 3), (5, 1)]));
        // One that is silent for long is no more.
        world.wait_busily(2 * IDLE.tcp, family, &[17]);
        let left = world.sweep.take_open();
        assert_eq!(left, open(&[(3, 1)]));
        // Nor is it another's who has the id by now.
        let left = left.unwrap();
        assert_eq!(left.ids(), 4);
        let is_in_force = |_, generation| generation == 1;
        assert_eq!(left.in_force(is_in_force), HashMap::new());
    }
}
