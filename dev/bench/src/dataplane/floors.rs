// SPDX-License-Identifier: Apache-2.0
//! The least that each way to a server takes (`bpf/floors.bpf.c`).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _};

use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use super::fixture::failed;
use super::{BenchError, Case, Shot};
use crate::skel::floors::{FloorsSkel, FloorsSkelBuilder};

/// The programs of `bpf/floors.bpf.c`.
pub(super) struct Floors<'o> {
    skel: FloorsSkel<'o>,
    one_in: u32,
}

impl<'o> Floors<'o> {
    /// `one_in`: of how many connections one is measured where not all are.
    pub(super) fn load(
        storage: &'o mut MaybeUninit<OpenObject>,
        one_in: u32,
    ) -> Result<Self, BenchError> {
        let mut open = FloorsSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening floors.bpf.o"))?;
        if let Some(settings) = open.maps.rodata_data.as_deref_mut() {
            settings.cfg_one_in = one_in;
        }
        let skel = open.load().map_err(failed("loading floors.bpf.o"))?;
        Ok(Self { skel, one_in })
    }

    /// On the packets of the cases that they are the floors of.
    pub(super) fn cases<'a>(&self) -> [Case<'a>; 12] {
        let p = &self.skel.progs;
        [
            ("floor_cookie", Shot::Cookie, 0, &p.floor_cookie),
            (
                "floor_cookie_sampled",
                Shot::Cookie,
                self.one_in,
                &p.floor_cookie_sampled,
            ),
            (
                "floor_cookie_measured",
                Shot::Cookie,
                1,
                &p.floor_cookie_measured,
            ),
            ("floor_gue", Shot::Cookie, 0, &p.floor_gue),
            ("floor_table", Shot::Tcp, 0, &p.floor_table),
            (
                "floor_table_measured",
                Shot::Tcp,
                1,
                &p.floor_table_measured,
            ),
            ("floor_slot", Shot::Token, 0, &p.floor_slot),
            (
                "floor_slot_measured",
                Shot::Token,
                1,
                &p.floor_slot_measured,
            ),
            ("floor_udp", Shot::Udp, 0, &p.floor_table),
            ("floor_udp_measured", Shot::Udp, 1, &p.floor_table_measured),
            ("floor_syn", Shot::Syn, 0, &p.floor_syn),
            ("floor_cid", Shot::Cid, 0, &p.floor_cid),
        ]
        .map(|(name, shot, one_in, program)| {
            Case::new(name, shot, program.as_fd().as_raw_fd()).measuring(one_in)
        })
    }
}
