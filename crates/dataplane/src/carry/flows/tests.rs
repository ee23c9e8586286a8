// SPDX-License-Identifier: Apache-2.0

use libbpf_rs::MapType;

use super::*;
use crate::btf::{Field, MapTypes};

const SEED: u64 = 11;
const WAYS: usize = 16;
/// A key, real, generation, number of the first byte, what is said of the connection, room to spare.
const WORDS: usize = 8;
const CLOSED: u64 = FLOW_CLOSED as u64;

fn fields(of: &[(&str, usize, usize, usize)]) -> Fields {
    let field = |&(path, offset, size, count): &(&str, usize, usize, usize)| Field {
        path: path.to_owned(),
        offset,
        size,
        count,
        mark: 0,
    };
    of.iter().map(field).collect()
}

fn flow_fields() -> Fields {
    fields(&[
        ("key.saddr_be", 0, 8, 1),
        ("key.daddr_be", 8, 8, 1),
        ("key.ports", 16, 8, 3),
        ("real", 40, 4, 1),
        ("real_gen", 44, 2, 1),
        ("bits", 46, 1, 1),
        ("isn", 48, 4, 1),
    ])
}

/// A table in the kernel, and a view of it.
struct Kernel {
    maps: [MapHandle; 2],
    view: FlowTable,
}

fn array(value: u32, entries: usize) -> MapHandle {
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    MapHandle::create(
        MapType::Array,
        None::<&str>,
        4,
        value,
        entries as u32,
        &opts,
    )
    .expect("an array")
}

impl Kernel {
    fn new(buckets: usize) -> Self {
        let maps = [
            array(4 * WAYS as u32, buckets),
            array(8 * WORDS as u32, buckets * WAYS),
        ];
        let bucket = fields(&[("tag", 0, 4, WAYS)]);
        let view = FlowTable::new(&maps[0], &maps[1], &bucket, &flow_fields());
        let view = view.expect("memory").expect("fields");
        Self { maps, view }
    }

    fn sources(&self) -> [Source; 2] {
        let source = |map: &MapHandle, value: Fields, len| Source {
            map: MapHandle::try_from(map).expect("another handle"),
            key: Translator::new(&Fields::default(), &Fields::default(), 4, &[]),
            value: Translator::new(&value, &value, len, &[]),
            old: MapTypes {
                key: Fields::default(),
                value: value.clone(),
            },
            new: MapTypes {
                key: Fields::default(),
                value,
            },
        };
        let [buckets, flows] = self.maps.each_ref();
        [
            source(buckets, fields(&[("tag", 0, 4, WAYS)]), 4 * WAYS),
            source(flows, flow_fields(), 8 * WORDS),
        ]
    }

    fn spot(&self, tuple: u64) -> FlowSpot {
        FlowSpot::of(&key(tuple)[..2], SEED, self.view.buckets as u32)
    }

    fn write(&self, slot: Slot, tuple: u64, real: u64, bits: u64, age: u32) {
        let words = key(tuple).into_iter().chain([real | bits << 48, 0, 0]);
        for (to, word) in self.view.flow(slot).iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        let tag = self.spot(tuple).fingerprint | age;
        self.view.tag(slot).store(tag, Ordering::Relaxed);
    }

    /// Writes a flow as a program does, where one is free; `false` if none is.
    fn add(&self, tuple: u64, real: u64, age: u32) -> bool {
        let buckets = self.spot(tuple).buckets.map(|bucket| bucket as usize);
        let mut slots = buckets
            .into_iter()
            .flat_map(|bucket| self.view.slots(bucket));
        let free = slots.find(|slot| self.view.tag(*slot).load(Ordering::Relaxed) == 0);
        free.inspect(|slot| self.write(*slot, tuple, real, 0, age))
            .is_some()
    }

    fn slot_of(&self, tuple: u64) -> Option<Slot> {
        let (spot, key) = (self.spot(tuple), key(tuple));
        let buckets = spot.buckets.into_iter().map(|bucket| bucket as usize);
        let mut slots = buckets.flat_map(|bucket| self.view.slots(bucket));
        slots.find(|slot| {
            let tag = self.view.tag(*slot).load(Ordering::Relaxed);
            let mut words = self.view.flow(*slot).iter().zip(key);
            (tag ^ spot.fingerprint) & !AGE_MASK == 0
                && words.all(|(word, key)| word.load(Ordering::Relaxed) == key)
        })
    }

    /// The real by which a program would send a packet of this tuple.
    fn real(&self, tuple: u64) -> Option<u64> {
        let slot = self.slot_of(tuple)?;
        Some(self.view.flow(slot)[KEY_WORDS].load(Ordering::Relaxed) & 0xffff_ffff)
    }
}

fn key(tuple: u64) -> [u64; KEY_WORDS] {
    [tuple + 1, 80, 0, 0, 0]
}

fn follower(old: &Kernel, new: &Kernel) -> FlowFollower {
    let (sources, [buckets, flows]) = (old.sources(), new.maps.each_ref());
    FlowFollower::new(sources.each_ref(), [buckets, flows], 2, SEED, false)
        .expect("memory")
        .expect("fields")
}

#[test]
fn a_tuple_that_is_opened_again_is_not_found_with_its_former_real() {
    for buckets in [4, 8] {
        let (old, new) = (Kernel::new(4), Kernel::new(buckets));
        for tuple in 0..20 {
            assert!(old.add(tuple, 1, AGE_LIVE));
        }
        let slot = |tuple| old.slot_of(tuple).expect("it is there");
        old.write(slot(0), 0, 1, CLOSED, AGE_OLD);
        old.write(slot(1), 1, 1, 0, AGE_GONE);
        let mut follower = follower(&old, &new);
        follower.follow(false).expect("a copy");
        assert_eq!(
            [0, 1, 2].map(|tuple| new.real(tuple)),
            [None, None, Some(1)]
        );
        // One is opened again, one ends in between, one gets another real.
        old.write(slot(0), 0, 2, 0, AGE_OLD);
        old.write(slot(2), 2, 1, CLOSED, AGE_OLD);
        old.write(slot(3), 3, 2, 0, AGE_LIVE);
        follower.follow(false).expect("what has changed");
        let reals = [0, 1, 2, 3, 4].map(|tuple| new.real(tuple));
        assert_eq!(reals, [Some(2), None, None, Some(2), Some(1)]);
        // At rest, all are as they were left.
        old.write(slot(2), 2, 3, 0, AGE_NEW);
        old.write(slot(4), 4, 1, CLOSED, AGE_OLD);
        follower.follow(true).expect("the last look");
        let reals = [0, 1, 2, 3, 4].map(|tuple| new.real(tuple));
        assert_eq!(reals, [Some(2), Some(1), Some(3), Some(2), Some(1)]);
        assert!((5..20).all(|tuple| new.real(tuple) == Some(1)));
    }
}

#[test]
fn a_full_table_comes_over_whole() {
    let (old, new) = (Kernel::new(8), Kernel::new(8));
    let mut tuples: Vec<u64> = (0..4000)
        .filter(|tuple| old.add(*tuple, tuple % 7, AGE_OLD))
        .collect();
    assert_eq!(tuples.len(), 8 * WAYS);
    let mut follower = follower(&old, &new);
    follower.follow(false).expect("a copy");
    // What opens takes the place of another flow in either table.
    let evicted = tuples.swap_remove(9);
    let slot = old.slot_of(evicted).expect("it is there");
    let bucket = slot.0 as u32;
    let opened = (5000..).find(|tuple| old.spot(*tuple).buckets[0] == bucket);
    let opened = opened.expect("one that belongs there");
    old.write(slot, opened, 5, 0, AGE_NEW);
    follower.follow(true).expect("the last look");
    assert_eq!((new.real(opened), new.real(evicted)), (Some(5), None));
    assert!(
        tuples
            .iter()
            .all(|tuple| new.real(*tuple) == Some(tuple % 7))
    );
    assert_eq!(follower.loss(), None);
}

#[test]
fn a_smaller_table_keeps_what_is_in_use_and_tells_what_it_has_no_room_for() {
    let (old, new) = (Kernel::new(8), Kernel::new(2));
    let ages = |tuple: u64| {
        if tuple.is_multiple_of(8) {
            AGE_LIVE
        } else {
            AGE_OLD
        }
    };
    let all: Vec<u64> = (0..4000)
        .filter(|tuple| old.add(*tuple, 1, ages(*tuple)))
        .collect();
    let mut first = follower(&old, &new);
    first.follow(false).expect("a copy");
    let mut live = all.iter().filter(|tuple| ages(**tuple) == AGE_LIVE);
    assert!(live.all(|tuple| new.real(*tuple).is_some()));
    assert_eq!(first.loss(), None);
    // One that has just been opened goes before one that is silent.
    let slot = old.slot_of(all[1]).expect("it is there");
    let opened = (5000..).find(|tuple| old.spot(*tuple).buckets[0] == slot.0 as u32);
    let opened = opened.expect("one that belongs there");
    old.write(slot, opened, 5, 0, AGE_NEW);
    first.follow(true).expect("the last look");
    assert_eq!(new.real(opened), Some(5));
    // All in use, and four for each slot.
    for tuple in all.iter().filter(|tuple| old.slot_of(**tuple).is_some()) {
        let slot = old.slot_of(*tuple).expect("it is there");
        old.write(slot, *tuple, 1, 0, AGE_LIVE);
    }
    let mut second = follower(&old, &Kernel::new(2));
    second.follow(true).expect("a copy");
    let loss = second.loss().expect("too many");
    assert!(loss.contains("no room for 95 of"), "{loss}");
}
