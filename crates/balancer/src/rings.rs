// SPDX-License-Identifier: Apache-2.0
//! The rings that give out new flows, built from a VIP's scheduler and its reals' weights.

use causeway_core::select::{self, RealKey, RingSize};

use causeway_dataplane::{Pick, ring_bytes};

use crate::config::{Affinity, Fragments, RealConfig, Scheduler, VipConfig};

/// Rings take whole numbers: one unit of configured weight is this many, or fewer where the
/// heaviest real would have too many.
const RING_UNIT: f64 = 1000.0;

/// The rings of a VIP that begins with these weights of its reals, as indices of them: they can be
/// built before the data plane has given them ids.
pub(crate) fn first(vip: &VipConfig, meant: &[f64], seed: u64) -> [Vec<u32>; 2] {
    let weights = || (0..).zip(meant.iter().copied());
    [of_vip(vip, weights(), seed), plain_of_vip(vip, weights())]
}

/// Which ring slot a new flow of the VIP takes.
pub(crate) fn pick(vip: &VipConfig) -> Pick {
    match vip.scheduler {
        Scheduler::Maglev | Scheduler::Hash => Pick::Hash,
        Scheduler::Latency if goes_by_address(vip) => Pick::Hash,
        Scheduler::RoundRobin | Scheduler::WeightedRoundRobin => Pick::Turn,
        Scheduler::Latency | Scheduler::Awrr | Scheduler::LeastLoaded => Pick::Turn,
        Scheduler::P2c => Pick::Two,
    }
}

/// Whether what comes without a memory of its real needs a ring beside the scheduler's: other
/// balancers of the configuration have another one of that. A VIP whose clients have neither
/// cookies nor ids goes by the hash of the first packet alone: then its own ring shows best where
/// that went.
pub(crate) fn has_plain(vip: &VipConfig) -> bool {
    let has_tokens = vip.cookie.is_some() || !vip.quic.is_empty();
    pick(vip) != Pick::Hash || (has_tokens && vip.control.law().is_some())
}

/// The VIP's ring of weights that do not move; empty if its own does for that.
pub(crate) fn plain_of_vip(vip: &VipConfig, reals: impl Iterator<Item = (u32, f64)>) -> Vec<u32> {
    plain_of_members(vip, for_all(vip, reals))
}

/// The same of these ids and weights, which are in the order of the VIP's reals.
pub(crate) fn plain_of_members(
    vip: &VipConfig,
    reals: impl Iterator<Item = (u32, f64)>,
) -> Vec<u32> {
    match has_plain(vip) {
        true => select::maglev(&members(vip, reals), RingSize::for_pool(vip.reals.len())),
        false => Vec::new(),
    }
}

/// The VIP's own ring: without the reals that some clients have for themselves.
pub(crate) fn of_vip(
    vip: &VipConfig,
    reals: impl Iterator<Item = (u32, f64)>,
    seed: u64,
) -> Vec<u32> {
    of_members(vip, for_all(vip, reals), seed)
}

/// The same without the weights of reals that some clients have for themselves.
pub(crate) fn for_all(
    vip: &VipConfig,
    reals: impl Iterator<Item = (u32, f64)>,
) -> impl Iterator<Item = (u32, f64)> {
    let reals = vip.reals.iter().zip(reals);
    reals.map(|(real, (id, weight))| match vip.is_reserved(real) {
        true => (id, 0.0),
        false => (id, weight),
    })
}

/// A ring of these ids and weights, which are in the order of the VIP's reals.
pub(crate) fn of_members(
    vip: &VipConfig,
    reals: impl Iterator<Item = (u32, f64)>,
    seed: u64,
) -> Vec<u32> {
    let size = RingSize::for_pool(vip.reals.len());
    let pool = members(vip, reals);
    match vip.scheduler {
        Scheduler::Hash => select::uniform(&pool, size),
        Scheduler::Maglev => select::maglev(&pool, size),
        Scheduler::Latency if goes_by_address(vip) => select::maglev(&pool, size),
        Scheduler::RoundRobin => select::equal_turns(&pool, seed),
        Scheduler::Latency
        | Scheduler::WeightedRoundRobin
        | Scheduler::P2c
        | Scheduler::Awrr
        | Scheduler::LeastLoaded => select::turns(&pool, seed),
    }
}

fn members(vip: &VipConfig, reals: impl Iterator<Item = (u32, f64)>) -> Vec<select::RingMember> {
    let reals: Vec<(&RealConfig, (u32, f64))> = vip.reals.iter().zip(reals).collect();
    let heaviest = reals.iter().map(|(_, (_, weight))| *weight);
    let heaviest = heaviest.fold(0.0, f64::max);
    // Of the weights alone: balancers with the same ones have the same ring.
    let unit = RING_UNIT.min(f64::from(u32::MAX) / heaviest);
    let member = |(real, (id, weight)): (&RealConfig, (u32, f64))| select::RingMember {
        key: RealKey::from(real.address),
        id,
        weight: (weight * unit).round() as u32,
    };
    reals.into_iter().map(member).collect()
}

/// Bytes of the kernel's memory for a VIP's rings, as long as they are.
pub(crate) fn bytes_at_most(vip: &VipConfig) -> u64 {
    let hashed = RingSize::for_pool(vip.reals.len()).slots();
    let own = match pick(vip) {
        Pick::Hash => hashed,
        Pick::Turn | Pick::Two => select::TURNS_MAX,
    };
    let plain = if has_plain(vip) { hashed } else { 0 };
    let former = if vip.second_chance { hashed } else { 0 };
    ring_bytes(own + plain + former)
}

/// Whether fragments have to find the real of their first packet, by addresses alone.
pub(crate) fn goes_by_address(vip: &VipConfig) -> bool {
    vip.fragments == Fragments::Forward || vip.affinity == Affinity::Client
}
