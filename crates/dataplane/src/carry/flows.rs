// SPDX-License-Identifier: Apache-2.0
//! Flows into a flow table of another layout or size, while both may be at work: each is hashed
//! again. Slots are claimed and published as the program does it (`bpf/lb/flow_table.h`).
//!
//! The tuple of a connection that has ended may be opened again at any time, with another real, in
//! the same slot and under the same tag. As long as the old program is at work such flows are
//! therefore hidden in the new table: its program shall not find what may be wrong by then.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use causeway_core::flow_spot::FlowSpot;
use libbpf_rs::{MapCore as _, MapHandle};

use super::translate::Translator;
use super::{Follower, Source};
use crate::abi::c::{AGE_GONE, AGE_LIVE, AGE_MASK, AGE_NEW, AGE_OLD, FLOW_CLOSED};
use crate::btf::Fields;
use crate::error::Result;
use crate::mapped::Mapped;

/// A slot that a program is writing.
const CLAIMED: u32 = AGE_LIVE;
/// `WAYS_SHARED` of the program: of the first bucket's ways these are taken last.
const WAYS_SHARED: usize = 4;
/// 64-bit words of a flow's key.
const KEY_WORDS: usize = 5;

/// Set in every tag, but in one that is hidden.
const SHOWN: u32 = AGE_MASK + 1;

/// What tells a flow from a later one in the same slot, maybe of the same tuple: besides its key,
/// which real it is on, and which connection it is.
const NUMBERS: [&str; 3] = ["real", "real_gen", "isn"];

/// Where the fields are that tell flows apart.
struct Identity {
    /// Words before the key.
    key: usize,
    /// Byte and size of each of [`NUMBERS`].
    numbers: [Option<(usize, usize)>; 3],
    /// Byte of what is said of the connection.
    bits: Option<usize>,
}

impl Identity {
    /// `None` if the key has another form.
    fn new(flow: &Fields) -> Option<Self> {
        let key = flow.get("key.saddr_be")?;
        let number = |name| {
            let field = flow.get(name)?;
            let fits = field.size <= 8 && field.offset % field.size == 0;
            fits.then_some((field.offset, field.size))
        };
        (key.offset % 8 == 0).then(|| Self {
            key: key.offset / 8,
            numbers: NUMBERS.map(number),
            bits: flow.get("bits").map(|field| field.offset),
        })
    }

    fn digest(&self, word: impl Fn(usize) -> u64) -> u32 {
        let key = (self.key..self.key + KEY_WORDS).map(&word);
        let numbers = self.numbers.iter().flatten().map(|(offset, size)| {
            let bytes = word(offset / 8).to_ne_bytes();
            let mut wide = [0; 8];
            wide[..*size].copy_from_slice(&bytes[offset % 8..][..*size]);
            u64::from_le_bytes(wide)
        });
        let mix = |hash: u64, word: u64| {
            (hash ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        };
        (key.chain(numbers).fold(0, mix) >> 32) as u32
    }
}

/// One family's table, of any layout.
struct FlowTable {
    tags: Mapped<AtomicU32>,
    flows: Mapped<AtomicU64>,
    identity: Identity,
    buckets: usize,
    ways: usize,
    /// Where a bucket's tags begin, in tags, and how many make a bucket.
    tags_at: usize,
    tags_apart: usize,
    /// Words of a flow.
    words: usize,
}

/// Bucket and way.
type Slot = (usize, usize);

impl FlowTable {
    /// `None` if its layout does not say where tags and flows are.
    fn new(
        buckets: &MapHandle,
        flows: &MapHandle,
        bucket: &Fields,
        flow: &Fields,
    ) -> Result<Option<Self>> {
        let tag = bucket.get("tag");
        let tag = tag.filter(|tag| tag.size == 4 && tag.offset % 4 == 0);
        let (Some(tag), Some(identity)) = (tag, Identity::new(flow)) else {
            return Ok(None);
        };
        let table = Self {
            tags: Mapped::parts(buckets)?,
            flows: Mapped::parts(flows)?,
            identity,
            buckets: buckets.max_entries() as usize,
            ways: tag.count,
            tags_at: tag.offset / 4,
            tags_apart: buckets.value_size().next_multiple_of(8) as usize / 4,
            words: flows.value_size().next_multiple_of(8) as usize / 8,
        };
        let has_all = table.flows.len() == table.buckets * table.ways * table.words;
        Ok(has_all.then_some(table))
    }

    fn tag(&self, (bucket, way): Slot) -> &AtomicU32 {
        &self.tags[bucket * self.tags_apart + self.tags_at + way]
    }

    fn flow(&self, (bucket, way): Slot) -> &[AtomicU64] {
        let at = (bucket * self.ways + way) * self.words;
        &self.flows[at..at + self.words]
    }

    fn digest(&self, slot: Slot) -> u32 {
        let flow = self.flow(slot);
        self.identity
            .digest(|word| flow[word].load(Ordering::Relaxed))
    }

    /// Whether a packet that opens a connection may give the flow another real.
    fn may_be_opened(&self, slot: Slot, tag: u32) -> bool {
        let flow = self.flow(slot);
        let bits = self.identity.bits.map_or(0, |at| {
            flow[at / 8].load(Ordering::Relaxed).to_ne_bytes()[at % 8]
        });
        tag & AGE_MASK == AGE_GONE || bits & FLOW_CLOSED != 0
    }

    fn slots(&self, bucket: usize) -> impl Iterator<Item = Slot> + use<> {
        (0..self.ways).map(move |way| (bucket, way))
    }

    fn taken(&self, bucket: usize) -> usize {
        self.slots(bucket)
            .filter(|slot| self.tag(*slot).load(Ordering::Relaxed) != 0)
            .count()
    }
}

/// What the last look met in a slot of the old table.
#[derive(Clone, Copy, Default)]
struct Seen {
    tag: u32,
    digest: u32,
    has: Has,
}

/// Whether the new table has a flow.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Has {
    /// It has no room.
    #[default]
    Not,
    Hidden,
    Shown,
}

/// A flow on its way.
struct Flow<'a> {
    /// As the new layout has it.
    value: &'a [u64],
    digest: u32,
    age: u32,
    is_hidden: bool,
    /// What may go for it: flows of lower age classes than this one.
    worth: u32,
    /// Where the old table has it, and what was there before.
    from: Slot,
    before: Seen,
}

/// Copies one family's flows.
pub(crate) struct FlowFollower {
    old: FlowTable,
    new: FlowTable,
    translate: Translator,
    /// How many words of a key are hashed.
    hashed: usize,
    seed: u64,
    seen: Vec<Seen>,
    is_begun: bool,
    /// The new table has been at work: what it knows is newer.
    is_behind: bool,
}

impl FlowFollower {
    /// From `flows` with its `buckets` into the new ones; `hashed` words of a key are the tuple.
    /// `None` if the old layout does not say where flows are.
    pub(crate) fn new(
        [old_buckets, old_flows]: [&Source; 2],
        [new_buckets, new_flows]: [&MapHandle; 2],
        hashed: usize,
        seed: u64,
        is_behind: bool,
    ) -> Result<Option<Self>> {
        let old = FlowTable::new(
            &old_buckets.map,
            &old_flows.map,
            &old_buckets.old.value,
            &old_flows.old.value,
        )?;
        let new = FlowTable::new(
            new_buckets,
            new_flows,
            &old_buckets.new.value,
            &old_flows.new.value,
        )?;
        let (Some(old), Some(new)) = (old, new) else {
            return Ok(None);
        };
        Ok(Some(Self {
            seen: vec![Seen::default(); old.buckets * old.ways],
            translate: old_flows.value.clone(),
            hashed,
            seed,
            old,
            new,
            is_begun: false,
            is_behind,
        }))
    }

    /// Deals with what is new, of one age class or of all.
    fn look(&mut self, age: Option<u32>, is_at_rest: bool) {
        for bucket in 0..self.old.buckets {
            for from in self.old.slots(bucket) {
                let tag = self.old.tag(from).load(Ordering::Acquire);
                let is_other = age.is_some_and(|age| tag & AGE_MASK != age);
                // Of what is hidden a killed start has left a later form, or it is gone.
                if tag & SHOWN == 0 || is_other {
                    continue;
                }
                let at = bucket * self.old.ways + from.1;
                let before = self.seen[at];
                let digest = self.old.digest(from);
                let is_known = (tag ^ before.tag) & !AGE_MASK == 0 && before.digest == digest;
                let had_no_room = is_known && before.has == Has::Not;
                let is_hidden = !is_at_rest && self.old.may_be_opened(from, tag);
                let wanted = if is_hidden { Has::Hidden } else { Has::Shown };
                let is_waiting = had_no_room && tag & AGE_MASK != AGE_LIVE;
                if is_known && before.has == wanted || is_waiting {
                    continue;
                }
                let is_shown = is_known && before.has == Has::Hidden && self.show(from, tag);
                let has = match is_shown {
                    true => Some(true),
                    false => self.copy(from, tag, digest, is_hidden, is_known),
                };
                if let Some(has) = has {
                    let has = if has { wanted } else { Has::Not };
                    self.seen[at] = Seen { tag, digest, has };
                }
            }
        }
    }

    /// Shows a flow in the slot that it has in the old table, if it is hidden there.
    fn show(&self, slot: Slot, tag: u32) -> bool {
        if !self.is_alike() {
            return false;
        }
        let of_new = self.new.tag(slot);
        let seen = of_new.load(Ordering::Relaxed);
        let is_hidden = (seen ^ tag) & !AGE_MASK == SHOWN;
        let show = || of_new.compare_exchange(seen, tag, Ordering::AcqRel, Ordering::Relaxed);
        is_hidden && show().is_ok()
    }

    /// Copies a flow; whether the new table has room for it. `None`: it is being written, and the next
    /// look finds it.
    fn copy(
        &self,
        from: Slot,
        tag: u32,
        digest: u32,
        is_hidden: bool,
        is_known: bool,
    ) -> Option<bool> {
        let words = self.old.flow(from).iter();
        let value: Vec<u8> = words
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .collect();
        std::sync::atomic::fence(Ordering::Acquire);
        let is_other = (self.old.tag(from).load(Ordering::Relaxed) ^ tag) & !AGE_MASK != 0;
        if is_other || self.old.digest(from) != digest {
            return None;
        }
        let value = words_of(&self.translate.apply(&value));
        let word = |at: usize| value.get(at).copied().unwrap_or(0);
        let age = tag & AGE_MASK;
        let is_opened = self.is_begun && !is_known && !self.old.may_be_opened(from, tag);
        Some(self.insert(&Flow {
            digest: self.new.identity.digest(word),
            value: &value,
            age,
            is_hidden,
            // The program, too, has what opens take the place of others.
            worth: if is_opened { AGE_LIVE } else { age },
            from,
            before: self.seen[from.0 * self.old.ways + from.1],
        }))
    }

    /// Puts a flow into the new table; `false` if there is no room.
    fn insert(&self, flow: &Flow<'_>) -> bool {
        let key_at = self.new.identity.key;
        let Some(key) = flow.value.get(key_at..key_at + KEY_WORDS) else {
            return false;
        };
        let spot = FlowSpot::of(&key[..self.hashed], self.seed, self.new.buckets as u32);
        let buckets = spot.buckets.map(|bucket| bucket as usize);
        let shown = spot.fingerprint & !AGE_MASK;
        let tag = flow.age
            | if flow.is_hidden {
                shown & !SHOWN
            } else {
                shown
            };
        // A program may take the same slot at the same time.
        (0..4).any(|_| {
            let find = |tag| {
                let mut buckets = buckets.iter();
                buckets.find_map(|bucket| self.find(*bucket, tag, key))
            };
            let known = find(shown);
            if let Some(slot) = known
                && !flow.is_hidden
                && (self.is_behind || self.new.digest(slot) == flow.digest)
            {
                return true;
            }
            // Tables of former builds may have a tuple twice, and what is open goes before what has ended.
            if let Some(slot) = known
                && flow.is_hidden
                && self.new.digest(slot) != flow.before.digest
            {
                return false;
            }
            let known = known.or_else(|| find(shown & !SHOWN));
            let chosen = known.map(|slot| (slot, self.new.tag(slot).load(Ordering::Relaxed)));
            let chosen = chosen
                .or_else(|| self.same_slot(buckets, flow))
                .or_else(|| self.choose(buckets, flow.worth));
            let Some((slot, seen)) = chosen.filter(|(_, seen)| *seen != CLAIMED) else {
                return false;
            };
            let claimed = self.new.tag(slot).compare_exchange(
                seen,
                CLAIMED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if claimed.is_err() {
                return false;
            }
            for (to, from) in self.new.flow(slot).iter().zip(flow.value) {
                to.store(*from, Ordering::Relaxed);
            }
            self.new.tag(slot).store(tag, Ordering::Release);
            true
        })
    }

    fn is_alike(&self) -> bool {
        (self.old.buckets, self.old.ways) == (self.new.buckets, self.new.ways)
    }

    fn find(&self, bucket: usize, tag: u32, key: &[u64]) -> Option<Slot> {
        self.new.slots(bucket).find(|slot| {
            let found = self.new.tag(*slot).load(Ordering::Acquire);
            let flow = &self.new.flow(*slot)[self.new.identity.key..];
            let mut words = flow.iter().zip(key);
            found & !AGE_MASK == tag
                && words.all(|(word, key)| word.load(Ordering::Relaxed) == *key)
        })
    }

    /// The slot that it has in a table of the same size, if nothing is in there but what was in
    /// the old one before: so a full table comes over whole, and what has been evicted goes here too.
    fn same_slot(&self, buckets: [usize; 2], flow: &Flow<'_>) -> Option<(Slot, u32)> {
        if !self.is_alike() || !buckets.contains(&flow.from.0) {
            return None;
        }
        let tag = self.new.tag(flow.from).load(Ordering::Relaxed);
        let is_same = (tag ^ flow.before.tag) & !(AGE_MASK | SHOWN) == 0;
        let is_free = tag == 0 || is_same && self.new.digest(flow.from) == flow.before.digest;
        is_free.then_some((flow.from, tag))
    }

    /// An empty slot, of the first bucket as long as that has some to spare; else that of a flow
    /// that is less worth. With its tag.
    fn choose(&self, buckets: [usize; 2], worth: u32) -> Option<(Slot, u32)> {
        let [first, second] = buckets.map(|bucket| self.new.taken(bucket));
        let spills = first >= self.new.ways - WAYS_SHARED && second < first;
        let ordered = if spills {
            [buckets[1], buckets[0]]
        } else {
            buckets
        };
        let slots = ordered
            .into_iter()
            .flat_map(|bucket| self.new.slots(bucket));
        let tagged = slots.map(|slot| (slot, self.new.tag(slot).load(Ordering::Relaxed)));
        let cost = |tag: u32| if tag == 0 { 0 } else { 1 + (tag & AGE_MASK) };
        let open = tagged.filter(|(_, tag)| *tag != CLAIMED && cost(*tag) <= worth);
        open.min_by_key(|(_, tag)| cost(*tag))
    }
}

impl Follower for FlowFollower {
    fn follow(&mut self, is_at_rest: bool) -> Result<()> {
        if self.is_begun {
            self.look(None, is_at_rest);
        } else {
            // A smaller table keeps those that are in use.
            for age in [AGE_LIVE, AGE_OLD, AGE_NEW, AGE_GONE] {
                self.look(Some(age), is_at_rest);
            }
            self.is_begun = true;
        }
        Ok(())
    }

    fn is_urgent(&self) -> bool {
        true
    }

    fn loss(&self) -> Option<String> {
        let is_lost = |seen: &&Seen| seen.has == Has::Not && seen.tag & AGE_MASK == AGE_LIVE;
        let lost = self.seen.iter().filter(is_lost).count();
        (lost > 0).then(|| {
            format!(
                "the flow table has no room for {lost} of the flows in use: they are picked again by hash"
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

#[cfg(test)]
mod tests;
