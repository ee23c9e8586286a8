// SPDX-License-Identifier: Apache-2.0
//! The status of a tunnel, over all its threads.

use causeway_bifrost::{DropReason, PathMetrics, PathState};
use serde::{Deserialize, Serialize};

use super::shard::ShardReport;
use crate::config::TunnelConfig;
use crate::daemon::clock::Moment;

/// Answer of a tunnel's `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// The TUN device.
    pub device: String,
    /// Threads.
    pub threads: usize,
    /// Whether datagrams are encrypted.
    pub sealed: bool,
    /// Id of the key that this end sends with; 0 without keys.
    pub key: u8,
    /// Whether the guests' UDP comes merged (Linux 6.2 and newer).
    pub merges_udp: bool,
    /// Counts over all paths.
    pub totals: TunnelTotals,
    /// The paths, by id.
    pub paths: Vec<PathView>,
    /// Frames and chunks that went no further, by reason.
    pub drops: Vec<DropView>,
}

/// Counts of a tunnel since its start, and what it holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    /// Frames that the guest's kernel did not take.
    pub guest_refused: u64,
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PathView {
    /// Its id.
    pub id: u8,
    /// Address and first port here.
    pub local: String,
    /// Address and first port there.
    pub remote: String,
    /// `alive`, `dead`, `probing`, `down`, or `partly` where threads differ.
    pub state: String,
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DropView {
    /// Its word.
    pub reason: String,
    /// How often.
    pub count: u64,
}

/// Adds the threads up.
pub fn totals(reports: &[ShardReport]) -> TunnelTotals {
    let mut all = TunnelTotals::default();
    for report in reports {
        let one = &report.tunnel;
        all.frames_in += one.frames_in;
        all.frame_bytes_in += one.frame_bytes_in;
        all.frames_out += one.frames_out;
        all.frame_bytes_out += one.frame_bytes_out;
        all.chunks_sent += one.chunks_sent;
        all.chunks_retransmitted += one.chunks_retransmitted;
        all.chunks_received += one.chunks_received;
        all.frames_skipped += one.frames_skipped;
        all.frames_reordered += one.frames_reordered;
        all.vnic_full += one.vnic_full;
        all.guest_refused += report.written.1;
        all.send_errors += report.send_errors;
        all.socket_errors += report.socket_errors;
        all.sessions += one.sessions;
        all.frames_held += u64::from(one.frames_held);
        all.chunks_held += u64::from(one.chunks_held);
        all.memory_bytes += report.memory_bytes;
    }
    all
}

/// All reasons, in the order of the engine's counters.
pub fn drops(reports: &[ShardReport]) -> Vec<DropView> {
    let count = |reason| reports.iter().map(|r| r.tunnel.drops(reason)).sum();
    DropReason::ALL
        .iter()
        .map(|reason| DropView {
            reason: reason.name().to_owned(),
            count: count(*reason),
        })
        .collect()
}

/// The paths of a configuration over the threads.
pub fn paths(config: &TunnelConfig, reports: &[ShardReport]) -> Vec<PathView> {
    let mut views: Vec<PathView> = config
        .paths
        .iter()
        .map(|(id, path)| {
            let of_path: Vec<PathMetrics> = reports
                .iter()
                .filter_map(|report| report.paths.get(id).copied())
                .collect();
            PathView {
                id: *id,
                local: path.local.to_string(),
                remote: path.remote.to_string(),
                ..view(&of_path)
            }
        })
        .collect();
    let sent: u64 = views.iter().map(|path| path.sent_bytes).sum();
    for path in &mut views {
        path.share = path.sent_bytes as f64 / sent.max(1) as f64;
    }
    views
}

fn view(threads: &[PathMetrics]) -> PathView {
    let sum = |of: fn(&PathMetrics) -> u64| threads.iter().map(of).sum::<u64>();
    let measured = || threads.iter().filter(|path| path.srtt_ns > 0);
    let count = measured().count().max(1) as f64;
    let mean_us =
        |of: fn(&PathMetrics) -> u64| measured().map(of).sum::<u64>() as f64 / count / 1e3;
    PathView {
        state: state(threads).to_owned(),
        mtu: threads.iter().map(|path| path.mtu).min().unwrap_or(0),
        rtt_us: mean_us(|path| path.srtt_ns),
        min_rtt_us: mean_us(|path| path.min_rtt_ns),
        rto_us: threads.iter().map(|path| path.rto_ns).max().unwrap_or(0) as f64 / 1e3,
        window_bytes: sum(|path| path.window_bytes),
        inflight_bytes: sum(|path| path.inflight_bytes),
        sent_chunks: sum(|path| path.sent_chunks),
        sent_bytes: sum(|path| path.sent_bytes),
        retransmitted_chunks: sum(|path| path.retransmitted_chunks),
        received_chunks: sum(|path| path.received_chunks),
        received_bytes: sum(|path| path.received_bytes),
        lost_by_gap: sum(|path| path.lost_by_gap),
        lost_by_timeout: sum(|path| path.lost_by_timeout),
        lost_by_failure: sum(|path| path.lost_by_failure),
        spurious: sum(|path| path.spurious),
        timeouts: sum(|path| path.timeouts),
        switches: sum(|path| path.switches),
        failures: sum(|path| path.failures),
        acks_sent: sum(|path| path.acks_sent),
        ..PathView::default()
    }
}

fn state(threads: &[PathMetrics]) -> &'static str {
    let Some(first) = threads.first() else {
        return PathState::Probing.name();
    };
    match threads.iter().all(|path| path.state == first.state) {
        true => first.state.name(),
        false => "partly",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(state: PathState, srtt_ns: u64, sent_bytes: u64) -> PathMetrics {
        PathMetrics {
            state,
            srtt_ns,
            sent_bytes,
            ..PathMetrics::default()
        }
    }

    #[test]
    fn threads_add_up() {
        let both = [
            path(PathState::Alive, 100_000, 5),
            path(PathState::Alive, 300_000, 7),
        ];
        let sum = view(&both);
        assert_eq!(
            (sum.state.as_str(), sum.rtt_us, sum.sent_bytes),
            ("alive", 200.0, 12)
        );
        // One that has not measured yet does not count as fast.
        let one = view(&[both[0], path(PathState::Dead, 0, 0)]);
        assert_eq!((one.state.as_str(), one.rtt_us), ("partly", 100.0));
        assert_eq!(view(&[]).state, "probing");
    }
}
