// SPDX-License-Identifier: Apache-2.0
//! How many of each a balancer can hold, and the memory that its tables take for it.

use causeway_core::cookie::IDS;

use super::*;
use crate::map::Shape;

/// How many of each a balancer can hold; fixed while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// VIPs.
    pub vips: u32,
    /// Reals of all VIPs: a server of two VIPs counts twice.
    pub reals: u32,
    /// Reals with a latency histogram: those with the lowest ids, which are given out first.
    /// The others have their sums, and no percentiles.
    pub histograms: u32,
    /// VIPs whose connections have cookies or connection ids.
    pub cookie_vips: u32,
}

impl TableLimits {
    /// Most VIPs: flows name theirs in 16 bits.
    pub const VIPS_MAX: u32 = 1 << 16;
    /// Most reals: the mark of a probe's packets names its real in 20 bits.
    pub const REALS_MAX: u32 = 1 << 20;
}

impl Default for TableLimits {
    fn default() -> Self {
        Self {
            vips: 1024,
            reals: 4096,
            histograms: 4096,
            cookie_vips: 64,
        }
    }
}

/// Bytes of the kernel's memory that the tables of a balancer take from its start on. Rings
/// come to that, as VIPs get them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableMemory {
    /// The flow table.
    pub flows: u64,
    /// Slots of stateful VIPs' connections.
    pub connections: u64,
    /// What there is for each VIP.
    pub vips: u64,
    /// What there is for each real, without its histogram.
    pub reals: u64,
    /// Histograms of latencies.
    pub histograms: u64,
    /// Ids of cookies and connection ids.
    pub cookies: u64,
    /// What no setting changes.
    pub fixed: u64,
}

impl TableMemory {
    /// All of it.
    pub fn total(&self) -> u64 {
        let Self {
            flows,
            connections,
            vips,
            reals,
            histograms,
            cookies,
            fixed,
        } = self;
        flows + connections + vips + reals + histograms + cookies + fixed
    }
}

/// Bytes of a ring of this many slots.
pub fn ring_bytes(slots: usize) -> u64 {
    slots as u64 * 8
}

/// CPUs that the kernel has counters for, those among them that may never come.
pub fn possible_cpus() -> Result<u32> {
    libbpf_rs::num_possible_cpus()
        .map(|cpus| cpus as u32)
        .map_err(|e| DataPlaneError::bpf("count the CPUs", crate::map::io_error(&e)))
}

/// Tables whose size follows from the options, with their entries. `cpus`: those that are
/// possible.
pub(super) fn sizes(options: &LoadBalancerOptions, cpus: u32) -> Vec<(&'static str, u32)> {
    let limits = options.limits;
    let partitions = options.conns.partitions();
    let [buckets4, buckets6] = [options.flows_v4, options.flows_v6].map(flow_table::buckets);
    vec![
        ("flows4", buckets4 * flow_table::WAYS),
        ("flows6", buckets6 * flow_table::WAYS),
        ("buckets4", buckets4),
        ("buckets6", buckets6),
        (
            "conn_slots",
            (partitions * options.conns.partition_size()).max(1),
        ),
        ("conn_free_slots", (partitions * cpus).max(1)),
        ("vips", 3 * limits.vips),
        ("rings", 3 * limits.vips + 2 * abi::SOURCE_GROUPS),
        ("vip_limits", limits.vips),
        ("turns", limits.vips),
        ("vip_stats", limits.vips),
        ("cookie_counts", limits.vips),
        ("cookie_slots", limits.cookie_vips * u32::from(IDS)),
        ("quic_configs", limits.cookie_vips * abi::QUIC_CODEPOINTS),
        ("reals", limits.reals),
        ("real_loads", limits.reals),
        ("real_stats", limits.reals),
        ("real_hist", limits.histograms),
    ]
}

impl LoadBalancerOptions {
    /// The memory that the tables will take where this many CPUs are possible. Needs no rights.
    pub fn memory(&self, cpus: u32) -> Result<TableMemory> {
        let sizes = sizes(self, cpus);
        let mut object = MaybeUninit::uninit();
        let skel = LbSkelBuilder::default().open(&mut object);
        let mut skel = skel.map_err(|cause| DataPlaneError::Load {
            program: BLUEPRINT.program,
            cause,
        })?;
        let mut memory = TableMemory::default();
        for map in skel.open_object_mut().maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let sized = sizes.iter().find(|(sized, _)| *sized == name);
            let shape = Shape {
                kind: map.map_type(),
                key: map.key_size(),
                value: map.value_size(),
                entries: sized.map_or(map.max_entries(), |(_, entries)| *entries),
            };
            *memory.part(&name) += shape.bytes(cpus);
        }
        Ok(memory)
    }
}

impl TableMemory {
    /// What a map counts to.
    fn part(&mut self, map: &str) -> &mut u64 {
        match map {
            "flows4" | "flows6" | "buckets4" | "buckets6" => &mut self.flows,
            "conn_slots" | "conn_free_slots" => &mut self.connections,
            "vips" | "rings" | "vip_limits" | "turns" | "vip_stats" | "cookie_counts" => {
                &mut self.vips
            }
            "reals" | "real_loads" | "real_stats" => &mut self.reals,
            "real_hist" => &mut self.histograms,
            "cookie_slots" | "quic_configs" => &mut self.cookies,
            _ => &mut self.fixed,
        }
    }
}
