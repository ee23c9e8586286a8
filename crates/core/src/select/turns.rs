// SPDX-License-Identifier: Apache-2.0
//! Turns: the order in which reals get new flows one after another.
//!
//! A ring of turns is walked by a counter, not by a hash. One walk around it is one
//! period of weighted round robin: every real has exactly as many slots as its
//! weight says, spread as evenly as they go. Real `i` of weight `w` has its turn
//! number `k` at the virtual time `(2k + 1) / 2w`; sorted by time, that is the
//! interleaved order (Webster's method, as in [`maglev`](super::maglev)). With equal
//! weights it is plain round robin.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::maglev::hash;
use super::{RingMember, in_ring};

/// The longest period that is kept exactly. Weights whose period is longer are
/// rounded to this many slots; shares are then off by less than one slot.
pub const TURNS_MAX: usize = 65_536;

/// One period of weighted round robin; empty when no real has a weight.
///
/// The order among reals whose turns coincide comes from `seed`: balancers that share
/// a pool then do not all begin with the same real.
pub fn turns(pool: &[RingMember], seed: u64) -> Vec<u32> {
    let mut pool = in_ring(pool);
    pool.sort_by_key(|member| (hash(member.key, seed), member.id));
    let weights: Vec<u64> = pool.iter().map(|m| u64::from(m.weight)).collect();
    let slots = period(&weights);
    let mut next: BinaryHeap<Reverse<Turn>> = (0..)
        .zip(&slots)
        .filter(|(_, slots)| **slots > 0)
        .map(|(at, &slots)| Reverse(Turn { half: 1, slots, at }))
        .collect();
    let mut order = Vec::with_capacity(slots.iter().sum::<u64>() as usize);
    while let Some(Reverse(mut turn)) = next.pop() {
        order.push(pool[turn.at].id);
        turn.half += 2;
        if turn.half < 2 * turn.slots {
            next.push(Reverse(turn));
        }
    }
    order
}

/// The same with all weights above 0 taken as equal: round robin.
pub fn equal_turns(pool: &[RingMember], seed: u64) -> Vec<u32> {
    let equal: Vec<RingMember> = in_ring(pool)
        .into_iter()
        .map(|member| RingMember {
            weight: 1,
            ..member
        })
        .collect();
    turns(&equal, seed)
}

/// Slots of each real in one period: the weights without their common divisor, or
/// as near as [`TURNS_MAX`] slots allow.
fn period(weights: &[u64]) -> Vec<u64> {
    let divisor = weights.iter().copied().fold(0, gcd).max(1);
    let sum: u64 = weights.iter().sum::<u64>() / divisor;
    if sum <= TURNS_MAX as u64 {
        return weights.iter().map(|w| w / divisor).collect();
    }
    apportion(weights, TURNS_MAX as u64)
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

/// Hamilton's method: whole shares first, then one slot more for the largest
/// remainders. A real with a weight keeps at least one slot.
fn apportion(weights: &[u64], slots: u64) -> Vec<u64> {
    let sum: u64 = weights.iter().sum();
    let share = |w: u64| u128::from(w) * u128::from(slots);
    let whole = |w: u64| ((share(w) / u128::from(sum)) as u64).max(1);
    let mut shares: Vec<u64> = weights.iter().map(|&w| whole(w)).collect();
    let mut by_rest: Vec<usize> = (0..weights.len()).collect();
    by_rest.sort_by_key(|&at| Reverse(share(weights[at]) % u128::from(sum)));
    let left = slots.saturating_sub(shares.iter().sum());
    for &at in by_rest.iter().take(left as usize) {
        shares[at] += 1;
    }
    shares
}

/// A real's next turn, at the virtual time `half / 2 slots`.
#[derive(PartialEq, Eq)]
struct Turn {
    /// `2k + 1` for turn number `k`.
    half: u64,
    slots: u64,
    /// Index into the pool: settles ties.
    at: usize,
}

impl Ord for Turn {
    /// By time; fractions are compared crosswise, exactly.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let mine = self.half * other.slots;
        let theirs = other.half * self.slots;
        mine.cmp(&theirs).then(self.at.cmp(&other.at))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{pool, shares};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_weights_are_round_robin() {
        let order = turns(&pool(&[5, 5, 5, 5]), 1);
        assert_eq!(order.len(), 4);
        assert_eq!(shares(&order), [(0, 1), (1, 1), (2, 1), (3, 1)].into());
    }

    #[test]
    fn weights_are_interleaved_and_not_in_runs() {
        // nginx's smooth order of 5, 1, 1 is a a b a c a a: no longer run than 2.
        let order = turns(&pool(&[5, 1, 1]), 1);
        assert_eq!(shares(&order), [(0, 5), (1, 1), (2, 1)].into());
        let others: Vec<usize> = (0..7).filter(|&at| order[at] != 0).collect();
        let gap = others[1] - others[0];
        assert!((2..=5).contains(&gap), "{order:?}");
    }

    #[test]
    fn weights_of_zero_have_no_turn() {
        assert_eq!(turns(&pool(&[0, 3, 0]), 9), [1]);
        assert!(turns(&pool(&[0, 0]), 9).is_empty());
        assert!(turns(&[], 9).is_empty());
        assert_eq!(
            shares(&equal_turns(&pool(&[0, 3, 9]), 9)),
            [(1, 1), (2, 1)].into()
        );
    }

    #[test]
    fn the_seed_changes_who_begins_and_nothing_else() {
        let pool = pool(&[1; 16]);
        let firsts: std::collections::BTreeSet<u32> =
            (0..64).map(|seed| turns(&pool, seed)[0]).collect();
        assert!(firsts.len() > 8, "{firsts:?}");
        assert_eq!(shares(&turns(&pool, 1)), shares(&turns(&pool, 2)));
    }

    #[test]
    fn a_period_that_is_too_long_is_rounded_to_the_slot() {
        let weights = [65_535_000, 1, 7_919, 32_749_001];
        let order = turns(&pool(&weights), 3);
        let sum: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        assert!(order.len() <= TURNS_MAX + weights.len());
        for (id, slots) in shares(&order) {
            let exact = f64::from(weights[id as usize]) * TURNS_MAX as f64 / sum as f64;
            assert!(
                (slots as f64 - exact.max(1.0)).abs() <= 1.0,
                "{id}: {slots} for {exact}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Shares are exact, and at no point of the walk is a real more than one turn
        /// ahead of or behind what its weight deserves by then.
        #[test]
        fn every_prefix_is_fair(weights in prop::collection::vec(1..50_u32, 1..12), seed: u64) {
            let order = turns(&pool(&weights), seed);
            let sum: u32 = weights.iter().sum();
            let mut had = vec![0.0; weights.len()];
            for (at, id) in order.iter().enumerate() {
                had[*id as usize] += 1.0;
                for (real, weight) in weights.iter().enumerate() {
                    let due = (at + 1) as f64 * f64::from(*weight) / f64::from(sum);
                    let ahead = had[real] - due;
                    prop_assert!(ahead.abs() < 1.0 + weights.len() as f64 / 2.0, "{order:?}");
                }
            }
            let divisor = weights.iter().fold(0, |a, &b| gcd(a, u64::from(b))) as u32;
            for (id, slots) in shares(&order) {
                prop_assert_eq!(slots as u32, weights[id as usize] / divisor);
            }
        }
    }
}
