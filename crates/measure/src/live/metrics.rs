// SPDX-License-Identifier: Apache-2.0
//! The page that a Prometheus server scrapes. Names are `causeway_measure_*`, units
//! are seconds.

use std::fmt;

use causeway_core::hist::Latencies;
use causeway_service::metrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::super::rows::Style;
use super::super::totals::Totals;
use super::Counters;

/// Bounds of the latency histogram: 2^k and 1.5 * 2^k ns from 16 us to 34 s. They are
/// bounds of our own buckets, so that counts are exact.
const FIRST_POWER: u32 = 14;
const LAST_POWER: u32 = 35;

/// The page, as things are.
pub(super) fn page(totals: &Totals, style: &Style, counters: &Counters) -> anyhow::Result<String> {
    let groups = totals.groups();
    let latencies = groups.iter().map(|(key, method, total)| Group {
        labels: labels(style, key, *method),
        sum_s: sum_s(&total.latencies),
        count: total.latencies.count() / 2,
        buckets: buckets(&total.latencies),
    });
    let page = Page {
        groups: latencies.collect(),
        counters: counters.clone(),
    };
    Ok(metrics::page([("causeway_measure", Box::new(page))])?)
}

#[derive(Debug)]
struct Page {
    groups: Vec<Group>,
    counters: Counters,
}

#[derive(Debug)]
struct Group {
    labels: Vec<(&'static str, String)>,
    sum_s: f64,
    count: u64,
    buckets: Vec<(f64, u64)>,
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

/// Counts between neighbouring bounds, not cumulative. Ours are of halves.
fn buckets(latencies: &Latencies) -> Vec<(f64, u64)> {
    let bounds: Vec<u64> = (FIRST_POWER..=LAST_POWER)
        .flat_map(|power| [1 << power, 3 << (power - 1)])
        .collect();
    let mut halves = vec![0; bounds.len() + 1];
    for bucket in latencies.buckets() {
        halves[bounds.partition_point(|bound| *bound < bucket.to_ns)] += bucket.count;
    }
    // Rounded as sums, so that none is lost and the last one is the count.
    let (mut before, mut seen) = (0, 0);
    let ends = bounds
        .iter()
        .map(|ns| *ns as f64 / 1e9)
        .chain([f64::INFINITY]);
    ends.zip(halves)
        .map(|(end_s, half)| {
            seen += half;
            let count = seen / 2 - before;
            before = seen / 2;
            (end_s, count)
        })
        .collect()
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
        let mut family = encoder.encode_descriptor(
            "latency",
            "What the estimator measures, by its name; response latency by default",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for group in &self.groups {
            let labels: Vec<(&str, &str)> = group
                .labels
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            family
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(group.sum_s, group.count, &group.buckets, None)?;
        }
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
        let buckets = buckets(&latencies);
        assert_eq!(buckets.iter().map(|b| b.1).sum::<u64>(), 16 / 2);
        assert_eq!(latencies.count() / 2, 8);
        assert_eq!(buckets[0], (16_384e-9, 1));
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 1)));
        assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
