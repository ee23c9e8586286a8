// SPDX-License-Identifier: Apache-2.0
//! Clocks by their kernel names, and waiting.

use std::time::{Duration, Instant};

use anyhow::Result;

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a live timespec and a clock that every Linux has.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CLOCK_MONOTONIC in nanoseconds: what `bpf_ktime_get_ns` reads.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Wall time minus CLOCK_MONOTONIC. Of several readings the one with the
/// shortest gap counts.
pub fn wall_offset_ns() -> i64 {
    let sample = || {
        let before = monotonic_ns();
        let wall = read(libc::CLOCK_REALTIME);
        let after = monotonic_ns();
        (
            after - before,
            wall as i64 - (before + (after - before) / 2) as i64,
        )
    };
    (0..16)
        .map(|_| sample())
        .min()
        .map_or(0, |(_, offset)| offset)
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// What `ask` finds, asked again every 5 ms; `None` if it finds nothing in time.
pub fn until<T>(
    timeout: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let deadline = Instant::now() + timeout;
    loop {
        let found = ask()?;
        if found.is_some() || Instant::now() > deadline {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
