// SPDX-License-Identifier: Apache-2.0
//! The status of a tunnel, over all its threads.

use std::collections::BTreeMap;

use causeway_api::tunnel::{DropView, PathView, TunnelTotals};
use causeway_bifrost::{DropReason, PathMetrics, PathState};

use super::shard::ShardReport;
use crate::config::TunnelConfig;

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
        all.guest_refused += report.guest.refused;
        all.guest_stuck += report.guest.stuck;
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

/// The threads without any path that is alive.
pub fn cut_off(reports: &[ShardReport]) -> Vec<usize> {
    let is_cut_off = |report: &&ShardReport| {
        let mut paths = report.paths.values();
        !paths.any(|path| path.state == PathState::Alive)
    };
    let mut threads: Vec<usize> = reports
        .iter()
        .filter(is_cut_off)
        .map(|report| report.number)
        .collect();
    // They answer in any order.
    threads.sort_unstable();
    threads
}

/// The paths of a configuration over the threads; `faults` are why paths are not open.
pub fn paths(
    config: &TunnelConfig,
    faults: &BTreeMap<u8, String>,
    reports: &[ShardReport],
) -> Vec<PathView> {
    let mut views: Vec<PathView> = config
        .paths
        .iter()
        .map(|(id, path)| {
            let of_path: Vec<PathMetrics> = reports
                .iter()
                .filter_map(|report| report.paths.get(id).copied())
                .collect();
            let open_error = faults.get(id).cloned();
            let sum = view(&of_path);
            PathView {
                id: *id,
                local: path.local.to_string(),
                remote: path.remote.to_string(),
                state: match of_path.is_empty() && open_error.is_some() {
                    true => "down".to_owned(),
                    false => sum.state,
                },
                open_error,
                ..sum
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

    #[test]
    fn a_thread_without_a_path_that_is_alive_is_cut_off() {
        let report = |number, states: &[PathState]| ShardReport {
            number,
            paths: (0..)
                .zip(states.iter().map(|state| path(*state, 0, 0)))
                .collect(),
            ..ShardReport::default()
        };
        let reports = [
            report(3, &[PathState::Probing, PathState::Dead]),
            report(1, &[]),
            report(0, &[PathState::Dead, PathState::Alive]),
        ];
        assert_eq!(cut_off(&reports), [1, 3]);
    }

    #[test]
    fn a_path_that_is_not_open_is_down_and_says_why() {
        let text = "[tunnel]\ndevice = \"cw0\"\nkeys = \"none\"\n\
                    [[tunnel.path]]\nid = 2\nlocal = \"192.0.2.1:7000\"\nremote = \"192.0.2.2:7000\"\n";
        let config = TunnelConfig::parse("tunnel.toml".as_ref(), text).unwrap();
        let told = |faults| {
            let views = paths(&config, &faults, &[ShardReport::default()]);
            (views[0].state.clone(), views[0].open_error.clone())
        };
        assert_eq!(told(BTreeMap::new()), ("probing".to_owned(), None));
        let why = "no such address".to_owned();
        let down = ("down".to_owned(), Some(why.clone()));
        assert_eq!(told(BTreeMap::from([(2, why)])), down);
    }
}
