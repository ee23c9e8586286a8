// SPDX-License-Identifier: Apache-2.0
//! One recording, and the curves that the paper's figures draw from it.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use causeway_core::estimate::{Method, ModesConfig, Packet};
use causeway_core::flow::{FlowKey, Headers};
use causeway_report::chart::Series;

use super::super::Context;
use super::super::accuracy::judge::{self, Estimates, Flow};
use super::super::accuracy::rig::{self, Recording};
use super::super::accuracy::workload::AccuracyWorkload;

/// Epochs of Algorithm 2: the paper's example is 100 ms.
pub(super) const EPOCH_NS: u64 = 100_000_000;

/// A recorded workload.
pub(super) struct Recorded {
    pub recording: Recording,
    pub truth: HashMap<FlowKey, Flow>,
    /// Window-chain, Algorithm 2 with relative bins, and as published.
    pub estimates: Estimates<3>,
}

/// Weighted values, in milliseconds where nothing else is said.
type Values = Vec<(f64, f64)>;

impl Recorded {
    /// Runs and records a workload.
    pub(super) fn new(context: &Context, workload: &AccuracyWorkload) -> Result<Self> {
        context.say(format!("{}: {}", workload.name, workload.about));
        let recording = rig::record(context.sandbox, workload)?;
        let truth = judge::truth(&recording.log);
        let methods = [
            Method::WindowChain,
            Method::Modes(ModesConfig::default()),
            Method::Modes(ModesConfig::paper(judge::PAPER_EPSILON_NS)),
        ];
        let estimates =
            judge::estimate(&recording.pcap, EPOCH_NS, Headers::Clear, methods, |_| ())?;
        Ok(Self {
            recording,
            truth,
            estimates,
        })
    }

    /// Algorithm 2 with and without the paper's two heuristics.
    pub(super) fn heuristics(&self) -> Result<[Estimates<1>; 2]> {
        let with = [Method::Modes(ModesConfig::default())];
        let without = [Method::Modes(ModesConfig {
            mtu: 0,
            ..ModesConfig::default()
        })];
        // A pure ACK that is taken for a request.
        let blind = |packet: &mut Packet| packet.payload_len = packet.payload_len.max(1);
        let pcap = &self.recording.pcap;
        Ok([
            judge::estimate(pcap, EPOCH_NS, Headers::Clear, with, |_| ())?,
            judge::estimate(pcap, EPOCH_NS, Headers::Clear, without, blind)?,
        ])
    }

    fn responses(&self) -> Values {
        let all = self.truth.values().flat_map(|flow| &flow.responses);
        all.map(|&(_, ns)| (ms(ns), 1.0)).collect()
    }

    fn triggered(&self) -> Values {
        let all = self.truth.values().flat_map(|flow| &flow.triggered);
        all.map(|&(_, took, _)| (ms(took), 1.0)).collect()
    }

    fn samples(&self, method: usize) -> Values {
        let all = self.estimates.samples[method].values().flatten();
        all.map(|s| (s.mean_ns / 1e6, f64::from(s.weight_halves)))
            .collect()
    }

    /// The curves of figure 3 (a) and its like: truth, the clients' proxy,
    /// window-chain and Algorithm 2.
    pub(super) fn distributions(&self) -> Vec<Series> {
        vec![
            line("req-to-res (clients)", &self.responses()),
            line("req-to-req (clients)", &self.triggered()),
            line("window-chain", &self.samples(0)),
            line("Algorithm 2", &self.samples(1)),
        ]
    }

    /// Errors against the response latency: absolute in ms, and in percent of it.
    pub(super) fn errors(&self) -> [Vec<Series>; 2] {
        let proxy: Vec<(f64, f64)> = self
            .truth
            .values()
            .flat_map(|flow| &flow.triggered)
            .map(|&(_, took, latency)| (ms(took), ms(latency)))
            .collect();
        let names = ["req-to-req (clients)", "window-chain", "Algorithm 2"];
        let pairs = [proxy, self.paired(0), self.paired(1)];
        let lines = |error: fn(&(f64, f64)) -> f64| {
            let of = |pairs: &[(f64, f64)]| -> Vec<(f64, f64)> {
                pairs.iter().map(|p| (error(p), 1.0)).collect()
            };
            let both = names.iter().zip(&pairs);
            both.map(|(name, pairs)| line(name, &of(pairs))).collect()
        };
        [
            lines(|(estimate, truth)| truth - estimate),
            lines(|(estimate, truth)| (truth - estimate) / truth * 100.0),
        ]
    }

    /// Median error by epoch in percent: of the clients' proxy, then of the estimators. An epoch
    /// without an estimate counts as 100 % off.
    pub(super) fn medians(&self) -> Result<Vec<f64>> {
        let floor = judge::floor_median(&self.truth, EPOCH_NS);
        let others = judge::medians(&self.truth, &self.estimates, EPOCH_NS);
        let (floor, others) = floor.zip(others).context("no responses")?;
        Ok([vec![floor], others].concat())
    }

    /// Samples that differ from the clients' proxy by more than a tenth, by connection and in
    /// percent: their share, and their mean error. First those that the client's own delay before
    /// the triggered request explains by half, then the others: responses in several flights, and
    /// what else was taken for a pause.
    pub(super) fn erroneous(&self, method: usize) -> [[Values; 2]; 2] {
        let mut found: [[Values; 2]; 2] = Default::default();
        for (key, flow) in &self.truth {
            let samples = self.estimates.samples[method].get(key);
            let samples = samples.map_or(&[][..], Vec::as_slice);
            let mut pairs = 0;
            let mut errors: [Vec<f64>; 2] = Default::default();
            for &(sent_ns, took_ns, latency_ns) in &flow.triggered {
                let Some(sample) = judge::first_from(samples, sent_ns) else {
                    continue;
                };
                pairs += 1;
                let (took, delay) = (took_ns as f64, took_ns as f64 - latency_ns as f64);
                let error = (sample.mean_ns - took).abs();
                if error > took / 10.0 {
                    errors[usize::from(delay < error / 2.0)].push(error / took * 100.0);
                }
            }
            if pairs == 0 {
                continue;
            }
            for (of, errors) in found.iter_mut().zip(&errors) {
                of[0].push((errors.len() as f64 * 100.0 / f64::from(pairs), 1.0));
                if !errors.is_empty() {
                    of[1].push((errors.iter().sum::<f64>() / errors.len() as f64, 1.0));
                }
            }
        }
        found
    }

    /// Estimate and truth in ms of each response, paired as the judge does.
    fn paired(&self, method: usize) -> Vec<(f64, f64)> {
        let samples = &self.estimates.samples[method];
        let mut pairs = Vec::new();
        for (key, flow) in &self.truth {
            let of_flow = samples.get(key).map_or(&[][..], Vec::as_slice);
            for (latency, mean) in judge::pair(flow, of_flow) {
                pairs.push((mean / 1e6, ms(latency)));
            }
        }
        pairs
    }

    /// Requests per second that were answered.
    pub(super) fn rate(&self) -> f64 {
        let log = &self.recording.log;
        log.responses.len() as f64 * 1e9 / (log.end_ns - log.start_ns).max(1) as f64
    }

    /// Mean in ms of responses, of the clients' proxy and of window-chain.
    pub(super) fn means(&self) -> [f64; 3] {
        let mean = |values: &Values| {
            let weight: f64 = values.iter().map(|v| v.1).sum();
            values.iter().map(|v| v.0 * v.1).sum::<f64>() / weight
        };
        [
            mean(&self.responses()),
            mean(&self.triggered()),
            mean(&self.samples(0)),
        ]
    }

    /// Relative error in percent of each connection's mean.
    pub(super) fn by_connection(&self) -> Vec<Series> {
        let mut errors = [Vec::new(), Vec::new()];
        for (key, flow) in &self.truth {
            let mean = |values: &mut dyn Iterator<Item = f64>| {
                let values: Vec<f64> = values.collect();
                values.iter().sum::<f64>() / values.len() as f64
            };
            let truth = mean(&mut flow.responses.iter().map(|r| r.1 as f64));
            let proxy = mean(&mut flow.triggered.iter().map(|t| t.1 as f64));
            errors[0].push(((truth - proxy) / truth * 100.0, 1.0));
            let samples = self.estimates.samples[0].get(key);
            if let Some(samples) = samples.filter(|s| !s.is_empty()) {
                let weight: f64 = samples.iter().map(|s| f64::from(s.weight_halves)).sum();
                let sum = samples
                    .iter()
                    .map(|s| s.mean_ns * f64::from(s.weight_halves));
                let estimate = sum.sum::<f64>() / weight;
                errors[1].push(((truth - estimate) / truth * 100.0, 1.0));
            }
        }
        let names = ["req-to-req (clients)", "window-chain"];
        let both = names.iter().zip(&errors);
        both.map(|(name, errors)| line(name, errors)).collect()
    }

    /// The flow with the most responses.
    pub(super) fn busiest(&self) -> Option<(&FlowKey, &Flow)> {
        self.truth
            .iter()
            .max_by_key(|(_, flow)| flow.responses.len())
    }
}

/// Nanoseconds in milliseconds.
pub(super) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A distribution under a name.
pub(super) fn line(name: &str, values: &[(f64, f64)]) -> Series {
    Series::new(name, cdf(values))
}

/// Points of the cumulative distribution of weighted values: value, share.
fn cdf(values: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let total: f64 = sorted.iter().map(|v| v.1).sum();
    let mut points = Vec::new();
    let (mut below, mut next) = (0.0, 0.0);
    for (value, weight) in sorted {
        below += weight;
        // A point for each half percent keeps the file small.
        if below >= next * total {
            points.push((value, below / total));
            next = below / total + 0.005;
        }
    }
    points
}

/// The value below which a share of a distribution from [`cdf`] lies.
pub(super) fn quantile(cdf: &[(f64, f64)], share: f64) -> Option<f64> {
    let at = cdf.partition_point(|p| p.1 < share);
    cdf.get(at).or(cdf.last()).map(|p| p.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_count_in_a_distribution() {
        let cdf = cdf(&[(3.0, 1.0), (1.0, 2.0), (2.0, 1.0)]);
        assert_eq!(cdf, [(1.0, 0.5), (2.0, 0.75), (3.0, 1.0)]);
        assert_eq!(quantile(&cdf, 0.5), Some(1.0));
        assert_eq!(quantile(&cdf, 0.9), Some(3.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
