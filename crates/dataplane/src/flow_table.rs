// SPDX-License-Identifier: Apache-2.0
//! The size of the flow table (`bpf/lb/flow_table.h`), which its program has to know.

use std::hash::{BuildHasher as _, RandomState};

use libbpf_rs::{OpenMapMut, Result};

use crate::abi::c::FLOW_WAYS;
use crate::skel::lb::OpenLbSkel;

/// Flows in a bucket.
pub const WAYS: u32 = FLOW_WAYS;

/// Buckets for this many flows, with a quarter more slots than flows: fewer than one in
/// a million of them then finds no slot (docs/design/data-plane.md).
pub fn buckets(flows: u32) -> u32 {
    let slots = u64::from(flows) * 5 / 4;
    u32::try_from(slots.div_ceil(WAYS.into())).unwrap_or(u32::MAX / WAYS)
}

/// Sizes the tables of a balancer that is not loaded yet.
pub fn set_size(skel: &mut OpenLbSkel<'_>, flows_v4: u32, flows_v6: u32) -> Result<()> {
    let (buckets4, buckets6) = (buckets(flows_v4), buckets(flows_v6));
    let resize = |map: &mut OpenMapMut<'_>, entries| map.set_max_entries(entries);
    resize(&mut skel.maps.flows4, buckets4 * WAYS)?;
    resize(&mut skel.maps.flows6, buckets6 * WAYS)?;
    resize(&mut skel.maps.buckets4, buckets4)?;
    resize(&mut skel.maps.buckets6, buckets6)?;
    if let Some(settings) = skel.maps.rodata_data.as_deref_mut() {
        (settings.cfg_buckets4, settings.cfg_buckets6) = (buckets4, buckets6);
    }
    Ok(())
}

/// A seed that no client knows, never 0.
pub(crate) fn new_seed() -> u64 {
    RandomState::new().hash_one(WAYS) | 1
}
