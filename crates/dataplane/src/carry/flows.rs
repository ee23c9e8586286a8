// SPDX-License-Identifier: Apache-2.0
//! Flows into a flow table of another layout or size, while both may be at work: each is hashed
//! again. Slots are claimed and published as the program does it (`bpf/lb/flow_table.h`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use causeway_core::places::FlowSpot;
use libbpf_rs::{MapCore as _, MapHandle};

use super::translate::Translator;
use super::{Follower, Source};
use crate::abi::c::{AGE_GONE, AGE_LIVE, AGE_MASK, AGE_NEW, AGE_OLD};
use crate::btf::Fields;
use crate::error::Result;
use crate::mapped::Mapped;

/// A slot that a program is writing.
const CLAIMED: u32 = AGE_LIVE;
/// `WAYS_SHARED` of the program: of the first bucket's ways these are taken last.
const WAYS_SHARED: usize = 4;
/// 64-bit words of a flow's key.
const KEY_WORDS: usize = 5;

/// One family's table, of any layout.
struct FlowTable {
    tags: Mapped<AtomicU32>,
    flows: Mapped<AtomicU64>,
    buckets: usize,
    ways: usize,
    /// Where a bucket's tags begin, in tags, and how many make a bucket.
    tags_at: usize,
    tags_apart: usize,
    /// Words of a flow.
    words: usize,
}

impl FlowTable {
    /// `None` if a bucket of these fields has no tags.
    fn new(buckets: &MapHandle, flows: &MapHandle, bucket: &Fields) -> Result<Option<Self>> {
        let tag = bucket.get("tag");
        let Some(tag) = tag.filter(|tag| tag.size == 4 && tag.offset % 4 == 0) else {
            return Ok(None);
        };
        let table = Self {
            tags: Mapped::parts(buckets)?,
            flows: Mapped::parts(flows)?,
            buckets: buckets.max_entries() as usize,
            ways: tag.count,
            tags_at: tag.offset / 4,
            tags_apart: buckets.value_size().next_multiple_of(8) as usize / 4,
            words: flows.value_size().next_multiple_of(8) as usize / 8,
        };
        let has_all = table.flows.len() == table.buckets * table.ways * table.words;
        Ok(has_all.then_some(table))
    }

    fn tag(&self, bucket: usize, way: usize) -> &AtomicU32 {
        &self.tags[bucket * self.tags_apart + self.tags_at + way]
    }

    fn flow(&self, bucket: usize, way: usize) -> &[AtomicU64] {
        let at = (bucket * self.ways + way) * self.words;
        &self.flows[at..at + self.words]
    }

    fn taken(&self, bucket: usize) -> usize {
        let ways = 0..self.ways;
        ways.filter(|way| self.tag(bucket, *way).load(Ordering::Relaxed) != 0)
            .count()
    }
}

/// Copies one family's flows.
pub(crate) struct FlowFollower {
    old: FlowTable,
    new: FlowTable,
    translate: Translator,
    /// Words before a new flow's key, and how many of the key are hashed.
    key_at: usize,
    hashed: usize,
    seed: u64,
    /// The tags that have been dealt with.
    seen: Vec<u32>,
    is_begun: bool,
    lost: u64,
}

impl FlowFollower {
    /// From `flows` with its `buckets` into the new ones; `hashed` words of a key are the tuple.
    /// `None` if the old layout does not say where flows are.
    pub(crate) fn new(
        [old_buckets, old_flows]: [&Source; 2],
        [new_buckets, new_flows]: [&MapHandle; 2],
        hashed: usize,
        seed: u64,
    ) -> Result<Option<Self>> {
        let key = old_flows.new.value.get("key.saddr_be");
        let Some(key) = key.filter(|key| key.offset % 8 == 0) else {
            return Ok(None);
        };
        let old = FlowTable::new(&old_buckets.map, &old_flows.map, &old_buckets.old.value)?;
        let new = FlowTable::new(new_buckets, new_flows, &old_buckets.new.value)?;
        let (Some(old), Some(new)) = (old, new) else {
            return Ok(None);
        };
        Ok(Some(Self {
            seen: vec![0; old.buckets * old.ways],
            translate: old_flows.value.clone(),
            key_at: key.offset / 8,
            hashed,
            seed,
            old,
            new,
            is_begun: false,
            lost: 0,
        }))
    }

    /// Deals with what is new, of one age class or of all.
    fn look(&mut self, age: Option<u32>) {
        for bucket in 0..self.old.buckets {
            for way in 0..self.old.ways {
                let at = bucket * self.old.ways + way;
                let slot = self.old.tag(bucket, way);
                let tag = slot.load(Ordering::Acquire);
                let is_known = (tag ^ self.seen[at]) & !AGE_MASK == 0;
                let is_other = age.is_some_and(|age| tag & AGE_MASK != age);
                if tag == 0 || tag == CLAIMED || is_known || is_other {
                    continue;
                }
                let words = self.old.flow(bucket, way).iter();
                let value: Vec<u8> = words
                    .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
                    .collect();
                std::sync::atomic::fence(Ordering::Acquire);
                if (slot.load(Ordering::Relaxed) ^ tag) & !AGE_MASK != 0 {
                    continue; // it is being replaced: the next look finds it
                }
                self.seen[at] = tag;
                let value = words_of(&self.translate.apply(&value));
                // Others go first from a table that is full, as they do by the program.
                let is_lost = !self.place(&value, tag & AGE_MASK) && tag & AGE_MASK == AGE_LIVE;
                self.lost += u64::from(is_lost);
            }
        }
    }

    /// Puts a flow into the new table, unless it is there; `false` if there is no room.
    fn place(&self, value: &[u64], age: u32) -> bool {
        let key = value.get(self.key_at..self.key_at + KEY_WORDS);
        let Some(key) = key else {
            return false;
        };
        let spot = FlowSpot::of(&key[..self.hashed], self.seed, self.new.buckets as u32);
        let buckets = spot.buckets.map(|bucket| bucket as usize);
        if buckets.iter().any(|bucket| self.has(*bucket, &spot, key)) {
            return true;
        }
        // A program may take the same way at the same time.
        (0..4).any(|_| {
            let Some((bucket, way, seen)) = self.choose(buckets, age) else {
                return false;
            };
            let slot = self.new.tag(bucket, way);
            let claimed = slot.compare_exchange(seen, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
            if claimed.is_err() {
                return false;
            }
            for (to, from) in self.new.flow(bucket, way).iter().zip(value) {
                to.store(*from, Ordering::Relaxed);
            }
            slot.store(spot.fingerprint | age, Ordering::Release);
            true
        })
    }

    fn has(&self, bucket: usize, spot: &FlowSpot, key: &[u64]) -> bool {
        (0..self.new.ways).any(|way| {
            let tag = self.new.tag(bucket, way).load(Ordering::Acquire);
            let flow = &self.new.flow(bucket, way)[self.key_at..];
            let mut words = flow.iter().zip(key);
            tag & !AGE_MASK == spot.fingerprint
                && words.all(|(word, key)| word.load(Ordering::Relaxed) == *key)
        })
    }

    /// An empty way, of the first bucket as long as that has some to spare; else that of a flow
    /// that is less worth. With its tag.
    fn choose(&self, buckets: [usize; 2], age: u32) -> Option<(usize, usize, u32)> {
        let [first, second] = buckets.map(|bucket| self.new.taken(bucket));
        let spills = first >= self.new.ways - WAYS_SHARED && second < first;
        let ordered = if spills {
            [buckets[1], buckets[0]]
        } else {
            buckets
        };
        let ways = ordered
            .into_iter()
            .flat_map(|bucket| (0..self.new.ways).map(move |way| (bucket, way)));
        let tagged = ways.map(|(bucket, way)| {
            let tag = self.new.tag(bucket, way).load(Ordering::Relaxed);
            (bucket, way, tag)
        });
        let cost = |tag: u32| if tag == 0 { 0 } else { 1 + (tag & AGE_MASK) };
        let open = tagged.filter(|(.., tag)| *tag != CLAIMED && cost(*tag) <= age);
        open.min_by_key(|(.., tag)| cost(*tag))
    }
}

impl Follower for FlowFollower {
    fn follow(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_begun, true) {
            self.look(None);
        } else {
            // A smaller table keeps those that are in use.
            for age in [AGE_LIVE, AGE_OLD, AGE_NEW, AGE_GONE] {
                self.look(Some(age));
            }
        }
        Ok(())
    }

    fn is_urgent(&self) -> bool {
        true
    }

    fn loss(&self) -> Option<String> {
        (self.lost > 0).then(|| {
            format!(
                "the flow table has no room for {} of the flows in use: they are picked again by hash",
                self.lost
            )
        })
    }
}

pub(super) fn words_of(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    words.collect()
}
