// SPDX-License-Identifier: Apache-2.0
//! Sleeping until a descriptor can be read, a time has come, or another thread wakes it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::TunnelError;

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
///
/// Its timer is set to an earlier time, or to a later one when it would soon expire too early,
/// which costs an interrupt and a turn of the caller's loop. A sleep with a timeout of its own,
/// which something else ends, would set the CPU's clock twice: in a virtual machine, two
/// exits to the hypervisor.
#[derive(Debug)]
pub struct Waiter {
    event: Arc<OwnedFd>,
    timer: OwnedFd,
    /// When the timer expires; `None`: it has, or was never set.
    expires_ns: Option<u64>,
    polled: Vec<libc::pollfd>,
}

/// A timer that would expire within this time is put off if nothing is due for as long after.
const SOON_NS: u64 = 150_000;
/// Of the descriptors polled the first two are the waiter's own.
const OWN: usize = 2;

/// Which descriptors can be read.
#[derive(Debug, Clone, Copy)]
pub struct Ready<'a> {
    polled: &'a [libc::pollfd],
}

impl Ready<'_> {
    /// Whether the `index`th descriptor can be read, or has an error to report.
    pub fn is(&self, index: usize) -> bool {
        self.polled.get(index + OWN).is_some_and(|p| p.revents != 0)
    }

    /// Whether the `index`th descriptor has an error to report, watched or not.
    pub fn has_failed(&self, index: usize) -> bool {
        let polled = self.polled.get(index + OWN);
        polled.is_some_and(|p| p.revents & libc::POLLERR != 0)
    }

    /// Whether a [`Waker`] was used.
    pub fn is_woken(&self) -> bool {
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
                cause: io::Error::last_os_error(),
            });
        }
        // SAFETY: the kernel has just given us this descriptor.
        let event = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: timerfd_create(2) takes two integers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(TunnelError::Wait {
                doing: "make a timer",
                cause: io::Error::last_os_error(),
            });
        }
        // SAFETY: the kernel has just given us this descriptor.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        let polled = vec![pollfd(event.as_fd()), pollfd(timer.as_fd())];
        Ok(Self {
            event,
            timer,
            expires_ns: None,
            polled,
        })
    }

    /// To be given to other threads.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.event))
    }

    /// Waits for these from now on. They must stay open until the next call.
    pub fn watch<'a>(&mut self, descriptors: impl Iterator<Item = BorrowedFd<'a>>) {
        self.polled.truncate(OWN);
        self.polled.extend(descriptors.map(pollfd));
    }

    /// Whether the `index`th descriptor is waited for. If not, its errors end a sleep all the
    /// same.
    pub fn set_watched(&mut self, index: usize, watched: bool) {
        if let Some(p) = self.polled.get_mut(index + OWN) {
            p.events = if watched { libc::POLLIN } else { 0 };
        }
    }

    /// Sleeps until `until_ns` of [`crate::monotonic_ns`] at the latest, and perhaps not that long;
    /// a time that is over (0, say) means not at all.
    pub fn wait(&mut self, now_ns: u64, until_ns: u64) -> Result<Ready<'_>, TunnelError> {
        let sleeps = until_ns > now_ns;
        let serves = |expires_ns| serves(now_ns, expires_ns, until_ns);
        if sleeps && !self.expires_ns.is_some_and(serves) {
            self.set_timer(until_ns)?;
        }
        let no_time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: live pollfds and their number, a live timespec or none, no signal mask.
        let count = unsafe {
            libc::ppoll(
                self.polled.as_mut_ptr(),
                self.polled.len() as libc::nfds_t,
                if sleeps { std::ptr::null() } else { &no_time },
                std::ptr::null(),
            )
        };
        if count < 0 {
            let cause = io::Error::last_os_error();
            if cause.kind() != io::ErrorKind::Interrupted {
                let doing = "wait for packets";
                return Err(TunnelError::Wait { doing, cause });
            }
            self.polled.iter_mut().for_each(|p| p.revents = 0);
        }
        // Setting it once more makes the descriptor unreadable.
        if self.polled[1].revents != 0 {
            self.expires_ns = None;
        }
        let ready = Ready {
            polled: &self.polled,
        };
        if ready.is_woken() {
            let mut counter = [0; 8];
            // SAFETY: an open eventfd and eight live bytes; it empties the counter.
            unsafe { libc::read(self.event.as_raw_fd(), counter.as_mut_ptr().cast(), 8) };
        }
        Ok(ready)
    }

    fn set_timer(&mut self, at_ns: u64) -> Result<(), TunnelError> {
        // SAFETY: plain data; all zeroes is a valid value.
        let mut time: libc::itimerspec = unsafe { std::mem::zeroed() };
        time.it_value = libc::timespec {
            tv_sec: (at_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (at_ns % 1_000_000_000) as _,
        };
        // SAFETY: an open timer and a live time; the old one is not asked for.
        let status = unsafe {
            libc::timerfd_settime(
                self.timer.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &time,
                std::ptr::null_mut(),
            )
        };
        if status < 0 {
            return Err(TunnelError::Wait {
                doing: "set a timer",
                cause: io::Error::last_os_error(),
            });
        }
        self.expires_ns = Some(at_ns);
        Ok(())
    }
}

/// Whether a timer that expires at `expires_ns` will do for a sleep until `until_ns`: not too
/// late, and not so early and so soon that it would wake the thread for nothing.
fn serves(now_ns: u64, expires_ns: u64, until_ns: u64) -> bool {
    let soon = expires_ns < now_ns + SOON_NS && expires_ns + SOON_NS < until_ns;
    expires_ns <= until_ns && !soon
}

fn pollfd(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monotonic_ns;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_timer_is_set_for_earlier_times_or_put_off() {
        let mut waiter = Waiter::new().unwrap();
        let start = monotonic_ns();
        waiter.wait(start, start + MS).unwrap();
        assert!(monotonic_ns() >= start + MS);
        assert_eq!(waiter.expires_ns, None, "it has rung");

        let now = monotonic_ns();
        for (until_ns, expires_ns) in [
            (now + 9000 * MS, now + 9000 * MS),
            (now + 9999 * MS, now + 9000 * MS),
            (now + 8000 * MS, now + 8000 * MS),
            (now, now + 8000 * MS),
        ] {
            waiter.waker().wake();
            assert!(waiter.wait(now, until_ns).unwrap().is_woken());
            assert_eq!(waiter.expires_ns, Some(expires_ns), "until {until_ns}");
        }
        // Shortly before it expires.
        let soon = now + 8000 * MS - SOON_NS / 2;
        for (until_ns, expires_ns) in [
            (now + 8000 * MS + SOON_NS / 4, now + 8000 * MS),
            (now + 8001 * MS, now + 8001 * MS),
        ] {
            waiter.waker().wake();
            assert!(waiter.wait(soon, until_ns).unwrap().is_woken());
            assert_eq!(waiter.expires_ns, Some(expires_ns), "put off to {until_ns}");
        }

        let soon = monotonic_ns() + 2 * MS;
        waiter.wait(now, soon).unwrap();
        assert!(monotonic_ns() >= soon);
        // A timer that has expired is quiet after the next setting.
        let later = monotonic_ns() + 2 * MS;
        waiter.wait(soon, later).unwrap();
        assert!(monotonic_ns() >= later);
    }
}
