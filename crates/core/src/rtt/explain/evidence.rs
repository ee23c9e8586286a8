// SPDX-License-Identifier: Apache-2.0
//! What is known of a path, and how its figures are compared.

use super::super::LatencySummary;
use super::retransmits::Retransmits;

pub(super) const MS: u64 = 1_000_000;
/// Less is noise of schedulers, not a cause worth a name.
const WORTH_NS: u64 = MS;

/// ICMP echo.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ping {
    /// Requests sent.
    pub sent: u64,
    /// Round-trip times of those answered.
    pub rtt: LatencySummary,
}

/// The longest run of echo requests without a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EchoHole {
    /// How many.
    pub lost: u64,
    /// Time between those around it that were answered, or to the end of the run.
    pub ns: u64,
}

/// What one end's kernel says of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TcpEvidence {
    /// Readings of the smoothed round-trip time.
    pub rtt: LatencySummary,
    /// The least round-trip time that the kernel has seen.
    pub min_rtt_ns: u64,
    /// Segments with data sent.
    pub segments: u64,
    /// Segments retransmitted, without those that the other end reported as needless
    /// (D-SACK, RFC 2883).
    pub retransmitted: u64,
    /// Those.
    pub duplicates: u64,
    /// How segments came to be sent again; `None` where it is not known, or not of these
    /// connections alone.
    pub retransmits: Option<Retransmits>,
}

/// Everything known about a path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Request to response.
    pub rr: Option<LatencySummary>,
    /// A tenth of the run's time passed within requests of at least this length
    /// ([`RttLatencies::by_time`](super::super::RttLatencies::by_time)): in a closed loop
    /// quantiles of requests hide bad moments, in which few requests are sent.
    pub rr_tenth_ns: Option<u64>,
    /// Time between a response and the next request; `None` in an open loop.
    pub wait_ns: Option<u64>,
    /// Requests without a response in time.
    pub timeouts: u64,
    /// Segments that the requests fill, each written at once.
    pub request_segments: Option<u64>,
    /// Requests and responses fill one segment each: no time goes into moving them.
    pub one_segment: bool,
    /// ICMP echo, if it was tried.
    pub ping: Option<Ping>,
    /// The longest time in which no echo came back.
    pub echo_hole: EchoHole,
    /// This end's kernel: its segments are requests, acknowledged by the server.
    pub client: Option<TcpEvidence>,
    /// The server's kernel: its segments are responses, acknowledged by us.
    pub server: Option<TcpEvidence>,
    /// From a request's last byte read to its response, by the server's clock: median.
    pub server_app_ns: Option<u64>,
}

impl Evidence {
    /// The round-trip time of the network itself, nanoseconds: the median echo, or
    /// without one the least of what TCP has seen at either end.
    pub fn network_ns(&self) -> Option<u64> {
        let ping = self.ping.filter(|p| p.rtt.count > 0);
        if let Some(ping) = ping {
            return Some(ping.rtt.p50_ns);
        }
        let ends = [self.client, self.server];
        let least = ends.iter().flatten().map(|tcp| tcp.min_rtt_ns);
        least
            .chain(self.rr.map(|rr| rr.min_ns))
            .filter(|ns| *ns > 0)
            .min()
    }

    /// What a request takes beyond the network and the application that has read it:
    /// median.
    pub(super) fn unexplained_ns(&self) -> Option<u64> {
        let known = self.network_ns()? + self.server_app_ns?;
        Some(self.rr?.p50_ns.saturating_sub(known))
    }

    /// Whether a time beside the network's is large enough to need a name.
    pub(super) fn worth(&self, ns: u64) -> bool {
        ns > WORTH_NS.max(2 * self.network_ns().unwrap_or(0))
    }
}

/// Within a tenth, or 2 ms: timers are in jiffies of up to 4 ms, and readings are
/// smoothed.
pub(super) fn near(ns: u64, other_ns: u64) -> bool {
    other_ns > 0 && ns.abs_diff(other_ns) <= (other_ns / 10).max(2 * MS)
}
