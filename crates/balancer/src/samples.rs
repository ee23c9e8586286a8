// SPDX-License-Identifier: Apache-2.0
//! What a real's counters say by their differences: its samples, their mean, and how far to trust it.

use causeway_api::balancer::Grade;
use causeway_core::estimate::{Quality, Tally};
use causeway_dataplane::{LatencySums, RealStats};

/// Requests that a client keeps outstanding, for the grade of a real's latencies: its sums do not
/// show it, so it is the most that the estimator distinguishes.
pub const GRADED_WINDOW: u8 = 16;

/// What samples are worth: the sums, and the bounds that are in them or were left out.
pub(super) fn tally(delta: &RealStats) -> Tally {
    let all = delta.latencies();
    Tally {
        sum_halves_ns: all.sum_halves_ns,
        weight_halves: all.weight_halves,
        bound_halves: delta.bound_weight_halves + delta.low.weight_halves,
        window: GRADED_WINDOW,
        ..Tally::default()
    }
}

/// How far to trust their mean.
pub(super) fn grade(tally: &Tally) -> Grade {
    match tally.confidence().quality {
        Quality::None => Grade::None,
        Quality::Low => Grade::Low,
        Quality::Medium => Grade::Medium,
        Quality::High => Grade::High,
    }
}

/// Mean of samples that are counted in halves; `None` without samples.
pub(crate) fn mean_us(sum_halves_ns: u64, weight_halves: u64) -> Option<f64> {
    (weight_halves > 0).then(|| sum_halves_ns as f64 / weight_halves as f64 / 1e3)
}

/// Differences; a counter that fell belongs to a slot that was created again. One that fell by more
/// than half its range has wrapped around, as sums of half nanoseconds do: after seven months at
/// 10,000 requests of 50 ms a second.
pub(super) fn since(new: RealStats, old: RealStats) -> RealStats {
    let minus = |new: u64, old: u64| match new.checked_sub(old) {
        None if old - new <= 1 << 63 => new,
        _ => new.wrapping_sub(old),
    };
    let sums = |new: LatencySums, old: LatencySums| LatencySums {
        sum_halves_ns: minus(new.sum_halves_ns, old.sum_halves_ns),
        weight_halves: minus(new.weight_halves, old.weight_halves),
        server_sum_halves_ns: minus(new.server_sum_halves_ns, old.server_sum_halves_ns),
        path_sum_halves_ns: minus(new.path_sum_halves_ns, old.path_sum_halves_ns),
        path_weight_halves: minus(new.path_weight_halves, old.path_weight_halves),
    };
    RealStats {
        packets: minus(new.packets, old.packets),
        bytes: minus(new.bytes, old.bytes),
        conns_opened: minus(new.conns_opened, old.conns_opened),
        conns_closed: minus(new.conns_closed, old.conns_closed),
        requests: minus(new.requests, old.requests),
        good: sums(new.good, old.good),
        low: sums(new.low, old.low),
        bound_weight_halves: minus(new.bound_weight_halves, old.bound_weight_halves),
        late_weight_halves: minus(new.late_weight_halves, old.late_weight_halves),
        answers_acked: minus(new.answers_acked, old.answers_acked),
        requests_seen: minus(new.requests_seen, old.requests_seen),
        conns_measured: minus(new.conns_measured, old.conns_measured),
        ..RealStats::default()
    }
}
