// SPDX-License-Identifier: Apache-2.0
//! Sleeping until a descriptor can be read, a time has come, or another thread calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use nix::time::{ClockId, clock_gettime};

use super::TunnelError;

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    // The clock exists and the pointer is valid, so it cannot fail.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

/// Has the calling thread's sleeps end when they are due: the kernel else adds 50 us.
pub fn precise_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// 64 random bits, never 0.
pub fn random_instance() -> Result<u64, TunnelError> {
    let mut bytes = [0; 8];
    loop {
        // SAFETY: eight live bytes; no flags.
        let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        match (count, u64::from_ne_bytes(bytes)) {
            (8, 0) => {}
            (8, instance) => return Ok(instance),
            _ => {
                return Err(TunnelError::Wait {
                    doing: "get random bits",
                    source: io::Error::last_os_error(),
                });
            }
        }
    }
}

/// Wakes a [`Waiter`] from another thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Ends the sleep, or the next one.
    pub fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: an open eventfd and eight live bytes. It cannot fail but by
        // overflow, and then the waiter is awake.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

/// Descriptors to wait for, by index, and a [`Waker`].
#[derive(Debug)]
pub struct Waiter {
    event: Arc<OwnedFd>,
    polled: Vec<libc::pollfd>,
}

/// Which descriptors can be read.
#[derive(Debug, Clone, Copy)]
pub struct Ready<'a> {
    polled: &'a [libc::pollfd],
}

impl Ready<'_> {
    /// Whether the `index`th descriptor can be read, or has an error to report.
    pub fn is(&self, index: usize) -> bool {
        self.polled.get(index + 1).is_some_and(|p| p.revents != 0)
    }

    /// Whether another thread has called.
    pub fn called(&self) -> bool {
        self.polled.first().is_some_and(|p| p.revents != 0)
    }
}

impl Waiter {
    /// Nothing to wait for yet but the waker.
    pub fn new() -> Result<Self, TunnelError> {
        // SAFETY: eventfd(2) takes two integers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(TunnelError::Wait {
                doing: "make an event descriptor",
                source: io::Error::last_os_error(),
            });
        }
        // SAFETY: the kernel has just given us this descriptor.
        let event = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let polled = vec![pollfd(event.as_fd())];
        Ok(Self { event, polled })
    }

    /// To be given to other threads.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.event))
    }

    /// Waits for these from now on. They must stay open until the next call.
    pub fn watch<'a>(&mut self, descriptors: impl Iterator<Item = BorrowedFd<'a>>) {
        self.polled.truncate(1);
        self.polled.extend(descriptors.map(pollfd));
    }

    /// Looks at the `index`th descriptor or not.
    pub fn set_watched(&mut self, index: usize, watched: bool) {
        if let Some(p) = self.polled.get_mut(index + 1) {
            p.events = if watched { libc::POLLIN } else { 0 };
        }
    }

    /// Sleeps for at most `timeout_ns`.
    pub fn wait(&mut self, timeout_ns: u64) -> Result<Ready<'_>, TunnelError> {
        let timeout = libc::timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (timeout_ns % 1_000_000_000) as _,
        };
        // SAFETY: live pollfds and their number, a live timespec, no signal mask.
        let count = unsafe {
            libc::ppoll(
                self.polled.as_mut_ptr(),
                self.polled.len() as libc::nfds_t,
                &timeout,
                std::ptr::null(),
            )
        };
        if count < 0 {
            let source = io::Error::last_os_error();
            if source.kind() != io::ErrorKind::Interrupted {
                let doing = "wait for packets";
                return Err(TunnelError::Wait { doing, source });
            }
            self.polled.iter_mut().for_each(|p| p.revents = 0);
        }
        let ready = Ready {
            polled: &self.polled,
        };
        if ready.called() {
            let mut counter = [0; 8];
            // SAFETY: an open eventfd and eight live bytes; it empties the counter.
            unsafe { libc::read(self.event.as_raw_fd(), counter.as_mut_ptr().cast(), 8) };
        }
        Ok(ready)
    }
}

fn pollfd(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }
}
