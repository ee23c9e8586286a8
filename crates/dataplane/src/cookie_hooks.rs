// SPDX-License-Identifier: Apache-2.0
//! Where a server's cookie programs hang: on both traffic control hooks of the interface,
//! and sockops in a control group.
//!
//! On the hooks they are the first, by links where the kernel has them, else by filters
//! ([`crate::tc`]): behind a program that ends with a verdict they would see nothing. Links are
//! pinned, filters belong to the interface: they outlive the process, and a program is replaced in
//! one step: a segment meets the old one or the new one.
//!
//! The sockops program is held by a link, too. Its control group may go and be made anew with the
//! service that runs in it. Until it is there connections are seen by their first segment.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use causeway_netio::Interface;
use libbpf_rs::Object;
use nix::sys::statfs::{self, CGROUP2_SUPER_MAGIC};

use crate::error::{DataPlaneError, Result};
use crate::pins::{HOOK_PIN, PinDir};
use crate::tc::{self, FrontHook, TcDirection};
use crate::xdp::Link;

/// Of filters.
const PRIORITY: u32 = 42;

const HOOKS: [FrontHook; 2] = [
    FrontHook::new("causeway_cookie_out", TcDirection::Out, PRIORITY),
    FrontHook::new("causeway_cookie_in", TcDirection::In, PRIORITY),
];
const SOCKOPS: &str = "causeway_cookie_open";
/// Name of the sockops link's pin.
pub(crate) const LINK: &str = "link_cookie_open";

/// Where the cookie programs of a server are to run, beside its interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CookieHooks {
    /// A control group, version 2, that the servers of the VIPs run in. `None`: the
    /// root of the hierarchy, if this machine has one.
    pub cgroup: Option<PathBuf>,
}

/// The programs where they run. They stay when this is dropped.
#[derive(Debug)]
pub(crate) struct CookieFilters {
    interface: String,
    /// It is right after every step, so that a panic elsewhere does not spoil it.
    attached: Mutex<Attached>,
}

#[derive(Debug)]
struct Attached {
    filters: Vec<Filter>,
    opening: Opening,
}

/// A program on its hook.
#[derive(Debug)]
struct Filter {
    hook: FrontHook,
    program: OwnedFd,
    pin: PathBuf,
    /// `None`: by a filter of `clsact`.
    link: Option<Link>,
}

/// What sees connections while they open.
#[derive(Debug)]
struct Opening {
    program: OwnedFd,
    pin: PathBuf,
    /// `None`: this machine has none.
    cgroup: Option<PathBuf>,
    /// Maybe on another control group, while the wanted one is not there. `None`: on none.
    link: Option<Link>,
}

impl CookieFilters {
    /// Puts the programs to work, or into the place of those that are.
    pub(crate) fn attach(
        hooks: &CookieHooks,
        object: &Object,
        interface: &Interface,
        pins: &PinDir,
    ) -> Result<Self> {
        let hold = |name| {
            let owned = program(object, name)?.try_clone_to_owned();
            owned.map_err(|e| DataPlaneError::bpf("hold a program", e))
        };
        // First who begins clocks, then who needs them.
        let mut opening = Opening::take_over(hold(SOCKOPS)?, hooks, pins)?;
        match opening.mend() {
            Err(gone @ DataPlaneError::CgroupGone(_)) => tracing::warn!("{gone}"),
            attached => {
                attached?;
            }
        }
        let mut filters = Vec::new();
        for hook in HOOKS {
            let mut filter = Filter {
                hook,
                program: hold(hook.program)?,
                pin: pin(pins, &hook),
                link: None,
            };
            filter.attach(interface)?;
            filters.push(filter);
        }
        Ok(Self {
            interface: interface.name.clone(),
            attached: Mutex::new(Attached { filters, opening }),
        })
    }

    fn attached(&self) -> MutexGuard<'_, Attached> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether connections are seen while they open, or will be once the control group is there.
    pub(crate) fn sees_opening(&self) -> bool {
        let attached = self.attached();
        attached.opening.link.is_some() || attached.opening.cgroup.is_some()
    }

    /// Attaches those again that are not there, as on an interface or in a control group that has
    /// been recreated; how many. Without an interface there is nothing to attach to.
    pub(crate) fn mend(&self) -> Result<usize> {
        let mut attached = self.attached();
        let opening = attached.opening.mend();
        let mut set = 0;
        if let Ok(interface) = Interface::find(&self.interface) {
            for filter in &mut attached.filters {
                if !filter.hook.is_on(filter.link.as_ref(), &interface)? {
                    filter.attach(&interface)?;
                    set += 1;
                }
            }
        }
        Ok(set + usize::from(opening?))
    }

    /// Pins links again whose pins are gone; how many were.
    pub(crate) fn mend_pin(&self) -> Result<usize> {
        let attached = self.attached();
        let mut pinned = pin_again(attached.opening.link.as_ref(), &attached.opening.pin)?;
        for filter in &attached.filters {
            pinned += pin_again(filter.link.as_ref(), &filter.pin)?;
        }
        Ok(pinned)
    }
}

impl Filter {
    fn attach(&mut self, interface: &Interface) -> Result<()> {
        self.link = self
            .hook
            .attach(self.program.as_fd(), interface, &self.pin)?;
        pin_again(self.link.as_ref(), &self.pin)?;
        Ok(())
    }
}

impl Opening {
    /// The program in the place of the one that is at work, if there is one.
    fn take_over(program: OwnedFd, hooks: &CookieHooks, pins: &PinDir) -> Result<Self> {
        let pin = pins.pin(LINK);
        let mut link = Link::open(&pin)?;
        if let Some(found) = &link {
            match found.cgroup_inode()? {
                // Of another control group, too: it works there until the wanted one has its own.
                Some(_) => found.replace(program.as_fd())?,
                None => link = None,
            }
        }
        Ok(Self {
            program,
            pin,
            cgroup: hooks.cgroup.clone().or_else(root_cgroup),
            link,
        })
    }

    /// Attaches the program if it is not on the wanted control group, as on one that has been made
    /// anew; whether it was not.
    fn mend(&mut self) -> Result<bool> {
        let Some(cgroup) = &self.cgroup else {
            return Ok(false);
        };
        if self.is_on(cgroup)? {
            return Ok(false);
        }
        let link = attach_sockops(self.program.as_fd(), cgroup)?;
        // Only now: a server may still run in the former group.
        tc::forget(&self.pin)?;
        link.pin(&self.pin)?;
        match self.link.replace(link) {
            Some(former) => former.detach().map(|()| true),
            None => Ok(true),
        }
    }

    /// Whether the link is of the directory that is there now. Sockets keep a control group that
    /// has been removed, and its links.
    fn is_on(&self, cgroup: &Path) -> Result<bool> {
        let Some(link) = &self.link else {
            return Ok(false);
        };
        let wanted = fs::metadata(cgroup).ok().map(|found| found.ino());
        Ok(wanted.is_some() && link.cgroup_inode()? == wanted)
    }
}

/// Pins a link if its pin is not there; how many pins that makes.
fn pin_again(link: Option<&Link>, pin: &Path) -> Result<usize> {
    match link {
        Some(link) if !pin.exists() => link.pin(pin).map(|()| 1),
        _ => Ok(0),
    }
}

fn pin(pins: &PinDir, hook: &FrontHook) -> PathBuf {
    pins.pin(&format!("{HOOK_PIN}{}", hook.program))
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

fn attach_sockops(program: BorrowedFd<'_>, cgroup: &Path) -> Result<Link> {
    let not_one = || DataPlaneError::NoCgroup(cgroup.to_owned());
    match statfs::statfs(cgroup) {
        Err(nix::Error::ENOENT) => return Err(DataPlaneError::CgroupGone(cgroup.to_owned())),
        Ok(found) if found.filesystem_type() == CGROUP2_SUPER_MAGIC => {}
        _ => return Err(not_one()),
    }
    let directory = fs::File::open(cgroup).map_err(|_| not_one())?;
    let kind = libbpf_sys::BPF_CGROUP_SOCK_OPS;
    Link::create(program, directory.as_raw_fd(), kind, 0)
        .map_err(|e| DataPlaneError::bpf(format!("attach sockops to {}", cgroup.display()), e))
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
    for hook in &HOOKS {
        hook.detach(ifindex, &pin(pins, hook))?;
    }
    match Link::open(&pins.pin(LINK))? {
        Some(link) => link.detach(),
        None => Ok(()),
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
