// SPDX-License-Identifier: Apache-2.0
//! Pages: trees of objects, where an object can be asked for once the object
//! that names it has arrived.

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::chance::log_normal;

/// Distributions that pages are drawn from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PageShape {
    /// Objects per page, the root included: uniform from the first to the last.
    pub objects: (u32, u32),
    /// How many objects the root names. Every other names one, until the page has
    /// all it needs: with a fanout of W or more the window stays full.
    pub fanout: u32,
    /// Body bytes: lognormal, by median and sigma of the logarithm.
    pub size_median: f64,
    /// See `size_median`.
    pub size_sigma: f64,
    /// Largest body in bytes.
    pub size_max: u32,
    /// Service time asked of the server: lognormal, by median and sigma.
    pub service_median_us: f64,
    /// See `service_median_us`.
    pub service_sigma: f64,
    /// Least service time.
    pub service_min_us: u32,
    /// Share of objects whose service takes `slow_us` instead.
    pub slow_share: f64,
    /// See `slow_share`.
    pub slow_us: u32,
    /// Share of objects that are stored instead of asked for (memcached, Redis).
    pub store_share: f64,
}

impl Default for PageShape {
    /// Sizes after the usual web page: most objects are a few kilobytes, a few
    /// are tens of them. Service takes 5 ms or more.
    fn default() -> Self {
        Self {
            objects: (8, 48),
            fanout: 4,
            size_median: 3_000.0,
            size_sigma: 1.2,
            size_max: 65_536,
            service_median_us: 6_000.0,
            service_sigma: 0.25,
            service_min_us: 5_000,
            slow_share: 0.0,
            slow_us: 0,
            store_share: 0.0,
        }
    }
}

impl PageShape {
    /// Expected number of objects.
    pub fn mean_objects(&self) -> f64 {
        f64::from(self.objects.0 + self.objects.1) / 2.0
    }
}

/// One thing to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Index of the object that names it; `None` for the root.
    pub parent: Option<usize>,
    /// Body bytes.
    pub size: u32,
    /// Service time in microseconds.
    pub service_us: u32,
    /// The object is stored, not asked for.
    pub store: bool,
}

/// Sizes are rounded up to this, so that a server can keep every body ready.
pub const SIZE_STEP: u32 = 512;

/// The objects of page number `page` of `slot`. It depends on nothing else, so
/// a slow server changes when a page is asked for but never what is in it.
pub fn draw(shape: &PageShape, seed: u64, slot: usize, page: u32) -> Vec<Object> {
    let mut rng = rng(seed, slot, u64::from(page));
    let count = rng.random_range(shape.objects.0.max(1)..=shape.objects.1.max(1)) as usize;
    (0..count)
        .map(|i| {
            let fanout = shape.fanout.max(1) as usize;
            let parent = (i > 0).then(|| i.saturating_sub(fanout));
            let size = log_normal(&mut rng, shape.size_median, shape.size_sigma) as u32;
            let service = log_normal(&mut rng, shape.service_median_us, shape.service_sigma) as u32;
            // A share of zero draws nothing, so that other shapes keep their pages.
            let slow = shape.slow_share > 0.0 && rng.random_bool(shape.slow_share);
            let store = shape.store_share > 0.0 && rng.random_bool(shape.store_share);
            Object {
                parent,
                size: size.min(shape.size_max).next_multiple_of(SIZE_STEP),
                service_us: match slow {
                    true => shape.slow_us,
                    false => service.max(shape.service_min_us),
                },
                store,
            }
        })
        .collect()
}

/// A generator for one purpose; streams of different slots and purposes are
/// independent.
pub fn rng(seed: u64, slot: usize, stream: u64) -> StdRng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&(slot as u64).to_le_bytes());
    key[16..24].copy_from_slice(&stream.to_le_bytes());
    StdRng::from_seed(key)
}

/// How far a page has got.
#[derive(Debug)]
pub struct PageRun {
    /// Number of the page within its slot.
    pub number: u32,
    /// Identifier of the root; object `i` has `first_id + i`.
    pub first_id: u32,
    objects: Vec<Object>,
    ready: VecDeque<(usize, u64)>,
    unfinished: usize,
}

impl PageRun {
    /// A page whose root may be asked for from `now_ns` on.
    pub fn new(objects: Vec<Object>, number: u32, first_id: u32, now_ns: u64) -> Self {
        let unfinished = objects.len();
        Self {
            number,
            first_id,
            objects,
            ready: VecDeque::from([(0, now_ns)]),
            unfinished,
        }
    }

    /// The next object to ask for and the moment from which it could have been.
    pub fn take_ready(&mut self) -> Option<(usize, Object, u64)> {
        let (index, since) = self.ready.pop_front()?;
        Some((index, self.objects[index], since))
    }

    /// Identifier of an object, and of the one that names it.
    pub fn ids(&self, index: usize) -> (u32, Option<u32>) {
        let id = |i: usize| self.first_id + i as u32;
        (id(index), self.objects[index].parent.map(id))
    }

    /// The object has arrived: those that it names become ready.
    pub fn complete(&mut self, index: usize, now_ns: u64) {
        let children = self
            .objects
            .iter()
            .enumerate()
            .filter(|(_, o)| o.parent == Some(index));
        self.ready.extend(children.map(|(i, _)| (i, now_ns)));
        self.unfinished = self.unfinished.saturating_sub(1);
    }

    /// Whether every object has arrived.
    pub fn is_complete(&self) -> bool {
        self.unfinished == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_page() {
        let shape = PageShape::default();
        assert_eq!(draw(&shape, 1, 2, 3), draw(&shape, 1, 2, 3));
        assert_ne!(draw(&shape, 1, 2, 3), draw(&shape, 1, 2, 4));
        assert_ne!(draw(&shape, 1, 2, 3), draw(&shape, 2, 2, 3));
    }

    #[test]
    fn every_object_is_asked_for_once_and_after_its_parent() {
        for page in 0..50 {
            let objects = draw(&PageShape::default(), 7, 0, page);
            let mut run = PageRun::new(objects.clone(), page, 0, 0);
            let mut arrived = vec![false; objects.len()];
            while let Some((i, object, _)) = run.take_ready() {
                assert!(object.parent.is_none_or(|p| arrived[p]));
                assert!(!arrived[i]);
                arrived[i] = true;
                run.complete(i, 0);
            }
            assert!(arrived.iter().all(|&a| a) && run.is_complete());
        }
    }

    #[test]
    fn service_times_have_the_stated_median() {
        let shape = PageShape {
            service_min_us: 0,
            ..PageShape::default()
        };
        let mut all: Vec<u32> = (0..2000)
            .flat_map(|p| draw(&shape, 1, 0, p))
            .map(|o| o.service_us)
            .collect();
        all.sort_unstable();
        let median = f64::from(all[all.len() / 2]);
        assert!(
            (median / shape.service_median_us - 1.0).abs() < 0.02,
            "{median}"
        );
    }
}
