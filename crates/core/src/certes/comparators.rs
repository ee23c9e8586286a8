// SPDX-License-Identifier: Apache-2.0
//! The simpler ways that the paper argues against (appendix A), for comparison only.

/// Mean response time in seconds if drops were independent of the time (M/M/1, eq.
/// 32): `served_s` is service and queueing time, `p` the drop rate of the slot, the
/// retries those of RFC 1122.
pub fn queueing_mean_s(served_s: f64, p: f64) -> f64 {
    served_s * (1.0 - p.powi(3)) + 3.0 * p + 6.0 * p.powi(2) + 12.0 * p.powi(3)
}

/// Mean response time in seconds from the drop rates of earlier slots (eq. 33; its
/// second product as it must be: over the slots 6 and 9 s back). `rate_at` gives the
/// drop rate that many seconds before the present slot.
pub fn sliding_window_mean_s(syn_to_end_s: f64, rate_at: impl Fn(f64) -> f64) -> f64 {
    let back = |s: f64| rate_at(syn_to_end_s + s);
    syn_to_end_s
        + 3.0 * back(3.0)
        + 6.0 * back(6.0) * back(9.0)
        + 12.0 * back(12.0) * back(18.0) * back(21.0)
}
