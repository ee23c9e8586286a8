// SPDX-License-Identifier: Apache-2.0
//! What the meter does around an estimator, for the native one.

use std::collections::BTreeMap;

use causeway_core::estimate::{Estimator, Method, Packet, Sample, Samples};
use causeway_dataplane::abi::{MeterRecord, MeterSums};

use crate::frames::Flow;

/// A packet that is this much older than one before it shows a clock that was put back.
const PUT_BACK_NS: u64 = 10_000_000;

struct State {
    estimator: Estimator,
    sums: MeterSums,
    /// Time of the last packet that may carry a request, for modes.
    last_ns: u64,
}

pub(crate) struct Native {
    method: Method,
    epoch_ns: u64,
    flows: BTreeMap<Flow, State>,
    records: Vec<MeterRecord>,
}

impl Native {
    pub(crate) fn new(method: &Method, epoch_ns: u64) -> Self {
        Self {
            method: method.clone(),
            epoch_ns,
            flows: BTreeMap::new(),
            records: Vec::new(),
        }
    }

    pub(crate) fn packet(&mut self, flow: Flow, packet: &Packet) {
        let packet = flow.adapt(packet);
        let state = self.flows.entry(flow).or_insert_with(|| State {
            estimator: Estimator::new(&self.method),
            sums: MeterSums::default(),
            last_ns: 0,
        });
        state.sums.packets += 1;
        let mut ended = Samples::default();
        if let Estimator::Modes(modes) = &mut state.estimator {
            let epoch_ns = self.epoch_ns;
            if state.last_ns > 0 && state.last_ns / epoch_ns != packet.t_ns / epoch_ns {
                ended = modes.end_epoch();
            }
            if counts(&packet) {
                state.last_ns = match state.last_ns.saturating_sub(packet.t_ns) < PUT_BACK_NS {
                    true => state.last_ns.max(packet.t_ns),
                    false => packet.t_ns,
                };
            }
        }
        let given = state.estimator.packet(&packet);
        let samples = ended.iter().chain(given.iter());
        let sums = &mut state.sums;
        let mut ended: Vec<_> = samples
            .filter_map(|sample| add(sums, sample, self.epoch_ns))
            .collect();
        if ends(&packet) {
            ended.extend(end_epoch(sums));
        }
        let record = |sums: MeterSums| MeterRecord {
            key: flow.key(),
            epoch: sums.epoch,
            sum_halves_ns: sums.sum_halves_ns,
            weight_halves: sums.weight_halves,
            bound_halves: sums.bound_halves,
            window: sums.window,
            narrow: sums.narrow,
            ..MeterRecord::default()
        };
        self.records.extend(ended.into_iter().map(record));
    }

    /// Records since the last call.
    pub(crate) fn records(&mut self) -> Vec<MeterRecord> {
        std::mem::take(&mut self.records)
    }

    pub(crate) fn flows(&self) -> impl Iterator<Item = (Flow, MeterSums, Vec<u8>)> {
        self.flows.iter().map(|(flow, state)| {
            let bytes = match &state.estimator {
                Estimator::WindowChain(flow) => flow.state().to_bytes().to_vec(),
                Estimator::FixedGap(flow) => flow.state().to_bytes().to_vec(),
                Estimator::Modes(flow) => flow.state().to_bytes().to_vec(),
            };
            (*flow, state.sums, bytes)
        })
    }
}

/// Whether the packet is one that modes look at.
fn counts(packet: &Packet) -> bool {
    let closing = Packet::FIN | Packet::SYN | Packet::RST;
    match packet.proto {
        Packet::TCP => packet.payload_len > 0 && packet.tcp_flags & closing == 0,
        _ => packet.payload_len >= 50,
    }
}

/// Whether the client closes its connection.
fn ends(packet: &Packet) -> bool {
    let closes = packet.tcp_flags & (Packet::FIN | Packet::RST) != 0;
    packet.proto == Packet::TCP && !packet.opaque && closes && packet.tcp_flags & Packet::SYN == 0
}

/// Begins new sums; gives those until now, if there are any.
fn end_epoch(sums: &mut MeterSums) -> Option<MeterSums> {
    let ended = *sums;
    *sums = MeterSums {
        packets: ended.packets,
        epoch: ended.epoch,
        ..MeterSums::default()
    };
    (ended.weight_halves > 0).then_some(ended)
}

/// Adds a sample; gives the sums of an epoch that it ends.
fn add(sums: &mut MeterSums, sample: &Sample, epoch_ns: u64) -> Option<MeterSums> {
    let epoch = sample.when_ns / epoch_ns;
    let ended = match sums.epoch == epoch {
        true => None,
        false => end_epoch(sums),
    };
    sums.epoch = epoch;
    sums.sum_halves_ns += sample.sum_halves_ns;
    sums.weight_halves += u64::from(sample.weight_halves);
    match sample.systematic {
        Sample::NARROW => sums.narrow = 1,
        _ => sums.bound_halves += u32::from(sample.bound_halves),
    }
    sums.window = sums.window.max(sample.window);
    ended
}
