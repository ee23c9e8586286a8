// SPDX-License-Identifier: Apache-2.0
//! Packets that do not arrive: TCP's, which are retransmitted, and ping's.

use super::evidence::{Evidence, TcpEvidence};
use super::finding::{Finding, Repaired};

/// Fewer lost echoes than this are chance.
const LOST_PINGS: u64 = 3;

/// A time in which neither echoes nor requests came through. A closed loop sends nothing
/// meanwhile, so that TCP retransmits a few segments, however long it takes.
pub(super) fn outage(evidence: &Evidence) -> Option<Finding> {
    let (ping, rr, hole) = (evidence.ping?, evidence.rr?, evidence.echo_hole);
    let lost = ping.sent.saturating_sub(ping.rtt.count);
    let (retransmitted, _) = sent(evidence);
    let stood_still = (retransmitted > 0 || evidence.timeouts > 0) && rr.max_ns >= hole.ns / 2;
    // Where most are lost one by one, this hole is one of many.
    (hole.lost >= LOST_PINGS && hole.lost * 2 >= lost && stood_still).then_some(Finding::Outage {
        ns: hole.ns,
        lost: hole.lost, // also those that this host had no way to send
        rr_max_ns: rr.max_ns,
    })
}

/// Segments that were lost and retransmitted, or requests that never came back without an
/// `outage` that tells why.
pub(super) fn loss(evidence: &Evidence, outage: bool) -> Option<Finding> {
    let client = evidence.client?;
    let (retransmitted, segments) = sent(evidence);
    let rr = evidence.rr?;
    // One in a thousand is what an idle machine's tail-loss probes come to.
    let enough = retransmitted > 0 && retransmitted * 1000 >= segments;
    (enough || (evidence.timeouts > 0 && !outage)).then_some(Finding::Loss {
        retransmitted,
        segments,
        rr_max_ns: rr.max_ns,
        tcp_ns: client.rtt.p50_ns,
        repaired: repaired(evidence).filter(|_| {
            let mut ends = [evidence.client, evidence.server].into_iter().flatten();
            ends.all(|tcp| tcp.retransmits.is_some())
        }),
    })
}

/// Losses of the last segments in flight that a probe repaired. The kernels say so of each: one
/// is enough.
pub(super) fn tail(evidence: &Evidence) -> Option<Finding> {
    let rr = evidence.rr?;
    let repaired = repaired(evidence).filter(|of| of.probes > 0)?;
    Some(Finding::TailLoss {
        repaired,
        rr_max_ns: rr.max_ns,
        cost_ns: rr.max_ns.saturating_sub(rr.p50_ns),
    })
}

/// How losses were repaired: of the ends that say it.
fn repaired(evidence: &Evidence) -> Option<Repaired> {
    let ends = [evidence.client, evidence.server].into_iter().flatten();
    ends.filter_map(|tcp| {
        let retransmits = tcp.retransmits?;
        Some(Repaired {
            probes: retransmits.by_probe(tcp.duplicates),
            timeouts: retransmits.timeouts,
            fast: retransmits.fast_retrans,
        })
    })
    .reduce(|one, other| Repaired {
        probes: one.probes + other.probes,
        timeouts: one.timeouts + other.timeouts,
        fast: one.fast + other.fast,
    })
}

/// Echoes that are lost where TCP's segments are not.
pub(super) fn icmp(evidence: &Evidence) -> Option<Finding> {
    let ping = evidence.ping?;
    let lost = ping.sent.saturating_sub(ping.rtt.count);
    if lost < LOST_PINGS || lost * 50 < ping.sent {
        return None;
    }
    let (retransmitted, segments) = sent(evidence);
    let share = lost as f64 / ping.sent as f64;
    // Had the path lost as many of TCP's segments, this many would have been lost.
    let expected = share * segments as f64;
    if (retransmitted as f64) < expected / 10.0 && expected >= 10.0 {
        return Some(Finding::IcmpLimited {
            lost,
            sent: ping.sent,
            segments,
            retransmitted,
        });
    }
    (retransmitted == 0).then_some(Finding::PingLoss {
        lost,
        sent: ping.sent,
    })
}

/// Segments retransmitted, and all segments: both ends.
fn sent(evidence: &Evidence) -> (u64, u64) {
    let ends = [evidence.client, evidence.server];
    let sum = |of: fn(&TcpEvidence) -> u64| ends.iter().flatten().map(of).sum();
    (sum(|t| t.retransmitted), sum(|t| t.segments))
}
