// SPDX-License-Identifier: Apache-2.0
//! Counters, summed over the CPUs. They only grow, until their slot gets another
//! owner. One system call reads a table as far as ids are given out, so the cost
//! follows the number of reals in use and not the size of the map.

use causeway_core::hist::{BUCKETS, Histogram};
use libbpf_rs::{MapCore as _, MapFlags};

use super::*;
use crate::abi::{PacketsBytes, Plain as _, Verdict};
use crate::map::io_error;

/// Counters of one real, and its sums of latencies.
pub use crate::abi::{LatencySums, RealStats};

/// Reals that are read at once: each has counters for every possible CPU.
const IN_A_ROW: usize = 1024;

impl LoadBalancer {
    /// What became of all packets.
    pub fn verdicts(&self) -> Result<Vec<(Verdict, PacketsBytes)>> {
        let counters = self
            .verdicts
            .first(Verdict::ALL.len() as u32, PacketsBytes::add)?;
        Ok(Verdict::ALL.into_iter().zip(counters).collect())
    }

    /// Packets to each VIP.
    pub fn vip_stats(&self) -> Result<Vec<(VipId, PacketsBytes)>> {
        let in_use = self.vips();
        let counters = self
            .vip_stats
            .first(upper_bound(&in_use), PacketsBytes::add)?;
        Ok(pick(&in_use, &counters))
    }

    /// Traffic and latency of each real.
    pub fn real_stats(&self) -> Result<Vec<(RealId, RealStats)>> {
        let ids: Vec<RealId> = self.reals().iter().map(|(id, _)| *id).collect();
        self.real_stats_of(&ids)
    }

    /// The same of these reals alone, in their order; those that are not in use are left out. Ids
    /// in a row are read at once: the reals of a VIP mostly cost one system call.
    pub fn real_stats_of(&self, ids: &[RealId]) -> Result<Vec<(RealId, RealStats)>> {
        let in_use: Vec<RealId> = {
            let registry = self.registry();
            let ids = ids.iter().copied();
            ids.filter(|id| registry.reals.get(*id).is_some()).collect()
        };
        let mut all = Vec::with_capacity(in_use.len());
        for row in in_use.chunk_by(|id, next| id + 1 == *next) {
            for row in row.chunks(IN_A_ROW) {
                let counters = self
                    .real_stats
                    .range(row[0]..row[0] + row.len() as u32, RealStats::add)?;
                all.extend(row.iter().copied().zip(counters));
            }
        }
        Ok(all)
    }

    /// A real's latency histogram; empty where it has none, see [`TableLimits`].
    pub fn real_histogram(&self, id: RealId) -> Result<Histogram> {
        self.registry().real(id)?;
        if id >= self.real_hist.max_entries() {
            return Ok(Histogram::new());
        }
        let mut counts = vec![0_u8; BUCKETS * 8];
        self.real_hist
            .lookup_into(id.as_bytes(), &mut counts, MapFlags::ANY)
            .map_err(|e| DataPlaneError::map("read", "real_hist", io_error(&e)))?;
        let (counts, _) = counts.as_chunks::<8>();
        let counts: Vec<u64> = counts.iter().map(|&c| u64::from_ne_bytes(c)).collect();
        Histogram::from_counts(&counts)
            .map_err(|e| DataPlaneError::map("read", "real_hist", std::io::Error::other(e)))
    }

    pub(super) fn clear_histogram(&self, id: RealId) -> Result<()> {
        if id >= self.real_hist.max_entries() {
            return Ok(());
        }
        self.real_hist
            .update(id.as_bytes(), &[0; BUCKETS * 8], MapFlags::ANY)
            .map_err(|e| DataPlaneError::map("clear", "real_hist", io_error(&e)))
    }
}

impl PacketsBytes {
    /// Adds another CPU's share.
    pub(crate) fn add(&mut self, more: &Self) {
        self.packets += more.packets;
        self.bytes += more.bytes;
    }
}

impl LatencySums {
    /// Adds others. Sums of half nanoseconds go round in months.
    pub fn add(&mut self, more: &Self) {
        for (sum, more) in [
            (&mut self.sum_halves_ns, more.sum_halves_ns),
            (&mut self.server_sum_halves_ns, more.server_sum_halves_ns),
            (&mut self.path_sum_halves_ns, more.path_sum_halves_ns),
        ] {
            *sum = sum.wrapping_add(more);
        }
        self.weight_halves += more.weight_halves;
        self.path_weight_halves += more.path_weight_halves;
    }
}

impl RealStats {
    /// Adds another CPU's share.
    pub fn add(&mut self, more: &Self) {
        self.packets += more.packets;
        self.bytes += more.bytes;
        self.conns_opened += more.conns_opened;
        self.conns_closed += more.conns_closed;
        self.conns_measured += more.conns_measured;
        self.requests += more.requests;
        self.requests_seen += more.requests_seen;
        self.bound_weight_halves += more.bound_weight_halves;
        self.late_weight_halves += more.late_weight_halves;
        self.answers_acked += more.answers_acked;
        self.good.add(&more.good);
        self.low.add(&more.low);
    }

    /// All latencies, those graded low among them.
    pub fn latencies(&self) -> LatencySums {
        let mut all = self.good;
        all.add(&self.low);
        all
    }
}

/// How many entries of a table cover all ids in use, which are sorted.
fn upper_bound<T>(in_use: &[(u32, T)]) -> u32 {
    in_use.last().map_or(0, |(id, _)| id + 1)
}

fn pick<T, V: Copy>(in_use: &[(u32, T)], values: &[V]) -> Vec<(u32, V)> {
    in_use
        .iter()
        .filter_map(|(id, _)| Some((*id, *values.get(*id as usize)?)))
        .collect()
}
