// SPDX-License-Identifier: Apache-2.0
//! Estimates from a recording against what the clients measured.
//!
//! By epoch: truth is the mean latency of the flow's responses whose last byte
//! fell in the epoch, and the error is (estimate - truth) / truth. The floor is
//! the same with the clients' own mean time from a request to the request that
//! its response set off in place of the estimate: what the idea allows at best.
//!
//! By response, as PIRATE defines accuracy (section 5.1): (truth - estimate) /
//! truth, where a response's estimate is that of the first sample of its flow
//! from its last byte on.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, ensure};
use causeway_core::capture::{Poll, Reader};
use causeway_core::estimate::{FixedGapConfig, Method, ModesConfig, Packet, Quality, Sample};
use causeway_core::flow::{
    Direction, FlowEstimate, FlowKey, FlowMeter, Headers, MeterSettings, Observation, Sink,
};
use causeway_core::wire;
use serde::Serialize;

use super::rig::Recording;
use super::workload::Target;
use crate::load::log::Log;

/// Epsilon of Algorithm 2 where it runs as the paper states it; the paper gives none. The scenario
/// `modes` has others.
pub(crate) const PAPER_EPSILON_NS: u64 = 50_000;

/// Errors of one estimator, in percent of the truth. None of nothing: what says nothing is not
/// right.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Errors {
    /// Epochs compared.
    pub epochs: usize,
    /// Share of the epochs with responses that have an estimate.
    pub answered_pct: f64,
    /// Median of the absolute error.
    pub median_pct: Option<f64>,
    /// Signed.
    pub bias_pct: Option<f64>,
    pub p10_pct: Option<f64>,
    pub p90_pct: Option<f64>,
    /// Share of epochs within 10 %.
    pub within10_pct: f64,
    /// The largest median of the absolute error of a single flow; none where a flow has no estimate.
    pub worst_flow_pct: Option<f64>,
    /// Flows with responses and without an estimate.
    pub unmeasured_flows: usize,
}

/// By response, signed.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ByResponse {
    pub responses: usize,
    pub median_pct: Option<f64>,
    pub p5_pct: Option<f64>,
    pub p95_pct: Option<f64>,
    /// Share of responses within 10 %.
    pub within10_pct: f64,
}

/// How good the estimates of one grade are.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Grade {
    pub quality: &'static str,
    pub epochs: usize,
    pub within10_pct: f64,
}

/// All about one recording.
#[derive(Debug, Serialize)]
pub(crate) struct Judgement {
    pub responses: usize,
    pub packets: u64,
    pub lost: u64,
    pub flows: usize,
    /// Median latency of the responses.
    pub latency_p50_us: Option<f64>,
    pub floor: Errors,
    pub window_chain: Errors,
    pub by_response: ByResponse,
    pub floor_by_response: ByResponse,
    pub opaque: Errors,
    pub fixed_gap: Errors,
    pub modes: Errors,
    /// Algorithm 2 with absolute bins and the largest mode.
    pub modes_as_published: Errors,
    pub grades: Vec<Grade>,
}

/// Whether a row meets its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AccuracyVerdict {
    Met,
    Missed,
    /// There is no target.
    None,
}

/// Holds a judgement against a target.
pub(crate) fn verdict(target: &Target, found: &Judgement) -> AccuracyVerdict {
    let errors = &found.window_chain;
    let response = &found.by_response;
    let at_most = |found: Option<f64>, most: f64| found.is_some_and(|found| found <= most);
    let checks = [
        target
            .median_pct
            .map(|most| at_most(errors.median_pct, most)),
        target
            .within10_pct
            .map(|least| errors.within10_pct >= least),
        target
            .worst_flow_pct
            .map(|most| at_most(errors.worst_flow_pct, most)),
        target.signed_pct.map(|most| {
            at_most(response.median_pct.map(f64::abs), most)
                && at_most(response.p5_pct.map(|of| -of), 10.0)
                && at_most(response.p95_pct, 10.0)
        }),
    ];
    let answered = errors.answered_pct >= 95.0;
    match checks.iter().flatten().copied().reduce(|a, b| a && b) {
        None => AccuracyVerdict::None,
        Some(true) if answered => AccuracyVerdict::Met,
        Some(_) => AccuracyVerdict::Missed,
    }
}

/// Estimates of one flow by start of epoch: mean in ns and grade.
type Epochs = HashMap<FlowKey, BTreeMap<u64, (f64, Quality)>>;

/// Latencies that became known together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timed {
    /// The time that they belong to. Nanoseconds of wall time.
    pub when_ns: u64,
    pub mean_ns: f64,
    /// Their weight in half samples.
    pub weight_halves: u32,
}

/// What estimators found in a recording, for each of them.
pub(crate) struct Estimates<const N: usize> {
    epochs: [Epochs; N],
    /// Samples of each flow, in order of time.
    pub samples: [HashMap<FlowKey, Vec<Timed>>; N],
    /// Packets in the recording.
    packets: u64,
}

impl<const N: usize> Sink for Estimates<N> {
    fn sample(&mut self, flow: &FlowKey, method: u8, sample: &Sample) {
        if let Some(mean_ns) = sample.mean_ns() {
            let samples = self.samples[usize::from(method)].entry(*flow);
            samples.or_default().push(Timed {
                when_ns: sample.when_ns,
                mean_ns,
                weight_halves: sample.weight_halves,
            });
        }
    }

    fn row(&mut self, row: &FlowEstimate) {
        if let Some(mean_ns) = row.tally.mean_ns() {
            let quality = row.tally.confidence().quality;
            let flow = self.epochs[usize::from(row.method)].entry(row.flow);
            flow.or_default().insert(row.epoch_ns, (mean_ns, quality));
        }
    }
}

/// Runs estimators over a recording, as `causeway measure -r` does; `edit` may
/// change what they see of each packet.
pub(crate) fn estimate<const N: usize>(
    pcap: &[u8],
    epoch_ns: u64,
    headers: Headers,
    methods: [Method; N],
    edit: impl Fn(&mut Packet),
) -> Result<Estimates<N>> {
    let mut found = Estimates {
        epochs: std::array::from_fn(|_| Epochs::new()),
        samples: std::array::from_fn(|_| HashMap::new()),
        packets: 0,
    };
    let mut meter = FlowMeter::new(MeterSettings {
        epoch_ns,
        methods,
        direction: Direction::default(),
        max_flows: 1 << 16,
        seed: 1,
        early: false,
    });
    let mut reader = Reader::default();
    reader.feed(pcap);
    reader.finish();
    while let Poll::Packet(packet) = reader.poll()? {
        let time_ns = packet.time_ns.context("a packet without a time")?;
        let link = packet.link.context("an unknown link type")?;
        let seen = wire::parse(link, packet.data, packet.wire_len)
            .and_then(|datagram| Observation::new(&datagram, time_ns, headers));
        if let Ok(mut seen) = seen {
            edit(&mut seen.packet);
            meter.observe(found.packets, &seen, &mut found);
        }
        found.packets += 1;
    }
    meter.finish(&mut found);
    for samples in found.samples.iter_mut().flat_map(HashMap::values_mut) {
        samples.sort_by_key(|s| s.when_ns);
    }
    Ok(found)
}

/// Latencies of one flow, in order of time.
#[derive(Default)]
pub(crate) struct Flow {
    /// Wall time of the last byte, and latency.
    pub responses: Vec<(u64, u64)>,
    /// The same for the time from a request to the one that its response set off:
    /// when that was sent, how long it took, and the response's latency.
    pub triggered: Vec<(u64, u64, u64)>,
}

/// The flow of a connection of the log.
pub(crate) fn flow_key(log: &Log, connection: u32) -> FlowKey {
    let c = &log.connections[connection as usize];
    let (local, remote) = (c.local, c.remote);
    FlowKey::new(
        c.proto,
        local.ip(),
        local.port(),
        remote.ip(),
        remote.port(),
    )
}

/// What the clients measured, by flow.
pub(crate) fn truth(log: &Log) -> HashMap<FlowKey, Flow> {
    let wall = |ns: u64| ns.wrapping_add_signed(log.wall_offset_ns);
    let key = |connection| flow_key(log, connection);
    let mut flows: HashMap<FlowKey, Flow> = HashMap::new();
    for r in &log.responses {
        let flow = flows.entry(key(r.connection)).or_default();
        flow.responses.push((wall(r.last_ns), r.latency_ns()));
    }
    for (sent_ns, r) in crate::load::report::triggered(log) {
        let flow = flows.entry(key(r.connection)).or_default();
        let took_ns = sent_ns - r.send_ns;
        flow.triggered
            .push((wall(sent_ns), took_ns, r.latency_ns()));
    }
    for flow in flows.values_mut() {
        flow.responses.sort_unstable();
        flow.triggered.sort_unstable();
    }
    flows
}

/// Mean of values by epoch.
fn by_epoch(values: impl Iterator<Item = (u64, u64)>, epoch_ns: u64) -> BTreeMap<u64, f64> {
    let mut sums: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (at, value) in values {
        let sum = sums.entry(at - at % epoch_ns).or_default();
        *sum = (sum.0 + value, sum.1 + 1);
    }
    let mean = |(sum, count): (u64, u64)| sum as f64 / count as f64;
    sums.into_iter().map(|(at, sum)| (at, mean(sum))).collect()
}

/// The value below which a share of the sorted values lies.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let at = share * sorted.len().saturating_sub(1) as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    match (sorted.get(low), sorted.get(low + 1)) {
        (Some(a), Some(b)) => Some(a + (b - a) * part),
        (a, _) => a.copied(),
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values
}

fn share_pct(part: usize, of: usize) -> f64 {
    part as f64 * 100.0 / of.max(1) as f64
}

/// Relative errors by flow and epoch, in percent, with their grades.
struct Compared {
    by_flow: Vec<Vec<(f64, Quality)>>,
    /// Epochs with a truth.
    epochs: usize,
}

impl Compared {
    fn errors(&self) -> Errors {
        let all = self.by_flow.iter().flatten().map(|e| e.0);
        let signed = sorted(all.collect());
        let absolute = sorted(signed.iter().map(|e| e.abs()).collect());
        let flows = self.by_flow.iter().map(|flow| {
            let errors = sorted(flow.iter().map(|e| e.0.abs()).collect());
            quantile(&errors, 0.5)
        });
        let measured: Vec<f64> = flows.flatten().collect();
        let unmeasured_flows = self.by_flow.len() - measured.len();
        let worst = measured.into_iter().reduce(f64::max);
        Errors {
            epochs: signed.len(),
            answered_pct: share_pct(signed.len(), self.epochs),
            median_pct: quantile(&absolute, 0.5),
            bias_pct: quantile(&signed, 0.5),
            p10_pct: quantile(&signed, 0.1),
            p90_pct: quantile(&signed, 0.9),
            within10_pct: share_pct(absolute.partition_point(|e| *e < 10.0), absolute.len()),
            worst_flow_pct: worst.filter(|_| unmeasured_flows == 0),
            unmeasured_flows,
        }
    }

    /// The median of the absolute error of all epochs with responses; one without an estimate
    /// counts as 100 % off.
    fn median_of_all_pct(&self) -> Option<f64> {
        let errors = self.by_flow.iter().flatten().map(|e| e.0.abs());
        let mut all: Vec<f64> = errors.collect();
        all.resize(self.epochs, 100.0);
        quantile(&sorted(all), 0.5)
    }

    fn grades(&self) -> Vec<Grade> {
        let grade = |quality: Quality| {
            let all = self.by_flow.iter().flatten();
            let of: Vec<_> = all.filter(|e| e.1 == quality).map(|e| e.0).collect();
            Grade {
                quality: quality.name(),
                epochs: of.len(),
                within10_pct: share_pct(of.iter().filter(|e| e.abs() < 10.0).count(), of.len()),
            }
        };
        [Quality::Low, Quality::Medium, Quality::High]
            .map(grade)
            .into()
    }
}

fn compare(truth: &HashMap<FlowKey, Flow>, estimates: &Epochs, epoch_ns: u64) -> Compared {
    let mut compared = Compared {
        by_flow: Vec::new(),
        epochs: 0,
    };
    for (key, flow) in truth {
        let truths = by_epoch(flow.responses.iter().copied(), epoch_ns);
        compared.epochs += truths.len();
        let of_flow = estimates.get(key);
        let errors = truths.iter().filter_map(|(epoch, truth)| {
            let (mean, quality) = of_flow?.get(epoch)?;
            Some(((mean / truth - 1.0) * 100.0, *quality))
        });
        compared.by_flow.push(errors.collect());
    }
    compared
}

/// The median error in percent of each estimator, by epochs of the length that it ran with; one
/// without an estimate counts as 100 % off.
pub(crate) fn medians<const N: usize>(
    truth: &HashMap<FlowKey, Flow>,
    found: &Estimates<N>,
    epoch_ns: u64,
) -> Option<Vec<f64>> {
    let of = |epochs| compare(truth, epochs, epoch_ns).median_of_all_pct();
    found.epochs.iter().map(of).collect()
}

/// The same of the clients' own times from request to triggered request.
pub(crate) fn floor_median(truth: &HashMap<FlowKey, Flow>, epoch_ns: u64) -> Option<f64> {
    floor(truth, epoch_ns).median_of_all_pct()
}

/// What the clients' own times from request to triggered request would give.
fn floor(truth: &HashMap<FlowKey, Flow>, epoch_ns: u64) -> Compared {
    let estimates: Epochs = truth
        .iter()
        .map(|(key, flow)| {
            let triggered = flow.triggered.iter().map(|&(at, took, _)| (at, took));
            let means = by_epoch(triggered, epoch_ns).into_iter();
            (
                *key,
                means
                    .map(|(at, mean)| (at, (mean, Quality::High)))
                    .collect(),
            )
        })
        .collect();
    compare(truth, &estimates, epoch_ns)
}

fn response_errors(errors: Vec<f64>) -> ByResponse {
    let signed = sorted(errors);
    let within = signed.iter().filter(|e| e.abs() < 10.0).count();
    ByResponse {
        responses: signed.len(),
        median_pct: quantile(&signed, 0.5),
        p5_pct: quantile(&signed, 0.05),
        p95_pct: quantile(&signed, 0.95),
        within10_pct: share_pct(within, signed.len()),
    }
}

/// The first sample from a time on; `samples` are in order of time.
pub(crate) fn first_from(samples: &[Timed], from_ns: u64) -> Option<&Timed> {
    samples.get(samples.partition_point(|s| s.when_ns < from_ns))
}

/// Each response's latency in ns and the mean of the first sample of its flow from
/// its last byte on.
pub(crate) fn pair(flow: &Flow, samples: &[Timed]) -> Vec<(u64, f64)> {
    let responses = flow.responses.iter();
    responses
        .filter_map(|&(last_ns, latency_ns)| {
            Some((latency_ns, first_from(samples, last_ns)?.mean_ns))
        })
        .collect()
}

fn by_response(
    truth: &HashMap<FlowKey, Flow>,
    samples: &HashMap<FlowKey, Vec<Timed>>,
) -> ByResponse {
    let mut errors = Vec::new();
    for (key, flow) in truth {
        let samples = samples.get(key).map_or(&[][..], Vec::as_slice);
        let pairs = pair(flow, samples).into_iter();
        errors
            .extend(pairs.map(|(latency_ns, mean_ns)| (1.0 - mean_ns / latency_ns as f64) * 100.0));
    }
    response_errors(errors)
}

pub(crate) fn judge(recording: &Recording, epoch_ns: u64) -> Result<Judgement> {
    let log = &recording.log;
    ensure!(!log.responses.is_empty(), "the clients got no response");
    let truth = truth(log);
    let methods = [
        Method::WindowChain,
        Method::FixedGap(FixedGapConfig::default()),
        Method::Modes(ModesConfig::default()),
        Method::Modes(ModesConfig::paper(PAPER_EPSILON_NS)),
    ];
    let pcap = &recording.pcap;
    let clear = estimate(pcap, epoch_ns, Headers::Clear, methods, |_| ())?;
    let opaque_only = [Method::WindowChain];
    let opaque = estimate(pcap, epoch_ns, Headers::Opaque, opaque_only, |_| ())?;
    let errors = |epochs: &Epochs| compare(&truth, epochs, epoch_ns).errors();
    let main = compare(&truth, &clear.epochs[0], epoch_ns);
    let latencies = log.responses.iter().map(|r| r.latency_ns() as f64 / 1000.0);
    let triggered = truth.values().flat_map(|flow| &flow.triggered);
    let floor_errors =
        triggered.map(|&(_, took, latency)| (1.0 - took as f64 / latency as f64) * 100.0);
    Ok(Judgement {
        responses: log.responses.len(),
        packets: clear.packets,
        lost: recording.lost,
        flows: truth.len(),
        latency_p50_us: quantile(&sorted(latencies.collect()), 0.5),
        floor: floor(&truth, epoch_ns).errors(),
        window_chain: main.errors(),
        by_response: by_response(&truth, &clear.samples[0]),
        floor_by_response: response_errors(floor_errors.collect()),
        opaque: errors(&opaque.epochs[0]),
        fixed_gap: errors(&clear.epochs[1]),
        modes: errors(&clear.epochs[2]),
        modes_as_published: errors(&clear.epochs[3]),
        grades: main.grades(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_without_an_estimate_is_not_a_flow_without_an_error() {
        let of = |by_flow: Vec<Vec<f64>>| {
            let graded = |flow: Vec<f64>| flow.into_iter().map(|e| (e, Quality::High)).collect();
            let by_flow: Vec<Vec<_>> = by_flow.into_iter().map(graded).collect();
            Compared { by_flow, epochs: 4 }.errors()
        };
        let both = of(vec![vec![-1.0, -1.0], vec![3.0, 3.0]]);
        assert_eq!((both.worst_flow_pct, both.unmeasured_flows), (Some(3.0), 0));
        let one = of(vec![vec![-1.0, -1.0], vec![]]);
        assert_eq!((one.median_pct, one.worst_flow_pct), (Some(1.0), None));
        assert_eq!((one.answered_pct, one.unmeasured_flows), (50.0, 1));
        let none = of(vec![vec![], vec![]]);
        assert_eq!((none.median_pct, none.bias_pct), (None, None));
        assert_eq!(response_errors(Vec::new()).median_pct, None);
    }

    #[test]
    fn an_epoch_without_an_estimate_is_wholly_off() {
        let of = |errors: &[f64], epochs| {
            let graded = errors.iter().map(|e| (*e, Quality::High)).collect();
            let by_flow = vec![graded];
            Compared { by_flow, epochs }.median_of_all_pct()
        };
        assert_eq!(of(&[-2.0, 4.0, 300.0], 3), Some(4.0));
        assert_eq!(of(&[-2.0], 3), Some(100.0));
        assert_eq!((of(&[], 2), of(&[], 0)), (Some(100.0), None));
    }

    #[test]
    fn what_says_nothing_meets_no_target() {
        let judged = |errors: Errors| Judgement {
            responses: 1,
            packets: 1,
            lost: 0,
            flows: 1,
            latency_p50_us: None,
            floor: Errors::default(),
            window_chain: errors,
            by_response: ByResponse::default(),
            floor_by_response: ByResponse::default(),
            opaque: Errors::default(),
            fixed_gap: Errors::default(),
            modes: Errors::default(),
            modes_as_published: Errors::default(),
            grades: Vec::new(),
        };
        let answered = |median_pct, worst_flow_pct| {
            judged(Errors {
                answered_pct: 99.0,
                median_pct,
                worst_flow_pct,
                ..Errors::default()
            })
        };
        let (mut median, mut worst, mut signed) =
            (Target::default(), Target::default(), Target::default());
        median.median_pct = Some(5.0);
        worst.worst_flow_pct = Some(5.0);
        signed.signed_pct = Some(5.0);
        let (met, missed) = (AccuracyVerdict::Met, AccuracyVerdict::Missed);
        let near = answered(Some(1.0), Some(1.0));
        assert_eq!([&median, &worst].map(|of| verdict(of, &near)), [met, met]);
        let silent = answered(Some(1.0), None);
        assert_eq!(
            [&median, &worst].map(|of| verdict(of, &silent)),
            [met, missed]
        );
        assert_eq!(verdict(&median, &answered(None, None)), missed);
        assert_eq!(verdict(&signed, &near), missed);
    }
}
