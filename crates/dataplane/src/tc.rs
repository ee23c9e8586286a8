// SPDX-License-Identifier: Apache-2.0
//! Holding a program on an interface's traffic control hooks.
//!
//! By a link where the kernel has them (tcx, Linux 6.6): the program goes when the
//! link's last holder does, however that one ends. Else by a filter of the clsact
//! qdisc, which goes when [`TcLink`] is dropped.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use causeway_netio::Interface;
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};

use crate::error::{DataPlaneError, Result};
use crate::map::{errno, io_error};

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcDirection {
    /// Into the host.
    In,
    /// Out of the host.
    Out,
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
        let attach_type = match direction {
            TcDirection::In => libbpf_sys::BPF_TCX_INGRESS,
            TcDirection::Out => libbpf_sys::BPF_TCX_EGRESS,
        };
        let opts = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
            ..Default::default()
        };
        // SAFETY: `opts` lives through the call and has no pointers set.
        let fd = unsafe {
            libbpf_sys::bpf_link_create(
                program.as_raw_fd(),
                interface.index as i32,
                attach_type,
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
        let point = match direction {
            TcDirection::In => TC_INGRESS,
            TcDirection::Out => TC_EGRESS,
        };
        let mut builder = TcHookBuilder::new(program);
        let mut hook = builder
            .ifindex(interface.index as i32)
            .replace(false)
            .hook(point);
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

fn failed(interface: &Interface, error: io::Error) -> DataPlaneError {
    DataPlaneError::bpf(
        format!("attach to the traffic control hooks of {}", interface.name),
        error,
    )
}
