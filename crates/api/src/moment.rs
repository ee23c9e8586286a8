// SPDX-License-Identifier: Apache-2.0
//! One reading of the clocks.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The same moment on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Moment {
    /// CLOCK_MONOTONIC, the data plane's clock, in ns.
    pub monotonic_ns: u64,
    /// Time since the Unix epoch in ns.
    pub realtime_ns: u64,
}

impl Moment {
    /// Now.
    pub fn now() -> Self {
        // The monotonic clock always exists; its failure would be the kernel's.
        let monotonic_ns = clock_gettime(ClockId::CLOCK_MONOTONIC)
            .map(|time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
            .unwrap_or_default();
        let realtime_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map(|since| since.as_nanos() as u64)
            .unwrap_or_default();
        Self {
            monotonic_ns,
            realtime_ns,
        }
    }

    /// The moment `ns` earlier.
    pub fn before(self, ns: u64) -> Self {
        Self {
            monotonic_ns: self.monotonic_ns.saturating_sub(ns),
            realtime_ns: self.realtime_ns.saturating_sub(ns),
        }
    }
}
