// SPDX-License-Identifier: Apache-2.0
//! The times by which new flows of client prefixes are limited, for tests and simulations: in
//! production the kernel runs the same C, `bpf/shared/limit.h`.

/// `struct limit_bucket`: eight prefixes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitBucket([u64; 8]);

/// `struct vip_limit`; times are in units of 1024 ns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitTimes {
    interval: u32,
    tolerance: u32,
    prefixes: [u8; 8],
}

unsafe extern "C" {
    safe fn causeway_limit_admit(
        bucket: &mut LimitBucket,
        tag: u32,
        now_ns: u64,
        limit: LimitTimes,
    ) -> u32;
}

impl LimitTimes {
    /// One flow an interval, and as many at once as fit into the tolerance.
    pub fn new(interval: u32, tolerance: u32) -> Self {
        Self {
            interval,
            tolerance,
            prefixes: [0; 8],
        }
    }
}

impl LimitBucket {
    /// Whether a new flow of the prefix `tag`, of 24 bits and not 0, is let in.
    pub fn admit(&mut self, tag: u32, now_ns: u64, limit: LimitTimes) -> bool {
        causeway_limit_admit(self, tag, now_ns, limit) != 0
    }
}
