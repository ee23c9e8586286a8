// SPDX-License-Identifier: Apache-2.0
//! Holding an XDP program on an interface through a link.
//!
//! A link, unlike the older netlink attachment, can be pinned, belongs to the process
//! that holds it, and lets the program be replaced in one step.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::Path;

use causeway_netio::Interface;
use libbpf_rs::{Xdp, XdpFlags};

use crate::error::{DataPlaneError, Result};
use crate::map::{errno, io_error};
use crate::xdp_mode::{AttachedMode, XdpMode};

/// The XDP program that runs on an interface, if any.
pub(crate) fn occupant(interface: &Interface) -> Result<Option<Occupant>> {
    // The fd of an `Xdp` is used for attaching only.
    let unused = io::stderr();
    let xdp = Xdp::new(unused.as_fd());
    let query = xdp
        .query(interface.index as i32, XdpFlags::NONE)
        .map_err(|e| {
            let doing = format!("ask for the XDP program of {}", interface.name);
            DataPlaneError::bpf(doing, io_error(&e))
        })?;
    let native = [query.drv_prog_id, query.hw_prog_id];
    let native = native.into_iter().find(|&id| id != 0);
    Ok(match (native, query.skb_prog_id) {
        (Some(program), _) => Some(Occupant::new(program, AttachedMode::Native)),
        (None, 0) => None,
        (None, program) => Some(Occupant::new(program, AttachedMode::Generic)),
    })
}

/// What an interface has of XDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpState {
    /// The program on it: its number, its name, and how it runs.
    pub program: Option<(u32, String, AttachedMode)>,
    /// Whether the driver runs programs, on kernels that say so (6.3 and later).
    pub is_native: bool,
    /// Whether it gives them frames of several buffers, on the same kernels.
    pub takes_fragments: bool,
}

impl XdpState {
    /// Asks the kernel.
    ///
    /// # Errors
    /// If it does not say.
    pub fn of(interface: &Interface) -> Result<Self> {
        let occupant = occupant(interface)?;
        let mut query = libbpf_sys::bpf_xdp_query_opts {
            sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _,
            ..Default::default()
        };
        // SAFETY: `query` lives through the call and says how long it is.
        let ret = unsafe { libbpf_sys::bpf_xdp_query(interface.index as i32, 0, &mut query) };
        check(ret, || {
            format!("ask what XDP the driver of {} has", interface.name)
        })?;
        Ok(Self {
            program: occupant.map(|one| (one.program, program_name(one.program), one.mode)),
            // NETDEV_XDP_ACT_BASIC of linux/netdev.h
            is_native: query.feature_flags & 1 != 0,
            // NETDEV_XDP_ACT_RX_SG
            takes_fragments: query.feature_flags & 1 << 5 != 0,
        })
    }
}

/// The error that says whose program is in the way.
pub(crate) fn foreign(interface: &Interface, occupant: Occupant) -> DataPlaneError {
    DataPlaneError::Foreign {
        interface: interface.name.clone(),
        program: program_name(occupant.program),
        id: occupant.program,
    }
}

/// The name that the interface of this number has, if there is one here.
pub(crate) fn name_of(ifindex: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(ifindex).ok()?;
    // nix takes the null of "none" for a name.
    name.into_string().ok().filter(|name| !name.is_empty())
}

/// Pins a program.
pub(crate) fn pin_program(program: BorrowedFd<'_>, pin: &Path) -> Result<()> {
    let path = c_path(pin)?;
    // SAFETY: `path` is a C string for the time of the call.
    let ret = unsafe { libbpf_sys::bpf_obj_pin(program.as_raw_fd(), path.as_ptr()) };
    check(ret, || format!("pin the program {}", pin.display()))
}

/// Id of the program pinned at `pin`, if there is one.
pub(crate) fn pinned_program(pin: &Path) -> Result<Option<u32>> {
    // A program is opened as a link is: by its pin.
    let Some(Link(program)) = Link::open(pin)? else {
        return Ok(None);
    };
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: `info` is as long as `len` says.
    let ret =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut len) };
    check(ret, || format!("ask about the program {}", pin.display()))?;
    Ok(Some(info.id))
}

/// A program on an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupant {
    /// The program's id.
    pub(crate) program: u32,
    pub(crate) mode: AttachedMode,
}

impl Occupant {
    fn new(program: u32, mode: AttachedMode) -> Self {
        Self { program, mode }
    }
}

/// A link that holds a program where it runs. Dropping it closes the handle;
/// the program stays as long as the link is pinned.
#[derive(Debug)]
pub struct Link(OwnedFd);

/// What the kernel says about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkInfo {
    pub(crate) id: u32,
    /// Id of the program that it holds.
    pub(crate) program: u32,
    /// 0 once the interface is gone.
    pub(crate) ifindex: u32,
}

impl Link {
    /// Attaches `program`. In mode `Auto` an interface without native XDP gets the
    /// generic one; a driver that has it but refuses is an error.
    pub fn attach(
        program: BorrowedFd<'_>,
        interface: &Interface,
        mode: XdpMode,
    ) -> Result<(Self, AttachedMode)> {
        if mode != XdpMode::Generic {
            match create(program, interface, libbpf_sys::XDP_FLAGS_DRV_MODE) {
                Ok(link) => return Ok((link, AttachedMode::Native)),
                Err(e) => match (e.raw_os_error(), mode) {
                    (Some(libc::EOPNOTSUPP), XdpMode::Auto) => {}
                    (Some(libc::EOPNOTSUPP), _) => {
                        return Err(DataPlaneError::NoNative(interface.name.clone()));
                    }
                    _ => return Err(attach_error(interface, e, true)),
                },
            }
        }
        create(program, interface, libbpf_sys::XDP_FLAGS_SKB_MODE)
            .map(|link| (link, AttachedMode::Generic))
            .map_err(|e| attach_error(interface, e, false))
    }

    /// A link between a program and a target: an interface's number, or a control
    /// group's descriptor.
    pub(crate) fn create(
        program: BorrowedFd<'_>,
        target: i32,
        kind: libbpf_sys::bpf_attach_type,
        flags: u32,
    ) -> io::Result<Self> {
        let opts = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            flags,
            ..Default::default()
        };
        // SAFETY: `opts` lives through the call and has no pointers set.
        let fd = unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), target, kind, &opts) };
        if fd < 0 {
            return Err(errno(fd));
        }
        // SAFETY: a new descriptor that no other code owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Another handle of the same link.
    pub(crate) fn try_clone(&self) -> Result<Self> {
        let fd = self.0.try_clone();
        fd.map(Self)
            .map_err(|e| DataPlaneError::bpf("duplicate the XDP link", e))
    }

    /// The link pinned at `pin`, if there is one.
    pub(crate) fn open(pin: &Path) -> Result<Option<Self>> {
        let path = c_path(pin)?;
        // SAFETY: `path` is a C string for the time of the call.
        let fd = unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) };
        match fd {
            // SAFETY: a new descriptor that no other code owns.
            0.. => Ok(Some(Self(unsafe { OwnedFd::from_raw_fd(fd) }))),
            _ if fd == -libc::ENOENT => Ok(None),
            _ => Err(DataPlaneError::bpf(
                format!("open the link {}", pin.display()),
                errno(fd),
            )),
        }
    }

    /// Pins the link.
    pub(crate) fn pin(&self, pin: &Path) -> Result<()> {
        let path = c_path(pin)?;
        // SAFETY: `path` is a C string for the time of the call.
        let ret = unsafe { libbpf_sys::bpf_obj_pin(self.0.as_raw_fd(), path.as_ptr()) };
        check(ret, || format!("pin the link {}", pin.display()))
    }

    /// Puts `program` in the place of the one it holds. Each packet meets either
    /// the old or the new one.
    pub(crate) fn replace(&self, program: BorrowedFd<'_>) -> Result<()> {
        // SAFETY: two descriptors; no options.
        let ret = unsafe {
            libbpf_sys::bpf_link_update(self.0.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
        };
        check(ret, || "replace the running program".to_owned())
    }

    /// Takes the program off the interface, also if another process holds the link.
    pub(crate) fn detach(&self) -> Result<()> {
        // SAFETY: a descriptor.
        let ret = unsafe { libbpf_sys::bpf_link_detach(self.0.as_raw_fd()) };
        check(ret, || "detach the program".to_owned())
    }

    /// The control group that a sockops link is on, by its directory's inode. `None`: it is gone,
    /// or this is no such link.
    pub(crate) fn cgroup_inode(&self) -> Result<Option<u64>> {
        let info = self.raw_info()?;
        // SAFETY: the union is plain data; for a link of this kind it is this member.
        let cgroup = unsafe { info.__bindgen_anon_1.cgroup.cgroup_id };
        Ok((info.type_ == libbpf_sys::BPF_LINK_TYPE_CGROUP && cgroup != 0).then_some(cgroup))
    }

    /// The interface that a link of a traffic control hook is on; 0: it is gone. `None`: it is
    /// no such link.
    pub(crate) fn tcx_ifindex(&self) -> Result<Option<u32>> {
        let info = self.raw_info()?;
        // SAFETY: the union is plain data; for a link of this kind it is this member.
        let ifindex = unsafe { info.__bindgen_anon_1.tcx.ifindex };
        Ok((info.type_ == libbpf_sys::BPF_LINK_TYPE_TCX).then_some(ifindex))
    }

    pub(crate) fn info(&self) -> Result<LinkInfo> {
        let info = self.raw_info()?;
        if info.type_ != libbpf_sys::BPF_LINK_TYPE_XDP {
            let wrong = io::Error::new(io::ErrorKind::InvalidData, "not an XDP link");
            return Err(DataPlaneError::bpf("use the pinned link", wrong));
        }
        Ok(LinkInfo {
            id: info.id,
            program: info.prog_id,
            // SAFETY: the type says that the XDP member is the live one.
            ifindex: unsafe { info.__bindgen_anon_1.xdp.ifindex },
        })
    }

    fn raw_info(&self) -> Result<libbpf_sys::bpf_link_info> {
        let mut info = libbpf_sys::bpf_link_info::default();
        let mut len = size_of_val(&info) as u32;
        // SAFETY: `info` is `len` bytes long and any bytes are a value of it.
        let ret =
            unsafe { libbpf_sys::bpf_link_get_info_by_fd(self.0.as_raw_fd(), &mut info, &mut len) };
        check(ret, || "read the state of the link".to_owned())?;
        Ok(info)
    }
}

fn create(program: BorrowedFd<'_>, interface: &Interface, flags: u32) -> io::Result<Link> {
    Link::create(program, interface.index as i32, libbpf_sys::BPF_XDP, flags)
}

/// Why an attachment failed. Another program may have come between our look and
/// our attempt; then that is the reason to give.
fn attach_error(interface: &Interface, error: io::Error, native: bool) -> DataPlaneError {
    let taken = matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST));
    match occupant(interface) {
        Ok(Some(occupant)) if taken => foreign(interface, occupant),
        _ if native => DataPlaneError::NativeRefused {
            interface: interface.name.clone(),
            cause: error,
        },
        _ => DataPlaneError::bpf(format!("attach XDP to {}", interface.name), error),
    }
}

/// The name of a program, or "unknown" if it is gone or may not be looked at.
fn program_name(id: u32) -> String {
    let unknown = || "unknown".to_owned();
    // SAFETY: a plain system call.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    if fd < 0 {
        return unknown();
    }
    // SAFETY: a new descriptor that no other code owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: `info` is `len` bytes long and any bytes are a value of it.
    let ret = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut len) };
    let name = info.name.map(|c| c as u8);
    match CStr::from_bytes_until_nul(&name) {
        Ok(name) if ret == 0 && !name.is_empty() => name.to_string_lossy().into_owned(),
        _ => unknown(),
    }
}

fn check(ret: i32, doing: impl FnOnce() -> String) -> Result<()> {
    if ret < 0 {
        Err(DataPlaneError::bpf(doing(), errno(ret)))
    } else {
        Ok(())
    }
}

fn c_path(path: &Path) -> Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt as _;
    std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|e| DataPlaneError::bpf(format!("use the path {}", path.display()), e))
}
