// SPDX-License-Identifier: Apache-2.0
//! Other ways to find a packet's real (`bpf/baselines.bpf.c`), on the pool of a balancer.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _};

use causeway_dataplane::abi::{Ctl, Plain as _, Verdict};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject};

use super::BenchError;
use super::fixture::{Balancer, Counter, REALS, failed, packets};
use crate::skel::baselines::{BaselinesSkel, BaselinesSkelBuilder};

/// Buckets of the daisy chain, as many as a ring has slots.
const BUCKETS: u32 = 65_537;

/// The programs of `bpf/baselines.bpf.c`.
pub(super) struct Baselines<'o> {
    skel: BaselinesSkel<'o>,
}

impl<'o> Baselines<'o> {
    /// With the VIPs, reals and ring of `pool`, and counters of their own.
    pub(super) fn load(
        storage: &'o mut MaybeUninit<OpenObject>,
        pool: &Balancer<'_>,
    ) -> Result<Self, BenchError> {
        let mut open = BaselinesSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening baselines.bpf.o"))?;
        let maps = &mut open.maps;
        for (map, theirs) in [
            (&mut maps.vips, pool.map("vips")?),
            (&mut maps.reals, pool.map("reals")?),
            (&mut maps.rings, pool.map("rings")?),
        ] {
            map.reuse_fd(theirs.as_fd())
                .map_err(failed("sharing a map"))?;
        }
        for map in [
            &mut maps.flows4,
            &mut maps.flows6,
            &mut maps.buckets4,
            &mut maps.buckets6,
            &mut maps.real_hist,
            &mut maps.cookie_slots,
        ] {
            map.set_autocreate(false)
                .map_err(failed("leaving out a map"))?;
        }
        let skel = open.load().map_err(failed("loading baselines.bpf.o"))?;
        let baselines = Self { skel };
        baselines
            .configure(pool.ctl()?)
            .map_err(failed("configuring the baselines"))?;
        Ok(baselines)
    }

    fn configure(&self, pool: Ctl) -> libbpf_rs::Result<()> {
        let ctl = Ctl {
            token4_be: [10, 9, 0, 0],
            ..pool
        };
        let maps = &self.skel.maps;
        maps.ctl
            .update(&0u32.to_ne_bytes(), ctl.as_bytes(), MapFlags::ANY)?;
        let keys: Vec<u8> = (0..BUCKETS).flat_map(u32::to_ne_bytes).collect();
        let values: Vec<u8> = (0..BUCKETS)
            .flat_map(|bucket| [bucket % REALS, (bucket + 1) % REALS])
            .flat_map(u32::to_ne_bytes)
            .collect();
        let (buckets, any) = (&maps.baseline_buckets, MapFlags::ANY);
        buckets.update_batch(&keys, &values, BUCKETS, any, any)
    }

    pub(super) fn hash(&self) -> i32 {
        self.skel.progs.baseline_hash.as_fd().as_raw_fd()
    }

    pub(super) fn table(&self) -> i32 {
        self.skel.progs.baseline_table.as_fd().as_raw_fd()
    }

    pub(super) fn table_syn(&self) -> i32 {
        self.skel.progs.baseline_table_syn.as_fd().as_raw_fd()
    }

    pub(super) fn table_fill(&self) -> i32 {
        self.skel.progs.baseline_table_fill.as_fd().as_raw_fd()
    }

    pub(super) fn daisy(&self) -> i32 {
        self.skel.progs.baseline_daisy_chain.as_fd().as_raw_fd()
    }
}

impl Counter for Baselines<'_> {
    fn count(&self, verdict: Verdict) -> Result<u64, BenchError> {
        packets(&self.skel.maps.verdicts, verdict)
    }
}
