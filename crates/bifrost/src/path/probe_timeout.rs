// SPDX-License-Identifier: Apache-2.0

//! The first timeout of a path probes before it retransmits. A peer that waits for a CPU
//! acknowledges nothing for milliseconds, and looks from here as a path does that has lost
//! a packet. So the first timeout has this path and all others probed (as RFC 9002, section
//! 6.2, whose probes carry data). An answer on this path shows what is missing. A datagram of the
//! peer on another path shows that the peer is awake and this path silent: then the packet is lost.
//! Without either, the peer could not be reached at all, and the third timeout counts as a loss.

use super::rtt::RttEstimator;
use crate::config::Rto;

/// An acknowledgement may come this long after what shows that the peer is awake.
pub(super) const SLACK_NS: u64 = 200_000;
/// The timeout, counted from 0, that is a loss whatever was received.
const LAST_PROBED: u32 = 2;

/// A path's timeout that is not known to mean loss yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    since_ns: u64,
    /// When a datagram of the peer first came since then, on any path.
    peer_awake_ns: Option<u64>,
    /// The oldest packets were taken for lost.
    confirmed: bool,
}

/// Whether a path waits for an answer about a timeout.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProbeTimeout(Option<Pending>);

impl ProbeTimeout {
    /// The retransmission timeout has come after `backoff` others. Whether it means loss; if
    /// not, the peer is to be probed.
    pub(super) fn on_timeout(&mut self, now_ns: u64, rto: Rto, backoff: u32) -> bool {
        let awake = self
            .0
            .is_some_and(|pending| pending.peer_awake_ns.is_some());
        if matches!(rto, Rto::Fixed(_)) || awake || backoff >= LAST_PROBED {
            return true;
        }
        self.0.get_or_insert(Pending {
            since_ns: now_ns,
            peer_awake_ns: None,
            confirmed: false,
        });
        false
    }

    /// When silence on this path, with a peer that is awake, means loss.
    pub(super) fn deadline(&self, rtt: &RttEstimator) -> Option<u64> {
        let pending = self.0.filter(|pending| !pending.confirmed)?;
        let answer_ns = pending.since_ns + rtt.spread_ns();
        Some(pending.peer_awake_ns?.max(answer_ns) + SLACK_NS)
    }

    /// That time has come.
    pub(super) fn confirm(&mut self) {
        if let Some(pending) = &mut self.0 {
            pending.confirmed = true;
        }
    }

    /// A datagram of the peer has come. What it sent before it could know of the probes says
    /// nothing.
    pub(super) fn on_peer_datagram(&mut self, now_ns: u64, rtt: &RttEstimator) {
        if let Some(pending) = &mut self.0
            && now_ns >= pending.since_ns + rtt.lowest_ns()
        {
            pending.peer_awake_ns.get_or_insert(now_ns);
        }
    }

    /// Whether it is not known yet that the peer is awake.
    pub(super) fn awaits_peer(&self) -> bool {
        self.0
            .is_some_and(|pending| pending.peer_awake_ns.is_none())
    }

    /// The path has answered.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}
