// SPDX-License-Identifier: Apache-2.0
//! Properties of the rings: shares follow the weights, changes move little,
//! every balancer builds the same ring, and the fast builder does what the
//! obvious one does.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::maglev::{OFFSET_SEED, SKIP_SEED, hash};
use super::*;

fn v4(n: u32) -> RealKey {
    IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)).into()
}

fn v6(n: u32) -> RealKey {
    IpAddr::V6(Ipv6Addr::from((0x2001_0db8 << 96) | u128::from(n))).into()
}

/// How many slots differ between two rings of one size.
fn moved_slots(old: &[u32], new: &[u32]) -> usize {
    old.iter().zip(new).filter(|(a, b)| a != b).count()
}

/// A pool of `weights.len()` reals whose id is their number.
pub(super) fn pool(weights: &[u32]) -> Vec<RingMember> {
    (0..)
        .zip(weights)
        .map(|(id, &weight)| RingMember {
            key: v4(id),
            id,
            weight,
        })
        .collect()
}

fn size(slots: u32) -> RingSize {
    RingSize::new(slots).unwrap()
}

pub(super) fn shares(ring: &[u32]) -> BTreeMap<u32, usize> {
    let mut count = BTreeMap::new();
    for &id in ring {
        *count.entry(id).or_default() += 1;
    }
    count
}

/// The share in slots that each id's weight deserves.
fn deserved(pool: &[RingMember], slots: usize) -> BTreeMap<u32, f64> {
    let total: f64 = pool.iter().map(|m| f64::from(m.weight)).sum();
    pool.iter()
        .map(|m| (m.id, slots as f64 * f64::from(m.weight) / total))
        .collect()
}

/// The fewest slots that any scheme must move between two pools: what the
/// growing reals gain.
fn unavoidable(old: &[RingMember], new: &[RingMember], slots: usize) -> f64 {
    let old = deserved(old, slots);
    let new = deserved(new, slots);
    new.iter()
        .map(|(id, n)| (n - old.get(id).unwrap_or(&0.0)).max(0.0))
        .sum()
}

/// The paper's algorithm with everything spelt out that the fast one computes as
/// it goes: each real's permutation as a table, all turns as one sorted list.
fn obvious_maglev(pool: &[RingMember], slots: usize) -> Vec<u32> {
    let mut reals: Vec<RingMember> = pool.iter().copied().filter(|m| m.weight > 0).collect();
    reals.sort_by_key(|m| m.key);
    let m = slots as u64;
    let table = |real: &RingMember| -> Vec<usize> {
        let offset = hash(real.key, OFFSET_SEED) % m;
        let skip = hash(real.key, SKIP_SEED) % (m - 1) + 1;
        (0..m).map(|j| ((offset + j * skip) % m) as usize).collect()
    };
    let tables: Vec<Vec<usize>> = reals.iter().map(table).collect();
    // Times (2k+1)/2w over one common denominator: feasible for small pools.
    let common: u64 = reals.iter().map(|r| u64::from(r.weight)).product();
    let mut turns: Vec<(u64, usize)> = Vec::new();
    for (at, real) in reals.iter().enumerate() {
        turns.extend((0..m).map(|k| ((2 * k + 1) * (common / u64::from(real.weight)), at)));
    }
    turns.sort();
    let mut ring = vec![None; slots];
    for &(_, at) in turns.iter().take(slots) {
        let free = tables[at]
            .iter()
            .find(|&&slot| ring[slot].is_none())
            .unwrap();
        ring[*free] = Some(reals[at].id);
    }
    ring.into_iter().flatten().collect()
}

fn weights(reals: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(1..1000_u32, reals)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_fast_builder_equals_the_obvious_one(
        weights in prop::collection::vec(0..24_u32, 1..7),
        slots in prop::sample::select(vec![2_u32, 3, 7, 251, 509]),
    ) {
        let pool = pool(&weights);
        prop_assert_eq!(maglev(&pool, size(slots)), obvious_maglev(&pool, slots as usize));
    }

    #[test]
    fn shares_follow_the_weights(weights in weights(1..60)) {
        let pool = pool(&weights);
        let ring = maglev(&pool, size(4099));
        let shares = shares(&ring);
        for (id, want) in deserved(&pool, ring.len()) {
            let got = shares.get(&id).copied().unwrap_or(0) as f64;
            prop_assert!((got - want).abs() < 1.5, "real {id}: {got} slots, deserves {want:.2}");
        }
    }

    /// Maglev moves more than it must: usually a slot or two in a hundred more,
    /// with ill-suited weights up to about four.
    #[test]
    fn changes_move_little_more_than_they_must(
        weights in weights(2..60),
        at in any::<prop::sample::Index>(),
        to in 0..1000_u32,
    ) {
        let before = pool(&weights);
        let mut after = before.clone();
        after[at.index(weights.len())].weight = to;
        prop_assume!(after.iter().any(|m| m.weight > 0));
        let moved = moved_slots(&maglev(&before, size(4099)), &maglev(&after, size(4099))) as f64;
        let must = unavoidable(&before, &after, 4099);
        prop_assert!(moved - must < 0.05 * 4099.0, "moved {moved}, must move {must:.1}");
    }

    #[test]
    fn neither_the_order_nor_the_ids_shape_a_ring(weights in weights(2..30), seed in any::<u64>()) {
        let here = pool(&weights);
        let mut there = here.clone();
        there.sort_by_key(|m| hash(m.key, seed));
        for (id, member) in (1000..).zip(&mut there) {
            member.id = id;
        }
        let key_of = |pool: &[RingMember], id| pool.iter().find(|m| m.id == id).map(|m| m.key);
        for build in [maglev, uniform] {
            let here_picks = build(&here, size(251)).into_iter().map(|id| key_of(&here, id));
            let there_picks = build(&there, size(251)).into_iter().map(|id| key_of(&there, id));
            prop_assert!(here_picks.eq(there_picks));
        }
    }

    #[test]
    fn uniform_shares_are_equal_whatever_the_weights(weights in prop::collection::vec(0..9_u32, 1..60)) {
        let pool = pool(&weights);
        let taking_part = weights.iter().filter(|&&w| w > 0).count();
        let shares = shares(&uniform(&pool, size(4099)));
        prop_assert_eq!(shares.len(), taking_part);
        prop_assert!(shares.iter().all(|(&id, _)| weights[id as usize] > 0));
        prop_assert!(shares.values().all(|&n| n.abs_diff(4099 / taking_part) <= 1));
    }
}

#[test]
fn a_pool_without_weight_has_no_ring() {
    for build in [maglev, uniform] {
        assert!(build(&[], RingSize::DEFAULT).is_empty());
        assert!(build(&pool(&[0, 0]), RingSize::DEFAULT).is_empty());
    }
}

#[test]
fn one_real_owns_the_ring_and_weight_zero_has_no_slot() {
    for build in [maglev, uniform] {
        assert_eq!(build(&pool(&[0, 7, 0]), RingSize::DEFAULT), vec![1; 16_411]);
    }
}

#[test]
fn a_removed_real_moves_only_its_own_share_and_little_more() {
    let before = pool(&[100; 100]);
    let mut after = before.clone();
    after.remove(42);
    let size = size(65_537);
    let old = maglev(&before, size);
    let moved = moved_slots(&old, &maglev(&after, size));
    assert!(
        (655..1310).contains(&moved),
        "{moved} of 65537 slots moved; 656 were the real's"
    );
    // Plain hashing over the list moves nearly all of them.
    let moved = moved_slots(&uniform(&before, size), &uniform(&after, size));
    assert!(moved > 60_000, "{moved}");
}

#[test]
fn extreme_weights_do_not_overflow() {
    let ring = maglev(&pool(&[u32::MAX, 1, u32::MAX]), RingSize::MAX);
    let shares = shares(&ring);
    assert_eq!(shares.get(&1), None);
    assert!(shares[&0].abs_diff(shares[&2]) <= 1);
}

/// Every balancer must build this very ring, today and after any upgrade.
#[test]
fn the_ring_is_the_one_it_always_was() {
    let members: Vec<RingMember> = [
        (v4(1), 10),
        (v4(2), 20),
        (v6(1), 30),
        (v6(2), 0),
        (v4(3), 5),
    ]
    .into_iter()
    .zip(0..)
    .map(|((key, weight), id)| RingMember { key, id, weight })
    .collect();
    assert_eq!(maglev(&members, size(31)), GOLDEN_31);
    let digest = |ring: &[u32]| {
        ring.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, &id| {
            (h ^ u64::from(id)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    assert_eq!(digest(&maglev(&members, size(65_537))), GOLDEN_DIGEST);
}

const GOLDEN_31: [u32; 31] = [
    2, 1, 1, 2, 1, 0, 2, 1, 2, 2, 4, 2, 1, 1, 2, 1, 1, 4, 1, 1, 2, 0, 2, 2, 0, 2, 2, 0, 2, 2, 0,
];
/// FNV-1a over the ids of the default ring.
const GOLDEN_DIGEST: u64 = 0x58b6_13e3_673f_8cee;
