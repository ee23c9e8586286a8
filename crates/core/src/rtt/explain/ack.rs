// SPDX-License-Identifier: Apache-2.0
//! ACKs that wait, and requests that wait for them.
//!
//! TCP's round-trip time is the network's and the receiver's delay of the ACK, and
//! nothing else: what it has beyond the network's, with no queue on the path, is the
//! receiver waiting for data to ride on or for its timer.

use super::evidence::{Evidence, MS, TcpEvidence, near};
use super::finding::{End, Finding};

/// Stand-alone ("delayed") ACK timers. Linux: TCP_DELACK_MIN (include/net/tcp.h).
/// Windows: 200 ms in older versions, 10, 40 or 50 ms in later ones by profile
/// ("A Brief Look at Round Trip Time", section How RTTs Are Measured).
pub const ACK_TIMERS: [(&str, u64); 5] = [
    ("Linux", 40 * MS),
    ("Windows", 50 * MS),
    ("Windows", 200 * MS),
    ("Windows", 10 * MS),
    ("Windows", 40 * MS),
];

/// What a delayed ACK waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// The end's own next data.
    Rides,
    /// The stand-alone ACK timer of this system, of this length in nanoseconds.
    Timer(&'static str, u64),
    /// One or the other.
    Either,
}

/// Requests held back by Nagle's algorithm until the server's ACK timer ends.
///
/// The signs: more segments than the requests fill, a response time beyond network and
/// application, and a TCP RTT that contains it. The RTT is smoothed over all segments
/// of a request, of which only the first waits for its ACK: of two segments and a timer
/// of 40 ms it shows 20.
pub(super) fn nagle(evidence: &Evidence) -> Option<Finding> {
    let client = evidence.client?;
    let needed = evidence.request_segments.filter(|needed| *needed > 0)?;
    let segments = client.segments.saturating_sub(client.retransmitted);
    let held_ns = evidence.unexplained_ns()?;
    let pieces = segments as f64 / needed as f64;
    let seen_ns = client.rtt.p50_ns as f64 * pieces;
    let shown = seen_ns > held_ns as f64 / 2.0;
    (pieces >= 1.5 && shown && evidence.worth(held_ns)).then_some(Finding::Nagle {
        held_ns,
        segments,
        needed,
    })
}

/// TCP's round-trip time far above the network's, at one end or the other. `lossy`: an
/// ACK that comes late may then have been lost before, or have waited for data that was.
pub(super) fn delayed(evidence: &Evidence, nagle: Option<Finding>, lossy: bool) -> Vec<Finding> {
    let by_server = evidence
        .client
        .and_then(|tcp| by_server(evidence, tcp, nagle));
    let by_client = evidence.server.and_then(|tcp| by_client(evidence, tcp));
    let by_loss = |finding: &Finding| match *finding {
        _ if !lossy => false,
        Finding::DelayedAck {
            ack: Ack::Either, ..
        } => true,
        // The other end's ACK timer runs out when it has answered and its answer is
        // lost: `by_server` knows the response time. Ours does when our next request is
        // lost: an ACK later than the wait before that would have ridden on it.
        Finding::DelayedAck {
            by: End::Client,
            tcp_ns,
            ..
        } => {
            let wait_ns = evidence.wait_ns.unwrap_or(0);
            tcp_ns > wait_ns && !roughly(tcp_ns, wait_ns)
        }
        _ => false,
    };
    by_server
        .into_iter()
        .chain(by_client)
        .filter(|finding| !by_loss(finding))
        .collect()
}

/// Our segments, acknowledged by the server.
fn by_server(evidence: &Evidence, tcp: TcpEvidence, nagle: Option<Finding>) -> Option<Finding> {
    let beyond_ns = beyond(evidence, tcp)?;
    let response_ns = evidence.rr?.p50_ns.saturating_sub(evidence.network_ns()?);
    let ack = match nagle {
        Some(Finding::Nagle { held_ns, .. }) => at_timer(held_ns).unwrap_or(Ack::Either),
        // Later than the response: nothing to do with ACKs.
        _ if beyond_ns > response_ns && !roughly(beyond_ns, response_ns) => return None,
        _ => waits_for(beyond_ns, response_ns),
    };
    // An ACK that rides on the response shows the application, which has a finding of
    // its own.
    (ack != Ack::Rides).then_some(Finding::DelayedAck {
        by: End::Server,
        tcp_ns: tcp.rtt.p50_ns,
        ack,
    })
}

/// The server's segments, acknowledged by us.
fn by_client(evidence: &Evidence, tcp: TcpEvidence) -> Option<Finding> {
    let beyond_ns = beyond(evidence, tcp)?;
    Some(Finding::DelayedAck {
        by: End::Client,
        tcp_ns: tcp.rtt.p50_ns,
        ack: waits_for(beyond_ns, evidence.wait_ns.unwrap_or(0)),
    })
}

/// What an ACK has waited for that came after `ns`, when data followed after `data_ns`.
/// The smoothed RTT starts at the handshake's and comes nearer by an eighth each time
/// (RFC 6298, section 2): after few requests it is still some way below.
fn waits_for(ns: u64, data_ns: u64) -> Ack {
    match at_timer(ns) {
        _ if near(ns, data_ns) => Ack::Rides,
        Some(timer) => timer,
        None if roughly(ns, data_ns) => Ack::Rides,
        None => Ack::Either,
    }
}

fn at_timer(ns: u64) -> Option<Ack> {
    timer(ns).map(|(system, ns)| Ack::Timer(system, ns))
}

/// Within a quarter.
fn roughly(ns: u64, other_ns: u64) -> bool {
    ns.abs_diff(other_ns) <= other_ns / 4
}

/// What an end's round-trip time has beyond the network's, if that is much.
fn beyond(evidence: &Evidence, tcp: TcpEvidence) -> Option<u64> {
    // Where TCP has never been quicker it is the way, not the ACK.
    let network_ns = evidence.network_ns()?.max(tcp.min_rtt_ns);
    let beyond_ns = tcp.rtt.p50_ns.saturating_sub(network_ns);
    (evidence.worth(beyond_ns) && beyond_ns > tcp.min_rtt_ns).then_some(beyond_ns)
}

/// The timer that ends about then; of several, the nearest.
pub(super) fn timer(ns: u64) -> Option<(&'static str, u64)> {
    let close = |&(_, timer_ns): &(&str, u64)| near(ns, timer_ns + 2 * MS);
    ACK_TIMERS
        .into_iter()
        .filter(close)
        .min_by_key(|(_, timer_ns)| ns.abs_diff(*timer_ns))
}
