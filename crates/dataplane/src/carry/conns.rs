// SPDX-License-Identifier: Apache-2.0
//! Connections of stateful VIPs into slots of another layout, or into more or fewer partitions: a
//! token keeps naming the same slot of its partition.

use std::sync::atomic::{AtomicU64, Ordering};

use causeway_core::flow_spot::conn_partition;
use libbpf_rs::{MapCore as _, MapHandle};

use super::flows::words_of;
use super::translate::Translator;
use super::{Follower, Source};
use crate::error::Result;
use crate::mapped::Mapped;

const KEY_WORDS: usize = 5;

/// Slots in partitions.
struct Slots {
    words: Mapped<AtomicU64>,
    partitions: u32,
    partition_size: u32,
    /// Words of a slot, and before its key.
    apart: usize,
    key_at: usize,
}

impl Slots {
    /// `None` without stateful mode.
    fn new(slots: &MapHandle, rings: u32, cpus: u32, key_at: usize) -> Result<Option<Self>> {
        let partitions = rings / cpus.max(1);
        if partitions == 0 || slots.max_entries() < 2 {
            return Ok(None);
        }
        Ok(Some(Self {
            words: Mapped::parts(slots)?,
            partitions,
            partition_size: slots.max_entries() / partitions,
            apart: slots.value_size().next_multiple_of(8) as usize / 8,
            key_at: key_at / 8,
        }))
    }

    fn slot(&self, number: u32) -> &[AtomicU64] {
        let at = number as usize * self.apart;
        &self.words[at..at + self.apart]
    }

    fn key(&self, number: u32) -> [u64; KEY_WORDS] {
        let key = &self.slot(number)[self.key_at..];
        std::array::from_fn(|at| key[at].load(Ordering::Acquire))
    }
}

/// Whether slots come over.
pub(crate) enum FollowConns {
    /// By this.
    By(ConnFollower),
    /// There is no stateful mode before or behind.
    Nothing,
    /// Tokens have another length, or keys another form.
    Lost,
}

/// Copies connections. No program gives a new slot out before the copy is complete: free ones are
/// handed to it later.
pub(crate) struct ConnFollower {
    old: Slots,
    new: Slots,
    translate: Translator,
    /// Of the hash that chooses a partition.
    seed: u64,
    seen: Vec<[u64; KEY_WORDS]>,
}

impl FollowConns {
    pub(crate) fn new(
        old: &Source,
        old_rings: u32,
        new: &MapHandle,
        new_rings: u32,
        cpus: u32,
        seed: u64,
    ) -> Result<Self> {
        let key = |types: &crate::btf::MapTypes| {
            let key = types.value.get("key.saddr_be");
            key.map(|key| key.offset).filter(|at| at % 8 == 0)
        };
        let (old_key, new_key) = (key(&old.old), key(&old.new));
        let from = Slots::new(&old.map, old_rings, cpus, old_key.unwrap_or(0))?;
        let to = Slots::new(new, new_rings, cpus, new_key.unwrap_or(0))?;
        let (Some(from), Some(to)) = (from, to) else {
            return Ok(Self::Nothing);
        };
        let has_keys = old_key.is_some() && new_key.is_some();
        if !has_keys || from.partition_size != to.partition_size {
            return Ok(Self::Lost);
        }
        Ok(Self::By(ConnFollower {
            seen: vec![[0; KEY_WORDS]; (from.partitions * from.partition_size) as usize],
            translate: old.value.clone(),
            old: from,
            new: to,
            seed,
        }))
    }
}

impl Follower for ConnFollower {
    fn follow(&mut self, _is_at_rest: bool) -> Result<()> {
        for number in 0..self.seen.len() as u32 {
            let key = self.old.key(number);
            let seen = &mut self.seen[number as usize];
            // Ports and protocol are never 0.
            if key == *seen || key[1] | key[4] == 0 {
                continue;
            }
            let words = self.old.slot(number).iter();
            let value: Vec<u8> = words
                .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
                .collect();
            if self.old.key(number) != key {
                continue; // it is being written: the next look finds it
            }
            *seen = key;
            let value = words_of(&self.translate.apply(&value));
            let is_v4 = key[2..] == [0; 3];
            let hashed = if is_v4 { &key[..2] } else { &key[..] };
            let partition = conn_partition(hashed, self.seed, self.new.partitions);
            let index = number % self.new.partition_size;
            let to = partition * self.new.partition_size + index;
            let held = self.new.key(to);
            if held[1] | held[4] != 0 {
                continue; // of two in one slot the second one goes by the flow table
            }
            let slot = self.new.slot(to);
            let at = self.new.key_at..self.new.key_at + KEY_WORDS;
            let (keys, rest): (Vec<usize>, Vec<usize>) =
                (0..slot.len()).partition(|word| at.contains(word));
            for word in rest.into_iter().chain(keys) {
                slot[word].store(value.get(word).copied().unwrap_or(0), Ordering::Release);
            }
        }
        Ok(())
    }

    fn is_urgent(&self) -> bool {
        true
    }
}
