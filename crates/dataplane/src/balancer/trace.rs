// SPDX-License-Identifier: Apache-2.0
//! What a running balancer would do with a packet: its program runs once more, on the pinned maps
//! and for this packet alone, without writing anything.

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::path::Path;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{OpenObject, ProgramInput};

use super::{BLUEPRINT, ConnLayout, TunnelEnds};
use crate::abi::{Action, Verdict};
use crate::error::{DataPlaneError, Result};
use crate::map::io_error;
use crate::plane;
use crate::skel::lb::LbSkelBuilder;

/// Room for outer headers in front of the packet.
const GROWTH: usize = 128;

/// What would become of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The reason, and by [`Verdict::action`] what would be done.
    pub verdict: Verdict,
    /// The frame afterwards; as it came where it would not be sent.
    pub frame: Vec<u8>,
}

impl Traced {
    /// Where the frame would be sent: the outermost IP destination. `None` if it would
    /// not be sent.
    pub fn destination(&self) -> Option<IpAddr> {
        if self.verdict.action() != Action::Tx {
            return None;
        }
        destination_of(&self.frame)
    }
}

/// The outermost IP destination of an Ethernet frame, VLAN tags or not.
pub fn destination_of(frame: &[u8]) -> Option<IpAddr> {
    let mut at = 12;
    while matches!(frame.get(at..at + 2)?, [0x81, 0x00] | [0x88, 0xa8]) {
        at += 4;
    }
    let ip = frame.get(at + 2..)?;
    match ip.first()? >> 4 {
        4 => Some(IpAddr::from(*ip.get(16..)?.first_chunk::<4>()?)),
        6 => Some(IpAddr::from(*ip.get(24..)?.first_chunk::<16>()?)),
        _ => None,
    }
}

/// What the balancer that is pinned in `pin_dir` would do with each of `frames`, by
/// itself: nothing that one does is seen by the next, nor by the balancer. `conns` and
/// `tunnel_ends` are what the balancer was started with; its tables have all else.
pub fn trace(
    pin_dir: &Path,
    conns: ConnLayout,
    tunnel_ends: TunnelEnds,
    frames: &[Vec<u8>],
) -> Result<Vec<Traced>> {
    plane::check_kernel()?;
    let failed = |cause| DataPlaneError::Load {
        program: BLUEPRINT.program,
        cause,
    };
    let mut storage: MaybeUninit<OpenObject> = MaybeUninit::uninit();
    let mut skel = LbSkelBuilder::default()
        .open(&mut storage)
        .map_err(failed)?;
    for mut map in skel.open_object_mut().maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if !plane::is_internal(&name) {
            map.reuse_pinned_map(pin_dir.join(&name))
                .map_err(|e| DataPlaneError::map("open the pin of", &name, io_error(&e)))?;
        }
    }
    let buckets = [&skel.maps.buckets4, &skel.maps.buckets6].map(|map| map.max_entries());
    let max_vips = skel.maps.vip_stats.max_entries();
    if let Some(settings) = skel.maps.rodata_data.as_deref_mut() {
        settings.cfg_dry = true;
        settings.cfg_source_rings = max_vips;
        settings.cfg_plain_rings = max_vips + crate::abi::SOURCE_GROUPS;
        settings.cfg_former_rings = 2 * (max_vips + crate::abi::SOURCE_GROUPS);
        [settings.cfg_buckets4, settings.cfg_buckets6] = buckets;
        settings.cfg_conn_partitions = conns.partitions();
        settings.cfg_tier_bits = conns.tier_bits.into();
        settings.cfg_tier = conns.tier.into();
        settings.cfg_tunnel_end = !tunnel_ends.is_empty();
    }
    let skel = skel.load().map_err(failed)?;
    let run = |frame: &Vec<u8>| -> Result<Traced> {
        let mut after = vec![0; frame.len() + GROWTH];
        let output = skel
            .progs
            .causeway_lb
            .test_run(ProgramInput {
                data_in: Some(frame),
                data_out: Some(&mut after),
                ..Default::default()
            })
            .map_err(|e| DataPlaneError::bpf("run the program for one packet", io_error(&e)))?;
        let verdict = Verdict::ALL.get(output.return_value as usize).copied();
        Ok(Traced {
            verdict: verdict.unwrap_or(Verdict::Malformed),
            frame: output.data.unwrap_or_default().to_vec(),
        })
    };
    frames.iter().map(run).collect()
}
