// SPDX-License-Identifier: Apache-2.0
//! What the reals carry, for the schedulers that look at it.
//!
//! Open connections are counted in the data plane itself, one by one. Everything else is read each
//! interval, or was reported by the servers' agents, and is written there for
//! power of two choices; the flows of the interval then add their estimated part, until
//! the next reading.

use causeway_dataplane::{LoadTerms, RealId};

use super::engine::Engine;
use super::plane::DataPlane;
use super::pool::Pool;
use super::real_counters::CONNECTION_AGE_NS;
use crate::config::{LoadSource, Scheduler};

/// Loads that are not counts reach the data plane in thousandths.
const MILLI: f64 = 1000.0;
/// Largest load and weight in the data plane, which multiplies the two in 63 bits.
const LOAD_MAX: f64 = (1_u64 << 46) as f64;
const RATIO_MAX: u32 = (1 << 16) - 1;
/// Weight of the newest interval in a smoothed rate.
const SMOOTHING: f64 = 0.5;
/// Least part of a load that one flow is taken for: below it, a herd could form.
const RISE_MIN: f64 = 1e-3;

impl Engine {
    /// Prepares the data plane to count for the pools in force. What it has counted
    /// already stays; where it has not, the estimate of open connections is the start. A load that
    /// no end of a connection lowers is no count: it is of something else, or of another time.
    pub(super) fn begin_loads(&mut self) -> anyhow::Result<()> {
        for pool in self.pools.iter().filter(|pool| pool.counts_connections()) {
            let mut uncounted: Vec<RealId> = Vec::new();
            for (_, member) in pool.members() {
                if self.plane.load_terms(member.id)?.fall == 0 {
                    uncounted.push(member.id);
                }
            }
            weigh_connections(self.plane.as_mut(), pool)?;
            for id in uncounted {
                let open = i64::try_from(self.active(id)).unwrap_or(i64::MAX);
                self.plane.set_load(id, open)?;
            }
        }
        let pools = self.pools.iter_mut();
        for pool in pools.filter(|pool| pool.may_lower && !pool.counts_connections()) {
            for (_, member) in pool.members() {
                let terms = self.plane.load_terms(member.id)?;
                if terms.fall != 0 {
                    let terms = LoadTerms { fall: 0, ..terms };
                    self.plane.set_load_terms(member.id, terms)?;
                }
            }
            pool.may_lower = false;
        }
        Ok(())
    }

    /// Reads the loads at the end of an interval and lets the schedulers act on them.
    pub(super) fn follow_loads(&mut self, now_ns: u64) -> anyhow::Result<()> {
        let mut pools = std::mem::take(&mut self.pools);
        let result = pools
            .iter_mut()
            .filter(|pool| pool.visits.is_due() && pool.vip().scheduler.follows_load())
            .try_for_each(|pool| self.follow_pool(pool, now_ns));
        self.pools = pools;
        result
    }

    fn follow_pool(&mut self, pool: &mut Pool, now_ns: u64) -> anyhow::Result<()> {
        let interval_ns = pool.visits.interval_ns();
        let source = pool.vip().load;
        let (mut open, mut arrivals) = (0, 0);
        let elapsed_ns = pool.visits.look(now_ns, interval_ns);
        let reports = self.reports.clone();
        for (real, member) in pool.members_mut() {
            let Some(counters) = self.counters.get(member.id) else {
                continue;
            };
            let others = self.peers.active(member.id);
            open += counters.active(now_ns) + others;
            arrivals += counters.delta().conns_opened;
            let seconds = interval_ns as f64 / 1e9;
            let rate = |count: u64, before: Option<f64>| {
                let rate = count as f64 / seconds.max(1e-9);
                before.map_or(rate, |old| old + SMOOTHING * (rate - old))
            };
            member.load = match source {
                LoadSource::Connections => {
                    let load = self.plane.load(member.id)?;
                    let elapsed_ns = if counters.ages() { elapsed_ns } else { 0 };
                    let (mut change, carry) = aged(load, member.aged, elapsed_ns);
                    member.aged = carry;
                    if let Some((least, most)) = counters.bounds() {
                        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
                        change = (load + change).clamp(whole(least), whole(most)) - load;
                    }
                    self.plane.add_load(member.id, change)?;
                    Some((load + change) as f64 + others as f64)
                }
                LoadSource::Packets => Some(rate(counters.delta().packets, member.load)),
                LoadSource::Bytes => Some(rate(counters.delta().bytes, member.load)),
                // A server that is silent counts as average.
                LoadSource::Cpu => {
                    let told = reports.load(real.address, now_ns);
                    told.map(|load| f64::from(load.cpu_milli) / MILLI)
                }
                LoadSource::InFlight => {
                    let told = reports.load(real.address, now_ns);
                    told.map(|load| f64::from(load.in_flight))
                }
            };
        }
        let rise = rise(pool, open, self.peers.balancers());
        if pool.vip().scheduler == Scheduler::P2c && source != LoadSource::Connections {
            self.write_loads(pool, rise)?;
        }
        pool.follow_loads(rise, arrivals);
        Ok(())
    }

    /// Writes the loads of the interval for the data plane to choose by. A real of
    /// unknown load counts as average: it neither draws flows nor is left alone.
    fn write_loads(&mut self, pool: &Pool, rise: f64) -> anyhow::Result<()> {
        let known: Vec<f64> = pool.members().filter_map(|(_, m)| m.load).collect();
        let average = known.iter().sum::<f64>() / known.len().max(1) as f64;
        for ((_, member), weight) in pool.members().zip(small(pool.meant_ratio())) {
            let terms = LoadTerms {
                rise: (rise * MILLI).min(f64::from(u32::MAX)) as u32,
                fall: 0,
                weight,
            };
            self.plane.set_load_terms(member.id, terms)?;
            let load = (member.load.unwrap_or(average) * MILLI).min(LOAD_MAX);
            self.plane.set_load(member.id, load as i64)?;
        }
        Ok(())
    }
}

/// Sets in the data plane, which counts connections, what share of them each real is meant to have.
pub(super) fn weigh_connections(plane: &mut dyn DataPlane, pool: &Pool) -> anyhow::Result<()> {
    for ((_, member), weight) in pool.members().zip(small(pool.meant_ratio())) {
        let terms = LoadTerms {
            rise: 1,
            fall: 1,
            weight,
        };
        plane.set_load_terms(member.id, terms)?;
    }
    Ok(())
}

/// The same ratio in whole numbers small enough for the data plane; who has a weight keeps one.
pub(super) fn small(ratio: Vec<u32>) -> Vec<u32> {
    let most = ratio.iter().copied().max().unwrap_or(0);
    if most <= RATIO_MAX {
        return ratio;
    }
    let unit = f64::from(RATIO_MAX) / f64::from(most);
    let small = |weight: u32| ((f64::from(weight) * unit).round() as u32).max(weight.min(1));
    ratio.into_iter().map(small).collect()
}

/// What one flow adds to a load: one connection, or the mean load of a flow that is
/// open now. While this balancer gives out one, the others give out one each, by the same
/// loads: what all see rises by as many.
fn rise(pool: &Pool, open: u64, balancers: usize) -> f64 {
    let source = pool.vip().load;
    let one = match source {
        LoadSource::Connections => 1.0,
        _ => {
            let loads: f64 = pool.members().filter_map(|(_, member)| member.load).sum();
            (loads / open.max(1) as f64).max(RISE_MIN)
        }
    };
    match source {
        // Its own traffic alone is seen here.
        LoadSource::Packets | LoadSource::Bytes => one,
        _ => one * balancers as f64,
    }
}

/// How a count of open connections is to change for those whose end was not seen, and
/// the part that is left for later. A count below 0 goes back to 0.
fn aged(load: i64, carry: f64, interval_ns: u64) -> (i64, f64) {
    if load <= 0 {
        return (-load, 0.0);
    }
    let part = -(-(interval_ns as f64) / CONNECTION_AGE_NS).exp_m1();
    let due = carry + load as f64 * part;
    (-(due as i64), due.fract())
}
