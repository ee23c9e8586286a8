// SPDX-License-Identifier: Apache-2.0
//! Client latency, in an agent's `/metrics`.

use std::collections::BTreeMap;
use std::fmt;

use causeway_api::agent::{CategoryView, ClientsView, HistogramView};
use causeway_service::metrics::{counters, gauge, gauges};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

type Count = fn(&CategoryView) -> f64;
type Mean = fn(&CategoryView) -> Option<f64>;
type Times = fn(&CategoryView) -> &HistogramView;

const COUNTERS: &[(&str, &str, Option<Unit>, Count)] = &[
    (
        "syns_offered",
        "SYNs that came and had not been answered",
        None,
        |of| of.totals.offered as f64,
    ),
    ("syns_accepted", "SYNs that were answered", None, |of| {
        of.totals.accepted as f64
    }),
    ("syns_refused", "SYNs answered with a RST", None, |of| {
        of.totals.refused as f64
    }),
    (
        "syns_duplicate",
        "SYNs that had been answered",
        None,
        |of| of.totals.duplicates as f64,
    ),
    ("established", "Clients whose first ACK came", None, |of| {
        of.totals.established as f64
    }),
    (
        "abandoned",
        "Attempts that ended before their clients were connected",
        None,
        |of| of.totals.abandoned as f64,
    ),
    (
        "unused",
        "Connections that ended and on which nothing was asked",
        None,
        |of| of.totals.unused as f64,
    ),
    (
        "completed",
        "Transactions that ended with an answer",
        None,
        |of| of.totals.completed as f64,
    ),
    (
        "later",
        "Of the completed those that began with a request on an open connection",
        None,
        |of| of.totals.later as f64,
    ),
    (
        "gave_up",
        "Clients that gave up before they were connected",
        None,
        |of| of.totals.gave_up as f64,
    ),
    (
        "stalled",
        "Connections that the server never served",
        None,
        |of| of.totals.stalled as f64,
    ),
    (
        "lost",
        "Time lost before connections",
        Some(Unit::Seconds),
        |of| of.totals.lost_s,
    ),
    (
        "server",
        "Time at the server, from the answered SYN or the request to the last data",
        Some(Unit::Seconds),
        |of| of.totals.server_s,
    ),
    (
        "network",
        "Round trips of handshakes",
        Some(Unit::Seconds),
        |of| of.totals.network_s,
    ),
    (
        "timed",
        "Transactions of which it is known what the server took from the request on",
        None,
        |of| of.totals.timed as f64,
    ),
    (
        "timed_server",
        "What the server took for the timed ones, from the request to its last data",
        Some(Unit::Seconds),
        |of| of.totals.timed_s,
    ),
    (
        "overlapping",
        "Transactions that cannot be timed: their clients asked before they had their answers",
        None,
        |of| of.totals.overlapping as f64,
    ),
];

/// In seconds.
const MEANS: &[(&str, &str, Mean)] = &[
    (
        "response_exact",
        "Mean client response time by the tracker, over the last seconds",
        |of| of.exact.mean_s,
    ),
    (
        "response_model",
        "Mean client response time by the model, over the last seconds",
        |of| of.model.mean_s,
    ),
    (
        "response_syn_to_end",
        "Mean SYN-to-END, the server's own view, over the last seconds",
        |of| of.syn_to_end_s,
    ),
];

/// Families of their own, as the one begins anew with the kernel's counts and the other with each
/// agent.
const HISTOGRAMS: &[(&str, &str, Times)] = &[
    (
        "response",
        "Client response times: completed and stalled",
        |of| &of.responses,
    ),
    (
        "gave_up",
        "How long clients waited that gave up before they were connected",
        |of| &of.gave_up,
    ),
];

/// Client latency: counters of all categories, means of the last seconds.
#[derive(Debug)]
pub(super) struct ClientsPage(pub ClientsView);

impl Collector for ClientsPage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let categories = || {
            let categories = self.0.categories.iter();
            categories.map(|of| (of, client_labels(of)))
        };
        for (name, help, unit, value) in COUNTERS {
            let rows = categories().map(|(of, labels)| (labels, value(of)));
            counters(&mut encoder, name, help, unit.as_ref(), rows)?;
        }
        let seconds = Some(&Unit::Seconds);
        for (name, help, value) in MEANS {
            let rows = categories().filter_map(|(of, labels)| Some((labels, value(of)?)));
            gauges(&mut encoder, name, help, seconds, rows)?;
        }
        for (name, help, times) in HISTOGRAMS {
            let mut family =
                encoder.encode_descriptor(name, help, seconds, MetricType::Histogram)?;
            for (of, labels) in categories() {
                let times = times(of);
                let bounds_s = times.bounds_s.iter().copied().chain([f64::INFINITY]);
                let buckets: Vec<(f64, u64)> = bounds_s.zip(times.counts.iter().copied()).collect();
                let count = times.counts.iter().sum();
                family
                    .encode_family(&labels)?
                    .encode_histogram::<NoLabelSet>(times.sum_s, count, &buckets, None)?;
            }
        }
        let help = "Transactions of the last seconds, which the means are of";
        let rows = categories().map(|(of, labels)| (labels, of.exact.transactions));
        gauges(&mut encoder, "window_transactions", help, None, rows)?;
        let help = "Hooks of interfaces that have no program now, so that nothing is counted there";
        let missing = self.0.hooks_missing as f64;
        gauge(&mut encoder, "hooks_missing", help, None, missing)?;
        let help = "Hooks that were found without their program";
        encoder
            .encode_descriptor("hooks_lost", help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&self.0.hooks_lost, None)?;
        let help = "Whether a threshold of this name is exceeded: 1, or 0";
        // Several may have one name.
        let mut exceeded = BTreeMap::new();
        for threshold in &self.0.thresholds {
            for of in &threshold.categories {
                let labels = [
                    ("threshold", threshold.name.as_str()),
                    ("service", of.service.as_str()),
                    ("clients", of.clients.as_str()),
                    ("device", of.device.as_str()),
                ];
                *exceeded.entry(labels).or_insert(false) |= of.exceeded;
            }
        }
        let rows = exceeded
            .into_iter()
            .map(|(labels, exceeded)| (labels, f64::from(u8::from(exceeded))));
        gauges(&mut encoder, "threshold_exceeded", help, None, rows)?;
        let help = "Share of first SYNs that are of a flood";
        let floods = categories().map(|(of, labels)| (labels, of.flood_share));
        gauges(&mut encoder, "flood_ratio", help, None, floods)
    }
}

fn client_labels(of: &CategoryView) -> [(&'static str, &str); 3] {
    [
        ("service", of.service.as_str()),
        ("clients", of.clients.as_str()),
        ("device", of.device.as_str()),
    ]
}
