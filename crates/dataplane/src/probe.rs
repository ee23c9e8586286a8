// SPDX-License-Identifier: Apache-2.0
//! Sockets whose packets reach one real through the VIP: how health is probed. See
//! `bpf/probe.bpf.c`.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _};

use causeway_netio::Interface;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, OpenObject, TC_EGRESS, TcHook, TcHookBuilder};
use nix::sys::socket::{setsockopt, sockopt};

use crate::balancer::{LoadBalancer, RealId};
use crate::error::{DataPlaneError, Result};
use crate::map::io_error;
use crate::skel::probe::{ProbeSkel, ProbeSkelBuilder};
use crate::{abi, tc};

/// Handle and priority of the filter; ours, so that a restart replaces it.
const FILTER: u32 = 0xca5e;

/// The program on the balancer's interface; dropped, it is taken off.
pub struct ProbeEgress {
    hook: TcHook,
    skel: ProbeSkel<'static>,
}

// SAFETY: the skeleton's pointers are to its own object, which only drops with it; the
// hook is plain integers. Nothing else reaches them.
unsafe impl Send for ProbeEgress {}

impl ProbeEgress {
    /// Puts the program on `interface`, next to `balancer`, whose reals it serves.
    pub fn start(balancer: &LoadBalancer, interface: &str) -> Result<Self> {
        let failed = |cause| DataPlaneError::Load {
            program: "causeway_probe",
            cause,
        };
        // The object borrows it; a daemon starts one.
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = ProbeSkelBuilder::default().open(storage).map_err(failed)?;
        let (reals, ctl) = balancer.probe_maps();
        open.maps
            .reals
            .set_max_entries(reals.max_entries())
            .map_err(failed)?;
        open.maps.reals.reuse_fd(reals.as_fd()).map_err(failed)?;
        open.maps.ctl.reuse_fd(ctl.as_fd()).map_err(failed)?;
        let skel = open.load().map_err(failed)?;
        let hook = attach(skel.progs.causeway_probe.as_fd(), interface)?;
        Ok(Self { hook, skel })
    }

    /// Puts the program on the interface again where it is not there any more: it may have been
    /// recreated, or the filter been removed by hand.
    pub fn mend(&mut self, interface: &str) -> Result<()> {
        // What is not there needs no probes.
        let Ok(found) = Interface::find(interface) else {
            return Ok(());
        };
        if !tc::has_filter(found.index, libbpf_sys::BPF_TC_EGRESS, FILTER)? {
            self.hook = attach(self.skel.progs.causeway_probe.as_fd(), interface)?;
        }
        Ok(())
    }
}

impl Drop for ProbeEgress {
    fn drop(&mut self) {
        // A filter that stays touches no packet without a probe's mark.
        let _ = self.hook.detach();
    }
}

fn attach(program: std::os::fd::BorrowedFd<'_>, interface: &str) -> Result<TcHook> {
    let failed = |e| DataPlaneError::bpf(format!("attach the health probes to {interface}"), e);
    let index =
        nix::net::if_::if_nametoindex(interface).map_err(|e| failed(std::io::Error::from(e)))?;
    let mut builder = TcHookBuilder::new(program);
    builder
        .ifindex(index as i32)
        .replace(true)
        .handle(FILTER)
        .priority(FILTER);
    let mut hook = builder.hook(TC_EGRESS);
    match hook.create() {
        Err(e) if e.kind() != libbpf_rs::ErrorKind::AlreadyExists => {
            return Err(failed(io_error(&e)));
        }
        _ => {}
    }
    hook.attach().map_err(|e| failed(io_error(&e)))
}

/// Has the packets of a socket go to this real, whatever address they are for. Needs
/// CAP_NET_ADMIN.
pub fn aim_at(socket: &impl AsFd, real: RealId) -> Result<()> {
    setsockopt(&socket.as_fd(), sockopt::Mark, &mark(real)).map_err(|e| {
        let doing = format!("mark socket {}", socket.as_fd().as_raw_fd());
        DataPlaneError::bpf(doing, std::io::Error::from(e))
    })
}

/// The mark that has packets go to this real.
pub fn mark(real: RealId) -> u32 {
    abi::PROBE_MARK | (real & abi::PROBE_REAL_MASK)
}
