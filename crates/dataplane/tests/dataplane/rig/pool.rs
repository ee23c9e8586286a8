// SPDX-License-Identifier: Apache-2.0
//! Balancers that are loaded already. The kernel takes longer to verify one than most tests
//! do to run, so tests hand theirs on, emptied.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};
use std::thread;

use libbpf_rs::Map;
use libbpf_rs::skel::Skel as _;

use super::*;

/// What cannot be changed once it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    Measuring,
    NotMeasuring,
    Stateful { tier_bits: u32, tier: u32 },
    SecondTier,
}

struct Loaded(LbSkel<'static>);

// SAFETY: libbpf's objects belong to no thread; the pool hands each to one test at a time.
unsafe impl Send for Loaded {}

static IDLE: Mutex<Vec<(Variant, Loaded)>> = Mutex::new(Vec::new());

/// A balancer that goes back to the pool.
pub(super) struct Loan {
    variant: Variant,
    /// Some until it is given back.
    loaded: Option<Loaded>,
}

impl Loan {
    /// One that is idle, else one that `load` makes.
    pub(super) fn of(variant: Variant, load: impl FnOnce() -> LbSkel<'static>) -> Self {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().position(|(of, _)| *of == variant);
        let found = at.map(|at| idle.swap_remove(at).1);
        drop(idle);
        let loaded = Some(found.unwrap_or_else(|| Loaded(load())));
        Self { variant, loaded }
    }
}

impl Deref for Loan {
    type Target = LbSkel<'static>;

    fn deref(&self) -> &LbSkel<'static> {
        &self.loaded.as_ref().expect("it is on loan").0
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(loaded) = self.loaded.take().filter(|_| !thread::panicking()) {
            empty(&loaded.0);
            let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push((self.variant, loaded));
        }
    }
}

/// Maps that packets or tests write.
fn written<'a>(skel: &'a LbSkel<'static>) -> impl Iterator<Item = Map<'a>> {
    let maps = skel.object().maps();
    maps.filter(|map| !map.name().to_string_lossy().ends_with(".rodata"))
}

fn empty(skel: &LbSkel<'static>) {
    for map in written(skel) {
        let (entries, size) = (map.max_entries(), map.value_size() as usize);
        match map.map_type() {
            MapType::Array => {
                let keys: Vec<u8> = (0..entries).flat_map(u32::to_ne_bytes).collect();
                let values = vec![0; size * entries as usize];
                map.update_batch(&keys, &values, entries, MapFlags::ANY, MapFlags::ANY)
                    .unwrap_or_else(|e| panic!("{}: {e}", map.name().display()));
            }
            MapType::PercpuArray => {
                let cpus = libbpf_rs::num_possible_cpus().expect("CPUs");
                let zeros = vec![vec![0; size]; cpus];
                for index in 0..entries {
                    map.update_percpu(&index.to_ne_bytes(), &zeros, MapFlags::ANY)
                        .expect("zeros");
                }
            }
            MapType::ArrayOfMaps => {
                for index in (0..entries).map(u32::to_ne_bytes) {
                    // Each deletion waits until no CPU reads the map.
                    if map.lookup(&index, MapFlags::ANY).expect("lookup").is_some() {
                        map.delete(&index).expect("delete");
                    }
                }
            }
            MapType::RingBuf => {
                let mut ring = libbpf_rs::RingBufferBuilder::new();
                ring.add(&map, |_| 0).expect("a ring");
                let ring = ring.build().expect("a ring");
                ring.consume().expect("nothing is left");
            }
            _ => {
                let keys: Vec<_> = map.keys().collect();
                for key in keys {
                    map.delete(&key).expect("delete");
                }
            }
        }
    }
}

/// What is in them, by their names.
fn contents(skel: &LbSkel<'static>) -> BTreeMap<String, Vec<Vec<u8>>> {
    let of = |map: &Map<'_>| match map.map_type() {
        MapType::Array | MapType::ArrayOfMaps => (0..map.max_entries())
            .map(|index| map.lookup(&index.to_ne_bytes(), MapFlags::ANY))
            .map(|value| value.expect("lookup").unwrap_or_default())
            .collect(),
        MapType::PercpuArray => (0..map.max_entries())
            .map(|index| map.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY))
            .map(|value| value.expect("lookup").expect("an index").concat())
            .collect(),
        MapType::RingBuf => Vec::new(),
        _ => map.keys().collect(),
    };
    written(skel)
        .map(|map| (map.name().to_string_lossy().into_owned(), of(&map)))
        .collect()
}

#[test]
fn a_balancer_that_is_handed_on_is_as_new() {
    let new = || Rig::loaded(Variant::Measuring);
    let (used, unused) = (new(), new());
    for map in written(&used) {
        let value = vec![1; map.value_size() as usize];
        let last = (map.max_entries() - 1).to_ne_bytes();
        match map.map_type() {
            MapType::Array => write(&map, &last, &value),
            MapType::PercpuArray => {
                let cpus = libbpf_rs::num_possible_cpus().expect("CPUs");
                map.update_percpu(&last, &vec![value; cpus], MapFlags::ANY)
                    .expect("ones");
            }
            // What is written into them is in a ring of its own.
            MapType::ArrayOfMaps | MapType::RingBuf => {}
            // Of an LPM trie the first word is a length.
            _ => {
                let mut key = vec![1; map.key_size() as usize];
                key[1..4].fill(0);
                write(&map, &key, &value);
            }
        }
    }
    assert_ne!(contents(&used), contents(&unused));
    empty(&used);
    for ((name, used), (_, unused)) in contents(&used).iter().zip(&contents(&unused)) {
        assert!(used == unused, "{name}");
    }
}
