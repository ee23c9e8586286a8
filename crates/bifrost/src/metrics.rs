// SPDX-License-Identifier: Apache-2.0

//! Counters and gauges. Counters only grow, also over a restart of the peer.

use crate::drop_reason::{DropCounters, DropReason};

/// What a path can be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathState {
    /// New: no probe has been answered yet.
    #[default]
    Probing,
    /// Carries traffic.
    Alive,
    /// Does not answer; probed until it does.
    Dead,
}

impl PathState {
    /// The metric's and command's word.
    pub fn name(self) -> &'static str {
        match self {
            PathState::Probing => "probing",
            PathState::Alive => "alive",
            PathState::Dead => "dead",
        }
    }
}

/// One path, as [`crate::TransportEngine::path_metrics`] gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathMetrics {
    /// Its state.
    pub state: PathState,
    /// The MTU in use, in bytes; below the configured one after a shrink.
    pub mtu: u16,
    /// Smoothed RTT, 0 before the first sample.
    pub srtt_ns: u64,
    /// Lowest RTT of the last 5 to 10 s, 0 before the first sample.
    pub min_rtt_ns: u64,
    /// Mean deviation of the RTT.
    pub rtt_var_ns: u64,
    /// The retransmission timeout as it stands, without backing off.
    pub rto_ns: u64,
    /// The congestion window.
    pub window_bytes: u64,
    /// Sent and neither acknowledged nor taken for lost.
    pub inflight_bytes: u64,
    /// The largest `inflight_bytes` right after a send, as a share of the window that
    /// stood then, in thousandths: never above 1000.
    pub inflight_peak_permille: u32,
    /// Chunks sent, retransmissions included.
    pub sent_chunks: u64,
    /// Bytes of these, with headers.
    pub sent_bytes: u64,
    /// Chunks retransmitted on this path.
    pub retransmitted_chunks: u64,
    /// Data datagrams received and taken.
    pub received_chunks: u64,
    /// Bytes of these, with headers.
    pub received_bytes: u64,
    /// Chunks acknowledged by the peer.
    pub acked_chunks: u64,
    /// Chunks taken for lost by a gap in the bitmap,
    pub lost_by_gap: u64,
    /// by a timeout,
    pub lost_by_timeout: u64,
    /// because the path stopped answering.
    pub lost_by_failure: u64,
    /// Of all these, acknowledged afterwards: taken for lost spuriously.
    pub spurious: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Flows that left this path for another.
    pub switches: u64,
    /// Times that the path stopped answering.
    pub failures: u64,
    /// Acknowledgements sent and received.
    pub acks_sent: u64,
    /// See above.
    pub acks_received: u64,
    /// Probes sent.
    pub probes_sent: u64,
    /// Replies received.
    pub replies_received: u64,
    /// Packets that must follow a missing one before it is taken for lost; 3, more
    /// where the path reorders.
    pub reorder_threshold: u32,
}

/// The tunnel, as [`crate::TransportEngine::metrics`] gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelMetrics {
    /// Frames taken from the TUN.
    pub frames_in: u64,
    /// Bytes of these.
    pub frame_bytes_in: u64,
    /// Frames that the vNIC took.
    pub frames_out: u64,
    /// Bytes of these.
    pub frame_bytes_out: u64,
    /// Frames that the vNIC dropped.
    pub vnic_full: u64,
    /// Frames that had arrived and were retransmitted because the vNIC had dropped them.
    pub frames_retransmitted: u64,
    /// Frames that a flow went on without: they had not arrived in time.
    pub frames_skipped: u64,
    /// Chunks sent for the first time,
    pub chunks_sent: u64,
    /// and retransmitted.
    pub chunks_retransmitted: u64,
    /// Chunks received and new.
    pub chunks_received: u64,
    /// Frames under way.
    pub frames_held: u32,
    /// Bytes of these.
    pub frame_bytes_held: u64,
    /// Chunks received and not yet delivered.
    pub chunks_held: u32,
    /// Bytes of these.
    pub chunk_bytes_held: u64,
    /// The most chunks that were held at one time.
    pub chunks_held_peak: u32,
    /// Frames that arrived whole and had to wait for an earlier one of their flow.
    pub frames_reordered: u64,
    /// Sessions begun: 1, and one more with each restart of the peer.
    pub sessions: u64,
    pub(crate) drops: DropCounters,
}

impl TunnelMetrics {
    /// How often something was dropped for this reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason)
    }
}
