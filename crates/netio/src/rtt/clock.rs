// SPDX-License-Identifier: Apache-2.0
//! The clock that latencies are measured with, and waiting on it.
//!
//! The clock is CLOCK_MONOTONIC, read without entering the kernel (vDSO). A wait
//! sleeps by `clock_nanosleep` until an absolute time a little before the end, then
//! looks at the clock until the end: no late wake-up delays what follows, and no
//! sleep is ever part of a measured time.

use std::hint;

/// What reports say of the clock and the timer.
pub const DESCRIPTION: &str = "CLOCK_MONOTONIC; clock_nanosleep(TIMER_ABSTIME), then a busy end";

pub use crate::monotonic_ns as now_ns;

/// Waits until `at_ns`; the last `busy_ns` by looking at the clock. Gives the time
/// at which it returned, at once if `at_ns` is past.
pub fn wait_until(at_ns: u64, busy_ns: u64) -> u64 {
    let mut now = now_ns();
    if at_ns.saturating_sub(now) > busy_ns {
        sleep_until(at_ns - busy_ns);
        now = now_ns();
    }
    while now < at_ns {
        hint::spin_loop();
        now = now_ns();
    }
    now
}

/// Sleeps until `at_ns`; a signal does not end the sleep early.
pub fn sleep_until(at_ns: u64) {
    let time = libc::timespec {
        tv_sec: (at_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (at_ns % 1_000_000_000) as libc::c_long,
    };
    loop {
        // SAFETY: a live timespec; with TIMER_ABSTIME no remainder is written.
        let status = unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &time,
                std::ptr::null_mut(),
            )
        };
        if status != libc::EINTR {
            return;
        }
    }
}

/// Asks for wake-ups of this thread without the usual slack of 50 us.
pub fn set_least_timer_slack() {
    // SAFETY: takes an integer, touches nothing. Failure leaves the slack as it is,
    // which the busy end makes up for.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_never_short() {
        for ns in [0, 10_000, 300_000, 2_000_000] {
            let end = now_ns() + ns;
            assert!(wait_until(end, 50_000) >= end);
        }
        let now = now_ns();
        assert!(wait_until(now - 1, 50_000) >= now);
    }
}
