// SPDX-License-Identifier: Apache-2.0
//! The page that a Prometheus server scrapes. Names are `causeway_measure_*`, units
//! are seconds.

use std::fmt;
use std::ops::RangeInclusive;

use causeway_core::hist::{Bucket, Latencies};
use causeway_service::metrics::{LatencyRow, MetricsPage, latencies};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::super::rows::Style;
use super::super::totals::Totals;
use super::Counters;

/// Bounds of the latency histogram: 2^k and 1.5 * 2^k ns from 16 us to 34 s. They are
/// bounds of our own buckets, so that counts are exact.
const POWERS: RangeInclusive<u32> = 14..=35;

/// The page, as things are.
pub(super) fn page(totals: &Totals, style: &Style, counters: &Counters) -> MetricsPage {
    let groups = totals.groups();
    let latencies = groups.iter().map(|(key, method, total)| Group {
        labels: labels(style, key, *method),
        row: LatencyRow::of(
            sum_s(&total.latencies),
            wholes(&total.latencies),
            POWERS,
            Latencies::LINEAR,
        ),
    });
    let page = Page {
        groups: latencies.collect(),
        counters: counters.clone(),
    };
    MetricsPage::of([("causeway_measure", Box::new(page))])
}

#[derive(Debug)]
struct Page {
    groups: Vec<Group>,
    counters: Counters,
}

#[derive(Debug)]
struct Group {
    labels: Vec<(&'static str, String)>,
    row: LatencyRow,
}

fn labels(
    style: &Style,
    key: &causeway_core::flow::FlowKey,
    method: u8,
) -> Vec<(&'static str, String)> {
    let name = style.grouping.name(key);
    let mut labels = vec![("estimator", style.label(method).name.to_owned())];
    labels.extend(name.client_net.map(|net| ("client_net", net)));
    labels.extend(name.proto.map(|proto| ("proto", proto.to_string())));
    labels.extend(name.dst.map(|dst| ("address", dst.to_string())));
    labels.extend(name.dport.map(|port| ("port", port.to_string())));
    labels
}

/// Every value taken as the middle of its bucket, so that sum and counts are of the
/// same samples.
fn sum_s(latencies: &Latencies) -> f64 {
    let sums = latencies
        .buckets()
        .map(|b| b.count as f64 * b.middle_ns() as f64);
    sums.sum::<f64>() / 2e9
}

/// The buckets in whole samples, for ours are of halves: rounded as sums, so that none is lost.
fn wholes(latencies: &Latencies) -> impl Iterator<Item = Bucket> + Clone + '_ {
    let (mut halves, mut before) = (0_u64, 0);
    latencies.buckets().map(move |bucket| {
        halves = halves.saturating_add(bucket.count);
        let count = halves / 2 - before;
        before = halves / 2;
        Bucket { count, ..bucket }
    })
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "packets",
            "Packets by what became of them",
            None,
            MetricType::Counter,
        )?;
        for (word, count) in &self.counters.packets {
            let verdict = word.replace(' ', "_");
            family
                .encode_family(&[("verdict", verdict.as_str())])?
                .encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        let lost = self.counters.lost.map_or(0, |(lost, _)| lost);
        encoder
            .encode_descriptor(
                "lost",
                "Records or packets that came faster than they could be read",
                None,
                MetricType::Counter,
            )?
            .encode_counter::<NoLabelSet, _, u64>(&lost, None)?;
        let rows = self.groups.iter().map(|group| {
            let labels = group.labels.iter();
            let labels: Vec<(&str, &str)> = labels
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            (labels, &group.row)
        });
        let help = "What the estimator measures, by its name; response latency by default";
        latencies(&mut encoder, "latency", help, rows)?;
        encoder
            .encode_descriptor("build_info", "1, with the version", None, MetricType::Gauge)?
            .encode_family(&[("version", env!("CARGO_PKG_VERSION"))])?
            .encode_gauge(&1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_every_whole_sample_once() {
        let mut latencies = Latencies::default();
        for (ns, halves) in [(1_000, 3), (20_000_000, 10), (20_100_000, 1), (u64::MAX, 2)] {
            latencies.record_n(ns, halves);
        }
        let counts: Vec<u64> = wholes(&latencies).map(|bucket| bucket.count).collect();
        assert_eq!(counts.iter().sum::<u64>(), 16 / 2);
        assert_eq!(counts, [1, 5, 1, 1]);
    }
}
