// SPDX-License-Identifier: Apache-2.0
//! Holding a program on an interface's traffic control hooks.
//!
//! By a link where the kernel has them (tcx, Linux 6.6): the program goes when the
//! link's last holder does, however that one ends. Else by a filter of the clsact
//! qdisc: that of a [`TcLink`] goes when this is dropped, that of a [`FrontHook`] stays.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::{fs, io};

use causeway_netio::Interface;
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};

use crate::error::{DataPlaneError, Result};
use crate::map::{errno, io_error};
use crate::xdp::Link;

/// What names our filters among those of an interface (`tc filter show`), with their priority.
const HANDLE: u32 = 0xca5e;

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcDirection {
    /// Into the host.
    In,
    /// Out of the host.
    Out,
}

impl TcDirection {
    fn link(self) -> libbpf_sys::bpf_attach_type {
        match self {
            Self::In => libbpf_sys::BPF_TCX_INGRESS,
            Self::Out => libbpf_sys::BPF_TCX_EGRESS,
        }
    }

    fn filter(self) -> libbpf_sys::bpf_tc_attach_point {
        match self {
            Self::In => TC_INGRESS,
            Self::Out => TC_EGRESS,
        }
    }
}

/// A program on a hook; dropped, it leaves.
#[derive(Debug)]
pub enum TcLink {
    /// By a link.
    Link {
        /// Held, not used.
        _link: OwnedFd,
    },
    /// By a filter of clsact.
    Filter(TcHook),
}

impl TcLink {
    /// Attaches `program`, behind those that are there.
    pub fn attach(
        program: BorrowedFd<'_>,
        interface: &Interface,
        direction: TcDirection,
    ) -> Result<Self> {
        let opts = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            ..Default::default()
        };
        // SAFETY: `opts` lives through the call and has no pointers set.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(
                program.as_raw_fd(),
                interface.index as i32,
                direction.link(),
                &opts,
            )
        };
        if fd >= 0 {
            // SAFETY: a new descriptor that no other code owns.
            let _link = unsafe { OwnedFd::from_raw_fd(fd) };
            return Ok(Self::Link { _link });
        }
        match errno(fd) {
            // A kernel before 6.6 knows no such attachment.
            e if e.raw_os_error() == Some(libc::EINVAL) => {
                Self::filter(program, interface, direction)
            }
            e => Err(failed(interface, e)),
        }
    }

    /// Attaches it the old way.
    pub(crate) fn filter(
        program: BorrowedFd<'_>,
        interface: &Interface,
        direction: TcDirection,
    ) -> Result<Self> {
        let mut builder = TcHookBuilder::new(program);
        let mut hook = builder
            .ifindex(interface.index as i32)
            .replace(false)
            .hook(direction.filter());
        // The qdisc may be there: then this says so and changes nothing. It stays
        // behind us, because others may have come to use it.
        hook.create()
            .and_then(|mut hook| hook.attach())
            .map(Self::Filter)
            .map_err(|e| failed(interface, io_error(&e)))
    }
}

impl Drop for TcLink {
    fn drop(&mut self) {
        if let Self::Filter(hook) = self
            && let Err(error) = hook.detach()
        {
            tracing::warn!("a program could not be taken off its interface: {error}");
        }
    }
}

/// A hook on which a program is to see every packet.
///
/// By a link in front of the programs that are there, where the kernel has links: one that ends
/// with a verdict, as Cilium's do, hides the packet from those behind it. Pinned, the link outlives
/// the process. Else by a filter of `clsact`, which every supported kernel has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrontHook {
    pub(crate) program: &'static str,
    direction: TcDirection,
    priority: u32,
}

impl FrontHook {
    pub(crate) const fn new(program: &'static str, direction: TcDirection, priority: u32) -> Self {
        Self {
            program,
            direction,
            priority,
        }
    }

    /// Puts the program on the hook, or in one step into the place of the one that is there. The
    /// link, if it is held by one, may have to be pinned at `pin`.
    pub(crate) fn attach(
        &self,
        program: BorrowedFd<'_>,
        interface: &Interface,
        pin: &Path,
    ) -> Result<Option<Link>> {
        if let Some(link) = Link::open(pin)?
            && self.is_on(Some(&link), interface)?
        {
            link.replace(program)?;
            self.detach_filter(interface.index)?;
            return Ok(Some(link));
        }
        forget(pin)?;
        self.put(program, interface, Some(pin))
    }

    /// Puts the program on the hook by a link of its own, which lives as long as it is held, or by
    /// a filter, in the place of the one that is there.
    pub(crate) fn attach_anew(
        &self,
        program: BorrowedFd<'_>,
        interface: &Interface,
    ) -> Result<Option<Link>> {
        self.put(program, interface, None)
    }

    fn put(
        &self,
        program: BorrowedFd<'_>,
        interface: &Interface,
        pin: Option<&Path>,
    ) -> Result<Option<Link>> {
        let (target, before) = (interface.index as i32, libbpf_sys::BPF_F_BEFORE);
        match Link::create(program, target, self.direction.link(), before) {
            Ok(link) => {
                // A link without a pin goes with this process: only then may a filter go.
                pin.map_or(Ok(()), |pin| link.pin(pin))?;
                self.detach_filter(interface.index)?;
                Ok(Some(link))
            }
            // A kernel before 6.6 knows no such attachment.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                let point = self.direction.filter();
                attach_filter(program, interface, point, self.priority)?;
                Ok(None)
            }
            Err(e) => Err(failed(interface, e)),
        }
    }

    /// Whether the program is on the interface: by `link`, or else by a filter.
    pub(crate) fn is_on(&self, link: Option<&Link>, interface: &Interface) -> Result<bool> {
        match link {
            Some(link) => Ok(link.tcx_ifindex()? == Some(interface.index)),
            None => has_filter(interface.index, self.direction.filter(), self.priority),
        }
    }

    /// Takes the program off the interface of this number, and forgets the link's pin.
    pub(crate) fn detach(&self, ifindex: u32, pin: &Path) -> Result<()> {
        if let Some(link) = Link::open(pin)? {
            link.detach()?;
            forget(pin)?;
        }
        self.detach_filter(ifindex)
    }

    /// Takes a filter off, such as an earlier build's: a packet is not to meet two programs.
    pub(crate) fn detach_filter(&self, ifindex: u32) -> Result<()> {
        detach_filter(ifindex, self.direction.filter(), self.priority)
    }
}

/// Removes a pin, if it is there.
pub(crate) fn forget(pin: &Path) -> Result<()> {
    match fs::remove_file(pin) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(DataPlaneError::PinDir {
            doing: "remove",
            path: pin.to_owned(),
            cause,
        }),
        _ => Ok(()),
    }
}

fn hook(ifindex: u32, point: libbpf_sys::bpf_tc_attach_point) -> libbpf_sys::bpf_tc_hook {
    libbpf_sys::bpf_tc_hook {
        sz: size_of::<libbpf_sys::bpf_tc_hook>() as _,
        ifindex: ifindex as i32,
        attach_point: point,
        ..Default::default()
    }
}

fn options(priority: u32) -> libbpf_sys::bpf_tc_opts {
    libbpf_sys::bpf_tc_opts {
        sz: size_of::<libbpf_sys::bpf_tc_opts>() as _,
        handle: HANDLE,
        priority,
        ..Default::default()
    }
}

/// Sets a filter, or replaces the one of this priority in one step.
fn attach_filter(
    program: BorrowedFd<'_>,
    interface: &Interface,
    point: libbpf_sys::bpf_tc_attach_point,
    priority: u32,
) -> Result<()> {
    let failed = |doing: &str, ret| {
        let what = format!("{doing} of {}", interface.name);
        Err(DataPlaneError::bpf(what, errno(ret)))
    };
    let both = libbpf_sys::BPF_TC_INGRESS | libbpf_sys::BPF_TC_EGRESS;
    let mut clsact = hook(interface.index, both);
    // SAFETY: a struct of the size that it says.
    let ret = unsafe { libbpf_sys::bpf_tc_hook_create(&mut clsact) };
    if ret != 0 && ret != -libc::EEXIST {
        return failed("make the clsact queueing discipline", ret);
    }
    let hook = hook(interface.index, point);
    let mut options = libbpf_sys::bpf_tc_opts {
        prog_fd: program.as_raw_fd(),
        flags: libbpf_sys::BPF_TC_F_REPLACE,
        ..options(priority)
    };
    // SAFETY: as above; the program lives through the call.
    match unsafe { libbpf_sys::bpf_tc_attach(&hook, &mut options) } {
        0 => Ok(()),
        ret => failed("set a traffic control filter", ret),
    }
}

/// Removes the filter of this priority, if it is there.
fn detach_filter(
    ifindex: u32,
    point: libbpf_sys::bpf_tc_attach_point,
    priority: u32,
) -> Result<()> {
    let hook = hook(ifindex, point);
    // SAFETY: structs of the sizes that they say.
    let ret = unsafe { libbpf_sys::bpf_tc_detach(&hook, &options(priority)) };
    // None there, no clsact, or no interface any more.
    if ret != 0 && ![libc::ENOENT, libc::EINVAL, libc::ENODEV].contains(&-ret) {
        return Err(DataPlaneError::bpf(
            "remove a traffic control filter",
            errno(ret),
        ));
    }
    Ok(())
}

/// Whether an interface has a filter of this priority.
fn has_filter(ifindex: u32, point: libbpf_sys::bpf_tc_attach_point, priority: u32) -> Result<bool> {
    let hook = hook(ifindex, point);
    let mut options = options(priority);
    // SAFETY: structs of the sizes that they say.
    match unsafe { libbpf_sys::bpf_tc_query(&hook, &mut options) } {
        0 => Ok(true),
        // None there, no clsact, or no interface any more.
        ret if [libc::ENOENT, libc::EINVAL, libc::ENODEV].contains(&-ret) => Ok(false),
        ret => Err(DataPlaneError::bpf(
            "ask for a traffic control filter",
            errno(ret),
        )),
    }
}

fn failed(interface: &Interface, error: io::Error) -> DataPlaneError {
    DataPlaneError::bpf(
        format!("attach to the traffic control hooks of {}", interface.name),
        error,
    )
}
