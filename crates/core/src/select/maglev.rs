// SPDX-License-Identifier: Apache-2.0
//! Weighted Maglev hashing.
//!
//! Source: Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load
//! Balancer", NSDI 2016, section 3.4. Each real has its own permutation of the
//! slots; reals take turns, and in its turn a real claims the first slot of its
//! permutation that is still free.
//!
//! The paper leaves weights open ("altering the relative frequency of the
//! backends' turns"). Here real `i` of weight `w` has its turn number `k` at the
//! virtual time `(2k + 1) / 2w`, and turns happen in the order of time. That is
//! Webster's method of apportionment: shares are exact to a slot or so, a turn's
//! time depends on no other real's weight (so a change of one weight disturbs the
//! others little), and equal weights are the paper's round robin.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::{RealKey, RingMember, RingSize, in_ring};

/// Builds the ring: `size` slots, each the id of a real, shares in proportion to
/// the weights. Empty when no real has a weight above 0. A real whose weight is
/// worth less than about half a slot gets none.
///
/// Cost: about `size * ln(size)` steps, whatever the number of reals.
pub fn maglev(pool: &[RingMember], size: RingSize) -> Vec<u32> {
    let pool = in_ring(pool);
    match pool[..] {
        [] => return Vec::new(),
        [only] => return vec![only.id; size.slots()],
        _ => {}
    }
    let mut walks: Vec<Walk> = pool.iter().map(|m| Walk::new(m.key, size)).collect();
    let mut ring = vec![0; size.slots()];
    let mut taken = Slots::new(size);
    let mut claim = |at: usize| {
        let slot = walks[at].next_free(&taken, size);
        taken.set(slot);
        ring[slot as usize] = pool[at].id;
    };
    // Equal weights are the paper's round robin: the heap would find the same order.
    if pool.iter().all(|member| member.weight == pool[0].weight) {
        (0..pool.len()).cycle().take(size.slots()).for_each(claim);
        return ring;
    }
    let mut turns: BinaryHeap<Turn> = (0..pool.len())
        .map(|at| Turn {
            half_steps: 1,
            weight: pool[at].weight,
            at: at as u32,
        })
        .collect();
    for _ in 0..size.slots() {
        let Some(mut turn) = turns.peek_mut() else {
            break;
        };
        claim(turn.at as usize);
        turn.half_steps += 2;
        drop::<PeekMut<'_, Turn>>(turn);
    }
    ring
}

/// A real's next turn, at the virtual time `half_steps / (2 * weight)`.
#[derive(PartialEq, Eq)]
struct Turn {
    /// `2k + 1` for turn number `k`: at most twice the largest ring.
    half_steps: u32,
    weight: u32,
    /// Index into the pool, which is in the order of keys: settles ties.
    at: u32,
}

impl Ord for Turn {
    /// The earliest turn is the greatest, as [`BinaryHeap`] wants it. Fractions
    /// are compared crosswise, so no rounding depends on the pool.
    fn cmp(&self, other: &Self) -> Ordering {
        let mine = u64::from(self.half_steps) * u64::from(other.weight);
        let theirs = u64::from(other.half_steps) * u64::from(self.weight);
        theirs.cmp(&mine).then(other.at.cmp(&self.at))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A real's permutation of the slots, `offset, offset + skip, offset + 2 skip,
/// ...` modulo the size, as far as it has been walked.
struct Walk {
    next: u32,
    skip: u32,
}

impl Walk {
    fn new(key: RealKey, size: RingSize) -> Self {
        let slots = size.slots() as u64;
        Self {
            next: (hash(key, OFFSET_SEED) % slots) as u32,
            skip: (hash(key, SKIP_SEED) % (slots - 1)) as u32 + 1,
        }
    }

    /// The first free slot from here on. Ends because `skip` and the prime size
    /// have no common factor, so the walk visits every slot; the caller sees to
    /// it that one is free.
    fn next_free(&mut self, taken: &Slots, size: RingSize) -> u32 {
        let slots = size.slots() as u32;
        loop {
            let slot = self.next;
            let sum = self.next + self.skip;
            self.next = if sum >= slots { sum - slots } else { sum };
            if !taken.has(slot) {
                return slot;
            }
        }
    }
}

/// A bit for each slot: 8 KiB for the default ring, which stays in the L1 cache
/// while the walks jump about.
struct Slots(Vec<u64>);

impl Slots {
    fn new(size: RingSize) -> Self {
        Self(vec![0; size.slots().div_ceil(64)])
    }

    fn has(&self, slot: u32) -> bool {
        self.0[slot as usize / 64] >> (slot % 64) & 1 != 0
    }

    fn set(&mut self, slot: u32) {
        self.0[slot as usize / 64] |= 1 << (slot % 64);
    }
}

/// Arbitrary and different. Part of what balancers must agree on: never change.
pub(super) const OFFSET_SEED: u64 = 0x6f66_6673_6574_0001;
pub(super) const SKIP_SEED: u64 = 0x736b_6970_0000_0001;

/// Hashes a real's address; `seed` gives independent values. The finaliser is
/// that of SplitMix64 (Steele et al., OOPSLA 2014).
pub(super) fn hash(key: RealKey, seed: u64) -> u64 {
    key.words().into_iter().fold(seed, |h, word| {
        let mut z = (h ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
