// SPDX-License-Identifier: Apache-2.0
//! Sockets whose packets reach one real through the VIP: how health is probed. See
//! `bpf/probe.bpf.c`.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _};

use causeway_netio::Interface;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, OpenObject};
use nix::sys::socket::{setsockopt, sockopt};

use crate::abi;
use crate::balancer::{LoadBalancer, RealId};
use crate::error::{DataPlaneError, Result};
use crate::skel::probe::{ProbeSkel, ProbeSkelBuilder};
use crate::tc::{FrontHook, TcDirection};
use crate::xdp::Link;

/// In front of other programs: one that ends with a verdict would keep probes from being
/// encapsulated, and healthy reals would look down.
const HOOK: FrontHook = FrontHook::new("causeway_probe", TcDirection::Out, 0xca5e);

/// The program on the balancer's interface; dropped, it is taken off.
pub struct ProbeEgress {
    interface: Interface,
    /// `None`: by a filter of `clsact`.
    link: Option<Link>,
    skel: ProbeSkel<'static>,
}

// SAFETY: the skeleton's pointers are to its own object, which only drops with it. Nothing else
// reaches them.
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
        let interface = Interface::find(interface)?;
        let link = HOOK.attach_anew(skel.progs.causeway_probe.as_fd(), &interface)?;
        Ok(Self {
            interface,
            link,
            skel,
        })
    }

    /// Puts the program on the interface again where it is not there any more: it may have been
    /// recreated, or the filter been removed by hand.
    pub fn mend(&mut self) -> Result<()> {
        // What is not there needs no probes.
        let Ok(found) = Interface::find(&self.interface.name) else {
            return Ok(());
        };
        if !HOOK.is_on(self.link.as_ref(), &found)? {
            self.link = HOOK.attach_anew(self.skel.progs.causeway_probe.as_fd(), &found)?;
            self.interface = found;
        }
        Ok(())
    }
}

impl Drop for ProbeEgress {
    fn drop(&mut self) {
        if self.link.is_none() {
            // A filter that stays touches no packet without a probe's mark.
            let _ = HOOK.detach_filter(self.interface.index);
        }
    }
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
