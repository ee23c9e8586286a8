// SPDX-License-Identifier: Apache-2.0
//! A queue on the path that fills.

use super::evidence::{Evidence, MS};
use super::finding::Finding;

/// A standing queue shorter than this does no harm: CoDel's target (RFC 8289,
/// section 4.3, and RFC 8290).
const QUEUE_NS: u64 = 5 * MS;
/// Echoes that show a habit.
const ECHOES: u64 = 10;
/// Echoes whose slowest tenth is more than one or two accidents.
const ECHOES_FOR_TENTH: u64 = 50;

/// Echoes go by a timetable, so that a tenth of them is a tenth of the time. Requests
/// must show the queue for as much of it: else only ICMP is slow.
///
/// A queue that never empties shows in how it swings: loss-based senders fill it and
/// yield in turns. One that neither empties nor swings looks like a longer path.
pub(super) fn bufferbloat(evidence: &Evidence) -> Option<Finding> {
    let ping = evidence.ping.filter(|p| p.rtt.count >= ECHOES)?.rtt;
    let full_ns = if ping.count >= ECHOES_FOR_TENTH {
        ping.p90_ns
    } else {
        ping.p50_ns
    };
    let ends = [evidence.client, evidence.server];
    let least = ends.iter().flatten().map(|tcp| tcp.min_rtt_ns);
    let empty_ns = least.filter(|ns| *ns > 0).chain([ping.min_ns]).min()?;
    let queue_ns = full_ns.saturating_sub(empty_ns);
    let delayed = evidence
        .rr_tenth_ns
        .is_none_or(|rr_ns| rr_ns > empty_ns + queue_ns / 2);
    (queue_ns > QUEUE_NS.max(empty_ns / 2) && delayed)
        .then_some(Finding::Bufferbloat { empty_ns, full_ns })
}
