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

/// A time in seconds since 1970 as a date in UTC: RFC 3339, without the zone.
pub fn date_time(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have the leap day at their end (Hinnant, civil_from_days).
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}
