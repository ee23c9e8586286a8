// SPDX-License-Identifier: Apache-2.0
//! Waiting until a moment of CLOCK_MONOTONIC, to the microsecond. Tokio's timers
//! count milliseconds, which is too coarse for service times and timetables here.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::clock;

/// Returns at `at_ns` or, if that is past, at once.
///
/// # Errors
/// When the process has no descriptor to spare.
pub async fn sleep_until(at_ns: u64) -> io::Result<()> {
    if at_ns <= clock::monotonic_ns() {
        return Ok(());
    }
    let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
    timer.set(
        Expiration::OneShot(TimeSpec::from(Duration::from_nanos(at_ns))),
        TimerSetTimeFlags::TFD_TIMER_ABSTIME,
    )?;
    // SAFETY: an OwnedFd is open, and always the same descriptor, until it is dropped.
    let fd = unsafe { AsyncFd::register_with_interest(OwnedFd::from(timer), Interest::READABLE)? };
    // It fires once and is then closed: nothing to read, nothing to clear.
    fd.readable().await?.retain_ready();
    Ok(())
}
