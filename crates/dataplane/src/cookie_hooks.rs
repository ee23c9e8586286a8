// SPDX-License-Identifier: Apache-2.0
//! Where a server's cookie programs hang: two traffic control filters on the
//! interface, and sockops in a control group.
//!
//! The filters belong to the interface's `clsact` queueing discipline, which every
//! supported kernel has (links for them came with 6.6). Like a pinned link they
//! outlive the process, and a filter of the same priority and handle is replaced in
//! one step: a segment meets the old program or the new one. The sockops program is held by a link
//! that is pinned beside the XDP program's.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::{fs, io};

use causeway_netio::Interface;
use libbpf_rs::Object;
use nix::sys::statfs::{self, CGROUP2_SUPER_MAGIC};

use crate::error::{DataPlaneError, Result};
use crate::map::errno;
use crate::pins::PinDir;
use crate::xdp::Link;

/// Programs by hook.
const FILTERS: [(&str, libbpf_sys::bpf_tc_attach_point); 2] = [
    ("causeway_cookie_out", libbpf_sys::BPF_TC_EGRESS),
    ("causeway_cookie_in", libbpf_sys::BPF_TC_INGRESS),
];
const SOCKOPS: &str = "causeway_cookie_open";
/// Name of the sockops link's pin.
const LINK: &str = "link_cookie_open";
/// What names our filters among those of an interface (`tc filter show`): those for
/// cookies, and behind them those that count SYNs.
const PRIORITY: u32 = 42;
pub(crate) const SYN_PRIORITY: u32 = 43;
const HANDLE: u32 = 0xca5e;

/// Where the cookie programs of a server are to run, beside its interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CookieHooks {
    /// A control group, version 2, that the servers of the VIPs run in. `None`: the
    /// root of the hierarchy, if this machine has one.
    pub cgroup: Option<PathBuf>,
}

/// The programs on an interface's traffic control hooks. They stay when this is dropped.
#[derive(Debug)]
pub(crate) struct CookieFilters {
    interface: String,
    programs: Vec<(OwnedFd, libbpf_sys::bpf_tc_attach_point)>,
    /// What sees connections while they open, and its pin; without it they are seen by their
    /// first segment.
    opening: Option<(Link, PathBuf)>,
}

impl CookieFilters {
    /// Puts the programs to work, or into the place of those that are.
    pub(crate) fn attach(
        hooks: &CookieHooks,
        object: &Object,
        interface: &Interface,
        pins: &PinDir,
    ) -> Result<Self> {
        // First who begins clocks, then who needs them.
        let opening = attach_sockops(hooks, program(object, SOCKOPS)?, pins)?;
        let mut programs = Vec::new();
        for (name, point) in FILTERS {
            let program = program(object, name)?;
            attach_filter(program, interface, point, PRIORITY)?;
            let owned = program.try_clone_to_owned();
            let owned = owned.map_err(|e| DataPlaneError::bpf("hold a program", e))?;
            programs.push((owned, point));
        }
        Ok(Self {
            interface: interface.name.clone(),
            programs,
            opening: opening.map(|link| (link, pins.pin(LINK))),
        })
    }

    /// Whether connections are seen while they open.
    pub(crate) fn sees_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// Sets those again that are not there, as on an interface that has been recreated; how
    /// many. Without an interface there is nothing to set.
    pub(crate) fn mend(&self) -> Result<usize> {
        let Ok(interface) = Interface::find(&self.interface) else {
            return Ok(0);
        };
        let mut set = 0;
        for (program, point) in &self.programs {
            if !has_filter(interface.index, *point, PRIORITY)? {
                attach_filter(program.as_fd(), &interface, *point, PRIORITY)?;
                set += 1;
            }
        }
        Ok(set)
    }

    /// Pins the sockops program's link again if its pin is gone; how many were.
    pub(crate) fn mend_pin(&self) -> Result<usize> {
        match &self.opening {
            Some((link, pin)) if !pin.exists() => link.pin(pin).map(|()| 1),
            _ => Ok(0),
        }
    }
}

pub(crate) fn program<'a>(object: &'a Object, name: &str) -> Result<BorrowedFd<'a>> {
    let mut programs = object.progs();
    // SAFETY: the descriptor lives as long as the object.
    let found = programs
        .find(|program| program.name() == name)
        .map(|program| unsafe { BorrowedFd::borrow_raw(program.as_fd().as_raw_fd()) });
    found.ok_or_else(|| {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        DataPlaneError::bpf(format!("find the program {name}"), missing)
    })
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
pub(crate) fn attach_filter(
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

fn attach_sockops(
    hooks: &CookieHooks,
    program: BorrowedFd<'_>,
    pins: &PinDir,
) -> Result<Option<Link>> {
    let pin = pins.pin(LINK);
    if let Some(link) = Link::open(&pin)? {
        if link.is_attached()? {
            link.replace(program)?;
            return Ok(Some(link));
        }
        // The control group is gone; the link never will work again.
        drop(link);
        fs::remove_file(&pin).map_err(|cause| DataPlaneError::PinDir {
            doing: "remove",
            path: pin.clone(),
            cause,
        })?;
    }
    let Some(cgroup) = hooks.cgroup.clone().or_else(root_cgroup) else {
        return Ok(None);
    };
    let not_one = || DataPlaneError::NoCgroup(cgroup.clone());
    let is_cgroup = statfs::statfs(&cgroup).map_err(|_| not_one())?;
    if is_cgroup.filesystem_type() != CGROUP2_SUPER_MAGIC {
        return Err(not_one());
    }
    let directory = fs::File::open(&cgroup).map_err(|_| not_one())?;
    let link = Link::create(
        program,
        directory.as_raw_fd(),
        libbpf_sys::BPF_CGROUP_SOCK_OPS,
        0,
    )
    .map_err(|e| DataPlaneError::bpf(format!("attach sockops to {}", cgroup.display()), e))?;
    link.pin(&pin)?;
    Ok(Some(link))
}

/// Where control groups of version 2 are mounted, alone or beside version 1.
pub fn root_cgroup() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let at = words.next()?;
        (words.next()? == "cgroup2").then_some(at)
    });
    mount.map(PathBuf::from)
}

/// Takes the programs off an interface; its `clsact` stays, as others may use it.
pub(crate) fn detach(pins: &PinDir, ifindex: u32) -> Result<()> {
    for (_, point) in FILTERS {
        detach_filter(ifindex, point, PRIORITY)?;
    }
    match Link::open(&pins.pin(LINK))? {
        Some(link) => link.detach(),
        None => Ok(()),
    }
}

/// Removes the filter of this priority, if it is there.
pub(crate) fn detach_filter(
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
pub(crate) fn has_filter(
    ifindex: u32,
    point: libbpf_sys::bpf_tc_attach_point,
    priority: u32,
) -> Result<bool> {
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

/// The number of this thread's network namespace, as programs see it.
pub fn netns_cookie() -> Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let failed =
        |e: io::Error| DataPlaneError::bpf("ask for the cookie of the network namespace", e);
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").map_err(failed)?;
    let mut cookie = 0_u64;
    let mut len = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: `cookie` is writable for `len` bytes.
    let ret = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &mut len,
        )
    };
    match ret {
        0 => Ok(cookie),
        _ => Err(failed(io::Error::last_os_error())),
    }
}
