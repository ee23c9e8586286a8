// SPDX-License-Identifier: Apache-2.0
//! A server's slow timestamps, for the lab; see `bpf/ticks.bpf.c`.

use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result};
use causeway_dataplane::{TcDirection, TcLink};
use causeway_netio::Interface;
use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::skel::ticks::{TicksSkel, TicksSkelBuilder};

/// The two programs on a server's interface; dropped, they are taken off.
pub struct SlowTicks {
    _links: Vec<TcLink>,
    skel: TicksSkel<'static>,
}

// SAFETY: as of `LossInjector`.
unsafe impl Send for SlowTicks {}

impl SlowTicks {
    /// Attaches to an interface of the calling thread's network namespace, with the kernel's
    /// own ticks of 1 ms at first.
    pub fn attach(interface: &str) -> Result<Self> {
        const WHAT: &str = "cannot load the programs that slow timestamps";
        let interface = Interface::find(interface)?;
        // The object borrows it for as long as the process lives: a few in a run.
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let open = TicksSkelBuilder::default().open(storage).context(WHAT)?;
        let skel = open.load().context(WHAT)?;
        let ways = [
            (skel.progs.causeway_ticks_out.as_fd(), TcDirection::Out),
            (skel.progs.causeway_ticks_in.as_fd(), TcDirection::In),
        ];
        let links: Result<Vec<TcLink>> = ways
            .into_iter()
            .map(|(program, way)| Ok(TcLink::attach(program, &interface, way)?))
            .collect();
        Ok(Self {
            _links: links?,
            skel,
        })
    }

    /// Milliseconds a tick from now on. Connections that are open break.
    pub fn set(&mut self, tick_ms: u32) {
        if let Some(data) = self.skel.maps.data_data.as_deref_mut() {
            data.tick_ms = tick_ms.max(1);
        }
    }
}
