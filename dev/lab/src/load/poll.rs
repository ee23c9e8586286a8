// SPDX-License-Identifier: Apache-2.0
//! epoll with timeouts in nanoseconds (`epoll_pwait2`, Linux 5.11). Rounding
//! them to milliseconds would make every send up to 1 ms late.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::{io, mem};

const CAPACITY: usize = 256;

/// What a descriptor is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// A connect that is under way.
    Connect,
    /// Bytes to read.
    Read,
    /// Bytes to read, or room to write.
    Both,
}

/// One epoll instance.
pub(crate) struct Poll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 takes a flag and returns a descriptor or -1.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            fd,
            events: Vec::with_capacity(CAPACITY),
        })
    }

    /// Begins to watch `fd`; events carry `token`. Closing `fd` ends it.
    pub(crate) fn add(&self, fd: RawFd, token: usize, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    /// Changes what `fd` is watched for.
    pub(crate) fn change(&self, fd: RawFd, token: usize, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    fn control(&self, op: i32, fd: RawFd, token: usize, interest: Interest) -> io::Result<()> {
        let events = match interest {
            Interest::Connect => libc::EPOLLOUT,
            Interest::Read => libc::EPOLLIN,
            Interest::Both => libc::EPOLLIN | libc::EPOLLOUT,
        };
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: token as u64,
        };
        // SAFETY: valid descriptors and a live event.
        let rc = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, &mut event) };
        if rc < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Waits at most `timeout_ns` and gives the tokens of ready descriptors.
    pub(crate) fn wait(&mut self, timeout_ns: u64, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        let timeout = libc::timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: `events` has room for CAPACITY entries; no signal mask.
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                CAPACITY as i32,
                &timeout,
                std::ptr::null::<libc::sigset_t>(),
                mem::size_of::<libc::sigset_t>(),
            )
        };
        if n < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok(())
            } else {
                Err(error)
            };
        }
        // SAFETY: the kernel has filled in `n` <= CAPACITY entries.
        unsafe { self.events.set_len(n as usize) };
        ready.extend(self.events.iter().map(|e| e.u64 as usize));
        Ok(())
    }
}
