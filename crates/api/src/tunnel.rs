// SPDX-License-Identifier: Apache-2.0
//! The tunnel's answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Moment;

/// Answer of a tunnel's `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TunnelStatus {
    /// Version of the tunnel.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// When it started.
    pub started: Moment,
    /// When this was read.
    pub at: Moment,
    /// Configuration file.
    pub config_file: String,
    /// Why the last reload was refused, if it was; the state before it holds.
    pub last_reload_error: Option<String>,
    /// Whether it runs on the copy of the last good configuration, because the file was refused at
    /// the start.
    #[serde(default)]
    pub last_good: bool,
    /// Why the last good configuration would not outlive it, if so.
    #[serde(default)]
    pub state_error: Option<String>,
    /// The TUN device.
    pub device: String,
    /// Threads.
    pub threads: usize,
    /// Whether datagrams are encrypted.
    pub sealed: bool,
    /// Id of the key that this end sends with; 0 without keys.
    pub key: u8,
    /// Whether the guests' UDP comes merged (Linux 6.2 and newer at both ends).
    pub merges_udp: bool,
    /// Numbers of the threads without any path that is alive: their flows are not carried.
    #[serde(default)]
    pub threads_cut_off: Vec<usize>,
    /// Counts over all paths.
    pub totals: TunnelTotals,
    /// The paths, by id.
    pub paths: Vec<PathView>,
    /// Frames and chunks that went no further, by reason.
    pub drops: Vec<DropView>,
}

/// Counts of a tunnel since its start, and what it holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TunnelTotals {
    /// Frames that came from the guests, and their bytes.
    pub frames_in: u64,
    /// See `frames_in`.
    pub frame_bytes_in: u64,
    /// Frames that went up to the guests, and their bytes.
    pub frames_out: u64,
    /// See `frames_out`.
    pub frame_bytes_out: u64,
    /// Chunks that were sent for the first time, and retransmitted.
    pub chunks_sent: u64,
    /// See `chunks_sent`.
    pub chunks_retransmitted: u64,
    /// Chunks that came in and were new.
    pub chunks_received: u64,
    /// Frames that a flow went on without.
    pub frames_skipped: u64,
    /// Frames that were whole before an earlier one of their flow.
    pub frames_reordered: u64,
    /// Frames that the ring in front of the guest had no room for.
    pub vnic_full: u64,
    /// Frames that the guest's kernel rejected.
    pub guest_refused: u64,
    /// Frames that the guest's kernel had no room for during 200 ms, or that came while its device was
    /// down for as long.
    #[serde(default)]
    pub guest_stuck: u64,
    /// Messages that the kernel did not take for sending.
    pub send_errors: u64,
    /// What sockets reported (connection refused, no route), and empty datagrams.
    pub socket_errors: u64,
    /// Sessions that began: one a thread, and one more with each restart of the other end.
    pub sessions: u64,
    /// Frames under way, and chunks that wait for others.
    pub frames_held: u64,
    /// See `frames_held`.
    pub chunks_held: u64,
    /// Memory for payload that is in use.
    pub memory_bytes: u64,
}

/// A path over all threads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PathView {
    /// Its id.
    pub id: u8,
    /// Address and first port here.
    pub local: String,
    /// Address and first port there.
    pub remote: String,
    /// `alive`, `dead`, `probing`, `down` (not open), or `partly` where threads differ.
    pub state: String,
    /// Why its sockets cannot be opened, if they cannot; they are tried again.
    pub open_error: Option<String>,
    /// Largest IP packet in use.
    pub mtu: u16,
    /// Smoothed RTT, mean over the threads that have one.
    pub rtt_us: f64,
    /// Lowest RTT of the last seconds.
    pub min_rtt_us: f64,
    /// Retransmission timeout, the longest.
    pub rto_us: f64,
    /// Windows and what is in flight, sums.
    pub window_bytes: u64,
    /// See `window_bytes`.
    pub inflight_bytes: u64,
    /// Part of all bytes sent that went here, 0 to 1.
    pub share: f64,
    /// Chunks sent, retransmissions included, and their bytes.
    pub sent_chunks: u64,
    /// See `sent_chunks`.
    pub sent_bytes: u64,
    /// Chunks retransmitted on this path.
    pub retransmitted_chunks: u64,
    /// Chunks that came in, and their bytes.
    pub received_chunks: u64,
    /// See `received_chunks`.
    pub received_bytes: u64,
    /// Chunks taken for lost: by a gap, by a timeout, because the path stopped answering.
    pub lost_by_gap: u64,
    /// See `lost_by_gap`.
    pub lost_by_timeout: u64,
    /// See `lost_by_gap`.
    pub lost_by_failure: u64,
    /// Of these, acknowledged afterwards: taken for lost spuriously.
    pub spurious: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Flows that switched to another path.
    pub switches: u64,
    /// Times that the path stopped answering.
    pub failures: u64,
    /// Acknowledgements sent.
    pub acks_sent: u64,
}

/// One reason for drops.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DropView {
    /// Its word.
    pub reason: String,
    /// How often.
    pub count: u64,
}
