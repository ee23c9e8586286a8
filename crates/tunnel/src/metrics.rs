// SPDX-License-Identifier: Apache-2.0
//! `/metrics` of a tunnel, for Prometheus.

use std::fmt;

use causeway_api::tunnel::{PathView, TunnelStatus, TunnelTotals};
use causeway_service::metrics::{
    MetricsPage, build_info, config_in_force, counters, gauge, gauges,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// The page that a Prometheus server scrapes.
pub(crate) fn page(status: TunnelStatus) -> MetricsPage {
    MetricsPage::of([("causeway_tunnel", Box::new(Page(status)))])
}

#[derive(Debug)]
struct Page(TunnelStatus);

type OfTotals = fn(&TunnelTotals) -> u64;
type OfPath = fn(&PathView) -> u64;
type GaugeOfPath = fn(&PathView) -> f64;

/// Counters of the whole tunnel.
const COUNTERS: &[(&str, &str, Option<Unit>, OfTotals)] = &[
    ("frames_in", "Frames that came from the guests", None, |t| {
        t.frames_in
    }),
    (
        "frames_in",
        "Bytes of frames that came from the guests",
        Some(Unit::Bytes),
        |t| t.frame_bytes_in,
    ),
    (
        "frames_out",
        "Frames that went up to the guests",
        None,
        |t| t.frames_out,
    ),
    (
        "frames_out",
        "Bytes of frames that went up to the guests",
        Some(Unit::Bytes),
        |t| t.frame_bytes_out,
    ),
    ("chunks_sent", "Chunks sent for the first time", None, |t| {
        t.chunks_sent
    }),
    ("chunks_retransmitted", "Chunks retransmitted", None, |t| {
        t.chunks_retransmitted
    }),
    (
        "chunks_received",
        "Chunks that came in and were new",
        None,
        |t| t.chunks_received,
    ),
    (
        "frames_skipped",
        "Frames that a flow went on without",
        None,
        |t| t.frames_skipped,
    ),
    (
        "frames_reordered",
        "Frames that were whole before an earlier one",
        None,
        |t| t.frames_reordered,
    ),
    (
        "vnic_full",
        "Frames that the ring in front of the guest had no room for",
        None,
        |t| t.vnic_full,
    ),
    (
        "guest_refused",
        "Frames that the guest's kernel rejected",
        None,
        |t| t.guest_refused,
    ),
    (
        "guest_stuck",
        "Frames dropped because the guest's device was down or had no room for 200 ms",
        None,
        |t| t.guest_stuck,
    ),
    (
        "send_errors",
        "Messages that the kernel did not take for sending",
        None,
        |t| t.send_errors,
    ),
    (
        "socket_errors",
        "Errors that sockets reported, and empty datagrams",
        None,
        |t| t.socket_errors,
    ),
    ("sessions", "Sessions begun with the other end", None, |t| {
        t.sessions
    }),
];

const GAUGES: &[(&str, &str, Option<Unit>, OfTotals)] = &[
    ("frames_held", "Frames under way", None, |t| t.frames_held),
    ("chunks_held", "Chunks that wait for others", None, |t| {
        t.chunks_held
    }),
    (
        "memory",
        "Memory for payload in use",
        Some(Unit::Bytes),
        |t| t.memory_bytes,
    ),
];

const PATH_COUNTERS: &[(&str, &str, Option<Unit>, OfPath)] = &[
    ("path_sent", "Bytes sent", Some(Unit::Bytes), |p| {
        p.sent_bytes
    }),
    ("path_received", "Bytes received", Some(Unit::Bytes), |p| {
        p.received_bytes
    }),
    (
        "path_sent_chunks",
        "Chunks sent, retransmissions included",
        None,
        |p| p.sent_chunks,
    ),
    (
        "path_retransmitted_chunks",
        "Chunks retransmitted on this path",
        None,
        |p| p.retransmitted_chunks,
    ),
    ("path_received_chunks", "Chunks received", None, |p| {
        p.received_chunks
    }),
    (
        "path_spurious",
        "Chunks taken for lost and acknowledged afterwards",
        None,
        |p| p.spurious,
    ),
    ("path_timeouts", "Retransmission timeouts", None, |p| {
        p.timeouts
    }),
    (
        "path_switches",
        "Flows that switched to another path",
        None,
        |p| p.switches,
    ),
    (
        "path_failures",
        "Times that the path stopped answering",
        None,
        |p| p.failures,
    ),
    ("path_acks_sent", "Acknowledgements sent", None, |p| {
        p.acks_sent
    }),
];

const PATH_GAUGES: &[(&str, &str, Option<Unit>, GaugeOfPath)] = &[
    ("path_up", "1: alive in every thread", None, |p| {
        f64::from(u8::from(p.state == "alive"))
    }),
    (
        "path_rtt",
        "Smoothed round trip time",
        Some(Unit::Seconds),
        |p| p.rtt_us / 1e6,
    ),
    (
        "path_min_rtt",
        "Lowest round trip time",
        Some(Unit::Seconds),
        |p| p.min_rtt_us / 1e6,
    ),
    ("path_window", "Congestion window", Some(Unit::Bytes), |p| {
        p.window_bytes as f64
    }),
    (
        "path_inflight",
        "Sent and not acknowledged",
        Some(Unit::Bytes),
        |p| p.inflight_bytes as f64,
    ),
    ("path_mtu", "Largest IP packet", Some(Unit::Bytes), |p| {
        f64::from(p.mtu)
    }),
    (
        "path_share",
        "Part of all bytes sent",
        Some(Unit::Ratios),
        |p| p.share,
    ),
];

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(status) = self;
        for (name, help, unit, of) in COUNTERS {
            encoder
                .encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?
                .encode_counter::<NoLabelSet, _, u64>(&of(&status.totals), None)?;
        }
        for (name, help, unit, of) in GAUGES {
            let value = of(&status.totals);
            gauge(&mut encoder, name, help, unit.as_ref(), value)?;
        }
        let help = "Frames and chunks that went no further, by reason";
        let drops = status.drops.iter();
        let drops = drops.map(|drops| ([("reason", drops.reason.as_str())], drops.count));
        counters(&mut encoder, "drops", help, None, drops)?;
        self.paths(&mut encoder)?;
        self.lost(&mut encoder)?;
        let is_in_force = status.last_reload_error.is_none();
        config_in_force(&mut encoder, is_in_force, status.state_error.is_none())?;
        build_info(&mut encoder)
    }
}

impl Page {
    fn paths(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let paths = || {
            let paths = self.0.paths.iter();
            paths.map(|path| (path, [("path", path.id.to_string())]))
        };
        for (name, help, unit, of) in PATH_COUNTERS {
            let rows = paths().map(|(path, labels)| (labels, of(path)));
            counters(encoder, name, help, unit.as_ref(), rows)?;
        }
        for (name, help, unit, of) in PATH_GAUGES {
            let rows = paths().map(|(path, labels)| (labels, of(path)));
            gauges(encoder, name, help, unit.as_ref(), rows)?;
        }
        Ok(())
    }

    fn lost(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Chunks taken for lost, by what showed it";
        let lost = self.0.paths.iter().flat_map(|path| {
            let ways = [
                ("gap", path.lost_by_gap),
                ("timeout", path.lost_by_timeout),
                ("failure", path.lost_by_failure),
            ];
            ways.map(|(by, count)| {
                let labels = [("path", path.id.to_string()), ("by", by.to_owned())];
                (labels, count)
            })
        });
        counters(encoder, "path_lost_chunks", help, None, lost)
    }
}
