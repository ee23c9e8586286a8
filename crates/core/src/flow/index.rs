// SPDX-License-Identifier: Apache-2.0

//! From a hash to the place of a flow, in one cache line.
//!
//! A table of the standard library would do, but for one thing: it cannot be asked
//! for a key in advance. A reader knows its packets some dozen ahead, and asks the
//! processor for all their lines at once instead of waiting for one after the
//! other; with many flows that is most of a packet's cost.
//!
//! Open addressing with linear probing, at most half full. A word holds the
//! hash, by which it is found and which differs for nearly all other flows, and the place. Removal
//! closes the gap (Knuth, "The Art of Computer Programming", volume 3, section 6.4, algorithm R),
//! so nothing is left behind.

/// Words in the smallest index.
const MIN_WORDS: usize = 64;

const EMPTY: u64 = 0;

/// Hash to place. Hashes may repeat; the caller compares flows.
#[derive(Debug)]
pub(super) struct Index {
    /// [`EMPTY`], or the hash above the place plus one.
    words: Vec<u64>,
    len: usize,
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            words: vec![EMPTY; MIN_WORDS],
            len: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }

    /// Asks for the line that [`Index::find`] will read first.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        prefetch_lines(&self.words[self.home(hash)], 1);
    }

    /// The first place under this hash that is the right one.
    #[inline]
    pub(super) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = tag(hash);
        let mut at = self.home(hash);
        loop {
            let word = self.words[at];
            if word == EMPTY {
                return None;
            }
            if word & TAG == tag && is_it(position(word)) {
                return Some(position(word));
            }
            at = (at + 1) & (self.words.len() - 1);
        }
    }

    /// Adds a place, which is not [`u32::MAX`].
    pub(super) fn insert(&mut self, hash: u32, place: u32) {
        if 2 * (self.len + 1) > self.words.len() {
            self.grow();
        }
        self.put(tag(hash) | (u64::from(place) + 1));
        self.len += 1;
    }

    /// Removes a place that was added under this hash.
    pub(super) fn remove(&mut self, hash: u32, place: u32) {
        let mask = self.words.len() - 1;
        let word = tag(hash) | (u64::from(place) + 1);
        let mut hole = self.home(hash);
        while self.words[hole] != word {
            debug_assert_ne!(self.words[hole], EMPTY, "the place is in the index");
            if self.words[hole] == EMPTY {
                return;
            }
            hole = (hole + 1) & mask;
        }
        self.len -= 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let word = self.words[at];
            if word == EMPTY {
                break;
            }
            // It may move back unless its home lies behind the hole.
            let home = self.home((word >> 32) as u32);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.words[hole] = word;
                hole = at;
            }
        }
        self.words[hole] = EMPTY;
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.words.len() - 1)
    }

    fn put(&mut self, word: u64) {
        let mask = self.words.len() - 1;
        let mut at = self.home((word >> 32) as u32);
        while self.words[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.words[at] = word;
    }

    fn grow(&mut self) {
        let twice = vec![EMPTY; 2 * self.words.len()];
        for word in std::mem::replace(&mut self.words, twice) {
            if word != EMPTY {
                self.put(word);
            }
        }
    }
}

const TAG: u64 = !0 << 32;

#[inline]
fn tag(hash: u32) -> u64 {
    u64::from(hash) << 32
}

#[inline]
fn position(word: u64) -> u32 {
    (word as u32).wrapping_sub(1)
}

/// Bytes of a cache line, nearly everywhere.
const LINE: usize = 64;

/// Asks the processor for the first lines of a value, without waiting for them.
#[inline]
pub(super) fn prefetch_lines<T>(value: &T, lines: usize) {
    for line in 0..lines.min(size_of::<T>().div_ceil(LINE)) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the line begins inside the value; a prefetch changes nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>((&raw const *value).cast::<i8>().add(line * LINE));
        }
        // Elsewhere there is no stable way to ask.
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (value, line);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few distinct hashes, so that runs are long, wrap around and overlap.
        #[test]
        fn it_holds_what_a_map_holds(
            steps in proptest::collection::vec((0u32..40, any::<bool>(), any::<bool>()), 0..400),
        ) {
            let mut index = Index::new();
            let mut oracle: HashMap<u32, u32> = HashMap::new();
            for (next, (name, spread, remove)) in steps.into_iter().enumerate() {
                // Homes at the end of the index, and anywhere.
                let hash = if spread { name.wrapping_mul(0x9e37_79b9) } else { 60 + name % 4 + (name << 16) };
                // Two names with one tag are two flows: the place distinguishes them.
                let known = oracle.get(&hash).copied();
                match (known, remove) {
                    (Some(place), true) => {
                        index.remove(hash, place);
                        oracle.remove(&hash);
                    }
                    (None, false) => {
                        index.insert(hash, next as u32);
                        oracle.insert(hash, next as u32);
                    }
                    _ => {}
                }
                prop_assert_eq!(index.len, oracle.len());
                prop_assert!(2 * index.len <= index.words.len());
                for (&hash, &place) in &oracle {
                    prop_assert_eq!(index.find(hash, |found| found == place), Some(place));
                }
                prop_assert_eq!(index.find(hash, |_| false), None);
            }
        }
    }
}
