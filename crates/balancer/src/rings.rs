// SPDX-License-Identifier: Apache-2.0
//! The rings that give out new flows: built from a VIP's scheduler and its reals' weights,
//! and set in the data plane where they are not what it has.

use causeway_core::select::{self, RealKey, RingSize};

use super::plane::DataPlane;
use super::pool::{Pool, configured};
use crate::config::{Fragments, Scheduler, VipConfig};

/// Rings take whole numbers: one unit of configured weight is this many.
const RING_UNIT: f64 = 1000.0;

/// Gives the data plane the rings that it lacks; how many there were, and their slots.
pub(crate) fn set_stale(
    plane: &mut dyn DataPlane,
    pools: &mut [Pool],
) -> anyhow::Result<(u64, u64)> {
    let stale = pools.iter().filter(|pool| pool.ring_is_stale());
    let rings: Vec<_> = stale.map(|pool| (pool.id(), pool.ring())).collect();
    if rings.is_empty() {
        return Ok((0, 0));
    }
    plane.set_rings(&rings)?;
    for pool in pools.iter_mut().filter(|pool| pool.ring_is_stale()) {
        let sources = pool.source_rings();
        if !sources.is_empty() {
            plane.set_sources(pool.id(), &sources)?;
        }
        pool.ring_is_set();
        if pool.begins_anew() {
            plane.set_turn(pool.id(), 0)?;
        }
    }
    let slots = rings.iter().map(|(_, ring)| ring.len() as u64).sum();
    Ok((rings.len() as u64, slots))
}

/// The ring of a VIP that begins with its configured weights, as indices of its
/// reals: it can be built before the data plane has given them ids.
pub(crate) fn first(vip: &VipConfig, seed: u64) -> Vec<u32> {
    of_vip(vip, (0..).zip(vip.reals.iter().map(configured)), seed)
}

/// The VIP's own ring: without the reals that some clients have for themselves.
pub(crate) fn of_vip(
    vip: &VipConfig,
    reals: impl Iterator<Item = (u32, f64)>,
    seed: u64,
) -> Vec<u32> {
    let shared =
        vip.reals
            .iter()
            .zip(reals)
            .map(|(real, (id, weight))| match vip.is_reserved(real) {
                true => (id, 0.0),
                false => (id, weight),
            });
    of_members(vip, shared, seed)
}

/// A ring of these ids and weights, which are in the order of the VIP's reals.
pub(crate) fn of_members(
    vip: &VipConfig,
    reals: impl Iterator<Item = (u32, f64)>,
    seed: u64,
) -> Vec<u32> {
    let size = RingSize::for_pool(vip.reals.len());
    let pool: Vec<select::RingMember> = vip
        .reals
        .iter()
        .zip(reals)
        .map(|(real, (id, weight))| select::RingMember {
            key: RealKey::from(real.address),
            id,
            weight: (weight * RING_UNIT).round() as u32,
        })
        .collect();
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

/// Whether fragments have to find the real of their first packet, by addresses alone.
pub(crate) fn goes_by_address(vip: &VipConfig) -> bool {
    vip.fragments == Fragments::Forward
}
