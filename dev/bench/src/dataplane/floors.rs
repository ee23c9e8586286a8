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
}

impl<'o> Floors<'o> {
    pub(super) fn load(storage: &'o mut MaybeUninit<OpenObject>) -> Result<Self, BenchError> {
        let open = FloorsSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening floors.bpf.o"))?;
        let skel = open.load().map_err(failed("loading floors.bpf.o"))?;
        Ok(Self { skel })
    }

    /// On the packets of the cases that they are the floors of.
    pub(super) fn cases<'a>(&self) -> [Case<'a>; 5] {
        let programs = &self.skel.progs;
        [
            ("floor_cookie", Shot::Cookie, &programs.floor_cookie),
            ("floor_table", Shot::Tcp, &programs.floor_table),
            (
                "floor_table_measured",
                Shot::Tcp,
                &programs.floor_table_measured,
            ),
            ("floor_syn", Shot::Syn, &programs.floor_syn),
            ("floor_cid", Shot::Cid, &programs.floor_cid),
        ]
        .map(|(name, shot, program)| Case::new(name, shot, program.as_fd().as_raw_fd()))
    }
}
